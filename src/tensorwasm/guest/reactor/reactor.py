"""The reactor: one thread that runs any number of guests as fibers.

It polls the guests that can go on, in turn, and runs the steps of host functions for those that wait. A guest that does
not wait is suspended when its time slice is over and queued again; one without a GPU then goes on with the CPU workers.
A guest's memory, its slot and its session layout are given back only when nothing can reach them any more: no other
thread, no device (``drain`` ensures that), no notification that has yet to arrive.
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
from tensorwasm.guest.imports.suspension import SuspensionCode
from tensorwasm.guest.reactor.notifications import CompletionQueue
from tensorwasm.guest.reactor.preemption_timer import run_first_slice
from tensorwasm.guest.reactor.task import FiberStatistics, Job, Sandbox, Task, Timers
from tensorwasm.guest.reactor.threads import BlockingPool, CpuWorkers
from tensorwasm.guest.reactor.waiters import FiberWaiters

BATCH: Final = 64
"""Guests that are polled between two checks of what has arrived."""
BATCH_NS: Final = 2_000_000
"""Longest time between two such checks, apart from one slice of a guest."""

_log = logging.getLogger(__name__)


class Reactor:
    """Runs guests as fibers on a thread of its own. Safe from any thread."""

    def __init__(self, code: SuspensionCode, threads: int = 1) -> None:
        """Start the thread, and at most ``threads`` more, at least 1, for guests that run long."""
        self._completions = CompletionQueue.open(code)
        self._arrivals: deque[Task] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._ready: deque[Task] = deque()
        self._tasks: set[Task] = set()
        self._timers = Timers()
        self._blocking_pool = BlockingPool()
        self._waiters = FiberWaiters(
            self._timers,
            self._blocking_pool,
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
        self._closing_lock = threading.Lock()
        self._polls = 0
        self._light_workers = CpuWorkers(threads, self._give_back, self._open)
        self._heavy_workers = CpuWorkers(threads, self._give_back, self._open)
        self._thread = threading.Thread(target=self._serve, name="tensorwasm-reactor", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that runs a guest must not be ended by the interpreter's end

    @property
    def here(self) -> bool:
        """Whether the caller is on the reactor's thread, which must not wait for it."""
        return threading.get_ident() == self._thread.ident

    def spawn(self, job: Job, *, long: bool = False) -> Task:
        """Run a job; do not wait for it. A guest that may move and is known to take ``long`` runs on other threads.

        Raises `InternalError` if the reactor is closed, or a host function of one of its guests called this.
        """
        if self.here:
            raise InternalError("a host function of a guest that runs as a fiber tried to run a guest itself")
        task = Task(job, long=long)
        self._admit(task)
        return task

    def adopt(self, job: Job, fiber: Sandbox) -> Task:
        """Take over a guest that began on the caller's thread; it stays the caller's if the reactor is closed."""
        task = Task(job, fiber=fiber)
        self._admit(task)
        return task

    def cancel(self, task: Task) -> None:
        """End a job's guest, wherever it is; its outcome is `GuestTrap` named ``cancelled``."""
        self._call(partial(self._end, task, _cancelled("the sandbox was cancelled")))

    def hold(self, key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> None:
        """Enter a context once a key, until the reactor closes. To be called on the reactor's thread."""
        if key not in self._held:
            self._held[key] = self._stack.enter_context(make())

    def statistics(self) -> FiberStatistics:
        """Return a snapshot."""
        light, heavy, devices = self._light_workers, self._heavy_workers, self._waiters.devices
        away, tasks = light.guest_count + heavy.guest_count, list(self._tasks)
        running = len(self._ready) + away
        return FiberStatistics(
            running=running,
            waiting=max(0, sum(not task.over for task in tasks) - running),
            on_device=sum(not task.over for task in devices.asked) + devices.in_line,
            in_line=sum(task.turn is not None for task in tasks),
            wakes=self._completions.wakes,
            polls=self._polls + light.turns + heavy.turns,
            notifications=devices.taken,
            orphans=sum(task.gone for task in devices.asked),
            away=away,
        )

    def close(self) -> None:
        """End every guest, wait until all are gone, and end the thread. A second call does nothing."""
        with self._closing_lock:
            closing, self._closing = self._closing, True
        if not closing:
            self._call(self._end_all)
        if not self.here:
            self._thread.join()
            self._light_workers.close()
            self._heavy_workers.close()
            self._blocking_pool.close()
            atexit.unregister(self.close)

    # ---------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while self._tasks or self._arrivals or self._calls or not self._closing:
            self._sleep()
            self._take_arrivals()
            for _ in range(len(self._calls)):
                self._calls.popleft()()
            self._take_notifications()
            self._take_timers()
            self._run_some()
        self._stack.close()
        self._completions.close(self._waiters.devices.close())

    def _sleep(self) -> None:
        """Wait until there is something to do. Other threads check `_asleep` after they have added something."""
        if self._ready or self._arrivals or self._calls:
            return
        self._asleep = True
        self._completions.wait(0.0 if self._arrivals or self._calls else self._timers.seconds_left())
        self._asleep = False

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._completions.wake()

    def _admit(self, task: Task) -> None:
        """Hand a guest to the thread, unless it is about to end: what is admitted is always served."""
        with self._closing_lock:
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
            if task.over:  # cancelled before it began
                continue
            self._tasks.add(task)
            if self._closing:
                self._end(task, _cancelled("the runtime was closed"))
            else:
                self._begin(task)

    def _take_notifications(self) -> None:
        for address in self._completions.take():
            task = self._waiters.devices.take(address)
            if task.gone:
                _recycle(task)
            else:
                self._waiters.notify(task)

    def _take_timers(self) -> None:
        for number, task in self._timers.take_due():
            if task is None:
                self._waiters.devices.check_devices()
            elif task.asleep == number:
                self._waiters.wake(task)
            elif self._check_time(task):
                self._waiters.check_turn(task)

    def _run_some(self) -> None:
        until_ns = time.monotonic_ns() + BATCH_NS
        for _ in range(min(BATCH, len(self._ready))):
            self._run(self._ready.popleft())
            if time.monotonic_ns() > until_ns:
                return

    # ---------------------------------------------------------------- a guest's life

    def _begin(self, task: Task) -> None:
        """Resume a guest that began elsewhere; queue a new one, whose sandbox is made in its turn.

        One that is long, or that no timer can end in time, does not begin on this thread.
        """
        if task.fiber is not None:
            task.fiber.enter_thread()
            task.fiber.wait.queue = self._completions.address
            self._proceed(task, task.fiber)
        elif not (task.long or not task.job.light) or not self._send_away(task):
            self._ready.append(task)

    def _open(self, task: Task) -> Sandbox:
        """Make a guest's sandbox, on the thread that is to run it."""
        fiber = task.fiber = task.job.begin()
        fiber.wait.queue = self._completions.address
        return fiber

    def _run(self, task: Task) -> None:
        if task.over:
            return
        ended = False
        try:
            fiber = task.fiber or self._open(task)
            self._polls += 1
            ended = run_first_slice(fiber, briefly=task.job.light) if task.job.may_move else fiber.run()
        except BaseException as error:  # noqa: BLE001 - it reaches the caller as the outcome
            self._end(task, error)
            return
        if ended:
            self._end(task, None)
        else:
            self._proceed(task, fiber)

    def _proceed(self, task: Task, fiber: Sandbox) -> None:
        """Arrange for a suspended guest to go on, and for its deadline; one that ends sooner needs no timer."""
        if not task.timed and fiber.state.deadline_ns is not None:
            task.timed = True
            self._timers.add(fiber.state.deadline_ns, task)
        if fiber.waits:
            self._waiters.start(task, fiber)
        elif self._check_time(task) and not self._send_away(task):
            self._ready.append(task)

    def _send_away(self, task: Task) -> bool:
        """Have other threads run a guest that may move; return whether they will.

        Guests that no timer can end in time have their own: a few in long instructions would block the others.
        """
        task.away = task.job.may_move and self._workers_of(task).take(task)
        return task.away

    def _workers_of(self, task: Task) -> CpuWorkers:
        return self._light_workers if task.job.light else self._heavy_workers

    def _give_back(self, task: Task, ended: bool, error: BaseException | None) -> None:  # noqa: FBT001 - see `CpuWorkers`
        self._call(partial(self._take_back, task, ended, error))

    def _take_back(self, task: Task, ended: bool, error: BaseException | None) -> None:  # noqa: FBT001 - likewise
        self._workers_of(task).guest_count -= 1
        task.away, fiber = False, task.fiber
        if task.over:
            self._unwind(task)
        elif ended or error is not None or fiber is None:
            self._end(task, error)
        else:
            fiber.enter_thread()
            self._proceed(task, fiber)

    def _go_on(self, task: Task) -> None:
        """Queue a guest whose host function has answered."""
        if self._check_time(task):
            self._ready.append(task)

    def _check_time(self, task: Task) -> bool:
        """End a guest whose deadline has passed, or whose output could not be taken; return whether it goes on."""
        if task.over or task.fiber is None:
            return False
        try:
            task.fiber.state.check()
        except BaseException as error:  # noqa: BLE001 - it reaches the caller as the outcome
            self._end(task, error)
            return False
        return True

    # ---------------------------------------------------------------- the end

    def _end(self, task: Task, error: BaseException | None) -> None:
        """Stop running a guest. Its sandbox is closed once no other thread works in its memory."""
        if task.over:
            return
        task.over, task.error = True, error
        if task.timed:
            self._timers.count_stale()
        self._waiters.end(task)
        if not task.away:
            self._unwind(task)

    def _unwind(self, task: Task) -> None:
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
        if blocks or (task.fiber is not None and task.fiber.long):  # freeing its memory or output may take as long
            self._blocking_pool.end(partial(self._close_sandbox, task), alone=blocks and task.job.lingers)
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
