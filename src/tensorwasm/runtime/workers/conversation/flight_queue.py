"""`FlightQueue`: requests that wait for a worker's process."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from tensorwasm.errors import InvokeTimeout
from tensorwasm.runtime.workers.conversation.flight import Flight

_LONGEST_WAIT_S: Final = 3600.0


class FlightQueue:
    """Requests that no process was given yet, in their order. Thread-safe."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    def put(self, flight: Flight) -> None:
        """Add a request."""
        self._flights.append(flight)

    def give(self, take: Callable[[Flight], object]) -> None:
        """Call a function with each request, which does not wait any more then."""
        while self._flights:
            try:
                flight = self._flights.popleft()
            except IndexError:
                return  # another thread has removed the last one
            take(flight)

    def remove(self, flight: Flight) -> bool:
        """Remove a request; return whether it waited."""
        try:
            self._flights.remove(flight)
        except ValueError:
            return False
        return True

    def expire(self, now_s: float) -> float:
        """End the requests whose deadline has passed; return when the next one's does."""
        waiting = tuple(self._flights)
        for flight in waiting:
            if flight.deadline.expired() and self.remove(flight):
                flight.end(InvokeTimeout("the deadline passed before a worker process was ready"))
        left_s = min((flight.deadline.remaining_s() for flight in self._flights.copy()), default=math.inf)
        return now_s + min(left_s, _LONGEST_WAIT_S)
