"""Streams and graphs of a session by the numbers that guests use, and what each graph needs to be replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final, NoReturn, TypeVar

from tensorwasm.errors import (
    CallerError,
    InvalidHandle,
    InvokeTimeout,
    KernelFault,
    LimitError,
    QuotaExceeded,
    TensorWasmError,
)
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, HostWindow
from tensorwasm.gpu.device.port import Device, Stream, attempt
from tensorwasm.gpu.device.protocols import Event, Graph
from tensorwasm.gpu.limits.long_work import WorkWait
from tensorwasm.gpu.native.layout import STREAM_ROWS
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.stream_stock import StreamStock
from tensorwasm.values import Region

_Item = TypeVar("_Item")


class Numbered(dict[int, _Item]):
    """Things of a session by the numbers that guests use. Looking up a number that is not there is refused.

    Attributes:
        what: name of a thing in messages.
        refusal: what is raised for a number that is not there.
        next_number: of the thing that is added next; 1 if there never was one.
    """

    what: ClassVar[str]
    refusal: ClassVar[type[TensorWasmError]] = InvalidHandle
    next_number = 1

    def require_room(self, most: int) -> None:
        """Check that there may be one more where there are ``most`` at a time; raises `QuotaExceeded`."""
        if len(self) >= most:
            raise QuotaExceeded(f"the guest already holds {len(self)} {self.what}s")

    def add(self, thing: _Item) -> int:
        """Add a thing and return its number, which is never given again."""
        number, self.next_number = self.next_number, self.next_number + 1
        self[number] = thing
        return number

    def require(self, number: int) -> None:
        """Check that a number is there."""
        if number not in self:
            self.__missing__(number)

    def __missing__(self, number: int) -> NoReturn:
        raise self.refusal(f"no {self.what} {number}")


OWN: Final = 0
"""The number of the instance's own stream."""
LOOK_NS: Final = 100_000_000
"""How often the device is asked about one session: a full gate asks all holders every few milliseconds."""
OFTEN_NS: Final = 5_000_000
"""How often for its credits, of which there are few."""
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
        wait: for its work, None if nobody does.
    """

    number: int
    stream: Stream
    row: int
    started: int = 0
    announced: tuple[int, ...] = ()
    announce: Callable[[], None] | None = None
    end_event: Event | None = None
    end_state: tuple[int, ...] | None = None
    wait: WorkWait | None = None


class EventTable(Numbered[Event | None]):
    """The events of one session. One of the device is taken when the number is first recorded."""

    what = "event"


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

    @contextmanager
    def counting(self, stream: SessionStream, pieces: int) -> Iterator[None]:
        """Count work that Python gives a stream, before the device has it, and not at all if the device refuses it."""
        stream.started += pieces
        stream.end_state = None
        self._layout.count_started(stream.row, pieces)
        try:
            yield
        except (CallerError, LimitError, KernelFault):  # none of it runs: refused, or ended by its fault
            stream.started -= pieces
            self._layout.count_refused(stream.row, pieces)
            raise

    def count_drained(self, stream: SessionStream) -> None:
        """Count all work of a stream as ended."""
        stream.started = 0
        self._layout.count_drained(stream.row)

    def release(self, *, healthy: bool) -> list[Exception]:
        """Give all drained streams back, for reuse if they are healthy; return what the device raised."""
        streams, self._streams = self._streams, {}
        give = self._stock.give if healthy else self._stock.discard
        return [error for each in streams.values() for error in attempt(give, each.stream)]

    def add(self, number: int) -> SessionStream:
        """Open a stream of a number that is free: the instance's own has none of the others'."""
        stream = self._stock.take()
        handle = self._device.native.stream(stream) if self._layout.layout is not None else _NO_HANDLE
        return self._streams.setdefault(number, SessionStream(number, stream, self._layout.open_stream(number, handle)))


class IdleCheck:
    """Asks whether a session has nothing on its device any more. Thread-safe; never waits, changes nothing.

    Without it, the work of a guest that never asks for its end would count as running until the session ends.

    Args:
        look_ns: how often the device is asked.
    """

    __slots__ = ("_device", "_layout", "_look_ns", "_next_ns", "_streams")

    def __init__(
        self, device: Device, streams: StreamTable, layout: SessionLayoutWriter, look_ns: int = LOOK_NS
    ) -> None:
        self._look_ns = look_ns
        self._device = device
        self._streams = streams
        self._layout = layout
        self._next_ns = 0

    def __call__(self) -> bool:
        """Return whether no work is counted, or the device, asked now and then, says that all has ended."""
        if not self._layout.pending:
            return True
        now_ns = time.monotonic_ns()
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + self._look_ns
        return self.at_once()

    def at_once(self) -> bool:
        """Return whether the device says that all has ended."""
        try:
            return all(self._ended(stream) for stream in tuple(self._streams))
        except Exception:  # noqa: BLE001 - a lost device, or a stream that closes now: unknown, so not idle
            return False

    def _ended(self, stream: SessionStream) -> bool:
        try:
            return not self._streams.busy(stream) or self._device.ended(stream.stream)
        except (KernelFault, InvokeTimeout):  # it was stopped; the guest learns of it when it asks
            return True


@dataclass(slots=True)
class GraphUses:
    """What a recorded sequence of work uses, by handles and ids, and its number of launches and of pieces of work.

    Attributes:
        memory: the guest's memory up to the end of the last window, None without windows.
    """

    launches: int = 0
    pieces: int = 0
    buffers: set[int] = field(default_factory=set)
    kernels: set[int] = field(default_factory=set)
    memory: Region | None = None

    def add(self, arguments: Sequence[Argument], kernel_id: int | None, reached: Region | None, pieces: int) -> None:
        """Add a launch, or a copy if there is no kernel, while the device reaches ``reached`` of the guest's memory."""
        self.pieces += pieces
        if kernel_id is not None:
            self.launches += 1
            self.kernels.add(kernel_id)
        for argument in arguments:
            if isinstance(argument, BufferOffset):
                self.buffers.add(argument.handle)
            elif isinstance(argument, HostWindow) and argument.length_bytes and reached is not None:
                end = max(argument.address + argument.length_bytes, self.memory.end if self.memory else 0)
                self.memory = Region(reached.address, end - reached.address, host=True)


