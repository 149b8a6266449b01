"""Invocations that hold no thread while they wait: each is a fiber on the runtime's reactor.

Without Numba, or on another system than Linux, there are no fibers: invocations run on a few threads then, which the
log says once. All that changes is how many can wait at once, and that one which runs is not ended by cancelling it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict

from tensorwasm import settings
from tensorwasm.errors import GuestError, GuestExit, InternalError, TensorWasmError
from tensorwasm.gpu.accounts import DEFAULT_TENANT
from tensorwasm.gpu.pad import PadLayout
from tensorwasm.gpu.session import Session
from tensorwasm.gpu.shared import SharedDevice
from tensorwasm.guest import stack
from tensorwasm.guest.alarm import find_alarm
from tensorwasm.guest.fiber import Fiber
from tensorwasm.guest.fibers import Reactor
from tensorwasm.guest.imports import CudaService, OutputStream
from tensorwasm.guest.linker import Prepared
from tensorwasm.guest.native.loading import load_code
from tensorwasm.guest.native.pads import draw_pad, recycle_pad
from tensorwasm.guest.state import GuestState
from tensorwasm.guest.task import FiberStatistics, Sandbox, Task
from tensorwasm.guest.wasi import Sink, WasiConfig
from tensorwasm.runtime.form import Form
from tensorwasm.runtime.grants import Grants, parse_grants
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.lane import LaneJob, find_lane
from tensorwasm.runtime.linear import DIRECT, checked_kind, end_session, make_room, supplied, wants_compiled
from tensorwasm.runtime.loop import place
from tensorwasm.runtime.streams import Chunks, directories_of
from tensorwasm.values import Deadline, DeviceInfo, MemoryKind

if TYPE_CHECKING:
    from tensorwasm.runtime.function import Function

THREADS: Final = 32
"""Invocations that run at a time where there are no fibers."""


class Options(TypedDict, total=False):
    """The keyword arguments of `tensorwasm.runtime.Function.invoke`, which documents them."""

    argv: Sequence[str] | None
    env: Mapping[str, str] | None
    stdin: bytes
    input: bytes
    grants: Iterable[str] | Grants
    tenant: str
    memory_kind: MemoryKind | None
    deadline: Deadline | None
    stdout: Sink | None
    stderr: Sink | None
    on_chunk: Callable[[bytes], bool] | None
    on_device: Callable[[DeviceInfo, str], object] | None


class Submission(Future["Invocation"]):
    """The outcome of an invocation that was submitted. `cancel` ends the guest, before it starts and while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._told = self._settled = False
        self._stop: Callable[[Task], object] | None = None
        self._task: Task | None = None

    def cancel(self) -> bool:
        """End the guest, wherever it is; its sandbox is closed soon after. Returns False once there is an outcome."""
        if not super().cancel():
            return False
        with self._turn:
            told, self._told = self._told, True
        if not told:
            self.set_running_or_notify_cancel()
            stop, task = self._stop, self._task
            if stop is not None and task is not None:
                stop(task)
        return True

    def stop_with(self, stop: Callable[[Task], object], task: Task) -> None:
        """Say how the guest is ended."""
        self._stop, self._task = stop, task
        if self._told:
            stop(task)
        if self._settled:
            self._task = None

    def settle(self, outcome: Invocation | BaseException) -> None:
        """Set the outcome, unless it was cancelled.

        The guest refers to this, so this forgets it: the collector would have to find that out.
        """
        self._settled, self._task = True, None
        try:
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
            else:
                self.set_result(outcome)
        except InvalidStateError:
            return


@dataclass(slots=True)
class Call:
    """One invocation that was submitted.

    Attributes:
        function: what to call.
        export: name of the function.
        args: its arguments.
        services: what host functions find.
        chunks: what the guest sends.
        config: what it gets through WASI.
        tenant: whose account is charged.
        memory: how kernels reach linear memory.
        ends: when it must have ended.
        started_s: when it was submitted, as `time.perf_counter` counts.
    """

    function: Function
    export: str
    args: Sequence[object]
    services: dict[str, object]
    chunks: Chunks
    config: WasiConfig
    tenant: str
    memory: MemoryKind
    ends: Deadline
    started_s: float


