"""One-shot calls: a sandbox is made, called and dropped in one step of compiled code.

`OneShotPlan` holds what is prepared once for calls on the caller's thread, with or without WASI or a GPU; `FiberPlan`
and `OneShotJob` are the same for calls as fibers, which have no WASI, start function, initialisers or GPU. A plan
keeps sandboxes for further calls: each serves one guest after the other, as long as its first state can be restored.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar

from tensorwasm import settings
from tensorwasm.errors import CapacityExhausted, GuestError, InternalError
from tensorwasm.finalizing import finalize_later, prepare_finalizing
from tensorwasm.guest.imports import CudaService, OutputStream, interfaces
from tensorwasm.guest.native.session_layouts import return_layout, take_layout
from tensorwasm.guest.sandbox.oneshot import NotCleared, OneShotSandbox, SavedStart
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber
from tensorwasm.guest.sandbox.state import earlier
from tensorwasm.runtime.invoke.device_access import end_session
from tensorwasm.runtime.invoke.invocation import Announce, Chunks, Invocation, PendingInvocation, WrittenOutput, written
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.gpu.session import Session, SessionStatistics
    from tensorwasm.gpu.shared_device import SharedDevice
    from tensorwasm.guest.engine.codec import Number
    from tensorwasm.guest.reactor.task import Sandbox
    from tensorwasm.guest.sandbox.linker import LinkedModule
    from tensorwasm.guest.sandbox.wasi import WasiConfig
    from tensorwasm.runtime.invoke.deployed_module import DeployedModule
    from tensorwasm.runtime.invoke.invocation import CallOptions
    from tensorwasm.values import Limits, MemoryKind

MAX_IDLE: Final = 64
"""Sandboxes that a plan keeps; one with a session is kept for as long as the device keeps that."""

_SENT: Final = frozenset(interfaces.TENSOR.modules)

_NOT_WRITTEN: Final = WrittenOutput()
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})

_Idle = TypeVar("_Idle")


class _Plan(Generic[_Idle]):
    """What both kinds of plan hold: the export's result types, whether its module sends output, idle sandboxes."""

    def _prepare(self, prepared: LinkedModule, export: str, discard: Callable[[_Idle], object]) -> None:
        self.result_types = prepared.module.plan(export).results
        self.sends_output = any(wanted.module in _SENT for wanted in prepared.module.imports)
        self._discard = discard
        self._idle: deque[_Idle] = deque()
        prepare_finalizing()

    def __del__(self) -> None:
        for each in getattr(self, "_idle", ()):
            finalize_later(partial(self._discard, each))


class PooledSandbox:
    """A sandbox that serves one guest after the other, and its GPU session.

    Attributes:
        session: None without a GPU.
        guest: number of the guest that it serves.
    """

    __slots__ = (
        *("_lock", "_service", "_stopped", "confined", "drain"),
        *("guest", "left", "sandbox", "services", "session"),
    )

    def __init__(self, sandbox: OneShotSandbox, session: Session | None) -> None:
        self.sandbox, self.session = sandbox, session
        self.drain: Callable[[], bool] | None = None  # ends the session; None without one
        self.left: list[SessionStatistics] = []  # the session's statistics if `drain` ended it, else empty
        self.services: dict[str, object] = {}  # for a guest that neither reads input nor sends chunks
        self._service: CudaService | None = None
        self._lock = threading.Lock()
        self.guest = 0
        self._stopped = False
        self.confined = session is not None and session.confined  # the session has to know each deadline
        if session is not None:
            self.drain = partial(_end, session, self.left)
            self._service = self.services["cuda"] = CudaService(session)

    def renew(self) -> bool:
        """Restore the first state for the next guest; return whether that was possible."""
        if self._service is not None:
            self._service.last_error = b""
        return self.session is None or self.session.renew()

    def stop(self, guest: int) -> None:
        """End a guest and its kernels, if it is still served, from any thread."""
        with self._lock:
            if guest == self.guest:
                self._stopped = True
                self.sandbox.cancel()
                if self.session is not None:
                    self.session.stop_kernels()

    def end_guest(self) -> bool:
        """Let nothing end the guest any more; return whether something has: the sandbox is to be closed then."""
        with self._lock:
            self.guest += 1
            return self._stopped

    def close(self) -> None:
        """Close the session, and return its memory layout."""
        if self.session is not None:
            self.session.close()
        self.sandbox.close()


def _call(
    pooled: PooledSandbox,
    args: Sequence[object],
    services: Mapping[str, object],
    now_ns: int,
    end_ns: int | None,
    config: WasiConfig | None,
) -> tuple[Number, ...]:
    """Run a guest; return its results. A `GuestError` carries what the guest had written."""
    sandbox, session = pooled.sandbox, pooled.session
    if config is not None:
        sandbox.give_wasi(config)
    try:
        try:
            return sandbox.run(args, services, now_ns, end_ns, pooled.drain)
        except NotCleared:
            if session is None or not session.await_clearing():
                raise CapacityExhausted("the GPU is too busy to clear its memory between two guests") from None
            return sandbox.run(args, services, time.monotonic_ns(), end_ns, pooled.drain)
    except GuestError as error:
        error.stdout, error.stderr, *_ = written(sandbox.wasi)
        raise


