"""Full calls: a sandbox of its own, which may be a warm one, and a GPU session of its own.

`run_full` makes one on the caller's thread, `FullJob` as a fiber, which holds no thread while its guest waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, GuestError, GuestExit, InternalError, TensorWasmError
from tensorwasm.guest.imports import CudaService
from tensorwasm.guest.imports.offload import SERVICE
from tensorwasm.guest.native.session_layouts import return_layout, take_layout
from tensorwasm.guest.sandbox.fiber import Fiber
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke.device_access import (
    device_memory,
    end_session,
    huge_pages_preferred,
    is_direct,
    open_session,
    prefer_huge_pages,
    wants_compiled,
)
from tensorwasm.runtime.invoke.invocation import Announce, Call, Invocation, PendingInvocation, call_export, written

if TYPE_CHECKING:
    from tensorwasm.gpu.native.layout import SessionLayout
    from tensorwasm.gpu.session import Session
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.reactor.reactor import Reactor
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.sandbox.state import GuestState
    from tensorwasm.runtime.invoke.deployed_module import DeployedModule
    from tensorwasm.runtime.invoke.offloading import Offloading
    from tensorwasm.values import DeviceInfo, MemoryKind


def run_full(
    call: Call, *, on_device: Callable[[DeviceInfo, str], object] | None = None, announce: Announce | None = None
) -> Invocation:
    """Make a sandbox, call the export and tear the sandbox down. Blocks; the guest runs without the GIL.

    Arguments and errors are those of `tensorwasm.runtime.Function.invoke`. `announce` is given what ends the guest,
    before its start function runs; it then traps as ``cancelled``.
    """
    try:
        with open_sandbox(call, on_device=on_device, announce=announce) as (instance, session):
            values, exit_code = call_export(instance, call.export, call.args, call.ends)
            return call.outcome(values, exit_code, written(instance), session)
    except TensorWasmError as error:
        if call.offload is not None:
            error.offload = call.offload.use()
        raise


@contextmanager
def open_sandbox(
    call: Call, *, on_device: Callable[[DeviceInfo, str], object] | None = None, announce: Announce | None = None
) -> Iterator[tuple[Instance, Session | None]]:
    """Make the sandbox of a call, and tear it down; yield its GPU session too. Arguments are those of `run_full`."""
    function, cuda, offloading = call.function, call.granted.cuda, call.function.offloading
    prepared = prepare_form(function, offloading, call.memory, cuda=cuda)
    with (
        _open_gpu(call, prepared, on_device) if cuda else nullcontext() as session,
        _offload(call, offloading, session) if offloading is not None else nullcontext(),
        _make_sandbox(call, prepared, session, announce) as instance,
        huge_pages_preferred(instance, function.host.limits) if _registers(call, cuda=cuda) else nullcontext(),
    ):
        yield instance, session


def prepare_form(
    function: DeployedModule, offloading: Offloading | None, memory: MemoryKind, *, cuda: bool
) -> LinkedModule:
    """Return the module to instantiate for a call on the caller's thread, compiled now if it was not."""
    if not cuda:
        return function.form(Form(offload=offloading))
    shared = function.host.share()
    direct = is_direct(shared, memory, function.prepared)
    return function.form(Form(wants_compiled(shared), direct, offload=offloading))


@contextmanager
def _offload(call: Call, offloading: Offloading, session: Session | None) -> Iterator[None]:
    """Attach what guards do; they decline while the guest's own session has work under way."""
    function = call.function
    place = function.offload, function.host.share, call.tenant, call.ends
    with offloading.serving(*place, registers=session is None) as service:
        if session is not None:
            service.is_busy = partial(_is_busy, session)
        call.services[SERVICE] = call.offload = service
        yield


def _is_busy(session: Session) -> bool:
    return not session.streams.idle()


def _registers(call: Call, *, cuda: bool) -> bool:
    """Return whether the device reaches wasmtime's own pages, all of them."""
    return cuda and call.memory == "pinned" and not call.function.host.share().guarded


@contextmanager
def _open_gpu(
    call: Call, prepared: LinkedModule, on_device: Callable[[DeviceInfo, str], object] | None
) -> Iterator[Session]:
    """Open a GPU session for the module that is to be instantiated."""
    function, memory = call.function, call.memory
    shared = function.host.share()
    if on_device is not None:
        on_device(shared.info, function.host.device_reason)
    direct = is_direct(shared, memory, function.prepared)
    native = prepared.needs_layout
    # Bound around everything: the driver's functions, called by compiled code, take the thread's current context.
    with (
        shared.device.native.bound() if native else nullcontext(),
        open_session(shared, call.tenant, memory, with_layout=native) as session,
        device_memory(shared, session, call.tenant, memory, function.host.limits) if direct else nullcontext(),
    ):
        call.services["cuda"] = CudaService(session)
        session.enter(call.ends)
        yield session


def _make_sandbox(call: Call, prepared: LinkedModule, session: Session | None, announce: Announce | None) -> Instance:
    """Return a sandbox whose start function and initialisers have run."""
    if announce is not None and session is not None:
        announce = partial(_announce_both, announce, session.stop_kernels)
    if announce is not None and call.offload is not None:
        announce = partial(_announce_both, announce, call.offload.stop)
    warm, kept = call.function.host.warm, call.function.warm_kept.get(call.tenant)
    plain = session is None and prepared is call.function.prepared
    if kept is not None and plain and kept.fits(call.config, call.initialisers):
        drawn = warm.draw(kept)
        if isinstance(drawn, Instance):
            return _adapt(drawn, call, announce)
    try:
        return _make_fresh(call, prepared, session, announce)
    except CapacityExhausted:
        if session is not None or not warm.drop_ready():
            raise
        return _make_fresh(call, prepared, session, announce)


