"""Streams of a guest: opened, closed and waited for."""

from __future__ import annotations

from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.limits.queue_credits import QueueCredits
from tensorwasm.gpu.session.core import SessionCore, in_turn
from tensorwasm.gpu.state.streams import OWN
from tensorwasm.values import Deadline


class SessionStreams:
    """The streams of one session, by their numbers; 0 is the instance's own. Thread-safe.

    Errors as in `tensorwasm.gpu.session`.
    """

    __slots__ = ("_core", "_credits")

    def __init__(self, core: SessionCore, queue_credits: QueueCredits) -> None:
        self._core = core
        self._credits = queue_credits

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the streams that ever had work or were opened."""
        return tuple(stream.number for stream in self._core.work.streams)

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
        stream = self._core.work.known(number)
        if stream is not None:
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
        known = self._core.work.known(stream)
        if known is not None:
            self._core.work.conclude(known)
            self._credits.settle()

    @in_turn()
    def make_room(self, pieces: int) -> bool:
        """Return whether so many pieces of work may be given now, after looking for what has ended; never waits.

        If not, the session either has no credits yet (`Session.share`) and can join the queue for them, or there is
        work to wait for, that of the `busiest` stream.
        """
        if self._credits.fits(pieces):
            return True
        streams = self._core.work.streams
        for stream in streams:
            self._core.work.ended(stream)
        return self._credits.take(pieces) or (self._credits.held and streams.busiest is None)

    @property
    def busiest(self) -> int:
        """Number of the stream that was given most since it was seen drained."""
        stream = self._core.work.streams.busiest
        return OWN if stream is None else stream.number
