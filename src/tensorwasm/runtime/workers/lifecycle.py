"""The states of a worker, as a table, and when an ended process is started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final


class State(Enum):
    """The state of a worker."""

    STARTING = "starting"  # there is no process yet, or it has not said that it is ready
    READY = "ready"  # it takes requests
    DRAINING = "draining"  # it takes none, and finishes what it has
    RETIRED = "retired"  # it is gone, as was wanted
    FAILED = "failed"  # it ended too often, and is not started again


class LifecycleEvent(Enum):
    """What changes a worker's state."""

    READY = "ready"
    DRAIN = "drain"
    ENDED = "ended"
    GIVEN_UP = "given up"
    LEFT = "left"


TRANSITIONS: Final[dict[tuple[State, LifecycleEvent], State]] = {
    (State.STARTING, LifecycleEvent.READY): State.READY,
    (State.STARTING, LifecycleEvent.DRAIN): State.DRAINING,
    (State.STARTING, LifecycleEvent.ENDED): State.STARTING,
    (State.STARTING, LifecycleEvent.GIVEN_UP): State.FAILED,
    (State.READY, LifecycleEvent.DRAIN): State.DRAINING,
    (State.READY, LifecycleEvent.ENDED): State.STARTING,
    (State.READY, LifecycleEvent.GIVEN_UP): State.FAILED,
    (State.DRAINING, LifecycleEvent.DRAIN): State.DRAINING,
    (State.DRAINING, LifecycleEvent.ENDED): State.STARTING,
    (State.DRAINING, LifecycleEvent.GIVEN_UP): State.FAILED,
    (State.DRAINING, LifecycleEvent.LEFT): State.RETIRED,
}
"""The state after an event. What is not here cannot happen."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """When ended processes are started again."""

    first_s: float = 0.05  # wait before the second start in a row; it doubles with each
    longest_s: float = 5.0  # longest wait
    stable_s: float = 10.0  # a process that was ready for so long ends the row
    idle_ends: int = 5  # ends in a row, without a request to blame, after which the worker is given up


class Lifecycle:
    """One worker's states. Not thread-safe: used by its supervising thread alone."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = State.STARTING  # the current one
        self.starts_at_s = clock()  # when, by the clock, the next process may be started
        self.replacing = False  # whether another process follows the one that drains
        self.over = False  # no process will follow
        self.takes = True  # a request given to the worker now will be run, by this process or the next
        self._backoff = backoff
        self._clock = clock
        self._ready_at_s: float | None = None
        self._ever_ready = False
        self._ends = 0
        self._idle_ends = 0

    def ready(self) -> None:
        """Note that the process takes requests."""
        self._move(LifecycleEvent.READY)
        self._ready_at_s = self._clock()
        self._ever_ready = True

    def drain(self, *, replace: bool) -> None:
        """Note that the process takes no more requests; one that was not to be replaced never is."""
        self.replacing = replace and (self.state is not State.DRAINING or self.replacing)
        self._move(LifecycleEvent.DRAIN)

    def ended(self, *, blamed: bool, unfit: bool = False) -> None:
        """Note that the process has ended, and decide what follows.

        A process that had or had answered requests is `blamed`: they may be the cause. An `unfit` one reported that it
        cannot be used; at the first start that ends the worker at once.
        """
        if self.state is State.DRAINING and not self.replacing:
            self._move(LifecycleEvent.LEFT)
            return
        stable = self._ready_at_s is not None and self._clock() - self._ready_at_s >= self._backoff.stable_s
        self._ends = 1 if stable else self._ends + 1
        self._idle_ends = 0 if blamed else self._idle_ends + 1
        given_up = self._idle_ends >= self._backoff.idle_ends or (unfit and not self._ever_ready)
        self._move(LifecycleEvent.GIVEN_UP if given_up else LifecycleEvent.ENDED)
        self._ready_at_s, self.replacing = None, False
        self.starts_at_s = self._clock() + self._wait_s()

    def _wait_s(self) -> float:
        if self._ends <= 1:
            return 0.0
        return min(self._backoff.longest_s, self._backoff.first_s * 2.0 ** min(self._ends - 2, 64))

    def _move(self, event: LifecycleEvent) -> None:
        self.state = state = TRANSITIONS[self.state, event]
        self.over = state in {State.RETIRED, State.FAILED}
        self.takes = not self.over and (state is not State.DRAINING or self.replacing)
