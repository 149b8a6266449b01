"""Streams of a guest, and events: points in its streams that other streams, and the guest itself, wait for."""

from __future__ import annotations

from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.device.port import attempt
from tensorwasm.gpu.session.core import SessionPart, in_turn
from tensorwasm.gpu.state.numbered import OWN
from tensorwasm.values import Deadline


class SessionStreams(SessionPart):
    """The streams of one session, by their numbers; 0 is the instance's own. Thread-safe.

    Errors as in `tensorwasm.gpu.session`.
    """

    __slots__ = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the streams that ever had work or were opened."""
        return tuple(stream.number for stream in self._core.work.streams)

    def idle(self) -> bool:
        """Return whether nothing that the guest has begun is under way on the device; never waits, nor raises."""
        with self._core.lock:
            return self._core.work.idle()

    @in_turn()
    def open(self) -> int:
        """Return the number of a new stream.

        Raises:
            QuotaExceeded: the session has as many as it may.
        """
        return self._core.work.open().number

    @in_turn()
    def close(self, number: int, deadline: Deadline) -> None:
        """Wait for a stream and release it.

        Raises:
            InvalidArgs: it is the instance's own.
        """
        if number == OWN:
            raise InvalidArgs("the instance's own stream stays open")
        if (stream := self._core.work.known(number)) is not None:
            self._core.work.close(stream, deadline)

    @in_turn()
    def synchronize(self, deadline: Deadline, stream: int | None = None) -> None:
        """Wait for the work in flight on one stream, or on all."""
        work = self._core.work
        if stream is None:
            work.drain(deadline)
        elif (known := work.known(stream)) is not None:
            work.wait(known, deadline)
            work.permit.settle()

    @in_turn()
    def ended(self, stream: int) -> bool:
        """Return whether a stream has nothing to do; never waits."""
        known = self._core.work.known(stream)
        return known is None or self._core.work.ended(known)

    @in_turn()
    def notify(self, stream: int, function: int, argument: int) -> bool:
        """Have a C function called when the work that a stream has now is over.

        Args:
            stream: its number.
            function: address of ``void function(void *argument)``, which must not call the device.
            argument: its argument.

        Returns:
            Whether it will be called, once, on any thread, perhaps already; if not, there is no work to wait for. For a
            moment after the call the stream may still seem busy.
        """
        known = self._core.work.known(stream)
        return known is not None and self._core.work.notify(known, function, argument)

    @in_turn()
    def conclude(self, stream: int) -> None:
        """Count all work of a stream as ended: the call that `notify` promised has come, and nothing was given since.

        Never waits: on a stream that sessions share, work of others may go on.
        """
        if (known := self._core.work.known(stream)) is not None:
            self._core.work.conclude(known)

    @in_turn()
    def make_room(self, pieces: int) -> bool:
        """Return whether so many pieces of work may be given now, after looking for what has ended; never waits.

        If not, there is a queue to join (`QueueCredits.queue`), or work to wait for, that of the `busiest` stream. The
        room is kept until it is used, or `QueueCredits.given` tells that it will not be.
        """
        own, work = self._core.credits, self._core.work
        if not own.fits(pieces):
            for stream in work.streams:
                work.ended(stream)
        return own.take(pieces) or (own.queue is None and work.streams.busiest is None)

    @property
    def busiest(self) -> int:
        """Number of the stream that was given most since it was seen drained."""
        stream = self._core.work.streams.busiest
        return OWN if stream is None else stream.number


class SessionEvents(SessionPart):
    """The events of one session, by their numbers. Thread-safe; errors as in `tensorwasm.gpu.session`.

    An event of the device that was used before is as good as new when it is recorded.
    """

    __slots__ = ()

    @in_turn()
    def open(self) -> int:
        """Return the number of a new event, which counts as reached until it is recorded.

        Raises:
            QuotaExceeded: the session has as many as it may.
        """
        return self.add()

    def add(self) -> int:
        """Open an event while the session's lock is held."""
        self._core.events.require_room(self._core.limits.events)
        return self._core.events.add(None)

    @in_turn()
    def close(self, number: int) -> None:
        """Release an event; streams that wait for it go on waiting for what was recorded."""
        self._core.events.require(number)
        if (event := self._core.events.pop(number)) is not None:
            # Another session may record it before this one's work has ended: streams that wait keep the old point.
            self._core.resources.events.give(event)

    @in_turn()
    def record(self, event: int, stream: int) -> None:
        """Set an event behind the work that a stream was given so far."""
        found, target = self._core.events[event], self._core.work.find(stream)
        if found is None:
            found = self._core.events[event] = self._core.resources.events.take()
        self._core.work.record(target, found)

    @in_turn()
    def wait(self, stream: int, event: int) -> None:
        """Put what a stream is given next behind an event."""
        found, work = self._core.events[event], self._core.work
        work.known(stream)
        if found is not None:
            work.put_behind(work.find(stream), found)

    @in_turn()
    def synchronize(self, event: int, deadline: Deadline) -> None:
        """Wait for the work before an event."""
        if (found := self._core.events[event]) is not None:
            self._core.layout.count_wait(self._core.device.events.synchronize_event, found, deadline)
            self._core.work.require_unstopped(deadline)

    @in_turn()
    def notify(self, event: int, function: int, argument: int) -> bool:
        """Have a C function called when the work before an event is over; as `SessionStreams.notify`."""
        found = self._core.events[event]
        if found is None or self._core.device.events.event_reached(found):
            return False
        self._core.work.notify_behind(found, function, argument)
        return True

    @in_turn()
    def reached(self, event: int) -> bool:
        """Return whether the work before an event has ended; never waits."""
        core, found = self._core, self._core.events[event]
        if found is not None and not core.device.events.event_reached(found):
            return False
        core.work.require_unstopped(core.layout.deadline)
        return True

    def release(self) -> list[Exception]:
        """Give all back at the session's end; return what the device raised."""
        events, give = self._core.events, self._core.resources.events.give
        failures = [error for event in events.values() if event is not None for error in attempt(give, event)]
        events.clear()
        return failures
