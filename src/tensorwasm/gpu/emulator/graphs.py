"""Sequences of work that are recorded once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorwasm.errors import InvalidHandle
from tensorwasm.gpu.device.protocols import Graph, Stream
from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.handles import Handles
from tensorwasm.gpu.emulator.queues import Action, Queues, Work
from tensorwasm.gpu.emulator.reach import Reach
from tensorwasm.values import Deadline, Region


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedGraph:
    """Actions, one after the other; itself one."""

    actions: tuple[Action, ...]

    def run(self, reach: Reach, deadline: Deadline) -> None:
        """Do all of them.

        Raises:
            TensorWasmError: one failed; those behind it were not begun.
        """
        for action in self.actions:
            action.run(reach, deadline)


class EmulatedGraphs:
    """The graphs of a device.

    Args:
        queues: its streams.
        allocations: its memory.
        handles: where compiled code finds graphs.
    """

    def __init__(self, queues: Queues, allocations: Allocations, handles: Handles) -> None:
        self._queues, self._allocations, self._handles = queues, allocations, handles
        self._graphs: set[EmulatedGraph] = set()
        self.replays = 0

    def __len__(self) -> int:
        """Return how many graphs are open."""
        return len(self._graphs)

    def begin_capture(self, stream: Stream) -> None:
        """Record what is given to the stream from now on instead of running it.

        Raises:
            InvalidHandle: no such stream.
            LaunchRefused: the stream is recording already.
        """
        self._queues.begin_recording(self._queues.own(stream))

    def end_capture(self, stream: Stream) -> Graph:
        """Stop recording and return what was recorded; a graph of nothing if nothing was.

        Raises:
            InvalidHandle: no such stream.
            LaunchRefused: the stream is not recording.
        """
        graph = EmulatedGraph(self._queues.end_recording(self._queues.own(stream)))
        self._graphs.add(graph)
        return graph

    def replay(self, graph: Graph, stream: Stream, regions: Sequence[Region], deadline: Deadline) -> None:
        """Start all of it behind the work already in the stream.

        Raises:
            InvalidHandle: no such graph or stream.
            LaunchRefused: the stream is recording, or a region is not memory of this device.
            TensorWasmError: what the stream has failed with.
        """
        own = self._own(graph)
        self.start(own, stream, self._allocations.reach(regions), deadline)
        self.replays += 1

    def start(self, graph: EmulatedGraph, stream: Stream, reach: Reach, deadline: Deadline) -> None:
        """Start a graph whose regions have been looked up.

        Raises:
            InvalidHandle: no such stream.
            LaunchRefused: the stream is recording.
            TensorWasmError: what the stream has failed with.
        """
        own = self._queues.own(stream)
        self._queues.mark(own)
        self._queues.give(own, Work(graph, reach, deadline))

    def graph_handle(self, graph: Graph) -> int:
        """Return what ``cuGraphLaunch`` takes.

        Raises:
            InvalidHandle: no such graph.
        """
        return self._handles.of(self._own(graph))

    def close_graph(self, graph: Graph) -> None:
        """Release a graph."""
        if isinstance(graph, EmulatedGraph):
            self._graphs.discard(graph)
            self._handles.drop(graph)

    def clear(self) -> None:
        """Release every graph."""
        for graph in list(self._graphs):
            self.close_graph(graph)

    def _own(self, graph: Graph) -> EmulatedGraph:
        if not isinstance(graph, EmulatedGraph) or graph not in self._graphs:
            raise InvalidHandle("the graph is not open on this device")
        return graph