def _end(session: Session, left: list[SessionStatistics]) -> bool:
    left.append(session.statistics())
    return end_session(session)


@dataclass(eq=False)
class OneShotPlan(_Plan[PooledSandbox]):
    """What is prepared once for one-shot calls of an export on the caller's thread. Thread-safe.

    Attributes:
        settings: those that it was made under.
    """

    prepared: LinkedModule  # the module, for which `LinkedModule.is_one_shot`
    export: str
    limits: Limits
    share: Callable[[], SharedDevice] | None = None  # opens the device, None without a GPU
    tenant: str = ""  # whose account is charged
    memory: MemoryKind = "staged"  # how kernels reach linear memory
    saved_start: SavedStart | None = None  # the state sandboxes begin with, None for the module's own
    # See `tensorwasm.guest.sandbox.oneshot.OneShotSandbox`, as for ``initialiser``.
    brief: bool = field(default=False, kw_only=True)
    initialiser: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.settings = settings.current()
        most_ns = self.limits.wall_s * 1e9
        self._most_ns = None if math.isinf(most_ns) else int(most_ns)
        self._prepare(self.prepared, self.export, PooledSandbox.close)

    def invoke(
        self,
        args: Sequence[object],
        input: bytes,  # noqa: A002 - the interface's own word for it
        on_chunk: Callable[[bytes], bool] | None,
        deadline: Deadline | None,
        config: WasiConfig | None = None,
        announce: Announce | None = None,
    ) -> Invocation:
        """Make a call; `tensorwasm.runtime.Function.invoke` documents arguments and errors.

        A module with WASI needs a ``config``, without directories. ``announce`` is given what ends the guest.
        """
        started_ns = time.monotonic_ns()
        pooled = self._take()
        session, collected, services = pooled.session, None, pooled.services
        try:
            if pooled.confined and session is not None:
                session.enter(Deadline.after(self.limits.wall_s).earlier(deadline))
            if announce is not None:
                announce(partial(pooled.stop, pooled.guest))
            if self.sends_output:
                collected = Chunks(on_chunk)
                services = {**services, "input": input, "stream": OutputStream(collected)}
            now_ns, end_ns = time.monotonic_ns(), deadline.at_ns if deadline is not None else None
            if self._most_ns is not None and (end_ns is None or end_ns - now_ns > self._most_ns):
                end_ns = now_ns + self._most_ns
            values = _call(pooled, args, services, now_ns, end_ns, config)
            gpu = pooled.left[0] if pooled.left else session.statistics() if session is not None else None
            device_s = session.waited_s if session is not None else 0.0
        except BaseException:
            pooled.end_guest()
            pooled.close()
            raise
        ended = self.export, values, self.result_types, pooled.sandbox.exit_code
        wrote = _NOT_WRITTEN
        if config is not None:
            wrote = written(pooled.sandbox.wasi)  # once put back it serves others
            pooled.sandbox.give_wasi(None)  # an idle sandbox keeps no output
        if session is None and announce is None and len(self._idle) < MAX_IDLE:
            self._idle.append(pooled)  # without a session nothing has to be restored
        else:
            self._put(pooled)
        chunks = tuple(collected.chunks) if collected is not None else ()
        elapsed_s = (time.monotonic_ns() - started_ns) * 1e-9
        return Invocation(*ended, wrote.stdout, wrote.stderr, chunks, elapsed_s, gpu, *wrote[2:], device_s)

    def invoke_pure(self, args: Sequence[object], now_ns: int, end_ns: int) -> Invocation:
        """Make a call of a module without imports between two times of the monotonic clock: now, and its deadline."""
        if self._most_ns is not None and end_ns - now_ns > self._most_ns:
            end_ns = now_ns + self._most_ns
        idle = self._idle
        try:
            pooled = idle.pop()
        except IndexError:
            pooled = self._open()
        try:
            values = pooled.sandbox.run(args, _NOTHING, now_ns, end_ns, None)
        except BaseException:
            pooled.close()
            raise
        idle.append(pooled)  # no more than the calls of all threads at a time
        elapsed_s = (time.monotonic_ns() - now_ns) * 1e-9
        return Invocation(self.export, values, self.result_types, 0, b"", b"", (), elapsed_s, None)

    def _take(self) -> PooledSandbox:
        """Return a sandbox in its first state, the caller's alone."""
        idle = self._idle
        while True:
            try:
                pooled = idle.popleft() if self.share else idle.pop()
            except IndexError:
                return self._open()
            session = pooled.session
            if session is None:
                return pooled
            if not idle and session.clearing:
                idle.append(pooled)  # that takes as long as a small guest: two sandboxes take turns from now on
                return self._open()
            if session.resume():
                return pooled
            pooled.close()

    def _open(self) -> PooledSandbox:
        shared = self.share() if self.share is not None else None
        layout = take_layout()
        session: Session | None = None
        try:
            if shared is not None:
                with shared.device.native.bound():
                    session = shared.open_session(
                        self.tenant, architecture=self.settings.cuda_arch, memory_kind=self.memory, layout=layout
                    )
            sandbox = OneShotSandbox(
                self.prepared,
                self.export,
                self.limits,
                layout,
                self.saved_start,
                brief=self.brief,
                initialiser=self.initialiser,
            )
            return PooledSandbox(sandbox, session)
        except BaseException:
            if session is not None:
                session.close()
            return_layout(layout)
            raise

    def _put(self, pooled: PooledSandbox) -> None:
        """Keep a sandbox for the next guest, if its last one was not ended and its first state can be restored."""
        if pooled.end_guest() or len(self._idle) >= MAX_IDLE or not pooled.renew():
            pooled.close()
            return
        if pooled.session is not None:
            pooled.session.park()
        self._idle.append(pooled)


