"""Events of a session by the numbers that guests use: marks in its streams that others of its streams wait for."""

from __future__ import annotations

from tensorwasm.errors import InvalidHandle, QuotaExceeded
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.resources.stream_stock import Stock


class EventTable:
    """The events of one session. Not safe from several threads: the session takes turns.

    Args:
        stock: where they come from. A used one is as good as new: a number that was not recorded yet reaches no device.
        most: events at a time.

    Attributes:
        next_number: of the event that is opened next.
    """

    def __init__(self, stock: Stock[Event], most: int) -> None:
        self._stock = stock
        self._most = most
        self._events: dict[int, Event | None] = {}
        self.next_number = 1

    @property
    def count(self) -> int:
        """Open events."""
        return len(self._events)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the open events, ascending."""
        return tuple(self._events)

    @property
    def unused(self) -> bool:
        """Whether the guest never opened one."""
        return self.next_number == 1

    def open(self) -> int:
        """Return the number of a new event, which counts as reached until it is recorded.

        Raises:
            QuotaExceeded: the session has as many as it may.
        """
        if len(self._events) >= self._most:
            raise QuotaExceeded(f"the guest already holds {len(self._events)} events")
        number, self.next_number = self.next_number, self.next_number + 1
        self._events[number] = None
        return number

    def find(self, number: int) -> Event | None:
        """Return an event, None while it was never recorded.

        Raises:
            InvalidHandle: no such event.
        """
        try:
            return self._events[number]
        except KeyError:
            raise InvalidHandle(f"no event {number}") from None

    def recordable(self, number: int) -> Event:
        """Return an event that is about to be recorded.

        Raises:
            InvalidHandle: no such event.
            DeviceLost: the device does not answer.
        """
        event = self.find(number)
        if event is None:
            event = self._events[number] = self._stock.take()
        return event

    def close(self, number: int) -> None:
        """Give an event back; streams that wait for it go on waiting for what was recorded.

        Raises:
            InvalidHandle: no such event.
            DeviceLost: the device does not answer.
        """
        event = self.find(number)
        del self._events[number]
        if event is not None:
            # Another session may record it before this one's work has ended: what waits has its mark already.
            self._stock.give(event)

    def release(self) -> list[Exception]:
        """Give all back; return what the device raised."""
        events, self._events = self._events, {}
        return [error for event in events.values() if event is not None for error in attempt(self._stock.give, event)]
