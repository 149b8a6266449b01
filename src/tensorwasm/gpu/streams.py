"""Streams of a session by the numbers that guests use, and the stock of streams that sessions take them from.

A stream costs the driver some 10 us to make: one that has drained without a failure serves the next session.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Generic, TypeVar

from tensorwasm.errors import InvalidHandle, QuotaExceeded, TensorWasmError
from tensorwasm.gpu.device import Device, Stream
from tensorwasm.gpu.facets import Event
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


class StreamStock:
    """The streams of a device, lent to sessions. Safe from any thread.

    A device may say how many streams it should have: then all are made here, at once, because a driver may make no
    further one while a kernel runs; and when all are in use, sessions share them. Work that shares a stream runs in
    turn. A session that needs a stream to itself takes it `alone`.

    Args:
        make: makes a stream.
        destroy: releases one.
        most_idle: kept at a time, for a device with any number.
        most: streams in all; 0 for any number.
    """

    def __init__(
        self, make: Callable[[], Stream], destroy: Callable[[Stream], None], most_idle: int, most: int = 0
    ) -> None:
        self._make = make
        self._destroy = destroy
        self._most_idle = max(most_idle, most)
        self._alive = 0
        self._lock = threading.Lock()
        self._users: dict[int, int] = {}
        self._announcers: dict[int, list[Callable[[], None]]] = {}
        self._condemned: set[int] = set()
        self._idle: list[Stream] = []
        self._lent: deque[Stream] = deque()
        with suppress(TensorWasmError):  # what there is will do; with none at all, whoever takes one is told why
            for _ in range(most):
                self._idle.append(make())
                self._alive += 1
        self._most = self._alive or most

    def take(self, *, alone: bool = False) -> Stream:
        """Return an idle stream, or a new one, or one that others use too.

        Args:
            alone: nobody else shall use it until it is given back.

        Raises:
            QuotaExceeded: all are in use, and it is to be alone.
            TensorWasmError: the device refuses to make one.
        """
        with self._lock:
            if self._idle:
                return self._lend(self._idle.pop(), alone)
            if self._most and self._alive >= self._most:
                if alone or not self._lent:
                    raise QuotaExceeded(f"all {self._most} streams of the device are in use")
                self._lent.rotate(-1)
                self._users[id(self._lent[0])] += 1
                return self._lent[0]
            self._alive += 1
        try:
            stream = self._make()  # without the lock: a driver may take its time
        except BaseException:
            with self._lock:
                self._alive -= 1
            raise
        with self._lock:
            return self._lend(stream, alone)

    def give(self, stream: Stream) -> None:
        """Give a stream back, drained and as good as new.

        Raises:
            TensorWasmError: there are enough, and the device fails to release this one.
        """
        self._return(stream, condemned=False)

    def discard(self, stream: Stream) -> None:
        """Give back a stream that nobody should use again: it goes when its last user has left.

        Raises:
            TensorWasmError: the device fails to release it.
        """
        self._return(stream, condemned=True)

    @property
    def fixed(self) -> bool:
        """Whether the device has so many streams and no more."""
        return self._most > 0

    def shared(self, stream: Stream) -> bool:
        """Return whether a stream that was taken has several users."""
        return self._users[id(stream)] > 1

    def join(self, stream: Stream, announce: Callable[[], None]) -> None:
        """Say how the device is told of a user's work on a stream, before others wait behind that; until `part`."""
        if self._most:
            with self._lock:
                self._announcers.setdefault(id(stream), []).append(announce)

    def part(self, stream: Stream, announce: Callable[[], None]) -> None:
        """Take back what `join` said."""
        if self._most:
            with self._lock:
                self._announcers[id(stream)].remove(announce)
                if not self._announcers[id(stream)]:
                    del self._announcers[id(stream)]

    def announce(self, stream: Stream) -> None:
        """Have the device told of all work on a stream, whoever gave it: its deadlines count for who waits behind."""
        with self._lock:
            announcers = tuple(self._announcers.get(id(stream), ()))
        for announce in announcers:
            announce()

    def close(self) -> list[Exception]:
        """Release what is kept; return what the device raised."""
        idle, self._idle = self._idle, []
        return [error for stream in idle for error in attempt(self._destroy, stream)]

    def _lend(self, stream: Stream, alone: bool) -> Stream:  # noqa: FBT001 - two callers, above
        self._users[id(stream)] = 1
        if self._most and not alone:
            self._lent.append(stream)
        return stream

    def _return(self, stream: Stream, *, condemned: bool) -> None:
        key = id(stream)
        with self._lock:
            self._users[key] -= 1
            if condemned:
                self._condemned.add(key)
            if stream in self._lent and (condemned or not self._users[key]):
                self._lent.remove(stream)
            if self._users[key]:
                return
            del self._users[key]
            if key not in self._condemned and len(self._idle) < self._most_idle:
                self._idle.append(stream)
                return
            self._condemned.discard(key)
            self._alive -= 1
        self._destroy(stream)


class Lane:
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


class Lanes:
    """The streams of one session. Not safe from several threads: the session takes turns.

    Args:
        device: where they are.
        stock: where they come from.
        sheet: where work is counted.
        most: streams at a time, beside the instance's own.

    Attributes:
        next_number: from which the stream that is opened next takes the first number that may be.
    """

    def __init__(self, device: Device, stock: StreamStock, sheet: Sheet, most: int) -> None:
        self._device = device
        self._stock = stock
        self._sheet = sheet
        self._most = most
        self._lanes: dict[int, Lane] = {}
        self.next_number = 1

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
        return self.next_number == 1

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
        while not self._sheet.has_room(self.next_number) or self.next_number % STREAM_ROWS == OWN:
            self.next_number += 1
        number, self.next_number = self.next_number, self.next_number + 1
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

    @property
    def busiest(self) -> Lane | None:
        """The stream that was given most, None if nothing is known to be on any."""
        lane = max(self, key=lambda one: self._sheet.given(one.row), default=None)
        return lane if lane is not None and self.busy(lane) else None

    def count_started(self, lane: Lane, pieces: int = 1) -> None:
        """Count work that Python gives a stream."""
        lane.started += pieces
        lane.marked = None
        self._sheet.count_started(lane.row, pieces)

    def count_refused(self, lane: Lane, pieces: int = 1) -> None:
        """Take back the last count: what was to be started was refused, so that nothing of it runs."""
        lane.started -= pieces
        self._sheet.count_refused(lane.row, pieces)

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
