"""Threads for guests that run long: they take turns, a slice each, on as many processors as there are threads.

The first slice of a guest here is short, and new guests go before others: one that ends soon does not wait until a
hundred that do not have had a tick of the engine's each.

A guest comes here from the reactor (`tensorwasm.guest.reactor.reactor`) and goes back there when it waits, has ended,
or is to be ended: everything but running it is the reactor's. A store may be polled by one thread at a time, whichever
it is.

Source: wasmtime, ``Store`` is ``Send``; `tensorwasm.guest.sandbox.fiber.Fiber.enter_thread` does the same for what is
ours.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from tensorwasm.guest.engine.yielding import begin_yielding
from tensorwasm.guest.reactor.preemption_timer import run_first_slice
from tensorwasm.guest.reactor.task import Sandbox, Task

NEWCOMERS: Final = 16
"""New guests that run one after the other while older ones are in line: about as long as one of those."""

Return = Callable[[Task, bool, BaseException | None], None]
"""``(task, whether its call has ended, how)``."""


class CpuWorkers:
    """A bounded number of threads, each started when it is first needed. `take` and `count_back` are one thread's.

    Attributes:
        aboard: guests that were taken and have not come back.
        turns: how often a guest was run; one may be missing where two threads counted at once.
    """

    __slots__ = (
        "_bell",
        "_give_back",
        "_guests",
        "_in_a_row",
        "_make",
        "_newcomers",
        "_threads",
        "_workers",
        "aboard",
        "turns",
    )

    def __init__(self, threads: int, give_back: Return, make: Callable[[Task], Sandbox]) -> None:
        """Start nothing yet.

        Args:
            threads: most threads, at least 1.
            give_back: called on one of them when a guest cannot or must not go on.
            make: called on one of them to make the sandbox of a guest that has none.
        """
        self._make = make
        self._threads = threads
        self._give_back = give_back
        self._newcomers: deque[Task] = deque()
        self._guests: deque[Task] = deque()
        self._bell: SimpleQueue[bool] = SimpleQueue()  # True for each guest in line, False for each thread to end
        self._in_a_row = 0
        self._workers: list[threading.Thread] = []
        self.aboard = 0
        self.turns = 0

    def take(self, task: Task) -> bool:
        """Run a guest that can go on; return whether there is a thread for it. Returns at once."""
        if self.aboard >= len(self._workers) < self._threads:
            self._start_thread()
        if not self._workers:
            return False
        self.aboard += 1
        self._newcomers.append(task)
        self._bell.put(True)
        return True

    def count_back(self) -> None:
        """Say that a guest has come back."""
        self.aboard -= 1

    def close(self) -> None:
        """End the threads. No guest is with them any more."""
        for _ in self._workers:
            self._bell.put(False)
        for worker in self._workers:
            worker.join()
        self._workers.clear()

    def _start_thread(self) -> None:
        worker = threading.Thread(target=self._serve, name=f"tensorwasm-guest-{len(self._workers)}", daemon=True)
        try:
            worker.start()
        except RuntimeError:  # the system has none: those that there are, or the reactor, must do
            return
        self._workers.append(worker)

    def _serve(self) -> None:
        begin_yielding()
        while self._bell.get():
            task, new = self._next()
            self._turn(task, new)
            del task  # a guest that has gone back is not kept until the next comes

    def _next(self) -> tuple[Task, bool]:
        """Return the next in line, and whether it is new here. New ones first, but not for ever."""
        while True:  # there is one, though another thread may take what was seen here
            new = bool(self._newcomers) and (self._in_a_row < NEWCOMERS or not self._guests)
            self._in_a_row = self._in_a_row + 1 if new else 0
            with suppress(IndexError):
                return (self._newcomers if new else self._guests).popleft(), new

    def _turn(self, task: Task, new: bool) -> None:  # noqa: FBT001 - from `_next`
        """Run a guest for a slice; those that want more go to the back of the line."""
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
        except BaseException as error:  # noqa: BLE001 - it reaches whoever wants the outcome
            self._give_back(task, False, error)
            return
        if ended or fiber.waits or task.over:
            self._give_back(task, ended, None)
        else:
            self._guests.append(task)
            self._bell.put(True)
