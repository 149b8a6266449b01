"""Launches and copies of one session, started now or recorded for later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress

from tensorwasm.errors import InvalidArgs, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument, BufferOffset, HostWindow, Scalar, bind, check_fit
from tensorwasm.gpu.device.port import Device, Stream
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.staging import Placement
from tensorwasm.gpu.state.graph_book import GraphBook, Recording
from tensorwasm.gpu.state.resource_table import Kernel, ResourceTable
from tensorwasm.gpu.state.streams import OWN, SessionStream
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.gpu.windows import Windows, require_inside
from tensorwasm.values import Deadline, LaunchConfig, Region

Arguments = Callable[[], Sequence[Argument]]


class Launcher:
    """Gives work to the device once nothing is left to refuse. The session takes turns, and says what is raised.

    Args:
        device: the device.
        holdings: what arguments name.
        windows: of the guest's memory.
        work: the streams.
        sheet: told what is recorded.
        graphs: gets what was recorded.
        most_steps: launches and copies of a graph.

    Attributes:
        recording: the stream that records, None if none does.
        launched: launches the device accepted from here.
        staged: those of them whose windows were staged.
        replayed: graphs replayed from here.
    """

    def __init__(
        self,
        device: Device,
        holdings: ResourceTable,
        windows: Windows,
        work: SessionWork,
        sheet: SessionLayoutWriter,
        graphs: GraphBook,
        most_steps: int,
    ) -> None:
        self._device = device
        self._holdings = holdings
        self._windows = windows
        self._work = work
        self._sheet = sheet
        self._graphs = graphs
        self._most_steps = most_steps
        self.recording: Recording | None = None
        self.launched = 0
        self.staged = 0
        self.replayed = 0

    def renew(self) -> None:
        """Count from 0 again."""
        self.launched = self.staged = self.replayed = 0

    # -------------------------------------------------------------------------------------------- now

    def launch(
        self, kernel_id: int, config: LaunchConfig, arguments: Arguments, memory: Region | None, deadline: Deadline
    ) -> None:
        """Run a kernel on the instance's own stream and wait for it."""
        with self._work.admitted(deadline):
            self.end_launch(self._begin(kernel_id, config, arguments, memory, deadline), deadline)

    def begin_launch(
        self, kernel_id: int, config: LaunchConfig, arguments: Arguments, memory: Region | None, deadline: Deadline
    ) -> Placement | None:
        """Start a kernel on the instance's own stream; return where its windows are staged, if they are."""
        with self._work.admitted(deadline):
            return self._begin(kernel_id, config, arguments, memory, deadline)

    def end_launch(self, placement: Placement | None, deadline: Deadline) -> None:
        """Wait for the kernel that was begun, and copy what it has written from where its windows are staged."""
        self._work.wait(self._work.find(OWN), deadline)
        if placement is not None:
            self._windows.copy_out(placement)
            self.staged += 1

    def _begin(
        self, kernel_id: int, config: LaunchConfig, arguments: Arguments, memory: Region | None, deadline: Deadline
    ) -> Placement | None:
        kernel, bound = self._resolve(kernel_id, config, arguments)
        windows = _windows(bound)
        placement: Placement | None = None
        if memory is not None and windows:
            placement = self._windows.place(windows, memory, deadline)
        if placement is not None:
            bound = self._windows.locate(placement, bound)
        values = self._bind(kernel, bound)
        if placement is not None:
            self._windows.copy_in(placement, deadline)
        self._start(kernel, config, values, windows, OWN, deadline)
        return placement

    def submit(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Arguments,
        memory: Region | None,
        deadline: Deadline,
        stream: int,
    ) -> None:
        """Start a kernel."""
        self._work.lanes.require(stream)
        with self._work.admitted(deadline):
            kernel, bound = self._resolve(kernel_id, config, arguments)
            windows = _windows(bound)
            if memory is not None and windows:
                self._windows.extend(memory, deadline)
            self._start(kernel, config, self._bind(kernel, bound), windows, stream, deadline)

    def copy(
        self, window: HostWindow, memory: Region, place: BufferOffset, deadline: Deadline, stream: int, *, inward: bool
    ) -> None:
        """Start a copy between guest memory and a buffer, into the buffer if it is inward."""
        self._work.lanes.require(stream)
        region = self._holdings.buffer(place.handle, window.length_bytes, place.offset_bytes)
        require_inside(window, memory)
        if not window.length_bytes:
            return
        address = region.address + place.offset_bytes
        if self.recording is not None:
            recorder = self._begin_step(stream, memory, deadline)
            self._require_reached([window])
            self._copy(window, address, recorder, inward=inward)
            self.recording.needs.add((window, place), None, self._windows.reach.region)
            return
        with self._work.admitted(deadline):
            reached = self._windows.extend_for_copy(window, memory, deadline)
            lane = self._work.find(stream)
            if reached:
                with self._work.giving(lane):
                    self._copy(window, address, lane.stream, inward=inward)
            else:
                # From memory that is not registered the driver copies when a stream comes to it, and waits for that in
                # the call, without a deadline: not behind kernels, neither the guest's nor of who shares its stream.
                self._work.wait(lane, deadline)
                self._copy_now(window, address, deadline, inward=inward)

    # ---------------------------------------------------------------------------------------- recorded

    def begin(self, stream: int) -> None:
        """Record a stream from now on; the device begins with the first piece of work, which brings the memory."""
        self._graphs.require_room()
        self.recording = Recording(self._work.find(stream), self._work.take_recorder())
        self._show_recording(recording=True)

    def end(self, stream: int) -> int:
        """Stop recording; return the graph's number."""
        recording = self._require_recording(stream)
        self.recording = None
        self._show_recording(recording=False)
        try:
            if not recording.capturing:
                self._device.graphs.begin_capture(recording.stream)
            graph = self._device.graphs.end_capture(recording.stream)
        except BaseException:
            self._work.give_recorder(recording.stream, healthy=False)
            raise
        self._work.give_recorder(recording.stream)
        number = self._graphs.add(graph, recording.needs)
        self._graphs.show(self._windows.reach.region)
        return number

    def record(
        self,
        kernel_id: int,
        config: LaunchConfig,
        arguments: Arguments,
        memory: Region | None,
        deadline: Deadline,
        stream: int,
    ) -> None:
        """Record a launch."""
        recording = self._require_recording(stream)
        kernel, bound = self._resolve(kernel_id, config, arguments)
        recorder = self._begin_step(stream, memory, deadline)
        self._require_reached(_windows(bound))
        values = self._bind(kernel, bound)
        regions = self._holdings.regions.snapshot()
        self._device.launch(kernel.shared.loaded, kernel.entry, config, values, regions, recorder, deadline)
        recording.needs.add(bound, kernel_id, self._windows.reach.region)
        if any(isinstance(argument, Scalar) and argument.size_bytes == 8 for argument in bound):
            # A number may be the address of anything that the session has: keep it all.
            recording.needs.add_all(self._holdings.buffers, self._windows.reach.region)

    def replay(self, graph: int, memory: Region | None, deadline: Deadline, stream: int) -> None:
        """Start everything that a graph holds."""
        if memory is not None and self._windows.reach.direct:
            self._windows.extend(memory, deadline)
        found = self._graphs.usable(graph, self._windows.reach.region)
        self._work.lanes.require(stream)
        with self._work.admitted(deadline):
            lane = self._work.find(stream)
            with self._work.giving(lane, max(found.needs.steps, 1)):
                regions = self._holdings.regions.snapshot()
                self._device.graphs.replay(found.graph, lane.stream, regions, deadline)
        self.launched += found.needs.launches
        self.replayed += 1

    def stop_recording(self) -> list[Exception]:
        """Stop recording at the end of a session, for nothing; return what the device raised."""
        recording, self.recording = self.recording, None
        if recording is None:
            return []
        graphs, failures = self._device.graphs, []
        if recording.capturing:
            failures = attempt(lambda stream: graphs.close_graph(graphs.end_capture(stream)), recording.stream)
        healthy = not failures
        return failures + attempt(lambda stream: self._work.give_recorder(stream, healthy=healthy), recording.stream)

    # ------------------------------------------------------------------------------------------- parts

    def _resolve(self, kernel_id: int, config: LaunchConfig, arguments: Arguments) -> tuple[Kernel, Sequence[Argument]]:
        bound = arguments()
        kernel = self._holdings.kernel(kernel_id)
        check_fit(config, kernel.signature, self._device.info)
        return kernel, bound

    def _bind(self, kernel: Kernel, bound: Sequence[Argument]) -> tuple[bytes, ...]:
        return bind(kernel.signature, bound, self._holdings.buffers, self._holdings.regions)

    def _start(
        self,
        kernel: Kernel,
        config: LaunchConfig,
        values: tuple[bytes, ...],
        windows: Sequence[HostWindow],
        stream: int,
        deadline: Deadline,
    ) -> SessionStream:
        lane = self._work.find(stream)
        self._prefetch(windows, lane)
        regions = self._holdings.regions.snapshot()
        with self._work.giving(lane):
            self._device.launch(kernel.shared.loaded, kernel.entry, config, values, regions, lane.stream, deadline)
        self.launched += 1
        return lane

    def _prefetch(self, windows: Sequence[HostWindow], lane: SessionStream) -> None:
        """Move large windows on managed memory ahead of a kernel: work of its own, which the stream has to end too."""
        reach = self._windows.reach
        if spans := reach.movable(windows):
            with self._work.giving(lane, len(spans)):
                reach.move(spans, lane.stream)

    def _copy(self, window: HostWindow, address: int, stream: Stream, *, inward: bool) -> None:
        if inward:
            self._device.copy_in(address, window.address, window.length_bytes, stream)
        else:
            self._device.copy_out(window.address, address, window.length_bytes, stream)

    def _copy_now(self, window: HostWindow, address: int, deadline: Deadline, *, inward: bool) -> None:
        host = memoryview((ctypes.c_char * window.length_bytes).from_address(window.address)).cast("B")
        if inward:
            self._device.write(address, host, None, deadline)
        else:
            self._device.read(address, host, None, deadline)

    def _require_recording(self, stream: int) -> Recording:
        self._work.lanes.require(stream)
        if self.recording is None or self.recording.lane.number != stream:
            raise InvalidArgs(f"stream {stream} does not record")
        return self.recording

    def _begin_step(self, stream: int, memory: Region | None, deadline: Deadline) -> Stream:
        recording = self._require_recording(stream)
        if recording.needs.steps >= self._most_steps:
            raise QuotaExceeded(f"a graph holds at most {self._most_steps} launches and copies")
        if not recording.capturing:
            if memory is not None:
                # Only now: a stream that records lets no memory be registered. Work without windows goes on without.
                with suppress(QuotaExceeded, LaunchRefused):
                    self._windows.extend(memory, deadline)
                self._work.place.settle()
            self._device.graphs.begin_capture(recording.stream)
            recording.capturing = True
        return recording.stream

    def _require_reached(self, windows: Sequence[HostWindow]) -> None:
        for window in windows:
            if window.length_bytes and not self._windows.reach.holds(window.address, window.length_bytes):
                raise InvalidArgs("while a stream records, the device reaches only memory that it reached before")

    def _show_recording(self, *, recording: bool) -> None:
        """Send everything to Python while a stream records, for it must know what the graph will reach."""
        for lane in self._work.lanes:
            self._sheet.set_recording(lane.row, recording=recording)
        if recording:
            self._graphs.hide()
        else:
            self._graphs.show(self._windows.reach.region)


def _windows(arguments: Sequence[Argument]) -> list[HostWindow]:
    return [argument for argument in arguments if isinstance(argument, HostWindow)]
