"""Waiting for the GPU with a deadline, without a busy loop and without holding the GIL.

The driver can wait without burning a core (an event with blocking synchronisation) but not with a limit. So the
driver's wait runs on a thread of ours, and the caller waits for that thread with a limit. A wait that is given up
leaves its thread in the driver until the work ends; the threads are daemons, so that they never keep a process alive.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

_LONGEST_S: Final = 3600.0 * 24
_JOIN_S: Final = 1.0


class _Wait:
    """One wait: what to call, and what came of it."""

    def __init__(self, work: Callable[[], int]) -> None:
        self.done = threading.Event()
        self.code = 0
        self.error: Exception | None = None
        self._work = work

    def run(self) -> None:
        try:
            self.code = self._work()
        except Exception as error:  # noqa: BLE001 - handed to the caller's thread, which raises it
            self.error = error


class _Thread:
    """A thread that runs one wait after another."""

    def __init__(self, owner: Waiters) -> None:
        self.waits: SimpleQueue[_Wait | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._serve, args=(owner,), name="tensorwasm-gpu-wait", daemon=True)
        self.thread.start()

    def _serve(self, owner: Waiters) -> None:
        while (wait := self.waits.get()) is not None:
            wait.run()
            owner.idle.append(self)  # before `done`: whoever is told must find this thread idle
            wait.done.set()


class Waiters:
    """Threads that wait on behalf of callers; as many as waits there ever were at once.

    Attributes:
        idle: threads that wait for nothing.
    """

    def __init__(self) -> None:
        """Start no thread yet."""
        self.idle: deque[_Thread] = deque()

    def wait(self, work: Callable[[], int], limit_s: float) -> int | None:
        """Run ``work``, which blocks, elsewhere and return its result; None if that takes longer than ``limit_s``."""
        wait = _Wait(work)
        try:
            thread = self.idle.pop()
        except IndexError:
            thread = _Thread(self)
        thread.waits.put(wait)
        if not wait.done.wait(min(limit_s, _LONGEST_S)):
            return None
        if wait.error is not None:
            raise wait.error
        return wait.code

    def close(self) -> None:
        """End the threads that wait for nothing. One that is still in the driver is left to the process's end."""
        while self.idle:
            thread = self.idle.pop()
            thread.waits.put(None)
            thread.thread.join(_JOIN_S)
