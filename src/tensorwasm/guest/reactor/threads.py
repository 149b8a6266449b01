"""Threads beside a reactor's own: for guests that run long, and for blocking calls.

Guests take turns, a slice each, on as many processors as there are threads. The first slice of a guest here is short,
and new guests go first, so that a short one does not wait for a tick of each long one. A guest comes from the reactor
and returns to it when it waits, has ended, or is to be ended.

Source: wasmtime, ``Store`` is ``Send``; `tensorwasm.guest.sandbox.fiber.Fiber.enter_thread` does so for our state.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from tensorwasm.guest.reactor.preemption_timer import run_first_slice
from tensorwasm.guest.reactor.task import Sandbox, Task
from tensorwasm.yielding import begin_yielding

NEWCOMERS: Final = 16
"""New guests that run in a row while older ones wait: about as long as one slice of those."""

THREADS: Final = 8
"""Threads for blocking calls, and as many for closing sandboxes, which never queue behind waits for a GPU. Closing one
that may itself wait for other guests' work gets a thread of its own."""

Return = Callable[[Task, bool, BaseException | None], None]
"""``(task, whether its call has ended, how)``."""


class CpuWorkers:
    """A bounded number of threads, each started when first needed. `take` is for one thread.

    ``guest_count`` is of guests that have not returned, which that thread counts down; ``turns`` counts runs, not
    exactly where two threads counted.
    """

    def __init__(self, threads: int, give_back: Return, make: Callable[[Task], Sandbox]) -> None:
        """Start no thread yet.

        At most ``threads`` of them, at least 1, call ``make`` for a missing sandbox, and ``give_back`` when a guest
        cannot or must not go on.
        """
        self._make = make
        self._threads = threads
        self._give_back = give_back
        self._newcomers: deque[Task] = deque()
        self._guests: deque[Task] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # True for each queued guest, False for each thread to end
        self._in_a_row = 0
        self._workers: list[threading.Thread] = []
        self.guest_count = 0
        self.turns = 0

    def take(self, task: Task) -> bool:
        """Run a guest that can go on; return whether there is a thread for it. Does not block."""
        if self.guest_count >= len(self._workers) < self._threads:
            self._start_thread()
        if not self._workers:
            return False
        self.guest_count += 1
        self._newcomers.append(task)
        self._wakeups.put(True)
        return True

    def close(self) -> None:
        """End the threads, which have no guest any more."""
        for _ in self._workers:
            self._wakeups.put(False)
        for worker in self._workers:
            worker.join()
        self._workers.clear()

    def _start_thread(self) -> None:
        worker = threading.Thread(target=self._serve, name=f"tensorwasm-guest-{len(self._workers)}", daemon=True)
        with suppress(RuntimeError):  # the system has no thread left: the existing ones, or the reactor, must do
            worker.start()
            self._workers.append(worker)

    def _serve(self) -> None:
        begin_yielding()
        while self._wakeups.get():
            task, new = self._next()
            self._run(task, new)
            del task  # a guest that has returned is not kept until the next comes

    def _next(self) -> tuple[Task, bool]:
        """Return the next queued guest, and whether it is new here. New ones go first, up to `NEWCOMERS` in a row."""
        while True:  # there is one, though another thread may take what was seen here
            new = bool(self._newcomers) and (self._in_a_row < NEWCOMERS or not self._guests)
            self._in_a_row = self._in_a_row + 1 if new else 0
            with suppress(IndexError):
                return (self._newcomers if new else self._guests).popleft(), new

    def _run(self, task: Task, new: bool) -> None:  # noqa: FBT001 - from `_next`
        """Run a guest for a slice; one that wants more goes to the back of the queue."""
        if task.over:
            self._give_back(task, False, None)
            return
        self.turns += 1
        try:
            fiber = task.fiber or self._make(task)
            fiber.enter_thread()
            ended = run_first_slice(fiber) if new else fiber.run()
            if not ended and not fiber.waits:
                fiber.state.check()
        except BaseException as error:  # noqa: BLE001 - it reaches the caller as the outcome
            self._give_back(task, False, error)
            return
        if ended or fiber.waits or task.over:
            self._give_back(task, ended, None)
        else:
            self._guests.append(task)
            self._wakeups.put(True)


class BlockingPool:
    """A few threads, each started when it is first needed. Safe from any thread."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(THREADS, "tensorwasm-fibers", begin_yielding)
        self._closers = ThreadPoolExecutor(THREADS, "tensorwasm-fiber-ends", begin_yielding)

    def work(self, function: Callable[[], None]) -> None:
        """Call a function that a guest waits for."""
        _submit(self._workers, function)

    def end(self, function: Callable[[], None], *, alone: bool) -> None:
        """Call a function that closes a sandbox: ``alone`` on a thread of its own, if the system provides one."""
        if not (alone and _on_own_thread(function)):
            _submit(self._closers, function)

    def close(self) -> None:
        """Wait until all calls have ended."""
        self._workers.shutdown()
        self._closers.shutdown()


def _on_own_thread(function: Callable[[], None]) -> bool:
    try:
        threading.Thread(target=function, name="tensorwasm-fiber-late-end", daemon=True).start()
    except RuntimeError:  # the system has no thread left
        return False
    return True


def _submit(pool: ThreadPoolExecutor, function: Callable[[], None]) -> None:
    try:
        pool.submit(function)
    except RuntimeError:  # the interpreter is about to end and takes no more work
        function()
