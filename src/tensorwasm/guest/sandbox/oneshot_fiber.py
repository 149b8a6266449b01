"""One-shot sandboxes on fibers: made, called and, unless the guest is suspended, deleted in one step.

A `OneShotFiber` replaces `tensorwasm.guest.sandbox.fiber.Fiber`, and is driven in the same way, for modules that run
nothing before they are called and have no WASI and no device. It serves one sandbox after another: `begin` starts the
next once the previous one is closed. The session layout, which is expensive, is kept.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.engine.capi import KEEPING, RELEASING
from tensorwasm.guest.engine.module import check_declared
from tensorwasm.guest.imports.suspension import SuspensionKind
from tensorwasm.guest.native.loading import load_oneshot_fiber
from tensorwasm.guest.native.session_layouts import return_layout
from tensorwasm.guest.native.structures import CallStatus
from tensorwasm.guest.sandbox.fiber import SuspendableSandbox, ValueVector
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.oneshot import describe_call, free_outcome, raise_outcome
from tensorwasm.guest.sandbox.state import STATES, GuestState, close_store
from tensorwasm.values import Limits

_DONE: Final = int(CallStatus.DONE)


class OneShotFiber(SuspendableSandbox):
    """Runs one export of one module on a fiber, each call in a new sandbox. Not safe from several threads at once."""

    __slots__ = ("_address", "_cells", "_descriptor", "_execute", "_home", "_name", "_reserved")

    stdout: Final = None
    stderr: Final = None

    def __init__(self, linked: LinkedModule, export: str, limits: Limits, layout: SessionLayout) -> None:
        """Prepare the call descriptor; arguments and errors as in `tensorwasm.guest.sandbox.oneshot.OneShotSandbox`.

        The layout, of zeros, is owned until `scrap`.
        """
        execute, module = load_oneshot_fiber(), linked.module
        if execute is None:
            raise InternalError("a one-shot fiber needs compiled code")
        check_declared(module.preamble, limits)
        plan = module.plan(export)
        super().__init__(linked, GuestState(module.engine, {}, layout, module.lines), layout.wait)
        self._execute = execute
        self._cells = ValueVector(plan)
        self._reserved = False
        self._home: Callable[[OneShotFiber], object] | None = None
        self._descriptor, self._name = describe_call(linked, export, self.state, limits)
        self._descriptor.cells, self._descriptor.cell_count = self._cells.params, len(plan.params)
        self._descriptor.results, self._descriptor.result_count = self._cells.results, len(plan.results)
        self._address = ctypes.addressof(self._descriptor)
        STATES[self.state.token] = self.state

    def begin(
        self,
        args: Sequence[object],
        services: Mapping[str, object],
        deadline_ns: int | None,
        home: Callable[[OneShotFiber], object],
    ) -> None:
        """Prepare the next sandbox, on the thread that will run it. No guest code runs yet.

        The deadline is on the monotonic clock; None is never. ``home`` gets this when it is recycled. Raises what
        `OneShotSandbox.call` raises before the guest runs, and `InternalError` if the previous sandbox is not closed.
        """
        if self._home is not None:
            raise InternalError("a one-shot fiber that is in use cannot begin another call")
        self._cells.write(args)
        self.state.engine.reserve_slot()
        self._reserved = True
        self._home, self.long, self.spent_ns = home, False, 0
        self.state.services = services
        self.state.arm(time.monotonic_ns(), deadline_ns)

    def run(self, *, briefly: bool = False) -> bool:
        """See `tensorwasm.guest.sandbox.fiber.Fiber.run`."""
        descriptor = self._descriptor
        if not descriptor.store:
            self.state.check()
            status = self._advance(self._execute[briefly], self._address)
            if status == CallStatus.SUSPENDED:
                return False
            if status != _DONE or self.state.error is not None:
                self._raise_failure(status)
        else:
            poll = (KEEPING if briefly else RELEASING).wasmtime_call_future_poll
            if not self._advance(poll, descriptor.future):
                return False
            self.stop()
            self._raise_failure(CallStatus.CALLING)
        self.values = self._cells.read()
        return True

    def stop(self) -> None:
        """Unwind the fiber's stack; the guest never runs again. Idempotent."""
        descriptor = self._descriptor
        future, descriptor.future = descriptor.future, 0
        if future:
            RELEASING.wasmtime_call_future_delete(future)

    def close(self) -> bool:
        """Free the sandbox and release its slot. Idempotent. Returns True: nothing reaches its memory any more."""
        if self._reserved:
            self.stop()
            descriptor = self._descriptor
            store, descriptor.store, descriptor.context = descriptor.store, 0, 0
            if descriptor.trap or descriptor.error:
                free_outcome(descriptor)
            if store:
                close_store(store, self.spent_ns)
            self.state.end()
            self.wait.kind = SuspensionKind.NOTHING
            self.state.engine.release_slot()
            self._reserved = False
        return True

    def recycle(self) -> None:
        """Return to the owner that `begin` named; the sandbox is closed."""
        home, self._home = self._home, None
        if home is not None:
            home(self)

    def scrap(self) -> None:
        """Close, and recycle the session layout: no other sandbox begins here."""
        self.close()
        state = STATES.pop(self.state.token, None)
        if state is not None and state.layout is not None:
            return_layout(state.layout)

    def _raise_failure(self, status: int) -> None:
        raise_outcome(self._descriptor, self.state)
        if status in {CallStatus.INSTANTIATING, CallStatus.FINDING}:
            raise InternalError("an export of the module is missing, or instantiating it was suspended")