class InvocationJob:
    """One invocation, as a reactor runs it."""

    __slots__ = ("_call", "_future", "_prepared", "_reactor", "_session", "_shared")

    def __init__(
        self, call: Call, prepared: Prepared, shared: SharedDevice | None, reactor: Reactor, future: Submission
    ) -> None:
        """Describe the job.

        Args:
            call: what to call, and with what.
            prepared: the module, linked for fibers.
            shared: the device, None without the grant.
            reactor: where it will run.
            future: gets the outcome.
        """
        self._call = call
        self._prepared = prepared
        self._shared = shared
        self._reactor = reactor
        self._future = future
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
        plain = self._shared is None and not call.config.directories and call.function.initialiser is None
        return plain and call.function.brief

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
                initialiser=call.function.initialiser,
            )
        except BaseException:
            if self._session is None or end_session(self._session):
                recycle_pad(pad)
            raise

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Make the invocation of what there is, close the sandbox, and tell whoever waits."""
        outcome, released = self.end(fiber, error)
        self._future.settle(outcome)
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

    def _open_session(self, shared: SharedDevice, pad: PadLayout) -> None:
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
        out, err = (stream.captured if stream else b"" for stream in (fiber.stdout, fiber.stderr))
        if isinstance(error, GuestError) and not isinstance(error, GuestExit):
            error.stdout, error.stderr = out, err
        if error is not None and not isinstance(error, GuestExit):
            return error
        call = self._call
        return Invocation(
            export=call.export,
            values=tuple(fiber.values),
            result_types=call.function.result_types(call.export),
            exit_code=error.code if error is not None else 0,
            stdout=out,
            stderr=err,
            chunks=tuple(call.chunks.chunks),
            elapsed_s=time.perf_counter() - call.started_s,
            gpu=self._session.statistics() if self._session is not None else None,
        )


class Background:
    """Where a runtime's submitted invocations run; nothing is started before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reactor: Reactor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(
        self, function: Function, export: str | None, args: Sequence[object], options: Options
    ) -> Future[Invocation]:
        """Run an invocation; see `tensorwasm.runtime.Function.submit`."""
        function.engine.require_ticker()  # a forked process has no threads either: nobody would ever answer
        reactor = self._open()
        if reactor is None:
            return self._submit_to_thread(function, export, args, options)
        future = Submission()
        try:
            job = _plan(function, export, args, reactor, future, options)
        except TensorWasmError as error:
            future.settle(error)
            return future
        return _spawn(reactor, job, future)

    def begin(
        self, function: Function, export: str | None, args: Sequence[object], options: Options
    ) -> Invocation | Future[Invocation]:
        """Run an invocation on this thread, for a slice at most; see `tensorwasm.runtime.Function.invoke_async`.

        Returns:
            What came of it, or the outcome to come if it goes on elsewhere.

        Raises:
            TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises.
        """
        function.engine.require_ticker()
        reactor = self._open()
        if reactor is None:
            return self._submit_to_thread(function, export, args, options)
        future = Submission()
        job = _plan(function, export, args, reactor, future, options)
        here = place()
        if function.long or not job.light or not here.free or find_alarm(function.engine) is None:
            return _spawn(reactor, job, future, long=function.long)
        fiber, error = job.begin(), None
        try:
            if not here.run(fiber):
                future.stop_with(reactor.cancel, reactor.adopt(job, fiber))
                return future
        except BaseException as raised:  # noqa: BLE001 - raised again, once the sandbox is closed
            error = raised
        outcome, released = job.end(fiber, error)
        if released:
            fiber.recycle()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def statistics(self) -> FiberStatistics:
        """Return a snapshot of the reactor; zeros where there are no fibers."""
        reactor = self._reactor
        return reactor.statistics() if reactor is not None else FiberStatistics()

    def close(self) -> None:
        """End every invocation and wait until all have gone. A second call does nothing."""
        with self._lock:
            self._closed = True
            reactor, threads = self._reactor, self._threads
        if reactor is not None:
            reactor.close()
        if threads is not None:
            threads.shutdown(cancel_futures=True)

    def _open(self) -> Reactor | None:
        """Return the reactor, started now if it was not; None where there are no fibers."""
        if stack.is_on_fiber():
            raise InternalError("a host function of a guest that was submitted tried to submit another")
        with self._lock:
            if self._closed:
                raise InternalError("the runtime is closed")
            if self._reactor is None and self._threads is None:
                code = load_code()
                if code is None:
                    self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tensorwasm-submitted")
                else:
                    self._reactor = Reactor(code, settings.current().guest_threads or os.cpu_count() or 1)
            return self._reactor

    def _submit_to_thread(
        self, function: Function, export: str | None, args: Sequence[object], options: Options
    ) -> Future[Invocation]:
        with self._lock:
            if self._closed or self._threads is None:
                raise InternalError("the runtime is closed")
            return self._threads.submit(function.invoke, export, args, **options)


def _plan(
    function: Function,
    export: str | None,
    args: Sequence[object],
    reactor: Reactor,
    future: Submission,
    options: Options,
) -> InvocationJob | LaneJob:
    lane = find_lane(function, export, options)
    if lane is not None:
        return LaneJob(lane, function, args, options, future)
    return _describe(function, export, args, reactor, future, **options)


def _spawn(reactor: Reactor, job: InvocationJob | LaneJob, future: Submission, *, long: bool = False) -> Submission:
    task = reactor.spawn(job, long=long)
    future.stop_with(reactor.cancel, task)
    return future


def _describe(
    function: Function,
    export: str | None,
    args: Sequence[object],
    reactor: Reactor,
    future: Submission,
    *,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    input: bytes = b"",  # noqa: A002 - the interface's own word for it
    grants: Iterable[str] | Grants = (),
    tenant: str = DEFAULT_TENANT,
    memory_kind: MemoryKind | None = None,
    deadline: Deadline | None = None,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
    on_chunk: Callable[[bytes], bool] | None = None,
    on_device: Callable[[DeviceInfo, str], object] | None = None,
) -> InvocationJob:
    """Turn what `invoke` takes into a job; opens the device and compiles, if that was not done before."""
    granted, host, chunks = parse_grants(grants), function.host, Chunks(on_chunk)
    call = Call(
        function=function,
        export=function.choose(export),
        args=args,
        services={"input": input, "stream": OutputStream(chunks)},
        chunks=chunks,
        config=WasiConfig(
            tuple(argv) if argv is not None else (function.name,),
            tuple((env or {}).items()),
            stdin,
            stdout,
            stderr,
            directories_of(granted),
        ),
        tenant=tenant,
        memory=checked_kind(memory_kind),
        ends=Deadline.after(host.limits.wall_s).earlier(deadline),
        started_s=time.perf_counter(),
    )
    shared = host.share() if granted.cuda else None
    if shared is not None and on_device is not None:
        on_device(shared.info, host.device_reason)
    native = shared is not None and wants_compiled(shared)
    prepared = function.form(Form(native, shared is not None and call.memory in DIRECT, fibers=True))
    return InvocationJob(call, prepared, shared, reactor, future)
