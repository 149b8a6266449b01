"""A sandbox that runs as a fiber: while its guest waits, it holds no thread.

wasmtime runs an asynchronous call on a stack of its own and returns a future. Polling the future runs the guest until
it waits in a host function, its time slice is over, or it ends. Deleting the future unwinds the stack.

Source: wasmtime.h, ``wasmtime_func_call_async``, ``wasmtime_call_future_poll``.
"""

from __future__ import annotations

import ctypes
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import SessionLayout, Wait
from tensorwasm.guest.engine import capi, codec
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.module import INITIALISE, PLAIN, CallPlan, check_declared
from tensorwasm.guest.imports.suspension import Steps, SuspensionKind
from tensorwasm.guest.native.session_layouts import SCRATCH, return_layout
from tensorwasm.guest.sandbox import stack, wasi
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.state import GuestState, close_store, earlier, open_store, take_outcome
from tensorwasm.guest.sandbox.suspended_call import WaitingFunction
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.guest.sandbox.wasi_io import GuestOutput
from tensorwasm.values import Deadline, Limits

SLICE_TICKS: Final = 1
"""Ticks of the engine's clock in a guest's time slice."""

# Written by wasmtime while a future lives, in one piece of memory: instance, function, trap, error.
_INSTANCE: Final = 0
_FUNCTION: Final = capi.SIZES["wasmtime_instance_t"]
_TRAP: Final = _FUNCTION + capi.SIZES["wasmtime_extern_t"]
_ERROR: Final = _TRAP + 8
_FRAME_BYTES: Final = _ERROR + 8
_Instance: Final = ctypes.c_char * capi.SIZES["wasmtime_instance_t"]
_STRIDE: Final = capi.SIZES["wasmtime_val_t"]
_PAYLOAD: Final = capi.VALUE_PAYLOAD_OFFSET
_VALUE: Final = struct.Struct(f"<B7xQ{_STRIDE - 16}x")
_BITS: Final = struct.Struct("<Q")
_SIGNED: Final = {"i32": "i4x", "i64": "q"}
_PACKERS: Final = {kind: struct.Struct(f"<{code}").pack_into for kind, code in _SIGNED.items()}

_abandoned: Final[list[Fiber]] = []
"""Sandboxes whose memory a device may still reach: kept with their slots, because they can never be deleted safely."""


class ValueVector:
    """Arguments and results of an asynchronous call as ``wasmtime_val_t``, and their addresses."""

    __slots__ = ("_memory", "_offsets", "_plan", "_read", "params", "results")

    def __init__(self, plan: CallPlan) -> None:
        self._plan = plan
        zeros, self._offsets, self._read = _vector_shape(plan.params, plan.results)
        self._memory = ctypes.create_string_buffer(zeros, len(zeros))
        self.params = ctypes.addressof(self._memory)
        self.results = self.params + len(plan.params) * _STRIDE

    def write(self, args: Sequence[object]) -> None:
        """Store arguments as `tensorwasm.guest.engine.codec.encode` takes them, which raises if they do not fit."""
        if self._offsets is None or len(args) != len(self._offsets) or not PLAIN.issuperset(map(type, args)):
            self._write(codec.encode(self._plan.params, args))
            return
        try:
            for (pack, at), value in zip(self._offsets, args, strict=True):
                pack(self._memory, at, value)
        except struct.error:  # an unsigned number, or one that does not fit
            self._write(codec.encode(self._plan.params, args))

    def read(self) -> Sequence[codec.Number]:
        """Return the results."""
        results, start = self._plan.results, self.results - self.params
        if self._read is not None:
            found: tuple[int, ...] = self._read(self._memory, start)
            return found
        cells = [_VALUE.unpack_from(self._memory, start + index * _STRIDE)[1] for index in range(len(results))]
        return codec.decode(results, cells)

    def _write(self, bits: Sequence[int]) -> None:
        for index, value in enumerate(bits):
            _BITS.pack_into(self._memory, index * _STRIDE + _PAYLOAD, value)


@lru_cache(maxsize=1024)
def _vector_shape(
    params: tuple[str, ...], results: tuple[str, ...]
) -> tuple[bytes, list[tuple[Callable[..., None], int]] | None, Callable[..., tuple[int, ...]] | None]:
    """Return a vector of zeros, and for signatures of integers how to store arguments and to read results."""
    zeros = b"".join(_VALUE.pack(capi.VALUE_KINDS[kind], 0) for kind in params)
    offsets = read = None
    if _SIGNED.keys() >= set(params):
        offsets = [(_PACKERS[kind], index * _STRIDE + _PAYLOAD) for index, kind in enumerate(params)]
    if _SIGNED.keys() >= set(results):
        shape = "".join(f"{_PAYLOAD}x{_SIGNED[kind]}{_STRIDE - 16}x" for kind in results)
        read = struct.Struct(f"<{shape}").unpack_from
    return zeros + bytes(max(1, len(results)) * _STRIDE), offsets, read


