"""The states of a worker, as a table, and when a process that ended is started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final


class State(Enum):
    """Where a worker is."""

    STARTING = "starting"  # there is no process yet, or it has not said that it is ready
    READY = "ready"  # it takes requests
    DRAINING = "draining"  # it takes none, and finishes what it has
    RETIRED = "retired"  # it is gone, as was wanted
    FAILED = "failed"  # it ended too often, and is not started again


class Event(Enum):
    """What may happen to a worker."""

    READY = "ready"
    DRAIN = "drain"
    ENDED = "ended"
    GIVEN_UP = "given up"
    LEFT = "left"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.STARTING, Event.READY): State.READY,
    (State.STARTING, Event.DRAIN): State.DRAINING,
    (State.STARTING, Event.ENDED): State.STARTING,
    (State.STARTING, Event.GIVEN_UP): State.FAILED,
    (State.READY, Event.DRAIN): State.DRAINING,
    (State.READY, Event.ENDED): State.STARTING,
    (State.READY, Event.GIVEN_UP): State.FAILED,
    (State.DRAINING, Event.DRAIN): State.DRAINING,
    (State.DRAINING, Event.ENDED): State.STARTING,
    (State.DRAINING, Event.GIVEN_UP): State.FAILED,
    (State.DRAINING, Event.LEFT): State.RETIRED,
}
"""The state after an event. What is not here cannot happen."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How processes that end are started again.

    Attributes:
        first_s: wait before the second start in a row; it doubles with each.
        longest_s: most that is waited.
        stable_s: a process that was ready for so long ends the row.
        idle_ends: ends in a row without a request to blame after which the worker is given up.
    """

    first_s: float = 0.05
    longest_s: float = 5.0
    stable_s: float = 10.0
    idle_ends: int = 5


class Lifecycle:
    """One worker's states. Not thread-safe: its keeper's alone.

    Args:
        backoff: how it is started again.
        clock: monotonic seconds.

    Attributes:
        state: where it is.
        starts_at_s: when, by the clock, the next process may be started.
        replacing: whether another process follows the one that drains.
    """

    def __init__(self, backoff: Backoff, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = State.STARTING
        self.starts_at_s = clock()
        self.replacing = False
        self._backoff = backoff
        self._clock = clock
        self._ready_at_s: float | None = None
        self._ever_ready = False
        self._ends = 0
        self._idle_ends = 0

    @property
    def over(self) -> bool:
        """Whether no process will follow."""
        return self.state in {State.RETIRED, State.FAILED}

    @property
    def takes(self) -> bool:
        """Whether a request given to the worker now will be run, by this process or the next."""
        return not self.over and (self.state is not State.DRAINING or self.replacing)

    def ready(self) -> None:
        """Note that the process takes requests."""
        self._move(Event.READY)
        self._ready_at_s = self._clock()
        self._ever_ready = True

    def drain(self, *, replace: bool) -> None:
        """Note that the process takes no more requests; one that is wanted gone for good is never replaced."""
        self.replacing = replace and (self.state is not State.DRAINING or self.replacing)
        self._move(Event.DRAIN)

    def ended(self, *, blamed: bool, unfit: bool = False) -> None:
        """Note that the process has ended, and decide what follows.

        Args:
            blamed: it had requests, or had answered some: they may be why.
            unfit: it said itself that it cannot be used; at the first start that is believed at once.
        """
        if self.state is State.DRAINING and not self.replacing:
            self._move(Event.LEFT)
            return
        stable = self._ready_at_s is not None and self._clock() - self._ready_at_s >= self._backoff.stable_s
        self._ends = 1 if stable else self._ends + 1
        self._idle_ends = 0 if blamed else self._idle_ends + 1
        given_up = self._idle_ends >= self._backoff.idle_ends or (unfit and not self._ever_ready)
        self._move(Event.GIVEN_UP if given_up else Event.ENDED)
        self._ready_at_s, self.replacing = None, False
        self.starts_at_s = self._clock() + self._wait_s()

    def _wait_s(self) -> float:
        if self._ends <= 1:
            return 0.0
        return min(self._backoff.longest_s, self._backoff.first_s * 2.0 ** min(self._ends - 2, 64))

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
