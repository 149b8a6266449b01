"""Times at which a reactor has something to do."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator
from typing import Final

from tensorwasm.guest.reactor.task import Task

MAX_STALE: Final = 1024
"""Timers of guests that have ended are removed when there are more, and as many as all others."""

_LONGEST_S: Final = 1e9


class Timers:
    """Timers, each with a number and optionally a guest. Not safe from several threads."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Task | None]] = []
        self._numbers = itertools.count(1)
        self._stale = 0

    def __len__(self) -> int:
        """Return how many there are, those of guests that have ended included."""
        return len(self._heap)

    def add(self, at_ns: int, task: Task | None) -> int:
        """Return the number, never 0, of a new timer at a time on the monotonic clock."""
        if self._stale > max(MAX_STALE, len(self._heap) // 2):
            self._heap = [timer for timer in self._heap if timer[2] is None or not timer[2].over]
            heapq.heapify(self._heap)
            self._stale = 0
        number = next(self._numbers)
        heapq.heappush(self._heap, (at_ns, number, task))
        return number

    def add_in(self, seconds: float, task: Task | None) -> int:
        """Return the number of a new timer so many seconds from now."""
        return self.add(time.monotonic_ns() + int(min(seconds, _LONGEST_S) * 1e9), task)

    def count_stale(self) -> None:
        """Count a timer whose guest has ended."""
        self._stale += 1

    def take_due(self) -> Iterator[tuple[int, Task | None]]:
        """Remove the timers that are due; return number and guest of each."""
        now_ns = time.monotonic_ns()
        while self._heap and self._heap[0][0] <= now_ns:
            _, number, task = heapq.heappop(self._heap)
            yield number, task

    def seconds_left(self) -> float | None:
        """Return the seconds until the next timer, None without one."""
        return max(0.0, (self._heap[0][0] - time.monotonic_ns()) / 1e9) if self._heap else None
