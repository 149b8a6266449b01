"""Events of a guest: points in its streams that other streams, and the guest itself, wait for."""

from __future__ import annotations

from tensorwasm.errors import InvalidHandle, QuotaExceeded
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.session.core import SessionCore, in_turn
from tensorwasm.values import Deadline


class SessionEvents:
    """The events of one session, by their numbers. Thread-safe; errors as in `tensorwasm.gpu.session`.

    An event of the device is taken when the number is first recorded. A used one is as good as new then.

    Attributes:
        next_number: of the event that is opened next; 1 if there never was one.
    """

    __slots__ = ("_core", "_events", "next_number")

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._events: dict[int, Event | None] = {}
        self.next_number = 1

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the open events, ascending."""
        return tuple(self._events)

    @in_turn()
    def open(self) -> int:
        """Return the number of a new event, which counts as reached until it is recorded.

        Raises:
            QuotaExceeded: the session has as many as it may.
        """
        return self.add()

    def add(self) -> int:
        """Open an event while the session's lock is held."""
        if len(self._events) >= self._core.limits.events:
            raise QuotaExceeded(f"the guest already holds {len(self._events)} events")
        number, self.next_number = self.next_number, self.next_number + 1
        self._events[number] = None
        return number

    @in_turn()
    def close(self, number: int) -> None:
        """Release an event; streams that wait for it go on waiting for what was recorded."""
        event = self._find(number)
        del self._events[number]
        if event is not None:
            # Another session may record it before this one's work has ended: streams that wait keep the old point.
            self._core.resources.events.give(event)

    @in_turn()
    def record(self, event: int, stream: int) -> None:
        """Set an event behind the work that a stream was given so far."""
        found = self._find(event)
        work = self._core.work
        target = work.find(stream)
        if found is None:
            found = self._events[event] = self._core.resources.events.take()
        work.record(target, found)

    @in_turn()
    def wait(self, stream: int, event: int) -> None:
        """Put what a stream is given next behind an event."""
        found = self._find(event)
        work = self._core.work
        work.known(stream)
        if found is not None:
            work.put_behind(work.find(stream), found)

    @in_turn()
    def synchronize(self, event: int, deadline: Deadline) -> None:
        """Wait for the work before an event."""
        found = self._find(event)
        if found is not None:
            self._core.device.events.synchronize_event(found, deadline)

    @in_turn()
    def notify(self, event: int, function: int, argument: int) -> bool:
        """Have a C function called when the work before an event is over; as `SessionStreams.notify`."""
        found = self._find(event)
        if found is None or self._core.device.events.event_reached(found):
            return False
        self._core.work.notify_behind(found, function, argument)
        return True

    @in_turn()
    def reached(self, event: int) -> bool:
        """Return whether the work before an event has ended; never waits."""
        found = self._find(event)
        return found is None or self._core.device.events.event_reached(found)

    def release(self) -> list[Exception]:
        """Give all back at the session's end; return what the device raised."""
        events, self._events = self._events, {}
        give = self._core.resources.events.give
        return [error for event in events.values() if event is not None for error in attempt(give, event)]

    def _find(self, number: int) -> Event | None:
        try:
            return self._events[number]
        except KeyError:
            raise InvalidHandle(f"no event {number}") from None
