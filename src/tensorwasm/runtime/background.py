"""Invocations that hold no thread while they wait: each is a fiber on the runtime's reactor.

Without Numba, or on another system than Linux, there are no fibers: invocations run on a few threads then, which the
log says once. All that changes is how many can wait at once, and that one which runs is not ended by cancelling it.
So it is, too, while compiled code is still being loaded: what comes later is a fiber.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from tensorwasm import settings
from tensorwasm.errors import InternalError, TensorWasmError
from tensorwasm.guest.native.loading import is_early, load_code
from tensorwasm.guest.reactor.preemption_timer import find_alarm
from tensorwasm.guest.reactor.reactor import Reactor
from tensorwasm.guest.reactor.task import FiberStatistics
from tensorwasm.guest.sandbox import stack
from tensorwasm.guest.sandbox.oneshot_fiber import is_one_shot_fiber
from tensorwasm.runtime.fiber import InvocationJob, describe, form_of
from tensorwasm.runtime.invocation import Invocation
from tensorwasm.runtime.lane import LaneJob, find_lane
from tensorwasm.runtime.linear import checked_kind
from tensorwasm.runtime.loop import place
from tensorwasm.runtime.submission import Submission

if TYPE_CHECKING:
    from tensorwasm.runtime.function import Function
    from tensorwasm.runtime.grants import Grants
    from tensorwasm.runtime.options import Options
    from tensorwasm.values import MemoryKind

THREADS: Final = 32
"""Invocations that run at a time where there are no fibers."""


class Background:
    """Where a runtime's submitted invocations run; nothing is started before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reactor: Reactor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._early = False
        self._closed = False

    def open(self) -> Reactor | None:
        """Return the reactor, started now if it was not; None where there are no fibers.

        Its threads inherit the caller's weight in the scheduler.

        Raises:
            InternalError: the runtime is closed, or a guest's host function calls this.
        """
        if stack.is_on_fiber():
            raise InternalError("a host function of a guest that was submitted tried to submit another")
        with self._lock:
            if self._closed:
                raise InternalError("the runtime is closed")
            if self._reactor is None and (self._threads is None or self._early):
                self._early = is_early()  # asked first: what ends in between is only asked once more
                code = load_code()
                if code is None:
                    self._threads = self._threads or ThreadPoolExecutor(
                        THREADS, thread_name_prefix="tensorwasm-submitted"
                    )
                else:
                    self._reactor = Reactor(code, settings.current().guest_threads or os.cpu_count() or 1)
            return self._reactor

    def submit(
        self, function: Function, export: str | None, args: Sequence[object], options: Options
    ) -> Future[Invocation]:
        """Run an invocation; see `tensorwasm.runtime.Function.submit`."""
        function.engine.require_ticker()  # a forked process has no threads either: nobody would ever answer
        reactor = self.open()
        if reactor is None:
            return self._submit_to_thread(function, export, args, options)
        try:
            job = _plan(function, export, args, reactor, options)
        except TensorWasmError as error:
            future = Submission()
            future.settle(error)
            return future
        return _spawn(reactor, job)

    def prepare(self, function: Function, granted: Grants, memory: MemoryKind | None) -> None:
        """Open the device and compile, if what is granted needs that and it was not done before. Blocks for as long.

        Raises:
            TensorWasmError: what `tensorwasm.runtime.Function.invoke` raises before a guest runs.
        """
        if self.open() is not None:
            prepared = function.form(form_of(function.host.share() if granted.cuda else None, checked_kind(memory)))
            is_one_shot_fiber(prepared)  # compiled code is loaded now, and not on the first caller's thread

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
        reactor = self.open()
        if reactor is None:
            return self._submit_to_thread(function, export, args, options)
        job = _plan(function, export, args, reactor, options)
        here = place()
        if function.long or not job.light or not here.free or find_alarm(function.engine) is None:
            return _spawn(reactor, job, long=function.long)
        fiber, error = job.begin(), None
        try:
            if not here.run(fiber):
                future = job.future
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
    options: Options,
) -> InvocationJob | LaneJob:
    lane = find_lane(function, export, options)
    if lane is not None:
        return LaneJob(lane, function, args, options)
    return describe(function, export, args, reactor, Submission(), **options)


def _spawn(reactor: Reactor, job: InvocationJob | LaneJob, *, long: bool = False) -> Submission:
    future = job.future
    task = reactor.spawn(job, long=long)
    future.stop_with(reactor.cancel, task)
    return future
