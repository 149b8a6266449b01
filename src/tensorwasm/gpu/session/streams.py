"""Streams of a guest: opened, closed and waited for."""

from __future__ import annotations

from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.limits.queue_credits import QueueCredits
from tensorwasm.gpu.session.lock import SessionLock, in_turn
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.values import Deadline


class SessionStreams:
    """The streams of one session, by their numbers; 0 is the instance's own. Any thread may call.

    Args:
        turns: of the session.
        work: the streams.
        share: of what may be pending.
    """

    __slots__ = ("_share", "_turns", "_work")

    def __init__(self, turns: SessionLock, work: SessionWork, share: QueueCredits) -> None:
        self._turns = turns
        self._share = share
        self._work = work

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the streams that ever had work or were opened."""
        return tuple(lane.number for lane in self._work.lanes)

    @in_turn()
    def open(self) -> int:
        """Return the number of a new stream.

        Raises:
            QuotaExceeded: the session has as many as it may.
            InvalidArgs: a stream records.
            DeviceLost: the session is over, or the device does not answer.
        """
        return self._work.open().number

    @in_turn()
    def close(self, number: int, deadline: Deadline) -> None:
        """Wait for a stream and release it; the instance's own cannot be released.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: it is the instance's own, or a stream records.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        if number == OWN:
            raise InvalidArgs("the instance's own stream stays open")
        lane = self._work.known(number)
        if lane is not None:
            self._work.close(lane, deadline)

    @in_turn()
    def synchronize(self, deadline: Deadline, stream: int | None = None) -> None:
        """Wait for the work in flight on one stream, or on all.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the session is over, or the device does not answer.
        """
        if stream is None:
            self._work.drain(deadline)
        elif (lane := self._work.known(stream)) is not None:
            self._work.wait(lane, deadline)
            self._work.place.settle()

    @in_turn()
    def ended(self, stream: int) -> bool:
        """Return whether a stream has nothing to do; never waits.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        lane = self._work.known(stream)
        return lane is None or self._work.ended(lane)

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

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        lane = self._work.known(stream)
        return lane is not None and self._work.notify(lane, function, argument)

    @in_turn()
    def conclude(self, stream: int) -> None:
        """Count off all work of a stream, because a call that `notify` promised has come and nothing was given since.

        Never waits: on a stream that sessions share, work of others may go on.

        Raises:
            InvalidHandle: no such stream.
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        lane = self._work.known(stream)
        if lane is not None:
            self._work.conclude(lane)
            self._share.settle()

    @in_turn()
    def make_room(self, pieces: int) -> bool:
        """Return whether so many pieces of work may be given now, looking for what has ended; never waits.

        If not, and the session has no share yet (`Session.share`), there is a line for it to stand in; else there is
        work to wait for, that of the `busiest` stream.

        Raises:
            InvalidArgs: a stream records.
            KernelFault: a kernel broke a rule.
            DeviceLost: the session is over, or the device does not answer.
        """
        if self._share.fits(pieces):
            return True
        for lane in self._work.lanes:
            self._work.ended(lane)
        return self._share.take(pieces) or (self._share.held and self._work.lanes.busiest is None)

    @property
    def busiest(self) -> int:
        """Number of the stream that was given most since it was seen drained."""
        lane = self._work.lanes.busiest
        return OWN if lane is None else lane.number