@dataclass(slots=True)
class Recording:
    """A stream that records.

    Attributes:
        source: the stream that the guest named.
        stream: the device's stream that records in its place; nothing else uses it.
        uses: what was recorded uses this.
        capturing: whether the device records already; it begins with the first piece of work.
    """

    source: SessionStream
    stream: Stream
    uses: GraphUses = field(default_factory=GraphUses)
    capturing: bool = False


@dataclass(slots=True)
class RecordedGraph:
    """A graph of the device, what it uses, and whether part of that is gone for good."""

    graph: Graph
    uses: GraphUses
    dead: bool = False

    def replayable(self, reached: Region | None) -> bool:
        """Return whether everything it uses is there, ``reached`` being the guest's memory that the device reaches."""
        needed = self.uses.memory
        if self.dead or needed is None:
            return not self.dead
        return reached is not None and reached.address == needed.address and reached.end >= needed.end


class GraphTable(Numbered[RecordedGraph]):
    """The graphs of one session, dead ones included. Not thread-safe: the session's lock is held.

    Attributes:
        recording: the stream that records, None if none does.
    """

    what = "graph"

    def __init__(self, device: Device, layout: SessionLayoutWriter) -> None:
        self._device = device
        self._layout = layout
        self.recording: Recording | None = None

    def usable(self, number: int, reached: Region | None) -> RecordedGraph:
        """Return a graph that may be replayed while the device reaches ``reached`` of the guest's memory."""
        found = self[number]
        if not found.replayable(reached):
            raise InvalidHandle(f"graph {number} uses a buffer, a kernel or memory that is not there any more")
        return found

    def forget(self, *, buffer: int | None = None, kernel: int | None = None) -> None:
        """Mark the graphs that use a buffer or a kernel as dead."""
        for number, found in self.items():
            if buffer in found.uses.buffers or kernel in found.uses.kernels:
                found.dead = True
                self._layout.hide_graph(number)

    def show(self, reached: Region | None) -> None:
        """Let compiled code replay exactly the graphs that may be replayed."""
        if self._layout.layout is None:
            return
        for number, found in self.items():
            if found.replayable(reached):
                handle = self._device.graphs.graph_handle(found.graph)
                self._layout.show_graph(number, handle, found.uses.launches, found.uses.pieces)
            else:
                self._layout.hide_graph(number)

    def hide(self) -> None:
        """Let compiled code replay nothing."""
        for number in self:
            self._layout.hide_graph(number)

    def close(self, number: int) -> None:
        """Release a graph that no stream is replaying."""
        self._layout.hide_graph(number)
        self._device.graphs.close_graph(self[number].graph)
        del self[number]

    def release(self) -> list[Exception]:
        """Release all; return what the device raised."""
        close = self._device.graphs.close_graph
        failures = [error for found in self.values() for error in attempt(close, found.graph)]
        self.clear()
        return failures
