"""Graphs of a session by the numbers that guests use, with what each of them needs to be replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tensorwasm.errors import InvalidHandle, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, HostWindow
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.device.protocols import Graph
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.state.streams import SessionStream
from tensorwasm.values import Region


class Needs:
    """What a recorded sequence of work uses.

    Attributes:
        launches: launches in it.
        steps: launches and copies.
        buffers: their handles.
        kernels: their ids.
        reach: the guest's memory up to the end of the last window, None without windows.
    """

    __slots__ = ("buffers", "kernels", "launches", "reach", "steps")

    def __init__(self) -> None:
        self.launches = 0
        self.steps = 0
        self.buffers: set[int] = set()
        self.kernels: set[int] = set()
        self.reach: Region | None = None

    def add(self, arguments: Sequence[Argument], kernel_id: int | None, reached: Region | None) -> None:
        """Add a launch, or a copy if there is no kernel.

        Args:
            arguments: what it uses.
            kernel_id: what it runs.
            reached: the guest's memory as the device reaches it.
        """
        self.steps += 1
        if kernel_id is not None:
            self.launches += 1
            self.kernels.add(kernel_id)
        for argument in arguments:
            if isinstance(argument, BufferOffset):
                self.buffers.add(argument.handle)
            elif isinstance(argument, HostWindow) and argument.length_bytes and reached is not None:
                end = max(argument.address + argument.length_bytes, self.reach.end if self.reach else 0)
                self.reach = Region(reached.address, end - reached.address, host=True)

    def add_all(self, buffers: Iterable[int], reached: Region | None) -> None:
        """Add every buffer, and all of the guest's memory that the device reaches."""
        self.buffers.update(buffers)
        self.reach = reached

    def met_by(self, reached: Region | None) -> bool:
        """Return whether the device reaches what the work uses of the guest's memory."""
        if self.reach is None:
            return True
        return reached is not None and reached.address == self.reach.address and reached.end >= self.reach.end


class Recording:
    """A stream that records.

    Attributes:
        lane: the stream, as the guest knows it.
        stream: what records in its stead: a stream that nobody else gives anything.
        needs: of what was recorded.
        capturing: whether the device records already; it begins with the first piece of work.
    """

    __slots__ = ("capturing", "lane", "needs", "stream")

    def __init__(self, lane: SessionStream, stream: Stream) -> None:
        self.lane = lane
        self.stream = stream
        self.needs = Needs()
        self.capturing = False


class Recorded:
    """A graph.

    Attributes:
        graph: the device's.
        needs: what it uses.
        dead: whether something that it uses has gone.
    """

    __slots__ = ("dead", "graph", "needs")

    def __init__(self, graph: Graph, needs: Needs) -> None:
        self.graph = graph
        self.needs = needs
        self.dead = False


class GraphBook:
    """The graphs of one session. Not safe from several threads: the session takes turns.

    Args:
        device: where they are.
        sheet: told which of them may be replayed.
        most: graphs at a time, one that is being recorded included.

    Attributes:
        next_number: of the graph that is recorded next.
    """

    def __init__(self, device: Device, sheet: SessionLayoutWriter, most: int) -> None:
        self._device = device
        self._sheet = sheet
        self._most = most
        self._graphs: dict[int, Recorded] = {}
        self.next_number = 1

    @property
    def count(self) -> int:
        """Graphs that are there, dead ones included."""
        return len(self._graphs)

    @property
    def unused(self) -> bool:
        """Whether the guest never recorded one."""
        return self.next_number == 1

    def require_room(self) -> None:
        """Check that there may be one more.

        Raises:
            QuotaExceeded: the session has as many as it may.
        """
        if len(self._graphs) >= self._most:
            raise QuotaExceeded(f"the guest already holds {len(self._graphs)} graphs")

    def add(self, graph: Graph, needs: Needs) -> int:
        """Take a new graph in; return its number."""
        number, self.next_number = self.next_number, self.next_number + 1
        self._graphs[number] = Recorded(graph, needs)
        return number

    def find(self, number: int) -> Recorded:
        """Return a graph.

        Raises:
            InvalidHandle: no such graph.
        """
        found = self._graphs.get(number)
        if found is None:
            raise InvalidHandle(f"no graph {number}")
        return found

    def usable(self, number: int, reached: Region | None) -> Recorded:
        """Return a graph that may be replayed.

        Args:
            number: of the graph.
            reached: the guest's memory as the device reaches it.

        Raises:
            InvalidHandle: no such graph, or something that it uses has gone.
        """
        found = self.find(number)
        if found.dead or not found.needs.met_by(reached):
            raise InvalidHandle(f"graph {number} uses a buffer, a kernel or memory that is not there any more")
        return found

    def forget_buffer(self, handle: int) -> None:
        """Kill the graphs that use a buffer."""
        self._kill((number, found) for number, found in self._graphs.items() if handle in found.needs.buffers)

    def forget_kernel(self, kernel_id: int) -> None:
        """Kill the graphs that use a kernel."""
        self._kill((number, found) for number, found in self._graphs.items() if kernel_id in found.needs.kernels)

    def show(self, reached: Region | None) -> None:
        """Let compiled code replay what may be replayed, and nothing else."""
        if self._sheet.pad is None:
            return
        for number, found in self._graphs.items():
            if found.dead or not found.needs.met_by(reached):
                self._sheet.hide_graph(number)
            else:
                handle = self._device.graphs.graph_handle(found.graph)
                self._sheet.show_graph(number, handle, found.needs.launches, found.needs.steps)

    def hide(self) -> None:
        """Let compiled code replay nothing."""
        for number in self._graphs:
            self._sheet.hide_graph(number)

    def close(self, number: int) -> None:
        """Release a graph that no stream is replaying.

        Raises:
            InvalidHandle: no such graph.
            DeviceLost: the device does not answer.
        """
        found = self.find(number)
        self._sheet.hide_graph(number)
        self._device.graphs.close_graph(found.graph)
        del self._graphs[number]

    def release(self) -> list[Exception]:
        """Release all; return what the device raised."""
        graphs, self._graphs = self._graphs, {}
        return [error for found in graphs.values() for error in attempt(self._device.graphs.close_graph, found.graph)]

    def _kill(self, doomed: Iterator[tuple[int, Recorded]]) -> None:
        for number, found in doomed:
            found.dead = True
            self._sheet.hide_graph(number)
