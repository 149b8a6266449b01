"""A sandbox that runs as a fiber: while its guest waits, it holds no thread.

wasmtime runs an asynchronous call on a stack of its own and gives a future; polling the future runs the guest until it
waits in a host function, until its time slice is over, or to its end. Deleting the future unwinds what is on the stack.

Source: wasmtime.h, ``wasmtime_func_call_async``, ``wasmtime_call_future_poll``.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import SessionLayout, Wait
from tensorwasm.guest.engine import capi, codec
from tensorwasm.guest.engine.module import INITIALISE, CallPlan, check_declared
from tensorwasm.guest.imports.suspension import Kind, Steps
from tensorwasm.guest.native.session_layouts import recycle_pad, scratch_address
from tensorwasm.guest.sandbox import stack, wasi
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import Prepared
from tensorwasm.guest.sandbox.output import GuestOutput
from tensorwasm.guest.sandbox.state import GuestState
from tensorwasm.guest.sandbox.store import close_store, earlier, is_quick, open_store, take_outcome
from tensorwasm.guest.sandbox.suspended_call import WaitingFunction
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.values import Deadline, Limits

SLICE_TICKS: Final = 1
"""Ticks of the engine's clock that a guest runs before others get their turn."""

_instantiate: Final = capi.bind("wasmtime_instance_pre_instantiate_async")
_call: Final = capi.bind("wasmtime_func_call_async")
_poll_quickly: Final = capi.bind("wasmtime_call_future_poll")
_poll: Final = capi.bind_releasing("wasmtime_call_future_poll")
_delete: Final = capi.bind_releasing("wasmtime_call_future_delete")
_set_epoch_deadline: Final = capi.bind("wasmtime_context_set_epoch_deadline")
# Returns nothing, though wasmtime.h says that it returns an error: whatever is in the register means nothing.
_yield_at_epochs: Final = capi.bind("wasmtime_context_epoch_deadline_async_yield_and_update")
_instance_export_get: Final = capi.bind("wasmtime_instance_export_get")

# One piece of memory a sandbox for what wasmtime writes while a future lives: instance, function, trap, error, values.
_INSTANCE: Final = 0
_FUNCTION: Final = capi.SIZES["wasmtime_instance_t"]
_TRAP: Final = _FUNCTION + capi.SIZES["wasmtime_extern_t"]
_ERROR: Final = _TRAP + 8
_VALUES: Final = _ERROR + 8
_Instance: Final = ctypes.c_char * capi.SIZES["wasmtime_instance_t"]
_VALUE: Final = struct.Struct(f"<B7xQ{capi.SIZES['wasmtime_val_t'] - 16}x")

_abandoned: Final[list[Fiber]] = []
"""Sandboxes whose memory something outside may still reach: kept, slot and all, because no moment would be safe."""