class FiberPlan(_Plan[OneShotFiber]):
    """What is prepared once for one-shot calls of an export as fibers. Thread-safe.

    The prepared form is one for which `LinkedModule.is_one_shot_fiber`.
    """

    def __init__(self, function: DeployedModule, prepared: LinkedModule, export: str) -> None:
        self.export = export
        self.limits: Limits = function.host.limits
        self._prepared = prepared
        self._prepare(prepared, export, OneShotFiber.scrap)

    def take(self) -> OneShotFiber:
        """Return a sandbox, the caller's alone until it is recycled."""
        with suppress(IndexError):
            return self._idle.pop()
        layout = take_layout()
        try:
            return OneShotFiber(self._prepared, self.export, self.limits, layout)
        except BaseException:
            return_layout(layout)
            raise

    def put(self, sandbox: OneShotFiber) -> None:
        """Take back a sandbox that is closed."""
        if len(self._idle) < MAX_IDLE:
            self._idle.append(sandbox)
        else:
            sandbox.scrap()


class OneShotJob:
    """A one-shot call, as a reactor runs it; `options` are those of `tensorwasm.runtime.Function.invoke`."""

    __slots__ = ("_args", "_chunks", "_ends_ns", "_function", "_future", "_options", "_plan", "_started_s")

    blocks: ClassVar = False
    lingers: ClassVar = False
    may_move: ClassVar = True

    def __init__(self, plan: FiberPlan, function: DeployedModule, args: Sequence[object], options: CallOptions) -> None:
        self._plan = plan
        self._function = function
        self._args = args
        self._options = options
        self._future: PendingInvocation | None = None
        self._chunks: Chunks | None = None
        self._started_s = time.perf_counter()
        self._ends_ns = earlier(options.get("deadline"), time.monotonic_ns(), plan.limits.wall_s)

    @property
    def future(self) -> PendingInvocation:
        """Gets the outcome. Made at the first access, which comes before another thread has the job."""
        if self._future is None:
            self._future = PendingInvocation()
        return self._future

    @property
    def light(self) -> bool:
        """Whether everything that its guest does is short, or a timer can end it."""
        return self._function.brief

    def begin(self) -> OneShotFiber:
        """Return the sandbox; nothing of it is made yet. Raises what comes before a guest runs."""
        plan, services = self._plan, _NOTHING
        if plan.sends_output:
            self._chunks = Chunks(self._options.get("on_chunk"))
            services = {"input": self._options.get("input", b""), "stream": OutputStream(self._chunks)}
        sandbox = plan.take()
        try:
            sandbox.begin(self._args, services, self._ends_ns, plan.put)
        except BaseException:
            plan.put(sandbox)
            raise
        return sandbox

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Close the sandbox and settle the outcome; see `tensorwasm.guest.reactor.task.Job`."""
        outcome, released = self.end(fiber, error)
        self.future.spent_ns = fiber.spent_ns if fiber is not None else 0
        self.future.settle(outcome)
        return released

    def end(self, fiber: Sandbox | None, error: BaseException | None) -> tuple[Invocation | BaseException, bool]:
        """Close the sandbox; return the outcome, and True: nothing reaches its memory any more."""
        if fiber is not None:
            self._function.long = fiber.long
            fiber.close()
        if fiber is None or error is not None:
            return error or InternalError("an invocation ended without an outcome"), True
        plan, chunks = self._plan, tuple(self._chunks.chunks) if self._chunks is not None else ()
        spent_s = time.perf_counter() - self._started_s
        return Invocation(plan.export, tuple(fiber.values), plan.result_types, 0, b"", b"", chunks, spent_s, None), True
