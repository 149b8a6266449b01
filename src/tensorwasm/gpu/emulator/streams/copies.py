"""Work of streams other than launches: copies, fills, graphs, and the order that events make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tensorwasm.errors import KernelFault, LaunchRefused
from tensorwasm.gpu.device.protocols import Event, Graph, Stream
from tensorwasm.gpu.emulator.handles import Handles, OpenObjects
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.memory.planes import NOTHING, AccessRanges, Bytes, host_bytes, show_address
from tensorwasm.gpu.emulator.streams.queues import Action, BackgroundThreads, Mark, QueuedWork, Queues
from tensorwasm.values import MIB, NEVER, Deadline, Region

_CLEARED_BYTES: Final = 16 * MIB
"""Cleared at a time; what is not larger is written at once."""
CopyEnd = AccessRanges | Bytes
"""A range of memory of the table, or bytes that stay as they are until the copy has run."""


class Copies:
    """The copies of a device, with the methods of `tensorwasm.gpu.device.port.Device`.

    Device memory is any that the table knows. Host memory that the table does not know is copied from at once, and
    copied to while the caller waits, so that nothing touches it after the call.

    Each method raises `LaunchRefused` if a range is not inside one allocation or not host memory, or if the stream is
    recording and the copy cannot be replayed; `InvalidHandle` if the stream is not open; and the error with which the
    stream has failed.
    """

    def __init__(self, allocations: AllocationTable, queues: Queues) -> None:
        self._allocations, self._queues = allocations, queues

    def write(
        self,
        address: int,
        data: bytes | memoryview,
        stream: Stream | None,
        deadline: Deadline = NEVER,  # noqa: ARG002 - only the stream's own work is in front of the copy
    ) -> None:
        """Copy host bytes into device memory behind the work in the stream, which this thread runs first."""
        source = np.frombuffer(data, np.uint8)
        self._run(self._span(address, source.size), source, stream)

    def read(
        self,
        address: int,
        into: memoryview,
        stream: Stream | None,
        deadline: Deadline = NEVER,  # noqa: ARG002 - only the stream's own work is in front of the copy
    ) -> None:
        """Fill a host buffer from device memory behind the work in the stream, which this thread runs first."""
        target = np.frombuffer(into, np.uint8)
        self._run(target, self._span(address, target.size), stream)

    def fill(self, address: int, size_bytes: int, stream: Stream) -> None:
        """Start filling device memory with zeros."""
        target = self._span(address, size_bytes)
        self._queues.give(self._queues.streams.require(stream), QueuedWork(partial(self._clear, target)))

    def copy_in(self, address: int, host_address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying host memory to device memory; memory that is not registered is copied from at once."""
        if not size_bytes:
            return
        target = self._span(address, size_bytes)
        source: CopyEnd | None = self._allocations.host_span(host_address, size_bytes)
        if source is None:
            self._queues.mark(self._queues.streams.require(stream))
            source = host_bytes(host_address, size_bytes).copy()
        self._start(target, source, stream)

    def copy_out(self, host_address: int, address: int, size_bytes: int, stream: Stream) -> None:
        """Start copying device memory to host memory; for memory that is not registered the call waits."""
        if not size_bytes:
            return
        source = self._span(address, size_bytes)
        target = self._allocations.host_span(host_address, size_bytes)
        if target is None:
            self._run(host_bytes(host_address, size_bytes), source, stream)
        else:
            self._start(target, source, stream)

    def start(self, action: Callable[[], None], stream: Stream) -> None:
        """Start something that no other method does."""
        own = self._queues.streams.require(stream)
        self._queues.give(own, QueuedWork(lambda _ranges, _deadline: action()))

    def _start(self, target: CopyEnd, source: CopyEnd, stream: Stream) -> None:
        self._queues.give(self._queues.streams.require(stream), QueuedWork(partial(self._copy, target, source)))

    def _run(self, target: CopyEnd, source: CopyEnd, stream: Stream | None) -> None:
        if stream is None:
            self._copy(target, source)
            return
        own = self._queues.streams.require(stream)
        self._queues.mark(own)
        self._queues.run_to(self._queues.give(own, QueuedWork(partial(self._copy, target, source))), NEVER)

    def _copy(
        self, target: CopyEnd, source: CopyEnd, _ranges: AccessRanges = NOTHING, _deadline: Deadline = NEVER
    ) -> None:
        """Copy, as an action."""
        with self._hold(target) as into, self._hold(source) as data:
            into[:] = data

    def _clear(self, target: CopyEnd, _ranges: AccessRanges, _deadline: Deadline) -> None:
        """Fill with zeros, as an action. Pages that nothing was written to are read alone, and so take no memory."""
        with self._hold(target) as into:
            for at in range(0, into.size, _CLEARED_BYTES):
                piece = into[at : at + _CLEARED_BYTES]
                if into.size <= _CLEARED_BYTES or piece.any():
                    piece[:] = 0

    @contextmanager
    def _hold(self, end: CopyEnd) -> Iterator[Bytes]:
        if not isinstance(end, AccessRanges):
            yield end
            return
        with self._allocations.lease(end) as lease:
            planes = lease.held.planes
            if len(planes) != 1 or planes[0].data.size != end.segments[-1].end - end.segments[0].start:
                raise KernelFault("a copy reaches memory that was released before it ran")
            yield planes[0].data

    def _span(self, address: int, size_bytes: int) -> AccessRanges:
        found = self._allocations.span(address, size_bytes)
        if found is None:
            raise LaunchRefused(f"{size_bytes} bytes at {show_address(address)} are not memory of this device")
        return found


