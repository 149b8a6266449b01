"""A sandbox: one store with one instance of one module."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, Self

from tensorwasm.errors import InternalError, InvokeTimeout, NotCapturable
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.engine import capi, codec
from tensorwasm.guest.engine.module import INITIALISE, CallPlan, check_declared
from tensorwasm.guest.memory.linear_memory import GuestMemory
from tensorwasm.guest.native.session_layouts import recycle_pad
from tensorwasm.guest.sandbox import stack, wasi
from tensorwasm.guest.sandbox.exports import Exports
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import Prepared
from tensorwasm.guest.sandbox.output import GuestOutput
from tensorwasm.guest.sandbox.state import ON_EPOCH_AT, GuestState
from tensorwasm.guest.sandbox.store import START_CEILING_S, close_store, earlier, is_quick, open_store, take_outcome
from tensorwasm.guest.sandbox.wasi import NO_WASI, WasiConfig
from tensorwasm.values import Deadline, Limits
from tensorwasm.wasm.declarations import Export

_NO_SERVICES: Final[Mapping[str, object]] = MappingProxyType({})
_USUAL: Final = Limits()

_store_epoch_callback: Final = capi.bind("wasmtime_store_epoch_deadline_callback")
_set_epoch_deadline: Final = capi.bind("wasmtime_context_set_epoch_deadline")
_instantiate: Final = capi.bind("wasmtime_instance_pre_instantiate")
_instantiate_slowly: Final = capi.bind_releasing("wasmtime_instance_pre_instantiate")
_instance_export_get: Final = capi.bind("wasmtime_instance_export_get")
_func_call: Final = capi.bind_releasing("wasmtime_func_call_unchecked")


_InstanceRecord: Final = ctypes.c_char * capi.SIZES["wasmtime_instance_t"]

_abandoned: Final[dict[int, Prepared]] = {}
"""Stores whose memory something outside may still reach: kept, slot and all, because no moment would be safe."""


class Instance:
    """One sandbox, made by instantiating a prepared module.

    Calls are taken one at a time, whoever makes them: a second thread waits, within its own deadline. A host function
    may not call back into the sandbox that called it. After a trap or a timeout the sandbox may be called again, with
    its memory as the guest left it. Close it, or use it as a context manager: it holds a slot of the pool.

    Attributes:
        module: its code.
        limits: what it may use.
        initialised: it is a reactor whose ``_initialize`` has been run, here or before its state was saved.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        limits: Limits | None = None,
        services: Mapping[str, object] = _NO_SERVICES,
        wasi_config: WasiConfig = NO_WASI,
        deadline: Deadline | None = None,
        drain: Callable[[], bool] | None = None,
        pad: SessionLayout | None = None,
        announce: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Instantiate, running the start function if the module has one.

        Args:
            prepared: the module with its imports resolved.
            limits: what the sandbox may use; ``stack_bytes`` and ``module_bytes`` were the engine's business.
            services: what host functions find with `HostCall.service`.
            wasi_config: what the guest gets through WASI.
            deadline: when the start function must have ended; never later than ``limits.wall_s`` or 30 s from now.
            drain: called once, before the sandbox's pages go back to the pool, whatever ended it. False means that
                something outside may still reach them: they are then never used again.
            pad: for compiled host functions, from `tensorwasm.guest.native.session_layouts`; recycled when the sandbox
                has gone, after ``drain``. Nobody else may use it then.
            announce: told what ends the start function, from any thread, before that runs.

        Raises:
            CapacityExhausted: the pool is full, or this thread's stack is too small.
            TickerNotRunning: deadlines could not be kept.
            InvalidArgs: the WASI configuration holds something a guest cannot get.
            GuestTrap: the start function, or copying the module's data, trapped.
            GuestExit: the start function exited with a code other than 0.
            InvokeTimeout: the start function ran into the deadline.
            InternalError: compiled host functions are linked, and there is no pad.
        """
        self.module = prepared.module
        self.limits = limits or _USUAL
        self._prepared = prepared
        self._frames: dict[str, ctypes.Array[ctypes.c_char]] = {}
        self._trap = ctypes.c_size_t()
        self._lock = threading.Lock()
        self._drain = drain
        self._owner = 0
        self._spent_ns = 0
        self._store = 0
        self.initialised = False
        try:
            self._admit(prepared, services, pad)
        except BaseException:
            if pad is not None and (drain is None or drain()):
                recycle_pad(pad)
            raise
        try:
            self._open()
            if prepared.needs_wasi:
                self._state.wasi = wasi.attach(self._state, wasi_config, self.limits.output_bytes)
            if announce is not None:
                announce(self.cancel)
            self._instantiate(deadline)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_store", 0):
            self.close()

    @property
    def memory(self) -> GuestMemory:
        """The guest's exported memory, for use between calls.

        Raises:
            InvalidPointer: it exports no memory named ``memory``, or the sandbox is closed.
        """
        return self._state.memory

    @property
    def stdout(self) -> GuestOutput | None:
        """Standard output, None for a module that does not use WASI."""
        return self._state.wasi.stdout if self._state.wasi else None

    @property
    def stderr(self) -> GuestOutput | None:
        """Standard error, None for a module that does not use WASI."""
        return self._state.wasi.stderr if self._state.wasi else None

    @property
    def closed(self) -> bool:
        """Whether the sandbox is gone."""
        return not self._store

    def exports(self) -> Mapping[str, Export]:
        """Return the module's exports by name."""
        return self.module.exports

    def call(self, export: str, args: Sequence[object] = (), *, deadline: Deadline | None = None) -> list[codec.Number]:
        """Call an exported function.

        Args:
            export: its name.
            args: its arguments, as `tensorwasm.guest.engine.codec` takes them.
            deadline: when it must have ended; never later than ``limits.wall_s`` from now.

        Returns:
            Its results; nothing if the guest left through ``proc_exit(0)``, in this call or before the first. A
            reactor's ``_initialize`` is not run a second time.

        Raises:
            MissingExport: no exported function of that name.
            InvalidArgs: the arguments do not fit, or the signature has types that cannot cross the border.
            GuestTrap: the guest trapped, or was cancelled.
            GuestExit: the guest exited with a code other than 0.
            InvokeTimeout: the deadline passed.
            TickerNotRunning: deadlines could not be kept.
            InternalError: the sandbox is closed, or a host function failed or called back into it.
            TensorWasmError: what a host function raised.
        """
        return self._run(export, args, deadline) or []

    def initialise(self, exports: Sequence[str], deadline: Deadline | None) -> None:
        """Call what comes before all other exports, before the first `call`.

        A guest that leaves through ``proc_exit(0)`` there is as one that leaves so in its start function.

        Args:
            exports: functions without parameters and results, in their order.
            deadline: when they must have ended; each never later than ``limits.wall_s`` from its start.

        Raises:
            TensorWasmError: what `call` raises; the sandbox is closed then.
        """
        try:
            for export in exports:
                if self._run(export, (), deadline) is None:
                    self._state.instance = None
        except BaseException:
            self.close()
            raise
        self.initialised = INITIALISE in exports

    def _run(self, export: str, args: Sequence[object], deadline: Deadline | None) -> list[codec.Number] | None:
        """Do what `call` does; return None if the guest left in this call."""
        context = self._enter(deadline, self.limits.wall_s)
        try:
            plan = self.module.plan(export)
            if self._state.instance is None or (self.initialised and export == INITIALISE):
                return []
            frame = self._frames.get(export) or self._find(export, plan)
            if args or plan.params:
                plan.write(frame, plan.CELLS, args)
            address = ctypes.addressof(frame)
            error = shielded(
                self._state,
                _func_call,
                context,
                address + capi.EXTERN_PAYLOAD_OFFSET,
                address + plan.CELLS,
                plan.cell_count,
                ctypes.byref(self._trap),
            )
            if self._ended(error):
                return None
            return codec.decode(plan.results, plan.unpack(frame, plan.CELLS)) if plan.results else []
        finally:
            self._leave()

    @contextmanager
    def resting(self) -> Iterator[Exports]:
        """Keep the sandbox from being called, and yield what can be read and set of it meanwhile.

        Raises:
            NotCapturable: a call is in progress, the sandbox was never made, or it is closed.
        """
        if not self._lock.acquire(blocking=False):
            raise NotCapturable("a call is in progress: an instance is saved between two calls")
        try:
            if not self._store or self._state.instance is None:
                raise NotCapturable("the sandbox is closed, or its guest has left before it was made")
            yield Exports(self._state.context, self._state.instance)
        finally:
            self._lock.release()

    def renew(self, services: Mapping[str, object], wasi_config: WasiConfig) -> None:
        """Give a sandbox that was made for nobody in particular to a caller, before the first call.

        What the start function wrote is written now. The monotonic clock that the guest sees begins at 0 again.

        Args:
            services: as in `Instance`.
            wasi_config: likewise; arguments and environment as the start function saw them.

        Raises:
            InvalidArgs: the WASI configuration holds something a guest cannot get.
            InternalError: the sandbox is closed or in use, or a sink failed.
            TensorWasmError: what a sink raised.
        """
        if not self._lock.acquire(blocking=False):
            raise InternalError("a sandbox that is in use cannot be given to another caller")
        try:
            self._require_open()
            state = self._state
            state.begin(services)
            if self._prepared.needs_wasi:
                state.wasi = wasi.renew(state, wasi_config, self.limits.output_bytes)
        finally:
            self._lock.release()

    def cancel(self) -> None:
        """End the running call and refuse later ones, from any thread. They raise `GuestTrap` named ``cancelled``."""
        self._state.cancel()

    def resume(self) -> None:
        """Take calls again after `cancel`; a call in progress is waited for.

        Raises:
            InternalError: a host function of its own called this.
        """
        if self._owner == threading.get_ident():
            raise InternalError("a host function tried to resume the sandbox that called it")
        with self._lock:
            self._state.resume()

    def close(self) -> None:
        """Free everything and give the slot back. A second call does nothing; a running call is cancelled first.

        Raises:
            InternalError: a host function tried to close the sandbox that called it.
        """
        if self._owner == threading.get_ident():
            raise InternalError("a host function tried to close the sandbox that called it")
        if self._lock.locked():
            self.cancel()
        with self._lock:
            store, self._store = self._store, 0
            if not store:
                return
            if self._drain is not None:
                _abandoned[store] = self._prepared  # until the drain has said otherwise, should it raise
                if not self._drain():
                    return
                del _abandoned[store]
            self._state.close()
            self._frames.clear()
            self._state.error = None
            if self.module.engine.config.calls_python:
                shielded(self._state, close_store, store, self._spent_ns)
            else:
                close_store(store, self._spent_ns)
            self.module.engine.release_slot()
            if self._state.pad is not None:
                recycle_pad(self._state.pad)
            if self._state.error is not None:  # a signal's handler raised it meanwhile
                raise self._state.error

    def _admit(self, prepared: Prepared, services: Mapping[str, object], pad: SessionLayout | None) -> None:
        """Take a slot for the sandbox, once it is known to fit its limits."""
        if self.module.admitted is not self.limits:
            check_declared(self.module.preamble, self.limits)
            self.module.admitted = self.limits
        if prepared.needs_pad and pad is None:
            raise InternalError("a sandbox that may call compiled host functions needs a pad")
        self._state = GuestState(self.module.engine, services, pad, self.module.lines)
        self.module.engine.reserve_slot()

    def _open(self) -> None:
        self._store = open_store(self._state, self.limits)
        _store_epoch_callback(self._store, ON_EPOCH_AT, self._state.token, None)

    def _instantiate(self, deadline: Deadline | None) -> None:
        state, instance = self._state, _InstanceRecord()
        arguments = (self._prepared.address, state.context, instance, ctypes.byref(self._trap))
        if is_quick(self.module):
            # Nothing of the guest runs and nobody else knows the sandbox yet: no turn to take, no clock to arm.
            stack.require(self.module.engine.config.stack_bytes)
            if deadline is not None and deadline.expired():
                raise InvokeTimeout("the deadline passed before the sandbox was made")
            calls_python = self.module.engine.config.calls_python
            error = shielded(state, _instantiate, *arguments) if calls_python else _instantiate(*arguments)
            if not self._ended(error):
                state.instance = instance
            return
        self._enter(deadline, min(self.limits.wall_s, START_CEILING_S))
        try:
            if not self._ended(shielded(state, _instantiate_slowly, *arguments)):
                state.instance = instance
        finally:
            self._leave()

    def _enter(self, deadline: Deadline | None, ceiling_s: float) -> int:
        """Take the sandbox for one call and arm its deadline; `_leave` gives it back. Returns the store's context."""
        if self._owner == threading.get_ident():
            raise InternalError("a host function called back into the sandbox that called it")
        state, engine = self._state, self.module.engine
        engine.require_ticker()
        stack.require(engine.config.stack_bytes)
        started_ns = time.monotonic_ns()
        end_ns = earlier(deadline, started_ns, ceiling_s)
        if not self._lock.acquire(blocking=False):
            self._wait_for_turn(end_ns)
        try:
            self._require_open()
            state.arm(started_ns, end_ns)
            # Armed first and looked at second: a cancel in between is seen, either here or by the guest.
            _set_epoch_deadline(state.context, engine.ticks(end_ns))
            state.check()
        except BaseException:
            self._lock.release()
            raise
        self._owner = threading.get_ident()
        return state.context

    def _wait_for_turn(self, end_ns: int | None) -> None:
        if not self._lock.acquire(timeout=min(Deadline(end_ns).remaining_s(), threading.TIMEOUT_MAX)):
            raise InvokeTimeout("the deadline passed while another call was using the sandbox")

    def _require_open(self) -> None:
        if not self._store:
            raise InternalError("the sandbox is closed")

    def _leave(self) -> None:
        self._spent_ns += time.monotonic_ns() - self._state.started_ns
        self._owner = 0
        self._lock.release()

    def _ended(self, error: int | None) -> bool:
        """Raise what went wrong; return whether the guest left through ``proc_exit(0)``."""
        return take_outcome(self._state, self._trap, error)

    def _find(self, name: str, plan: CallPlan) -> ctypes.Array[ctypes.c_char]:
        frame = plan.frame_type()
        encoded = name.encode()
        if not _instance_export_get(self._state.context, self._state.instance, encoded, len(encoded), frame):
            raise InternalError(f"the export {name[:80]!r} vanished")
        self._frames[name] = frame
        return frame
