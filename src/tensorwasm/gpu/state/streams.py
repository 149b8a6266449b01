"""Streams of a session by the numbers that guests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tensorwasm.errors import InvalidHandle, QuotaExceeded
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.native.layout import STREAM_ROWS
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.stream_stock import StreamStock

OWN: Final = 0
"""The number of the instance's own stream."""
_NO_HANDLE: Final = 1
"""Marks the row of a stream that compiled code cannot reach."""


class SessionStream:
    """A stream of a session.

    Attributes:
        number: what guests call it.
        stream: the device's.
        row: of the sheet.
        started: work that Python gave it since it was last seen drained; compiled code may have given more.
        announced: what compiled code had given when the device was last told of it.
        announce: tells the device.
        mark: behind the session's work, if the stream is shared.
        marked: what the session had given when the mark was set, None if more was given since.
    """

    __slots__ = ("announce", "announced", "mark", "marked", "number", "row", "started", "stream")

    def __init__(self, number: int, stream: Stream, row: int) -> None:
        self.number = number
        self.stream = stream
        self.row = row
        self.started = 0
        self.announced: tuple[int, ...] = ()
        self.announce: Callable[[], None] | None = None
        self.mark: Event | None = None
        self.marked: tuple[int, ...] | None = None


class StreamTable:
    """The streams of one session. Not safe from several threads: the session takes turns.

    Args:
        device: where they are.
        stock: where they come from.
        sheet: where work is counted.
        most: streams at a time, beside the instance's own.

    Attributes:
        next_number: from which the stream that is opened next takes the first number that may be.
    """

    def __init__(self, device: Device, stock: StreamStock, sheet: SessionLayoutWriter, most: int) -> None:
        self._device = device
        self._stock = stock
        self._sheet = sheet
        self._most = most
        self._lanes: dict[int, SessionStream] = {}
        self.next_number = 1

    def __iter__(self) -> Iterator[SessionStream]:
        """Return the open streams."""
        return iter(self._lanes.values())

    @property
    def count(self) -> int:
        """Streams that the guest opened and did not close."""
        return len(self._lanes) - (OWN in self._lanes)

    @property
    def unused(self) -> bool:
        """Whether the guest never opened one."""
        return self.next_number == 1

    def get(self, number: int) -> SessionStream | None:
        """Return a stream if it is open; the instance's own may not be yet."""
        return self._lanes.get(number)

    def find(self, number: int) -> SessionStream:
        """Return an open stream; the instance's own is opened when first asked for.

        Raises:
            InvalidHandle: no such stream.
            DeviceLost: the device does not answer.
        """
        lane = self._lanes.get(number)
        if lane is not None:
            return lane
        self.require(number)
        return self._open(OWN)

    def require(self, number: int) -> None:
        """Check a number.

        Raises:
            InvalidHandle: no such stream.
        """
        if number != OWN and number not in self._lanes:
            raise InvalidHandle(f"no stream {number}")

    def open(self) -> SessionStream:
        """Return a new stream.

        Raises:
            QuotaExceeded: the session has as many as it may.
            DeviceLost: the device does not answer.
        """
        if self.count >= self._most:
            raise QuotaExceeded(f"the guest already holds {self.count} streams")
        while not self._sheet.has_room(self.next_number) or self.next_number % STREAM_ROWS == OWN:
            self.next_number += 1
        number, self.next_number = self.next_number, self.next_number + 1
        return self._open(number)

    def close(self, lane: SessionStream) -> None:
        """Give a drained stream back.

        Raises:
            DeviceLost: the device does not answer.
        """
        del self._lanes[lane.number]
        self._sheet.close_stream(lane.row)
        self._stock.give(lane.stream)

    def busy(self, lane: SessionStream) -> bool:
        """Return whether a stream was given work that was not seen to end."""
        return self._sheet.given(lane.row) != 0

    @property
    def busiest(self) -> SessionStream | None:
        """The stream that was given most, None if nothing is known to be on any."""
        lane = max(self, key=lambda one: self._sheet.given(one.row), default=None)
        return lane if lane is not None and self.busy(lane) else None

    def count_started(self, lane: SessionStream, pieces: int = 1) -> None:
        """Count work that Python gives a stream."""
        lane.started += pieces
        lane.marked = None
        self._sheet.count_started(lane.row, pieces)

    def count_refused(self, lane: SessionStream, pieces: int = 1) -> None:
        """Take back the last count: what was to be started was refused, so that nothing of it runs."""
        lane.started -= pieces
        self._sheet.count_refused(lane.row, pieces)

    def count_drained(self, lane: SessionStream) -> None:
        """Count off all work of a stream."""
        lane.started = 0
        self._sheet.count_drained(lane.row)

    def release(self, *, healthy: bool) -> list[Exception]:
        """Give all drained streams back, for others if they are healthy; return what the device raised."""
        give = self._stock.give if healthy else self._stock.discard
        lanes, self._lanes = self._lanes, {}
        return [error for lane in lanes.values() for error in attempt(give, lane.stream)]

    def _open(self, number: int) -> SessionStream:
        stream = self._stock.take()
        handle = self._device.native.stream(stream) if self._sheet.pad is not None else _NO_HANDLE
        lane = self._lanes[number] = SessionStream(number, stream, self._sheet.open_stream(number, handle))
        return lane