class SuspendableSandbox(ABC):
    """What sandboxes on fibers have in common.

    ``long`` says that the guest was suspended at the end of its first slice
    (`tensorwasm.guest.reactor.preemption_timer`), ``spent_ns`` how long it has run. ``values`` has the results once the
    call has ended, and ``wait`` what the guest left in its session layout on being suspended.
    """

    __slots__ = ("_linked", "long", "spent_ns", "state", "values", "wait")

    def __init__(self, linked: LinkedModule, state: GuestState, wait: Wait) -> None:
        self._linked = linked
        self.long = False
        self.spent_ns = 0
        self.state = state
        self.values: Sequence[codec.Number] = []
        self.wait = wait

    @property
    def waits(self) -> bool:
        """Whether the suspended guest needs the answer of a host function before it can go on."""
        return self.wait.kind != SuspensionKind.NOTHING and not self.wait.done

    def enter_thread(self) -> None:
        """Prepare for running the guest on the calling thread; it may have run on another one before."""
        if self.state.layout is not None:
            self.state.layout.scratch = SCRATCH.address

    def count_device_wait(self, waited_ns: int) -> None:
        """Count a time in which the suspended guest has waited for its device."""
        if self.state.layout is not None:
            self.state.layout.waited_ns += waited_ns

    def steps(self) -> tuple[WaitingFunction, Steps]:
        """Return the host function that the guest waits for, and the steps to its answer."""
        if self._linked.waiting is None:
            raise InternalError("the module is not linked for fibers")
        function = self._linked.waiting[self.wait.function]
        return function, function.begin(self.state, self.wait)

    def _advance(self, function: Callable[[int], int], argument: int) -> int:
        """Call a C function that runs the guest on its fiber; return what it returns."""
        started_ns, thread = time.monotonic_ns(), stack.THREAD
        if thread.fiber:
            raise InternalError(stack.ON_FIBER)
        thread.fiber = True
        try:
            # Without imports, no Python code is called that a signal's handler could interrupt.
            done: int = function(argument) if self._linked.guarded else shielded(self.state, function, argument)
        finally:
            thread.fiber = False
        self.spent_ns += time.monotonic_ns() - started_ns
        return done

    @abstractmethod
    def run(self, *, briefly: bool = False) -> bool:
        """Run the guest until it is suspended or has ended; return whether it has ended.

        Then `values` holds the results, none after ``proc_exit(0)``. ``briefly`` keeps the GIL meanwhile, for an event
        loop's thread: taking it back beside a busy thread would cost more than the slice. It is ignored for a guest
        with WASI: wasmtime calls its sinks on threads of its own and waits for them.

        Raises:
            CapacityExhausted: the pool is full, or the system has no memory for the sandbox.
            GuestTrap: the guest trapped.
            GuestExit: the guest exited with a code other than 0.
            TensorWasmError: what a host function raised.
        """

    @abstractmethod
    def stop(self) -> None:
        """Unwind the fiber's stack; the guest never runs again. Idempotent."""

    @abstractmethod
    def close(self) -> bool:
        """Free everything and release the slot. Idempotent. Blocks as long as ``drain`` does.

        Returns False if a device may still reach the sandbox's memory: then it and its session layout are kept for
        good.
        """


