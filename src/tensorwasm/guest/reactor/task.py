"""What a reactor runs: a job, how far its guest has come, and the times at which there is something to do."""

from __future__ import annotations

import heapq
import itertools
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from tensorwasm.guest.imports.suspension import DeviceWait, QueueWait, Steps
from tensorwasm.guest.sandbox.fiber import Fiber
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber
from tensorwasm.guest.sandbox.suspended_call import WaitingFunction

MAX_STALE: Final = 1024
"""Timers of guests that have ended are removed when there are more, and as many as all others."""

_LONGEST_S: Final = 1e9

Sandbox = Fiber | OneShotFiber
"""One that runs as a fiber."""


class Job(Protocol):
    """A call for a reactor to run. Its methods are called once each; what they raise is logged."""

    @property
    def blocks(self) -> bool:
        """Whether `finish` may wait, so that it is called on another thread."""

    @property
    def may_move(self) -> bool:
        """Whether any thread may run the guest; one with a GPU session stays with the reactor."""

    @property
    def light(self) -> bool:
        """Whether the guest's operations are all short or a timer can end them: it may keep the GIL for a slice."""

    @property
    def lingers(self) -> bool:
        """Whether a `finish` that blocks may wait for long, and needs a thread of its own."""

    def begin(self) -> Sandbox:
        """Return the sandbox; called on the reactor's thread, or on the thread that is to run a guest that may move."""

    def finish(self, fiber: Sandbox | None, error: BaseException | None) -> bool:
        """Take the outcome and close the sandbox, ``fiber``, which is None if `begin` raised.

        ``error`` is how the call ended, None if it returned. Returns whether nothing but the reactor may still reach
        the sandbox's session layout.
        """


@dataclass(slots=True, eq=False, weakref_slot=True)
class Task:
    """A job on a reactor. Opaque to other packages.

    Attributes:
        error: how the call ended; the first error counts.
        waits_ns: since when it waits for a device or its turn there, on the monotonic clock; 0 if it does not.
        notified_at: address that a device will notify, 0 if none; it outlives the guest.
        asleep: number of the timer that ends a sleep, 0 without.
        limit_ns: its last timer to give up on its turn, on the monotonic clock.
        working: another thread runs a blocking call for it.
        away: another thread runs the guest.
        over: the guest will not run again.
        gone: its sandbox is closed, and nothing but a notification may still reach its session layout.
    """

    job: Job
    long: bool = field(default=False, kw_only=True)
    fiber: Sandbox | None = None
    error: BaseException | None = None
    steps: tuple[WaitingFunction, Steps] | None = None
    signal: DeviceWait | None = None
    waits_ns: int = 0
    notified_at: int = 0
    asleep: int = 0
    turn: QueueWait | None = None
    limit_ns: int | None = None
    timed: bool = False
    working: bool = False
    away: bool = False
    over: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class FiberStatistics:
    """A snapshot of a reactor.

    Attributes:
        running: guests that can go on, those on other threads included.
        waiting: guests that wait for a device, a time, their turn, or a blocking call.
        on_device: of those, guests that a device will notify, or will be asked to when there is room.
        in_line: of those, guests that wait for their turn.
        wakes: of the reactor's thread.
        polls: runs of guests.
        orphans: session layouts that wait for a notification which outlives their guests.
        away: guests that other threads run or will run.
    """

    running: int = 0
    waiting: int = 0
    on_device: int = 0
    in_line: int = 0
    wakes: int = 0
    polls: int = 0
    notifications: int = 0
    orphans: int = 0
    away: int = 0


class Timers:
    """Timers, each with a number and optionally a guest, which they do not keep. Not safe from several threads."""

    def __init__(self) -> None:
        # A guest's job refers to its outcome, megabytes of output, and a deadline may be a minute later than its end.
        self._heap: list[tuple[int, int, weakref.ref[Task] | None]] = []
        self._numbers = itertools.count(1)
        self._stale = 0

    def __len__(self) -> int:
        """Return how many there are, those of guests that have ended included."""
        return len(self._heap)

    def add(self, at_ns: int, task: Task | None) -> int:
        """Return the number, never 0, of a new timer at a time on the monotonic clock."""
        if self._stale > max(MAX_STALE, len(self._heap) // 2):
            self._heap = [timer for timer in self._heap if timer[2] is None or _runs(timer[2])]
            heapq.heapify(self._heap)
            self._stale = 0
        number = next(self._numbers)
        heapq.heappush(self._heap, (at_ns, number, None if task is None else weakref.ref(task)))
        return number

    def add_in(self, seconds: float, task: Task | None) -> int:
        """Return the number of a new timer so many seconds from now."""
        return self.add(time.monotonic_ns() + int(min(seconds, _LONGEST_S) * 1e9), task)

    def count_stale(self) -> None:
        """Count a timer whose guest has ended."""
        self._stale += 1

    def take_due(self) -> Iterator[tuple[int, Task | None]]:
        """Remove the timers that are due; return number and guest of each, without those whose guests are gone."""
        now_ns = time.monotonic_ns()
        while self._heap and self._heap[0][0] <= now_ns:
            _, number, kept = heapq.heappop(self._heap)
            task = None if kept is None else kept()
            if kept is None or task is not None:
                yield number, task

    def seconds_left(self) -> float | None:
        """Return the seconds until the next timer, None without one."""
        return max(0.0, (self._heap[0][0] - time.monotonic_ns()) / 1e9) if self._heap else None


def _runs(kept: weakref.ref[Task]) -> bool:
    task = kept()
    return task is not None and not task.over
