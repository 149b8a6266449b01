"""Streams of a session by the numbers that guests use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidHandle, InvokeTimeout, KernelFault, QuotaExceeded
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.native.layout import STREAM_ROWS
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.stream_stock import StreamStock

OWN: Final = 0
"""The number of the instance's own stream."""
LOOK_NS: Final = 100_000_000
"""How often the device is asked about one session: a full gate asks all holders every few milliseconds."""
_NO_HANDLE: Final = 1
"""In the row of a stream that compiled code cannot reach."""


@dataclass(slots=True, eq=False)
class SessionStream:
    """A stream of a session.

    Attributes:
        row: in the layout.
        started: work that Python gave it since it was last seen drained; compiled code may have given more.
        announced: what compiled code had given when the device was last informed of it.
        announce: informs the device.
        end_event: behind the session's work, if the stream is shared.
        end_state: what the session had given when that was recorded, None if Python gave more since.
    """

    number: int
    stream: Stream
    row: int
    started: int = 0
    announced: tuple[int, ...] = ()
    announce: Callable[[], None] | None = None
    end_event: Event | None = None
    end_state: tuple[int, ...] | None = None


class StreamTable:
    """The streams of one session. Not thread-safe: the session's lock is held.

    Args:
        device: the device.
        stock: of the device's streams.
        layout: where work is counted.
        most: streams at a time, besides the instance's own.

    Attributes:
        next_number: lowest number that the next stream may get; 1 if the guest never opened one.
    """

    def __init__(self, device: Device, stock: StreamStock, layout: SessionLayoutWriter, most: int) -> None:
        self._device = device
        self._stock = stock
        self._layout = layout
        self._most = most
        self._streams: dict[int, SessionStream] = {}
        self.next_number = 1

    def __iter__(self) -> Iterator[SessionStream]:
        """Return the open streams."""
        return iter(self._streams.values())

    @property
    def count(self) -> int:
        """Streams that the guest opened and did not close."""
        return len(self._streams) - (OWN in self._streams)

    def get(self, number: int) -> SessionStream | None:
        """Return a stream if it is open; the instance's own may not be yet."""
        return self._streams.get(number)

    def require(self, number: int) -> None:
        """Check that there is a stream of a number."""
        if number != OWN and number not in self._streams:
            raise InvalidHandle(f"no stream {number}")

    def open(self) -> SessionStream:
        """Return a new stream, unless the session has as many as it may."""
        if self.count >= self._most:
            raise QuotaExceeded(f"the guest already holds {self.count} streams")
        while not self._layout.has_room(self.next_number) or self.next_number % STREAM_ROWS == OWN:
            self.next_number += 1
        number, self.next_number = self.next_number, self.next_number + 1
        return self.add(number)

    def close(self, stream: SessionStream) -> None:
        """Give a drained stream back."""
        del self._streams[stream.number]
        self._layout.close_stream(stream.row)
        self._stock.give(stream.stream)

    def busy(self, stream: SessionStream) -> bool:
        """Return whether a stream was given work that was not seen to end."""
        return self._layout.given(stream.row) != 0

    @property
    def busiest(self) -> SessionStream | None:
        """The stream that was given most, None if no work is known to be on any."""
        found = max(self, key=lambda one: self._layout.given(one.row), default=None)
        return found if found is not None and self.busy(found) else None

    def count_started(self, stream: SessionStream, pieces: int) -> None:
        """Count work that Python gives a stream."""
        stream.started += pieces
        stream.end_state = None
        self._layout.count_started(stream.row, pieces)

    def count_refused(self, stream: SessionStream, pieces: int) -> None:
        """Undo one `count_started`: the work was refused, and none of it runs."""
        stream.started -= pieces
        self._layout.count_refused(stream.row, pieces)

    def count_drained(self, stream: SessionStream) -> None:
        """Count all work of a stream as ended."""
        stream.started = 0
        self._layout.count_drained(stream.row)

    def release(self, *, healthy: bool) -> list[Exception]:
        """Give all drained streams back, for reuse if they are healthy; return what the device raised."""
        give = self._stock.give if healthy else self._stock.discard
        streams, self._streams = self._streams, {}
        return [error for each in streams.values() for error in attempt(give, each.stream)]

    def add(self, number: int) -> SessionStream:
        """Open a stream of a number that is free: the instance's own has none of the others'."""
        stream = self._stock.take()
        handle = self._device.native.stream(stream) if self._layout.layout is not None else _NO_HANDLE
        opened = self._streams[number] = SessionStream(number, stream, self._layout.open_stream(number, handle))
        return opened


class IdleCheck:
    """Asks whether a session has nothing on its device any more. Thread-safe; never waits, changes nothing.

    Without it, the work of a guest that never asks for its end would count as running until the session ends.
    """

    __slots__ = ("_device", "_layout", "_next_ns", "_streams")

    def __init__(self, device: Device, streams: StreamTable, layout: SessionLayoutWriter) -> None:
        self._device = device
        self._streams = streams
        self._layout = layout
        self._next_ns = 0

    def __call__(self) -> bool:
        """Return whether no work is counted, or the device, asked every `LOOK_NS`, says that all has ended."""
        if not self._layout.pending:
            return True
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + LOOK_NS
        try:
            return all(self._ended(stream) for stream in tuple(self._streams))
        except Exception:  # noqa: BLE001 - a lost device, or a stream that closes now: unknown, so not idle
            return False

    def _ended(self, stream: SessionStream) -> bool:
        try:
            return not self._streams.busy(stream) or self._device.ended(stream.stream)
        except (KernelFault, InvokeTimeout):  # it was stopped; the guest learns of it when it asks
            return True
