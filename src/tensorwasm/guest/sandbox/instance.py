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
from tensorwasm.finalizing import finalize_later, prepare_finalizing
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.engine import capi, codec
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.module import INITIALISE, CallPlan, check_declared
from tensorwasm.guest.memory.linear_memory import GuestMemory
from tensorwasm.guest.native.session_layouts import return_layout
from tensorwasm.guest.sandbox import stack, wasi
from tensorwasm.guest.sandbox.exports import Exports
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.state import (
    ON_EPOCH_AT,
    START_CEILING_S,
    GuestState,
    close_store,
    earlier,
    open_store,
    take_outcome,
)
from tensorwasm.guest.sandbox.wasi import NO_WASI, WasiConfig
from tensorwasm.guest.sandbox.wasi_io import GuestOutput
from tensorwasm.values import Deadline, Limits

_NO_SERVICES: Final[Mapping[str, object]] = MappingProxyType({})
_USUAL: Final = Limits()


_InstanceRecord: Final = ctypes.c_char * capi.SIZES["wasmtime_instance_t"]

_abandoned: Final[dict[int, LinkedModule]] = {}
"""Stores whose memory a device may still reach: kept with their slots, because they can never be deleted safely."""


class Instance:
    """One sandbox, made by instantiating a linked module. Close it, or use it as a context manager: it holds a slot.

    It runs one call at a time: a second thread waits, within its own deadline. A host function may not call back into
    the sandbox that called it. After a trap or a timeout the sandbox may be called again, with its memory as the guest
    left it. ``initialised`` says that ``_initialize`` of a reactor has been run, here or before its state was saved.
    """

    initialised = False
    _owner = _spent_ns = _store = 0

    def __init__(
        self,
        linked: LinkedModule,
        *,
        limits: Limits | None = None,
        services: Mapping[str, object] = _NO_SERVICES,
        wasi_config: WasiConfig = NO_WASI,
        deadline: Deadline | None = None,
        drain: Callable[[], bool] | None = None,
        layout: SessionLayout | None = None,
        announce: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Instantiate, running the start function if the module has one. Raises what `call` raises, too.

        The start function must have ended by the deadline, and within ``limits.wall_s`` and 30 s. ``drain`` is called
        once, before the sandbox's pages go back to the pool, however it ended; it returns False if a device may still
        reach them: they are then never used again. The session layout for compiled host functions is owned
        from now on and recycled after ``drain``. ``announce`` gets, before the start function runs, a function that
        ends it from any thread. Of the limits, ``stack_bytes`` and ``module_bytes`` concern only the engine.

        Raises:
            CapacityExhausted: the pool is full, or this thread's stack is too small.
            InvalidArgs: the WASI configuration holds something that cannot be given to a guest.
            InternalError: compiled host functions are linked, and there is no session layout.
        """
        self.module, self.limits = linked.module, limits or _USUAL
        self._linked, self._drain = linked, drain
        if drain is not None:
            prepare_finalizing()  # for `__del__`
        self._frames: dict[str, ctypes.Array[ctypes.c_char]] = {}
        self._trap, self._lock = ctypes.c_size_t(), threading.Lock()
        try:
            self._admit(services, layout)
        except BaseException:
            if layout is not None and (drain is None or drain()):
                return_layout(layout)
            raise
        try:
            self._store = open_store(self._state, self.limits)
            KEEPING.wasmtime_store_epoch_deadline_callback(self._store, ON_EPOCH_AT, self._state.token, None)
            if linked.needs_wasi:
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
        if not self._store:
            return
        if self._drain is None:
            self.close()
        else:  # a session's end takes locks, and waits for the device
            finalize_later(self.close)

    @property
    def memory(self) -> GuestMemory:
        """The guest's exported memory, for use between calls; see `GuestState.memory`."""
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

    def call(self, export: str, args: Sequence[object] = (), *, deadline: Deadline | None = None) -> list[codec.Number]:
        """Call an exported function, which must have ended by the deadline and within ``limits.wall_s``.

        Returns its results; nothing if the guest ended with ``proc_exit(0)``, in this call or before the first. A
        reactor's ``_initialize`` is not run a second time.

        Raises:
            MissingExport: no exported function of that name.
            InvalidArgs: the arguments do not fit (see `codec.encode`), or the host cannot pass a type of the signature.
            GuestTrap: the guest trapped, or was cancelled.
            GuestExit: the guest exited with a code other than 0.
            InvokeTimeout: the deadline passed.
            TickerNotRunning: no ticks arrive, so deadlines could not be kept.
            InternalError: the sandbox is closed, or a host function failed or called back into it.
            TensorWasmError: what a host function raised.
        """
        return self._run(export, args, deadline) or []

    def initialise(self, exports: Sequence[str], deadline: Deadline | None) -> None:
        """Call exports without parameters and results before the first `call`, within one deadline; on an error close.

        ``proc_exit(0)`` there has the same effect as in a start function.
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
        """Do what `call` does; return None if the guest ended with ``proc_exit(0)`` in this call."""
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
                RELEASING.wasmtime_func_call_unchecked,
                context,
                address + capi.EXTERN_PAYLOAD_OFFSET,
                address + plan.CELLS,
                plan.cell_count,
                ctypes.byref(self._trap),
            )
            if take_outcome(self._state, self._trap, error):
                return None
            return codec.decode(plan.results, plan.unpack(frame, plan.CELLS)) if plan.results else []
        finally:
            self._leave()

    @contextmanager
    def resting(self) -> Iterator[Exports]:
        """Prevent calls, and yield the exports to read and set meanwhile.

        Raises `NotCapturable` if a call is in progress, the sandbox was never made, or it is closed.
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
        """Assign a pooled sandbox to a caller, before the first call.

        Output of the start function is written now; arguments and environment must be those that it saw. The guest's
        monotonic clock begins at 0 again. Raises what `wasi.renew` raises, and `InternalError` if the sandbox is closed
        or in use.
        """
        if not self._lock.acquire(blocking=False):
            raise InternalError("a sandbox that is in use cannot be given to another caller")
        try:
            self._require_open()
            state = self._state
            state.services = services
            if self._linked.needs_wasi:
                state.wasi = wasi.renew(state, wasi_config, self.limits.output_bytes)
        finally:
            self._lock.release()

    def cancel(self) -> None:
        """End the running call and refuse later ones, from any thread. They raise `GuestTrap` named ``cancelled``."""
        self._state.cancel()

    def resume(self) -> None:
        """Allow calls again after `cancel`, once a call in progress has ended. Not for its host functions."""
        if self._owner == threading.get_ident():
            raise InternalError("a host function tried to resume the sandbox that called it")
        with self._lock:
            self._state.resume()

    def close(self) -> None:
        """Free everything and release the slot, after cancelling a running call. Idempotent.

        Host functions of its own must not call this: they get `InternalError`.
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
                _abandoned[store] = self._linked  # stays so if the drain raises
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
            if self._state.layout is not None:
                return_layout(self._state.layout)
            if self._state.error is not None:  # a signal's handler raised it while the store was deleted
                raise self._state.error

    def _admit(self, services: Mapping[str, object], layout: SessionLayout | None) -> None:
        if self.module.admitted is not self.limits:
            check_declared(self.module.preamble, self.limits)
            self.module.admitted = self.limits
        if self._linked.needs_layout and layout is None:
            raise InternalError("a sandbox that may call compiled host functions needs a session layout")
        self._state = GuestState(self.module.engine, services, layout, self.module.lines)
        self.module.engine.reserve_slot()

    def _instantiate(self, deadline: Deadline | None) -> None:
        state, instance = self._state, _InstanceRecord()
        arguments = (self._linked.address, state.context, instance, ctypes.byref(self._trap))
        if self.module.is_quick:
            # No guest code runs, and no other thread knows the sandbox yet: neither the lock nor a deadline is needed.
            stack.require(self.module.engine.config.stack_bytes)
            if deadline is not None and deadline.expired():
                raise InvokeTimeout("the deadline passed before the sandbox was made")
            make = KEEPING.wasmtime_instance_pre_instantiate
            error = shielded(state, make, *arguments) if self.module.engine.config.calls_python else make(*arguments)
            if not take_outcome(state, self._trap, error):
                state.instance = instance
            return
        self._enter(deadline, min(self.limits.wall_s, START_CEILING_S))
        try:
            error = shielded(state, RELEASING.wasmtime_instance_pre_instantiate, *arguments)
            if not take_outcome(state, self._trap, error):
                state.instance = instance
        finally:
            self._leave()

    def _enter(self, deadline: Deadline | None, ceiling_s: float) -> int:
        """Reserve the sandbox for one call and arm its deadline, until `_leave`. Returns the store's context."""
        if self._owner == threading.get_ident():
            raise InternalError("a host function called back into the sandbox that called it")
        state, engine = self._state, self.module.engine
        engine.require_ticker()
        stack.require(engine.config.stack_bytes)
        started_ns = time.monotonic_ns()
        end_ns = earlier(deadline, started_ns, ceiling_s)
        if not self._lock.acquire(blocking=False):
            wait_s = min(Deadline(end_ns).remaining_s(), threading.TIMEOUT_MAX)
            if not self._lock.acquire(timeout=wait_s):
                raise InvokeTimeout("the deadline passed while another call was using the sandbox")
        try:
            self._require_open()
            state.arm(started_ns, end_ns)
            # Armed first and looked at second: a cancel in between is seen, either here or by the guest.
            KEEPING.wasmtime_context_set_epoch_deadline(state.context, engine.ticks(end_ns))
            state.check()
        except BaseException:
            self._lock.release()
            raise
        self._owner = threading.get_ident()
        return state.context

    def _require_open(self) -> None:
        if not self._store:
            raise InternalError("the sandbox is closed")

    def _leave(self) -> None:
        self._spent_ns += time.monotonic_ns() - self._state.started_ns
        self._owner = 0
        self._lock.release()

    def _find(self, name: str, plan: CallPlan) -> ctypes.Array[ctypes.c_char]:
        frame = plan.frame_type()
        encoded = name.encode()
        if not KEEPING.wasmtime_instance_export_get(
            self._state.context, self._state.instance, encoded, len(encoded), frame
        ):
            raise InternalError(f"the export {name[:80]!r} is missing")
        self._frames[name] = frame
        return frame
