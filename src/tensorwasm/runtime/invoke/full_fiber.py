"""The full way as a fiber: the call holds no thread while its guest waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from tensorwasm import settings
from tensorwasm.errors import GuestError, GuestExit, InternalError
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.guest.imports import CudaService
from tensorwasm.guest.native.session_layouts import draw_pad, recycle_pad
from tensorwasm.guest.reactor.reactor import Reactor
from tensorwasm.guest.reactor.task import Sandbox
from tensorwasm.guest.sandbox.fiber import Fiber
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.state import GuestState
from tensorwasm.runtime.invoke.call import Call, written
from tensorwasm.runtime.invoke.device_access import DIRECT, end_session, make_room, supplied
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.pending import PendingInvocation

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session
    from tensorwasm.gpu.shared_device import SharedDevice


class FullJob:
    """One full invocation, as a reactor runs it.

    Attributes:
        future: gets the outcome.
    """

    __slots__ = ("_call", "_prepared", "_reactor", "_session", "_shared", "future")

    def __init__(self, call: Call, prepared: LinkedModule, shared: SharedDevice | None, reactor: Reactor) -> None:
        """Open and make nothing yet.

        Args:
            call: what to call, and with what.
            prepared: the module, linked for fibers.
            shared: the device, None without the grant.
            reactor: where it will run.
        """
        self._call = call
        self._prepared = prepared
        self._shared = shared
        self._reactor = reactor
        self.future = PendingInvocation()
        self._session: Session | None = None

    @property
    def blocks(self) -> bool:
        """Whether a GPU session has to be closed."""
        return self._session is not None

    @property
    def roams(self) -> bool:
        """Whether any thread may run it."""
        return self._shared is None

    @property
    def light(self) -> bool:
        """Whether it begins with nothing that takes long or blocks: no GPU, no start function, little to copy."""
        call = self._call
        return self._shared is None and not call.config.directories and call.function.brief

    @property
    def lingers(self) -> bool:
        """Whether its end may wait for work of others."""
        return self._session is not None and self._session.lingers

    def begin(self) -> Fiber:
        """Open what the grants give, and return the sandbox.

        Raises:
            TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises before a guest runs.
        """
        call, pad, limits = self._call, draw_pad(), self._call.function.host.limits
        supply: Callable[[], AbstractContextManager[object]] = nullcontext
        furnish: Callable[[GuestState], Callable[[], object]] | None = None
        try:
            if self._shared is not None:
                self._open_session(self._shared, pad)
                if call.memory in DIRECT:
                    supply = partial(supplied, self._shared, call.tenant, call.memory, limits)
                elif call.memory == "pinned":
                    furnish = partial(make_room, limits=limits)
            return Fiber(
                self._prepared,
                call.export,
                call.args,
                limits=limits,
                services=call.services,
                wasi_config=call.config,
                deadline=call.ends,
                pad=pad,
                drain=None if self._session is None else partial(end_session, self._session),
                supply=supply,
                furnish=furnish,
                initialisers=call.initialisers,
            )
        except BaseException:
            if self._session is None or end_session(self._session):
                recycle_pad(pad)
            raise

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Make the invocation of what there is, close the sandbox, and tell whoever waits."""
        outcome, released = self.end(fiber, error)
        self.future.spent_ns = fiber.spent_ns if fiber is not None else 0
        self.future.settle(outcome)
        return released

    def end(self, fiber: Sandbox | None, error: BaseException | None) -> tuple[Invocation | BaseException, bool]:
        """Make the invocation of what there is, and close the sandbox.

        Returns:
            What came of it, and whether nothing of ours reaches the sandbox's pad any more.
        """
        outcome: Invocation | BaseException | None = error
        released = False
        try:
            if fiber is not None:
                self._call.function.long = fiber.long
                outcome = self._outcome(fiber, error)
            released = fiber is None or fiber.close()
        except BaseException as failed:  # noqa: BLE001 - whoever waits is told
            outcome = failed
        return outcome or InternalError("an invocation ended without an outcome"), released

    def _open_session(self, shared: SharedDevice, pad: SessionLayout) -> None:
        call = self._call
        if self._prepared.compiled:
            self._reactor.hold(shared, shared.device.native.bound)
        self._session = shared.open_session(
            call.tenant,
            architecture=settings.current().cuda_arch,
            memory_kind=call.memory,
            pad=pad,
        )
        self._session.share.bound()  # the reactor serves all guests, and must not wait in the driver for one
        call.services["cuda"] = CudaService(self._session)
        self._session.enter(call.ends)

    def _outcome(self, fiber: Sandbox, error: BaseException | None) -> Invocation | BaseException:
        wrote = written(fiber)
        if isinstance(error, GuestError) and not isinstance(error, GuestExit):
            error.stdout, error.stderr = wrote.stdout, wrote.stderr
        if error is not None and not isinstance(error, GuestExit):
            return error
        exit_code = error.code if error is not None else 0
        return self._call.outcome(fiber.values, exit_code, wrote, self._session)