def _announce_both(announce: Announce, stop_kernels: Callable[[], None], cancel: Callable[[], None]) -> None:
    """Announce what ends a sandbox and its kernels."""

    def stop() -> None:
        cancel()
        stop_kernels()

    announce(stop)


def _adapt(drawn: Instance, call: Call, announce: Announce | None) -> Instance:
    """Give a warm sandbox the services and output streams of a call."""
    try:
        drawn.renew(call.services, call.config)
        if announce is not None:
            announce(drawn.cancel)
    except BaseException:
        drawn.close()
        raise
    return drawn


def _drain(call: Call, session: Session | None) -> Callable[[], bool] | None:
    """Return what ends all use of a sandbox's memory by a device, None if there is none."""
    ends: list[Callable[[], bool]] = [] if session is None else [partial(end_session, session)]
    if call.offload is not None and call.offload.drain is not None:
        ends.append(call.offload.drain)

    def drain() -> bool:
        ended = [end() for end in ends]  # each of them, whatever the others say
        return all(ended)

    return drain if ends else None


def _make_fresh(call: Call, prepared: LinkedModule, session: Session | None, announce: Announce | None) -> Instance:
    instance = Instance(
        prepared,
        limits=call.function.host.limits,
        services=call.services,
        wasi_config=call.config,
        deadline=call.ends,
        drain=_drain(call, session),
        layout=None if session is None else session.layout,
        announce=announce,
    )
    instance.initialise(call.initialisers, call.ends)
    return instance


@dataclass(slots=True, eq=False)
class FullJob:
    """A full call, as a reactor runs it. Nothing is opened before `begin`."""

    call: Call  # what to call, and with what
    prepared: LinkedModule  # the module, linked for fibers
    shared: SharedDevice | None  # the device, None without the grant
    reactor: Reactor  # runs it
    future: PendingInvocation = field(default_factory=PendingInvocation)  # gets the outcome
    session: Session | None = None  # on the device, once it is open

    @property
    def blocks(self) -> bool:
        """Whether a GPU session has to be closed."""
        return self.session is not None

    @property
    def may_move(self) -> bool:
        """Whether any thread may run it."""
        return self.shared is None

    @property
    def light(self) -> bool:
        """Whether it begins with nothing that takes long or blocks: no GPU, no start function, little to copy."""
        return self.shared is None and not self.call.config.directories and self.call.function.brief

    @property
    def lingers(self) -> bool:
        """Whether its end may wait for other calls' work."""
        return self.session is not None and self.session.lingers

    def begin(self) -> Fiber:
        """Open what the grants give, and return the sandbox. Raises what comes before a guest runs."""
        call, layout, limits = self.call, take_layout(), self.call.function.host.limits
        supply: Callable[[], AbstractContextManager[object]] = nullcontext
        furnish: Callable[[GuestState], Callable[[], object]] | None = None
        try:
            if self.shared is not None:
                session = self._open_session(self.shared, layout)
                if is_direct(self.shared, call.memory, self.prepared):
                    given = self.shared, session, call.tenant, call.memory, limits
                    supply = partial(device_memory, *given, waits=False)  # the reactor has other guests
                elif call.memory == "pinned":
                    furnish = partial(prefer_huge_pages, limits=limits)
            return Fiber(
                self.prepared,
                call.export,
                call.args,
                limits=limits,
                services=call.services,
                wasi_config=call.config,
                deadline=call.ends,
                layout=layout,
                drain=None if self.session is None else partial(end_session, self.session),
                supply=supply,
                furnish=furnish,
                initialisers=call.initialisers,
            )
        except BaseException:
            if self.session is None or end_session(self.session):
                return_layout(layout)
            raise

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Close the sandbox and settle the outcome; see `tensorwasm.guest.reactor.task.Job`."""
        outcome, released = self.end(fiber, error)
        self.future.spent_ns = fiber.spent_ns if fiber is not None else 0
        self.future.settle(outcome)
        return released

    def end(self, fiber: Sandbox | None, error: BaseException | None) -> tuple[Invocation | BaseException, bool]:
        """Close the sandbox; return the outcome, and whether nothing here reaches the sandbox's layout any more."""
        outcome: Invocation | BaseException | None = error
        released = False
        try:
            if fiber is not None:
                self.call.function.long = fiber.long
                outcome = self._outcome(fiber, error)
            released = fiber is None or fiber.close()
        except BaseException as failed:  # noqa: BLE001 - it is the call's outcome
            outcome = failed
        return outcome or InternalError("an invocation ended without an outcome"), released

    def _open_session(self, shared: SharedDevice, layout: SessionLayout) -> Session:
        call = self.call
        if self.prepared.compiled:
            self.reactor.hold(shared, shared.device.native.bound)
        self.session = shared.open_session(
            call.tenant, architecture=settings.current().cuda_arch, memory_kind=call.memory, layout=layout
        )
        self.session.credits.bound()  # the reactor serves all guests, and must not wait in the driver for one
        call.services["cuda"] = CudaService(self.session)
        self.session.enter(call.ends)
        return self.session

    def _outcome(self, fiber: Sandbox, error: BaseException | None) -> Invocation | BaseException:
        wrote = written(fiber)
        if isinstance(error, GuestError) and not isinstance(error, GuestExit):
            error.stdout, error.stderr = wrote.stdout, wrote.stderr
        if error is not None and not isinstance(error, GuestExit):
            return error
        return self.call.outcome(fiber.values, error.code if error is not None else 0, wrote, self.session)
