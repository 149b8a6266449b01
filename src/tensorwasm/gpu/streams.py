"""Streams of a session by the numbers that guests use, and the stock of streams that sessions take them from.

A stream costs the driver some 10 us to make: one that has drained without a failure serves the next session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from tensorwasm.errors import InvalidHandle, QuotaExceeded
from tensorwasm.gpu.device import Device, Stream
from tensorwasm.gpu.pad import STREAM_ROWS
from tensorwasm.gpu.releases import attempt
from tensorwasm.gpu.sheet import Sheet

OWN: Final = 0
"""The number of the instance's own stream."""
_NO_HANDLE: Final = 1
"""Marks the row of a stream that compiled code cannot reach."""

_Item = TypeVar("_Item")


class Stock(Generic[_Item]):
    """Things of a device that are kept for whoever needs one next. Safe from any thread.

    Args:
        make: makes one.
        destroy: releases one.
        most: kept at a time.
    """

    def __init__(self, make: Callable[[], _Item], destroy: Callable[[_Item], None], most: int) -> None:
        self._make = make
        self._destroy = destroy
        self._most = most
        self._idle: list[_Item] = []

    def take(self) -> _Item:
        """Return one that was given back, or a new one.

        Raises:
            TensorWasmError: the device refuses to make one.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give(self, item: _Item) -> None:
        """Give one back, as good as new: nothing uses it any more.

        Raises:
            TensorWasmError: there are enough, and the device fails to release this one.
        """
        if len(self._idle) < self._most:
            self._idle.append(item)
        else:
            self._destroy(item)

    def discard(self, item: _Item) -> None:
        """Release one that nobody should use again.

        Raises:
            TensorWasmError: the device fails to.
        """
        self._destroy(item)

    def close(self) -> list[Exception]:
        """Release what is kept; return what the device raised."""
        idle, self._idle = self._idle, []
        return [error for item in idle for error in attempt(self._destroy, item)]


class Lane:
    """A stream of a session.

    Attributes:
        number: what guests call it.
        stream: the device's.
        row: of the sheet.
        started: work that Python gave it since it was last seen drained; compiled code may have given more.
    """

    __slots__ = ("number", "row", "started", "stream")

    def __init__(self, number: int, stream: Stream, row: int) -> None:
        self.number = number
        self.stream = stream
        self.row = row
        self.started = 0


class Lanes:
    """The streams of one session. Not safe from several threads: the session takes turns.

    Args:
        device: where they are.
        stock: where they come from.
        sheet: where work is counted.
        most: streams at a time, beside the instance's own.
    """

    def __init__(self, device: Device, stock: Stock[Stream], sheet: Sheet, most: int) -> None:
        self._device = device
        self._stock = stock
        self._sheet = sheet
        self._most = most
        self._lanes: dict[int, Lane] = {}
        self._next = 1

    def __iter__(self) -> Iterator[Lane]:
        """Return the open streams."""
        return iter(self._lanes.values())

    @property
    def count(self) -> int:
        """Streams that the guest opened and did not close."""
        return len(self._lanes) - (OWN in self._lanes)

    @property
    def unused(self) -> bool:
        """Whether the guest never opened one."""
        return self._next == 1

    def get(self, number: int) -> Lane | None:
        """Return a stream if it is open; the instance's own may not be yet."""
        return self._lanes.get(number)

    def find(self, number: int) -> Lane:
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

    def open(self) -> Lane:
        """Return a new stream.

        Raises:
            QuotaExceeded: the session has as many as it may.
            DeviceLost: the device does not answer.
        """
        if self.count >= self._most:
            raise QuotaExceeded(f"the guest already holds {self.count} streams")
        while not self._sheet.has_room(self._next) or self._next % STREAM_ROWS == OWN:
            self._next += 1
        number, self._next = self._next, self._next + 1
        return self._open(number)

    def close(self, lane: Lane) -> None:
        """Give a drained stream back.

        Raises:
            DeviceLost: the device does not answer.
        """
        del self._lanes[lane.number]
        self._sheet.close_stream(lane.row)
        self._stock.give(lane.stream)

    def busy(self, lane: Lane) -> bool:
        """Return whether a stream was given work that was not seen to end."""
        return self._sheet.given(lane.row) != 0

    def count_started(self, lane: Lane) -> None:
        """Count work that Python gives a stream."""
        lane.started += 1
        self._sheet.count_started(lane.row)

    def count_refused(self, lane: Lane) -> None:
        """Take back the last count: what was to be started was refused, so that nothing of it runs."""
        lane.started -= 1
        self._sheet.count_refused(lane.row)

    def count_drained(self, lane: Lane) -> None:
        """Count off all work of a stream."""
        lane.started = 0
        self._sheet.count_drained(lane.row)

    def release(self, *, healthy: bool) -> list[Exception]:
        """Give all drained streams back, for others if they are healthy; return what the device raised."""
        give = self._stock.give if healthy else self._stock.discard
        lanes, self._lanes = self._lanes, {}
        return [error for lane in lanes.values() for error in attempt(give, lane.stream)]

    def _open(self, number: int) -> Lane:
        stream = self._stock.take()
        handle = self._device.native.stream(stream) if self._sheet.pad is not None else _NO_HANDLE
        lane = self._lanes[number] = Lane(number, stream, self._sheet.open_stream(number, handle))
        return lane
