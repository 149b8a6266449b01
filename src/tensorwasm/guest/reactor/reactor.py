"""The reactor: one thread that runs any number of guests as fibers.

It polls the guests that can go on, in turn, and takes the steps of host functions for those that wait
(`tensorwasm.guest.reactor.waiters`). A guest that does not wait is suspended when its time slice is over and goes to
the back; one without a GPU goes on with other threads then (`tensorwasm.guest.reactor.cpu_workers`), until it waits or
has ended.

A guest's memory, its slot and its pad are given back only when nothing can reach them any more: not the other threads,
not the device (``drain`` sees to that), not a notification that has yet to arrive.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Final

from tensorwasm.errors import GuestTrap, InternalError
from tensorwasm.guest.engine import traps
from tensorwasm.guest.imports.suspension import WaitingCode
from tensorwasm.guest.reactor.blocking_pool import BlockingPool
from tensorwasm.guest.reactor.completion_queue import CompletionQueue
from tensorwasm.guest.reactor.cpu_workers import CpuWorkers
from tensorwasm.guest.reactor.preemption_timer import run_first_slice
from tensorwasm.guest.reactor.task import FiberStatistics, Job, Sandbox, Task
from tensorwasm.guest.reactor.timers import Timers
from tensorwasm.guest.reactor.waiters import FiberWaiters

BATCH: Final = 64
"""Guests that are polled between two looks at what has arrived."""
BATCH_NS: Final = 2_000_000
"""Longest time between two such looks, but for one slice of a guest."""

_log = logging.getLogger(__name__)


class Reactor:
    """Runs guests as fibers on a thread of its own. Any thread may use it."""

    def __init__(self, code: WaitingCode, threads: int = 1) -> None:
        """Start the thread.

        Args:
            code: the compiled functions.
            threads: most of them for guests that run long, at least 1.

        Raises:
            InternalError: the system has no descriptor left.
        """
        self._inbox = CompletionQueue.open(code)
        self._arrivals: deque[Task] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._ready: deque[Task] = deque()
        self._tasks: set[Task] = set()
        self._timers = Timers()
        self._errands = BlockingPool()
        self._waits = FiberWaiters(
            self._timers,
            self._errands,
            code.complete,
            call=self._call,
            go_on=self._go_on,
            end=self._end,
            finish=self._finish,
        )
        self._held: dict[Hashable, Any] = {}
        self._stack = ExitStack()
        self._closing = False
        self._asleep = False
        self._taking = threading.Lock()
        self._polls = 0
        self._crew = CpuWorkers(threads, self._give_back, self._open)
        self._heavy = CpuWorkers(threads, self._give_back, self._open)
        self._thread = threading.Thread(target=self._serve, name="tensorwasm-reactor", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that runs a guest must not be ended by the interpreter's end

    @property
    def here(self) -> bool:
        """Whether the caller is on the reactor's thread, which must not wait for it."""
        return threading.get_ident() == self._thread.ident

    def spawn(self, job: Job, *, long: bool = False) -> Task:
        """Run a job; return at once.

        Args:
            job: what to run.
            long: it is known to take long; if any thread may run it, others than the reactor's do from the start.

        Raises:
            InternalError: the reactor is closed, or a host function of one of its guests called this.
        """
        if self.here:
            raise InternalError("a host function of a guest that runs as a fiber tried to run a guest itself")
        task = Task(job, long=long)
        self._admit(task)
        return task

    def adopt(self, job: Job, fiber: Sandbox) -> Task:
        """Have a guest go on that began on the caller's thread, which leaves it alone from now on; return at once.

        Raises:
            InternalError: the reactor is closed; the guest is still the caller's.
        """
        task = Task(job)
        task.fiber = fiber
        self._admit(task)
        return task

    def cancel(self, task: Task) -> None:
        """End a job's guest, wherever it is; its outcome is `GuestTrap` named ``cancelled``."""
        self._call(partial(self._end, task, _cancelled("the sandbox was cancelled")))

    def hold(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> None:
        """Enter a context on the reactor's thread, where this must be called, once a key, until the reactor closes."""
        if key not in self._held:
            self._held[key] = self._stack.enter_context(make())

    def statistics(self) -> FiberStatistics:
        """Return a snapshot."""
        away, tasks, signals = self._crew.aboard + self._heavy.aboard, list(self._tasks), self._waits.signals
        running = len(self._ready) + away
        return FiberStatistics(
            running=running,
            waiting=max(0, sum(not task.over for task in tasks) - running),
            on_device=sum(not task.over for task in signals.asked) + signals.in_line,
            in_line=sum(task.turn is not None for task in tasks),
            wakes=self._inbox.wakes,
            polls=self._polls + self._crew.turns + self._heavy.turns,
            notifications=signals.taken,
            orphans=sum(task.gone for task in signals.asked),
            away=away,
        )

    def close(self) -> None:
        """End every guest, wait until all have gone, and end the thread. A second call does nothing."""
        with self._taking:
            closing, self._closing = self._closing, True
        if not closing:
            self._call(self._end_all)
        if not self.here:
            self._thread.join()
            self._crew.close()
            self._heavy.close()
            self._errands.close()
            atexit.unregister(self.close)

    # ---------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while self._tasks or self._arrivals or self._calls or not self._closing:
            self._sleep()
            self._take_arrivals()
            self._take_calls()
            self._take_notifications()
            self._take_timers()
            self._run_some()
        self._stack.close()
        self._inbox.close(self._waits.signals.close())

    def _sleep(self) -> None:
        """Wait until there is something to do. Others look at `_asleep` after they have left what there is to do."""
        if self._ready or self._arrivals or self._calls:
            return
        self._asleep = True
        self._inbox.wait(0.0 if self._arrivals or self._calls else self._timers.patience_s())
        self._asleep = False

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._inbox.wake()

    def _admit(self, task: Task) -> None:
        """Have the thread begin with a guest, unless it is to end: what comes before that is always seen to."""
        with self._taking:
            if self._closing:
                raise InternalError("the reactor is closed")
            self._arrivals.append(task)
        self._wake()

    def _call(self, function: Callable[[], None]) -> None:
        self._calls.append(function)
        self._wake()

    def _take_arrivals(self) -> None:
        for _ in range(len(self._arrivals)):
            task = self._arrivals.popleft()
            if self._enter(task):
                self._begin(task)

    def _take_calls(self) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def _take_notifications(self) -> None:
        for address in self._inbox.take():
            task = self._waits.signals.take(address)
            if task.gone:
                _recycle(task)
            else:
                self._waits.notify(task)

    def _take_timers(self) -> None:
        for number, task in self._timers.take_due():
            if task is None:
                self._waits.signals.feel_pulse()
            elif task.asleep == number:
                self._waits.wake(task)
            elif self._check_time(task):
                self._waits.turns.check(task)

    def _run_some(self) -> None:
        until_ns = time.monotonic_ns() + BATCH_NS
        for _ in range(min(BATCH, len(self._ready))):
            self._run(self._ready.popleft())
            if time.monotonic_ns() > until_ns:
                return

    # ---------------------------------------------------------------- a guest's life

    def _begin(self, task: Task) -> None:
        """Let a guest go on that began elsewhere; have others stand in line: their sandboxes are made in their turn.

        One that no timer can end in time does not begin on this thread, which all others need.
        """
        if task.fiber is not None:
            task.fiber.enter_thread()
            task.fiber.wait.queue = self._inbox.address
            self._proceed(task, task.fiber)
        elif not self._belongs_elsewhere(task) or not self._send_away(task):
            self._ready.append(task)

    def _belongs_elsewhere(self, task: Task) -> bool:
        return task.job.roams and (task.long or not task.job.light)

    def _make(self, task: Task) -> Sandbox | None:
        """Return a guest's sandbox, None if it cannot be made."""
        try:
            return self._open(task)
        except BaseException as error:  # noqa: BLE001 - it reaches whoever wants the outcome
            self._end(task, error)
            return None

    def _open(self, task: Task) -> Sandbox:
        """Make a guest's sandbox, on the thread that is to run it."""
        fiber = task.fiber = task.job.begin()
        fiber.wait.queue = self._inbox.address
        return fiber

    def _enter(self, task: Task) -> bool:
        """Count a guest as one of ours; return whether it is to run."""
        if task.over:  # cancelled before it began
            return False
        self._tasks.add(task)
        if self._closing:
            self._end(task, _cancelled("the runtime was closed"))
        return not task.over

    def _keep(self, task: Task, fiber: Sandbox) -> None:
        """See that the deadline finds a guest. Those that end within their first slice need no timer."""
        if not task.timed and fiber.state.deadline_ns is not None:
            task.timed = True
            self._timers.add(fiber.state.deadline_ns, task)

    def _run(self, task: Task) -> None:
        if task.over:
            return
        fiber = task.fiber or self._make(task)
        if fiber is None:
            return
        self._polls += 1
        try:
            ended = run_first_slice(fiber, briefly=task.job.light) if task.job.roams else fiber.run()
        except BaseException as error:  # noqa: BLE001 - it reaches whoever wants the outcome
            self._end(task, error)
            return
        if ended:
            self._end(task, None)
        else:
            self._proceed(task, fiber)

    def _proceed(self, task: Task, fiber: Sandbox) -> None:
        """See to it that a guest which has been suspended goes on."""
        self._keep(task, fiber)
        if fiber.waits:
            self._waits.start(task, fiber)
        elif self._check_time(task) and not self._send_away(task):
            self._ready.append(task)

    def _send_away(self, task: Task) -> bool:
        """Have other threads run a guest that may be run by any; return whether they will.

        Those that no timer can end in time have threads of their own: a few of them, each in one instruction over much
        memory, would keep all threads from the others for seconds.
        """
        task.away = task.job.roams and self._crew_of(task).take(task)
        return task.away

    def _crew_of(self, task: Task) -> CpuWorkers:
        return self._crew if task.job.light else self._heavy

    def _give_back(self, task: Task, ended: bool, error: BaseException | None) -> None:  # noqa: FBT001 - see `CpuWorkers`
        self._call(partial(self._come_back, task, ended, error))

    def _come_back(self, task: Task, ended: bool, error: BaseException | None) -> None:  # noqa: FBT001 - likewise
        self._crew_of(task).count_back()
        task.away, fiber = False, task.fiber
        if task.over:
            self._leave(task)
        elif ended or error is not None or fiber is None:
            self._end(task, error)
        else:
            fiber.enter_thread()
            self._proceed(task, fiber)

    def _go_on(self, task: Task) -> None:
        """Run a guest again whose host function has answered."""
        if self._check_time(task):
            self._ready.append(task)

    def _check_time(self, task: Task) -> bool:
        """End a guest whose deadline has passed, or whose output could not be taken; return whether it goes on."""
        if task.over or task.fiber is None:
            return False
        try:
            task.fiber.state.check()
        except BaseException as error:  # noqa: BLE001 - it reaches whoever wants the outcome
            self._end(task, error)
            return False
        return True

    # ---------------------------------------------------------------- the end

    def _end(self, task: Task, error: BaseException | None) -> None:
        """The guest runs no more. Its sandbox goes once no other thread is at work in its memory."""
        if task.over:
            return
        task.over, task.error = True, error
        if task.timed:
            self._timers.count_stale()
        self._waits.end(task)
        if not task.away:
            self._leave(task)

    def _leave(self, task: Task) -> None:
        """Unwind a guest that no thread runs."""
        if task.fiber is not None:
            task.fiber.stop()
        if task.steps is not None:
            task.steps[1].close()
            task.steps = None
        if not task.working:
            self._finish(task)

    def _end_all(self) -> None:
        for task in list(self._tasks):
            self._end(task, _cancelled("the runtime was closed"))

    def _finish(self, task: Task) -> None:
        blocks = task.job.blocks
        if blocks or (task.fiber is not None and task.fiber.long):  # it may have as much memory, or output, to be freed
            self._errands.end(partial(self._close_sandbox, task), alone=blocks and task.job.lingers)
        else:
            self._close_sandbox(task)

    def _close_sandbox(self, task: Task) -> None:
        released = False
        try:
            released = task.job.finish(task.fiber, task.error)
        except BaseException:  # noqa: BLE001 - the reactor goes on
            _log.exception("a job failed to take the outcome of its guest")
        if self.here:
            self._forget(task, released)
        else:
            self._call(partial(self._forget, task, released))

    def _forget(self, task: Task, released: bool) -> None:  # noqa: FBT001 - the answer of a job
        self._tasks.discard(task)
        task.gone = released
        if released and not task.notified_at:
            _recycle(task)


def _recycle(task: Task) -> None:
    if task.fiber is not None:
        task.fiber.recycle()
    task.fiber = None


def _cancelled(why: str) -> GuestTrap:
    return GuestTrap(f"{traps.CANCELLED}: {why}", traps.CANCELLED)
