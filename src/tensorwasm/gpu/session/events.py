"""Events of a guest: marks in its streams, for other streams and for itself to wait for."""

from __future__ import annotations

from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.session.lock import SessionLock, in_turn
from tensorwasm.gpu.state.events import EventTable
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.values import Deadline


class SessionEvents:
    """The events of one session, by their numbers. Any thread may call.

    Args:
        turns: of the session.
        device: the device.
        work: the streams.
        marks: the events.
    """

    __slots__ = ("_device", "_marks", "_turns", "_work")

    def __init__(self, turns: SessionLock, device: Device, work: SessionWork, marks: EventTable) -> None:
        self._turns = turns
        self._device = device
        self._work = work
        self._marks = marks

    @in_turn()
    def open(self) -> int:
        """Return the number of a new event, which counts as reached until it is recorded.

        Raises:
            QuotaExceeded: the session has as many as it may.
            InvalidArgs: a stream records.
            DeviceLost: the session is over.
        """
        return self._marks.open()

    @in_turn()
    def close(self, number: int) -> None:
        """Release an event; streams that wait for it go on waiting for what was recorded.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._marks.close(number)

    @in_turn()
    def record(self, event: int, stream: int) -> None:
        """Set an event behind the work that a stream was given so far.

        Raises:
            InvalidHandle: no such event or stream.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._marks.find(event)
        lane = self._work.find(stream)
        self._work.mark(lane, self._marks.recordable(event))

    @in_turn()
    def wait(self, stream: int, event: int) -> None:
        """Put what a stream is given next behind an event.

        Raises:
            InvalidHandle: no such event or stream.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        self._work.known(stream)
        if mark is not None:
            self._work.put_behind(self._work.find(stream), mark)

    @in_turn()
    def synchronize(self, event: int, deadline: Deadline) -> None:
        """Wait for the work before an event.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        if mark is not None:
            self._device.events.synchronize_event(mark, deadline)

    @in_turn()
    def notify(self, event: int, function: int, argument: int) -> bool:
        """Have a C function called when the work before an event is over; as `Streams.notify`.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        if mark is None or self._device.events.event_reached(mark):
            return False
        self._work.notify_behind(mark, function, argument)
        return True

    @in_turn()
    def reached(self, event: int) -> bool:
        """Return whether the work before an event has ended; never waits.

        Raises:
            InvalidHandle: no such event.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        mark = self._marks.find(event)
        return mark is None or self._device.events.event_reached(mark)
