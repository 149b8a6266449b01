"""`ConversationClock`: until when a process must have done what it is to do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from tensorwasm.runtime.workers.conversation.flight import Flight
from tensorwasm.runtime.workers.process import Patience


class ConversationClock:
    """The times of one conversation: of the process itself, and of each request that it has, by number."""

    def __init__(self, patience: Patience, flights: Mapping[int, Flight]) -> None:
        self._patience = patience
        self._flights = flights
        self._stopping = False
        self._ends_at_s = time.monotonic() + patience.start_s
        self._late = f"was not ready within {patience.start_s:g} s"

    def beat(self) -> None:
        """Note that the process lives."""
        if not self._stopping:
            self._ends_at_s = time.monotonic() + self._patience.silent_s
            self._late = f"sent no heartbeat for {self._patience.silent_s:g} s"

    def stop(self, *, introduced: bool) -> None:
        """Note that the process is to leave: at once if it never was ready."""
        self._stopping = True
        self._ends_at_s = time.monotonic() + (self._patience.stop_s if introduced else 0.0)
        self._late = "did not leave"

    def rings_at_s(self) -> float:
        """Return when the next time is over."""
        return min((self._ends_at_s, *self._overdue()))

    def verdict(self, now_s: float) -> str | None:
        """Return what the process has failed to do by now, for people; None if it is in time."""
        if now_s >= self._ends_at_s:
            return self._late
        if any(now_s >= at_s for at_s in self._overdue()):
            return "did not end a request that had long been over"
        return None

    def _overdue(self) -> Iterator[float]:
        return (flight.overdue_at_s for flight in self._flights.values())