class Fiber(SuspendableSandbox):
    """One sandbox, made for one call. Not safe from several threads at once.

    Its owner calls `run` until that returns True or raises. In between the guest is suspended: `waits` says whether for
    its turn only, or for the `steps` of a host function. Then, or at any time before, call `stop` and `close`.
    """

    __slots__ = ("_drain", "_frame", "_furnish", "_future", "_made", "_pending", "_quick", "_store",
                 "_supply", "_unfurnish", "_values")  # fmt: skip

    def __init__(
        self,
        linked: LinkedModule,
        export: str,
        args: Sequence[object],
        *,
        limits: Limits,
        services: Mapping[str, object],
        wasi_config: WasiConfig,
        deadline: Deadline,
        layout: SessionLayout,
        drain: Callable[[], bool] | None = None,
        supply: Callable[[], AbstractContextManager[object]] = nullcontext,
        furnish: Callable[[GuestState], Callable[[], object]] | None = None,
        initialisers: Sequence[str] = (),
    ) -> None:
        """Make the sandbox, on the thread that will run it. No guest code runs yet.

        Arguments and errors are those of `tensorwasm.guest.sandbox.instance.Instance` and its `call`, but the caller
        keeps the session layout and recycles it once nothing can reach it. ``supply`` returns the context in which the
        linear memory is made (`tensorwasm.guest.engine.memory_creator`). ``furnish`` is called before the call, when
        the memory exists; it returns a function that undoes this, called before the memory goes back to the pool, on
        the thread that closes the sandbox. ``initialisers`` are exported functions without parameters and results,
        called first in this order; a reactor's ``_initialize`` is not called twice. Raises `InternalError` if the
        module is not linked for fibers.
        """
        if linked.waiting is None:
            raise InternalError("the module is not linked for fibers")
        module = linked.module
        check_declared(module.preamble, limits)
        self._pending = [*([] if export == INITIALISE in initialisers else [export]), *reversed(initialisers)]
        self._values, self._frame = ValueVector(module.plan(export)), ctypes.create_string_buffer(_FRAME_BYTES)
        self._values.write(args)
        self._drain, self._supply, self._furnish = drain, supply, furnish
        self._unfurnish: Callable[[], object] | None = None
        self._quick, self._made, self._future, self._store = module.is_quick, False, 0, 0
        super().__init__(linked, GuestState(module.engine, services, layout, module.lines), layout.wait)
        self._open(limits, wasi_config, deadline)

    @property
    def stdout(self) -> GuestOutput | None:
        """Standard output, None for a module that does not use WASI."""
        return self.state.wasi.stdout if self.state.wasi else None

    @property
    def stderr(self) -> GuestOutput | None:
        """Standard error, None for a module that does not use WASI."""
        return self.state.wasi.stderr if self.state.wasi else None

    def run(self, *, briefly: bool = False) -> bool:
        """See `SuspendableSandbox.run`."""
        poll = (KEEPING if briefly and not self._linked.needs_wasi else RELEASING).wasmtime_call_future_poll
        if not self._made:
            with self._supply():  # the memory is made at once, before a start function can wait
                made = self._poll(KEEPING.wasmtime_call_future_poll if self._quick else poll)
                left = made and take_outcome(self.state, self._word(_TRAP), self._word(_ERROR).value)
            self._supply = nullcontext
            if not made or left:
                return made
            self._start_calls()
        while True:
            if not self._poll(poll):
                return False
            left = take_outcome(self.state, self._word(_TRAP), self._word(_ERROR).value)
            if left or not self._pending:
                break
            self._start_call(self._pending.pop())
        self.values = [] if left else list(self._values.read())
        return True

    def _poll(self, poll: Callable[[int], int]) -> bool:
        """Let the future go on; return whether it is done, and then free it."""
        done = bool(self._advance(poll, self._future))
        if done:
            self.stop()
        return done

    def stop(self) -> None:
        """See `SuspendableSandbox.stop`."""
        future, self._future = self._future, 0
        if future:
            RELEASING.wasmtime_call_future_delete(future)

    def close(self) -> bool:
        """See `SuspendableSandbox.close`."""
        self.stop()
        store, self._store = self._store, 0
        if not store:
            return True
        if self._drain is not None:
            _abandoned.append(self)  # stays there if the drain raises
            if not self._drain():
                return False
            _abandoned.remove(self)
        if self._unfurnish is not None:
            self._unfurnish()
        self.state.close()
        close_store(store, self.spent_ns)
        self.state.engine.release_slot()
        return True

    def recycle(self) -> None:
        """Recycle the session layout; the sandbox is closed, so nothing reaches it any more."""
        if self.state.layout is not None:
            return_layout(self.state.layout)

    def _open(self, limits: Limits, wasi_config: WasiConfig, deadline: Deadline) -> None:
        state, frame = self.state, ctypes.addressof(self._frame)
        state.engine.reserve_slot()
        self._store = open_store(state, limits)
        try:
            if self._linked.needs_wasi:
                state.wasi = wasi.attach(state, wasi_config, limits.output_bytes)
            state.engine.require_ticker()
            started_ns = time.monotonic_ns()
            state.arm(started_ns, earlier(deadline, started_ns, limits.wall_s))
            KEEPING.wasmtime_context_set_epoch_deadline(state.context, SLICE_TICKS)
            # Returns nothing, though wasmtime.h says that it returns an error: the register means nothing.
            KEEPING.wasmtime_context_epoch_deadline_async_yield_and_update(state.context, SLICE_TICKS)
            self._future = KEEPING.wasmtime_instance_pre_instantiate_async(
                self._linked.address, state.context, frame + _INSTANCE, frame + _TRAP, frame + _ERROR
            )
        except BaseException:
            self.close()
            raise

    def _start_calls(self) -> None:
        state = self.state
        self._made = True
        state.instance = _Instance.from_address(ctypes.addressof(self._frame) + _INSTANCE)
        memory = self._linked.module.exports.get("memory")
        if memory is not None and memory.kind == "memory":
            # Now: compiled host functions need it, and Python must not look for it while the guest is suspended.
            _ = state.memory
        if self._furnish is not None:
            self._unfurnish = self._furnish(state)
        self._start_call(self._pending.pop())

    def _start_call(self, export: str) -> None:
        context, frame = self.state.context, ctypes.addressof(self._frame)
        plan, name = self._linked.module.plan(export), export.encode()
        if not KEEPING.wasmtime_instance_export_get(context, frame + _INSTANCE, name, len(name), frame + _FUNCTION):
            raise InternalError(f"the export {export[:80]!r} is missing")
        self._future = KEEPING.wasmtime_func_call_async(
            context,
            frame + _FUNCTION + capi.EXTERN_PAYLOAD_OFFSET,
            self._values.params,
            len(plan.params),
            self._values.results,
            len(plan.results),
            frame + _TRAP,
            frame + _ERROR,
        )

    def _word(self, offset: int) -> ctypes.c_size_t:
        return ctypes.c_size_t.from_buffer(self._frame, offset)
