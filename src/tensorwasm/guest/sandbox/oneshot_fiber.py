"""A visit on a fiber: a sandbox that is made, called and, unless its guest is suspended, unmade at a stroke.

It is what `tensorwasm.guest.sandbox.fiber.Fiber` is, for modules that run nothing before they are called, have no WASI
and no device, and it is driven like one. But a voyage serves one sandbox after the other: `begin` starts the next,
once the one before is closed. What makes it expensive, its pad and what goes with that, stays.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import SessionLayout, Wait
from tensorwasm.guest.engine import capi, codec, traps
from tensorwasm.guest.engine.engine import MAX_TABLE_ELEMENTS, MAX_TABLES
from tensorwasm.guest.engine.module import check_declared
from tensorwasm.guest.imports.suspension import Kind, Steps
from tensorwasm.guest.native.call_descriptor import CALLS, CallDescriptor, CallStatus
from tensorwasm.guest.native.loading import load_voyage
from tensorwasm.guest.native.session_layouts import recycle_pad, scratch_address
from tensorwasm.guest.sandbox import stack
from tensorwasm.guest.sandbox.interrupts import shielded
from tensorwasm.guest.sandbox.linker import Prepared
from tensorwasm.guest.sandbox.state import STATES, GuestState
from tensorwasm.guest.sandbox.store import close_store, is_quick, take_outcome
from tensorwasm.guest.sandbox.suspended_call import WaitingFunction
from tensorwasm.guest.sandbox.vector import ValueVector
from tensorwasm.values import Limits

_poll_keeping: Final = capi.bind("wasmtime_call_future_poll")
_poll_dropping: Final = capi.bind_releasing("wasmtime_call_future_poll")
_delete: Final = capi.bind_releasing("wasmtime_call_future_delete")
_MEMORY: Final = ctypes.create_string_buffer(b"memory")
_DONE: Final = int(CallStatus.DONE)


def is_one_shot_fiber(prepared: Prepared) -> bool:
    """Return whether a module's sandboxes can be voyages. Imports Numba."""
    config = prepared.module.engine.config
    plain = prepared.waiting is not None and not prepared.needs_wasi and is_quick(prepared.module)
    return plain and not config.host_memory and load_voyage() is not None


