"""Sequences of work that are recorded once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.gpu.device.protocols import Graph, Stream
from tensorwasm.gpu.emulator.handles import Handles, OpenObjects
from tensorwasm.gpu.emulator.memory.access_table import AccessRanges
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.streams.queues import Action, QueuedWork, Queues
from tensorwasm.values import Deadline, Region


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedGraph:
    """Actions, one after the other; as an action it does all of them, up to the first that fails."""

    actions: tuple[Action, ...]

    def run(self, ranges: AccessRanges, deadline: Deadline) -> None:
        """Do all of them."""
        for action in self.actions:
            action.run(ranges, deadline)


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
        own = self.open.require(graph)
        self.start(own, stream, self._allocations.ranges(regions), deadline)
        self.replays += 1

    def start(self, graph: EmulatedGraph, stream: Stream, ranges: AccessRanges, deadline: Deadline) -> None:
        """Start a graph whose regions have been looked up."""
        own = self._queues.streams.require(stream)
        self._queues.mark(own)
        self._queues.give(own, QueuedWork(graph, ranges, deadline))

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