# --------------------------------------------------------------------------------------------------------------- events


@dataclass(slots=True, eq=False)
class EmulatedEvent:
    """A mark in a stream, None until it is recorded."""

    mark: Mark | None = None


class EmulatedEvents:
    """The open events of a device; others, and streams that are not open, are refused with `InvalidHandle`."""

    def __init__(self, queues: Queues, background: BackgroundThreads) -> None:
        self._queues, self._background = queues, background
        self.open: Final = OpenObjects(EmulatedEvent, "the event is not open on this device")

    def open_event(self) -> Event:
        """Return a new event."""
        return self.open.add(EmulatedEvent())

    def close_event(self, event: Event) -> None:
        """Release an event."""
        self.open.discard(event)

    def record(self, event: Event, stream: Stream) -> None:
        """Set the mark behind the work given to the stream so far."""
        self.open.require(event).mark = self._queues.mark(self._queues.streams.require(stream))

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Put what is given to the stream next behind the mark."""
        own, mark = self._queues.streams.require(stream), self.open.require(event).mark
        if mark is not None and mark.stream is not own:
            self._queues.give(own, QueuedWork(mark.run, after=mark))

    def event_reached(self, event: Event) -> bool:
        """Return whether the work before the mark has ended; if not, let it run in the background."""
        mark = self.open.require(event).mark
        return mark is None or self._background.poll(mark)

    def patience(self, event: Event) -> Deadline:
        """Return no deadline: the device is never given up for its work, which is stopped."""
        self.open.require(event)
        return NEVER

    def synchronize_event(self, event: Event, deadline: Deadline) -> None:
        """Run the work before the mark; at the deadline, what this call is running is stopped."""
        mark = self.open.require(event).mark
        if mark is not None:
            self._queues.run_to(mark, deadline)


# --------------------------------------------------------------------------------------------------------------- graphs


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedGraph:
    """Actions, one after the other; as an action it does all of them, up to the first that fails."""

    actions: tuple[Action, ...]

    def run(self, ranges: AccessRanges, deadline: Deadline) -> None:
        """Do all of them."""
        for action in self.actions:
            action(ranges, deadline)


class EmulatedGraphs:
    """The open graphs of a device; others, and streams that are not open, are refused with `InvalidHandle`."""

    def __init__(self, queues: Queues, allocations: AllocationTable, handles: Handles) -> None:
        self._queues, self._allocations, self._handles = queues, allocations, handles
        self.open: Final = OpenObjects(EmulatedGraph, "the graph is not open on this device")
        self.replays = 0

    def begin_capture(self, stream: Stream) -> None:
        """Record what is given to the stream from now on instead of running it."""
        self._queues.begin_recording(self._queues.streams.require(stream))

    def end_capture(self, stream: Stream) -> Graph:
        """Stop recording and return what was recorded, which may be nothing."""
        return self.open.add(EmulatedGraph(self._queues.end_recording(self._queues.streams.require(stream))))

    def replay(self, graph: Graph, stream: Stream, regions: Sequence[Region], deadline: Deadline) -> None:
        """Start all of it behind the work already in the stream."""
        self.start(self.open.require(graph), stream, self._allocations.ranges(regions), deadline)
        self.replays += 1

    def start(self, graph: EmulatedGraph, stream: Stream, ranges: AccessRanges, deadline: Deadline) -> None:
        """Start a graph whose regions have been looked up."""
        own = self._queues.streams.require(stream)
        self._queues.mark(own)
        self._queues.give(own, QueuedWork(graph.run, ranges, deadline))

    def graph_handle(self, graph: Graph) -> int:
        """Return what ``cuGraphLaunch`` takes."""
        return self._handles.of(self.open.require(graph))

    def close_graph(self, graph: Graph) -> None:
        """Release a graph."""
        self.open.discard(graph)
        if isinstance(graph, EmulatedGraph):
            self._handles.drop(graph)

    def clear(self) -> None:
        """Release every graph."""
        for graph in self.open.take_all():
            self._handles.drop(graph)