class OneShotFiber:
    """One place for sandboxes of one module, in which one export is called. Not safe from several threads at once.

    Attributes:
        long: see `tensorwasm.guest.sandbox.fiber.Fiber`; like all that follow.
        spent_ns: how long the guest has run.
        state: the sandbox.
        values: results of the call, once it has ended.
        wait: what the guest left in its pad when it was suspended.
        stdout: there is none.
        stderr: likewise.
    """

    __slots__ = (
        "_address", "_cells", "_engine", "_go", "_guarded", "_home", "_limits", "_name", "_order", "_prepared",
        "_reserved", "long", "spent_ns", "state", "values", "wait",
    )  # fmt: skip

    stdout: Final = None
    stderr: Final = None

    def __init__(self, prepared: Prepared, export: str, limits: Limits, pad: SessionLayout) -> None:
        """Prepare the order.

        Args:
            prepared: the module, for which `is_one_shot_fiber`.
            export: the function to call.
            limits: what each sandbox may use.
            pad: zeros; the voyage's until `scrap`.

        Raises:
            MissingExport: no exported function of that name.
            InvalidArgs: its signature has types that cannot cross the border.
            ModuleMemoryTooLarge: the module declares more than the limits.
            InternalError: there is no compiled code.
        """
        go, module = load_voyage(), prepared.module
        if go is None:
            raise InternalError("a voyage needs compiled code")
        check_declared(module.preamble, limits)
        plan = module.plan(export)
        self._go = go
        self._prepared, self._limits, self._engine, self._guarded = prepared, limits, module.engine, prepared.guarded
        self._cells = ValueVector(plan)
        self._name = name = ctypes.create_string_buffer(export.encode())
        self.state = GuestState(module.engine, {}, pad, module.lines)
        self.values: Sequence[codec.Number] = ()
        self.wait: Wait = pad.wait
        self.long = False
        self.spent_ns = 0
        self._reserved = False
        self._home: Callable[[OneShotFiber], object] | None = None
        memory = module.exports.get("memory")
        self._order = CallDescriptor(
            calls=ctypes.addressof(CALLS),
            engine=module.engine.address,
            pad=self.state.token,
            memory_bytes=limits.memory_bytes,
            table_elements=min(limits.table_elements, MAX_TABLE_ELEMENTS),
            tables=MAX_TABLES,
            prepared=prepared.address,
            export=ctypes.addressof(name),
            export_bytes=len(name) - 1,
            memory=ctypes.addressof(_MEMORY) if memory is not None else 0,
            memory_name_bytes=len(_MEMORY) - 1,
            cells=self._cells.params,
            cell_count=len(plan.params),
            results=self._cells.results,
            result_count=len(plan.results),
        )
        self._address = ctypes.addressof(self._order)
        STATES[self.state.token] = self.state

    def begin(
        self,
        args: Sequence[object],
        services: Mapping[str, object],
        deadline_ns: int | None,
        home: Callable[[OneShotFiber], object],
    ) -> None:
        """Prepare the next sandbox, on the thread that will run it. Nothing of the guest runs yet.

        Args:
            args: as `tensorwasm.guest.engine.codec` takes them.
            services: what host functions find with `HostCall.service`.
            deadline_ns: when the call must have ended, on the monotonic clock; None for never.
            home: takes the voyage back when it is recycled.

        Raises:
            InvalidArgs: the arguments do not fit.
            CapacityExhausted: the pool is full.
            TickerNotRunning: deadlines could not be kept.
            InternalError: the sandbox before is not closed.
        """
        if self._home is not None:
            raise InternalError("a voyage that is not over cannot begin")
        self._cells.write(args)
        self._engine.reserve_slot()
        self._reserved = True
        self._home, self.long, self.spent_ns = home, False, 0
        self.state.begin(services)
        self.state.arm(time.monotonic_ns(), deadline_ns)

    @property
    def waits(self) -> bool:
        """See `tensorwasm.guest.sandbox.fiber.Fiber.waits`."""
        return self.wait.kind != Kind.NOTHING and not self.wait.done

    def enter_thread(self) -> None:
        """See `tensorwasm.guest.sandbox.fiber.Fiber.enter_thread`."""
        if self.state.pad is not None:
            self.state.pad.scratch = scratch_address()

    def run(self, *, briefly: bool = False) -> bool:
        """See `tensorwasm.guest.sandbox.fiber.Fiber.run`.

        Raises:
            CapacityExhausted: the pool is full, or the system has no memory for the sandbox.
            GuestTrap: the guest trapped.
            TensorWasmError: what a host function raised.
        """
        order = self._order
        if not order.store:
            self.state.check()
            stop = self._advance(self._go[briefly], self._address)
            if stop == CallStatus.SUSPENDED:
                return False
            if stop != _DONE or self.state.error is not None:
                self._judge(stop)
        else:
            if not self._advance(_poll_keeping if briefly else _poll_dropping, order.future):
                return False
            self.stop()
            self._judge(CallStatus.CALLING)
        self.values = self._cells.read()
        return True

    def steps(self) -> tuple[WaitingFunction, Steps]:
        """See `tensorwasm.guest.sandbox.fiber.Fiber.steps`."""
        waiting = self._prepared.waiting
        if waiting is None:
            raise InternalError("the module is not linked for fibers")
        function = waiting[self.wait.function]
        return function, function.begin(self.state, self.wait)

    def stop(self) -> None:
        """Unwind what is on the fiber's stack; the guest never runs again. A second call does nothing."""
        order = self._order
        future, order.future = order.future, 0
        if future:
            _delete(future)

    def close(self) -> bool:
        """Free the sandbox and give the slot back. A second call does nothing.

        Returns:
            True: nothing reaches its memory any more.
        """
        if self._reserved:
            self.stop()
            order = self._order
            store, order.store, order.context = order.store, 0, 0
            self._drop()
            if store:
                close_store(store, self.spent_ns)
            self.state.end()
            self.wait.kind = Kind.NOTHING
            self._engine.release_slot()
            self._reserved = False
        return True

    def recycle(self) -> None:
        """Go back to where the next sandbox is taken from: this one is closed."""
        home, self._home = self._home, None
        if home is not None:
            home(self)

    def scrap(self) -> None:
        """Close, and give the pad back: no other sandbox begins here."""
        self.close()
        state = STATES.pop(self.state.token, None)
        if state is not None and state.pad is not None:
            recycle_pad(state.pad)

    def _advance(self, function: Callable[[int], int], argument: int) -> int:
        started_ns = time.monotonic_ns()
        with stack.on_fiber():
            # Without imports nothing of Python is called that a signal's handler could interrupt.
            done: int = function(argument) if self._guarded else shielded(self.state, function, argument)
        self.spent_ns += time.monotonic_ns() - started_ns
        return done

    def _judge(self, stop: int) -> None:
        """Raise what went wrong, if anything did."""
        order = self._order
        trap, error = ctypes.c_size_t(order.trap), order.error
        order.trap = order.error = 0
        self.state.context = order.context
        take_outcome(self.state, trap, error)
        if stop in {CallStatus.INSTANTIATING, CallStatus.FINDING}:
            raise InternalError("an export of the module vanished, or making it was suspended")

    def _drop(self) -> None:
        """Free what wasmtime has left and nobody has looked at."""
        order = self._order
        if order.trap:
            traps.delete_trap(order.trap)
        if order.error:
            capi.take_error(order.error)
        order.trap = order.error = 0