class Fiber:
    """One sandbox and the one call that it is made for. Not safe from several threads at once.

    Whoever drives it calls `run` until that says that the call has ended, or raises how it did. In between the guest is
    suspended: `waits` tells whether for its turn only, or for the steps of a host function, which are taken off the
    fiber and end in an answer. Then, or at any time before, `stop` and `close`.

    Attributes:
        long: the guest was suspended because its first slice was over (`tensorwasm.guest.reactor.preemption_timer`).
        spent_ns: how long the guest has run.
        state: the sandbox.
        values: results of the call, once it has ended.
        wait: what the guest left in its pad when it was suspended.
    """

    __slots__ = (
        "_call",
        "_drain",
        "_export",
        "_frame",
        "_furnish",
        "_future",
        "_pending",
        "_prepared",
        "_quick",
        "_store",
        "_supply",
        "_unfurnish",
        "long",
        "spent_ns",
        "state",
        "values",
        "wait",
    )

    def __init__(
        self,
        prepared: Prepared,
        export: str,
        args: Sequence[object],
        *,
        limits: Limits,
        services: Mapping[str, object],
        wasi_config: WasiConfig,
        deadline: Deadline,
        pad: SessionLayout,
        drain: Callable[[], bool] | None = None,
        supply: Callable[[], AbstractContextManager[object]] = nullcontext,
        furnish: Callable[[GuestState], Callable[[], object]] | None = None,
        initialisers: Sequence[str] = (),
    ) -> None:
        """Make the sandbox, on the thread that will run it. Nothing of the guest runs yet.

        Args:
            prepared: the module, linked for fibers.
            export: the exported function to call.
            args: its arguments, as `tensorwasm.guest.engine.codec` takes them.
            limits: what the sandbox may use.
            services: what host functions find with `HostCall.service`.
            wasi_config: what the guest gets through WASI.
            deadline: when start function and call must have ended; never later than ``limits.wall_s`` from now.
            pad: the sandbox's own; whoever made it recycles it once nothing can reach it any more.
            drain: as in `tensorwasm.guest.sandbox.instance.Instance`.
            supply: makes a context in which the linear memory is made (`tensorwasm.guest.engine.memory_creator`).
            furnish: called before the call, when the memory is there. What it returns undoes it, and is called before
                the memory goes back to the pool, on the thread that closes the sandbox.
            initialisers: exported functions without parameters and results, called before the other in their order. A
                reactor's ``_initialize`` is not called twice.

        Raises:
            CapacityExhausted: the pool is full.
            TickerNotRunning: deadlines could not be kept.
            MissingExport: no exported function of that name.
            InvalidArgs: the arguments do not fit, or the WASI configuration holds something a guest cannot get.
            ModuleMemoryTooLarge: the module declares more than the limits allow.
            InternalError: the module is not linked for fibers.
        """
        if prepared.waiting is None:
            raise InternalError("the module is not linked for fibers")
        module = prepared.module
        check_declared(module.preamble, limits)
        self._prepared = prepared
        self._export = export
        self._pending = [*([] if export == INITIALISE in initialisers else [export]), *reversed(initialisers)]
        self._drain = drain
        self.spent_ns = 0
        self.long = False
        self._future = 0
        self._frame = _make_frame(module.plan(export), args)
        self._call = False
        self._quick = is_quick(module)
        self._supply = supply
        self._furnish = furnish
        self._unfurnish: Callable[[], object] | None = None
        self.values: list[codec.Number] = []
        self.wait: Wait = pad.wait
        self.state = GuestState(module.engine, services, pad, module.lines)
        module.engine.reserve_slot()
        self._store = open_store(self.state, limits)
        try:
            if prepared.needs_wasi:
                self.state.wasi = wasi.attach(self.state, wasi_config, limits.output_bytes)
            self._begin(deadline, limits.wall_s)
        except BaseException:
            self.close()
            raise

    @property
    def stdout(self) -> GuestOutput | None:
        """Standard output, None for a module that does not use WASI."""
        return self.state.wasi.stdout if self.state.wasi else None

    @property
    def stderr(self) -> GuestOutput | None:
        """Standard error, None for a module that does not use WASI."""
        return self.state.wasi.stderr if self.state.wasi else None

    @property
    def waits(self) -> bool:
        """Whether the guest, which is suspended, cannot go on before a host function has answered."""
        return self.wait.kind != Kind.NOTHING and not self.wait.done

    def enter_thread(self) -> None:
        """Say that the calling thread will run the guest now, which another may have done before."""
        if self.state.pad is not None:
            self.state.pad.scratch = scratch_address()

    def run(self, *, briefly: bool = False) -> bool:
        """Run the guest until it is suspended or has ended.

        Args:
            briefly: keep the GIL meanwhile, for an event loop's thread: winning it back beside a busy thread would take
                longer than the slice. False drops it, and so does a guest with WASI in any case: threads of wasmtime's
                call its sinks, and it waits for them.

        Returns:
            Whether the call has ended; then `values` holds its results, none after ``proc_exit(0)``.

        Raises:
            CapacityExhausted: the pool is full, or the system has no memory for the sandbox.
            GuestTrap: the guest trapped.
            GuestExit: the guest exited with a code other than 0.
            TensorWasmError: what a host function raised.
        """
        briefly = briefly and not self._prepared.needs_wasi
        if not self._call:
            with self._supply():  # the memory is made at once, before a start function can wait
                made = self._advance(_poll_quickly if self._quick or briefly else _poll)
                left = made and take_outcome(self.state, self._word(_TRAP), self._word(_ERROR).value)
            self._supply = nullcontext
            if not made or left:
                return made
            self._start_calls()
        while True:
            if not self._advance(_poll_quickly if briefly else _poll):
                return False
            left = take_outcome(self.state, self._word(_TRAP), self._word(_ERROR).value)
            if left or not self._pending:
                break
            self._start_call(self._pending.pop())
        self.values = [] if left else self._results()
        return True

    def _advance(self, poll: Callable[[int], bool]) -> bool:
        """Let the future go on; return whether it is done, and then free it."""
        started_ns = time.monotonic_ns()
        with stack.on_fiber():
            # Without imports nothing of Python is called that a signal's handler could interrupt.
            done = poll(self._future) if self._prepared.guarded else shielded(self.state, poll, self._future)
        self.spent_ns += time.monotonic_ns() - started_ns
        if done:
            self.stop()
        return done

    def steps(self) -> tuple[WaitingFunction, Steps]:
        """Return the host function that the guest waits for, and the steps to its answer."""
        waiting = self._prepared.waiting
        function = waiting[self.wait.function] if waiting is not None else None
        if function is None:
            raise InternalError("the module is not linked for fibers")
        return function, function.begin(self.state, self.wait)

    def stop(self) -> None:
        """Unwind what is on the fiber's stack; the guest never runs again. A second call does nothing."""
        future, self._future = self._future, 0
        if future:
            _delete(future)

    def close(self) -> bool:
        """Free everything and give the slot back. A second call does nothing. Blocks as long as ``drain`` does.

        Returns:
            False if something outside may still reach the sandbox's memory: then it is kept for good, its pad too.
        """
        self.stop()
        store, self._store = self._store, 0
        if not store:
            return True
        if self._drain is not None:
            _abandoned.append(self)  # until the drain has said otherwise, should it raise
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
        """Give the pad back, which nothing reaches any more: the sandbox is closed."""
        if self.state.pad is not None:
            recycle_pad(self.state.pad)

    def _begin(self, deadline: Deadline, wall_s: float) -> None:
        state, frame = self.state, ctypes.addressof(self._frame)
        state.engine.require_ticker()
        started_ns = time.monotonic_ns()
        state.arm(started_ns, earlier(deadline, started_ns, wall_s))
        _set_epoch_deadline(state.context, SLICE_TICKS)
        _yield_at_epochs(state.context, SLICE_TICKS)
        self._future = _instantiate(
            self._prepared.address, state.context, frame + _INSTANCE, frame + _TRAP, frame + _ERROR
        )

    def _start_calls(self) -> None:
        """Begin the first call of the sandbox, which has been made."""
        state = self.state
        self._call = True
        state.instance = _Instance.from_address(ctypes.addressof(self._frame) + _INSTANCE)
        memory = self._prepared.module.exports.get("memory")
        if memory is not None and memory.kind == "memory":
            # Now: compiled host functions want it, and Python must not look for it while the guest is suspended.
            _ = state.memory
        if self._furnish is not None:
            self._unfurnish = self._furnish(state)
        self._start_call(self._pending.pop())

    def _start_call(self, export: str) -> None:
        context, frame = self.state.context, ctypes.addressof(self._frame)
        plan, name = self._prepared.module.plan(export), export.encode()
        if not _instance_export_get(context, frame + _INSTANCE, name, len(name), frame + _FUNCTION):
            raise InternalError(f"the export {export[:80]!r} vanished")
        args_at, results_at = frame + _VALUES, frame + _VALUES + len(plan.params) * _VALUE.size
        self._future = _call(
            context,
            frame + _FUNCTION + capi.EXTERN_PAYLOAD_OFFSET,
            args_at,
            len(plan.params),
            results_at,
            len(plan.results),
            frame + _TRAP,
            frame + _ERROR,
        )

    def _results(self) -> list[codec.Number]:
        plan = self._prepared.module.plan(self._export)
        at = _VALUES + len(plan.params) * _VALUE.size
        cells = [_VALUE.unpack_from(self._frame, at + index * _VALUE.size)[1] for index in range(len(plan.results))]
        return codec.decode(plan.results, cells)

    def _word(self, offset: int) -> ctypes.c_size_t:
        return ctypes.c_size_t.from_buffer(self._frame, offset)


def _make_frame(plan: CallPlan, args: Sequence[object]) -> ctypes.Array[ctypes.c_char]:
    """Return room for what wasmtime writes, with the arguments in place."""
    bits = codec.encode(plan.params, args)
    frame = ctypes.create_string_buffer(_VALUES + (len(plan.params) + len(plan.results)) * _VALUE.size)
    for index, (kind, value) in enumerate(zip(plan.params, bits, strict=True)):
        _VALUE.pack_into(frame, _VALUES + index * _VALUE.size, capi.VALUE_KINDS[kind], value)
    return frame
