"""Graphs of a session by the numbers that guests use, with what each of them needs to be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensorwasm.errors import InvalidHandle, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, HostWindow
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.device.protocols import Graph
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.state.streams import SessionStream
from tensorwasm.values import Region


@dataclass(slots=True)
class GraphUses:
    """What a recorded sequence of work uses, by handles and ids, and its number of launches and of all steps.

    Attributes:
        memory: the guest's memory up to the end of the last window, None without windows.
    """

    launches: int = 0
    steps: int = 0
    buffers: set[int] = field(default_factory=set)
    kernels: set[int] = field(default_factory=set)
    memory: Region | None = None

    def add(self, arguments: Sequence[Argument], kernel_id: int | None, reached: Region | None) -> None:
        """Add a launch, or a copy if there is no kernel, while the device reaches ``reached`` of the guest's memory."""
        self.steps += 1
        if kernel_id is not None:
            self.launches += 1
            self.kernels.add(kernel_id)
        for argument in arguments:
            if isinstance(argument, BufferOffset):
                self.buffers.add(argument.handle)
            elif isinstance(argument, HostWindow) and argument.length_bytes and reached is not None:
                end = max(argument.address + argument.length_bytes, self.memory.end if self.memory else 0)
                self.memory = Region(reached.address, end - reached.address, host=True)

    def add_all(self, buffers: Iterable[int], reached: Region | None) -> None:
        """Add every buffer, and all of the guest's memory that the device reaches."""
        self.buffers.update(buffers)
        self.memory = reached


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


class GraphTable:
    """The graphs of one session. Not thread-safe: the session's lock is held.

    A session has ``most`` of them at a time, one that is being recorded included.

    Attributes:
        next_number: of the graph that is recorded next; 1 if there never was one.
        recording: the stream that records, None if none does.
    """

    def __init__(self, device: Device, layout: SessionLayoutWriter, most: int) -> None:
        self._device = device
        self._layout = layout
        self._most = most
        self._graphs: dict[int, RecordedGraph] = {}
        self.next_number = 1
        self.recording: Recording | None = None

    def __len__(self) -> int:
        """Return the number of graphs, dead ones included."""
        return len(self._graphs)

    def require_room(self) -> None:
        """Check that the session may have one more; raises `QuotaExceeded`."""
        if len(self._graphs) >= self._most:
            raise QuotaExceeded(f"the guest already holds {len(self._graphs)} graphs")

    def add(self, graph: Graph, uses: GraphUses) -> int:
        """Add a new graph and return its number."""
        number, self.next_number = self.next_number, self.next_number + 1
        self._graphs[number] = RecordedGraph(graph, uses)
        return number

    def find(self, number: int) -> RecordedGraph:
        """Return a graph, dead or not."""
        found = self._graphs.get(number)
        if found is None:
            raise InvalidHandle(f"no graph {number}")
        return found

    def usable(self, number: int, reached: Region | None) -> RecordedGraph:
        """Return a graph that may be replayed while the device reaches ``reached`` of the guest's memory."""
        found = self.find(number)
        if not found.replayable(reached):
            raise InvalidHandle(f"graph {number} uses a buffer, a kernel or memory that is not there any more")
        return found

    def forget_buffer(self, handle: int) -> None:
        """Mark the graphs that use a buffer as dead."""
        for number, found in self._graphs.items():
            if handle in found.uses.buffers:
                self._kill(number, found)

    def forget_kernel(self, kernel_id: int) -> None:
        """Mark the graphs that use a kernel as dead."""
        for number, found in self._graphs.items():
            if kernel_id in found.uses.kernels:
                self._kill(number, found)

    def show(self, reached: Region | None) -> None:
        """Let compiled code replay exactly the graphs that may be replayed."""
        if self._layout.layout is None:
            return
        for number, found in self._graphs.items():
            if found.replayable(reached):
                handle = self._device.graphs.graph_handle(found.graph)
                self._layout.show_graph(number, handle, found.uses.launches, found.uses.steps)
            else:
                self._layout.hide_graph(number)

    def hide(self) -> None:
        """Let compiled code replay nothing."""
        for number in self._graphs:
            self._layout.hide_graph(number)

    def close(self, number: int) -> None:
        """Release a graph that no stream is replaying."""
        found = self.find(number)
        self._layout.hide_graph(number)
        self._device.graphs.close_graph(found.graph)
        del self._graphs[number]

    def release(self) -> list[Exception]:
        """Release all; return what the device raised."""
        graphs, self._graphs = self._graphs, {}
        return [error for found in graphs.values() for error in attempt(self._device.graphs.close_graph, found.graph)]

    def _kill(self, number: int, found: RecordedGraph) -> None:
        found.dead = True
        self._layout.hide_graph(number)
