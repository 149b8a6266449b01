"""Graphs of a guest: recorded from a stream, and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tensorwasm.errors import InvalidArgs, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.device.limits import GUARDED_PIECES
from tensorwasm.gpu.device.port import Stream, attempt
from tensorwasm.gpu.session.core import SessionPart, in_turn
from tensorwasm.gpu.state.numbered import OWN, RecordedGraph, Recording
from tensorwasm.values import Deadline, Region


class RecordingPart(SessionPart):
    """A part of a session whose work a stream can record. The session's lock is held."""

    __slots__ = ()

    def _require_recording(self, stream: int) -> Recording:
        """Return what records in the place of a stream."""
        recording = self._core.graphs.recording
        self._core.work.streams.require(stream)
        if recording is None or recording.source.number != stream:
            raise InvalidArgs(f"stream {stream} does not record")
        return recording

    def _begin_step(self, stream: int, memory: Region | None, deadline: Deadline, pieces: int) -> Stream:
        """Return the device's stream that a launch or a copy on a stream that records is given to.

        Args:
            stream: its number.
            memory: the guest's, as it is now.
            deadline: when the memory must have been registered.
            pieces: of work that it is.

        Raises:
            QuotaExceeded: the graph is full.
        """
        core, recording = self._core, self._require_recording(stream)
        most = min(core.limits.graph_launches, GUARDED_PIECES)  # a replay has to fit among what may be pending
        if recording.uses.pieces + pieces > most:
            raise QuotaExceeded(f"a graph holds at most {most} launches and copies, and large ones count more")
        if not recording.capturing:
            if memory is not None:
                # Only now: a stream that records lets no memory be registered. Work without windows needs none.
                with suppress(QuotaExceeded, LaunchRefused):
                    core.windows.extend(memory, deadline)
                core.work.permit.settle()
            core.device.graphs.begin_capture(recording.stream)
            recording.capturing = True
        return recording.stream

    def _require_reached(self, windows: Sequence[HostWindow]) -> None:
        """Check that the device reaches windows in place, of which a graph keeps the addresses."""
        holds = self._core.windows.reach.holds
        if not all(holds(window.address, window.length_bytes) for window in windows if window.length_bytes):
            raise InvalidArgs("while a stream records, the device reaches only memory that it reached before")


class SessionGraphs(RecordingPart):
    """The graphs of one session, by their numbers. Thread-safe; errors as in `tensorwasm.gpu.session`."""

    __slots__ = ()

    @in_turn()
    def begin(self, stream: int) -> None:
        """Record what a stream is given from now on, instead of running it.

        The device begins with the first piece of work, which brings the guest's memory.

        Raises:
            QuotaExceeded: the session has as many graphs as it may, or the device has no stream to spare.
        """
        core = self._core
        core.work.known(stream)
        core.graphs.require_room(core.limits.graphs)
        core.graphs.recording = Recording(core.work.find(stream), core.resources.streams.take(alone=True))
        self._show_recording(recording=True)

    @in_turn(recording=True)
    def end(self, stream: int) -> int:
        """Stop recording; return the number of the graph.

        Raises:
            InvalidArgs: the stream does not record.
            LaunchRefused: what was recorded cannot be replayed. The stream records no longer.
        """
        core, recording = self._core, self._require_recording(stream)
        core.graphs.recording = None
        self._show_recording(recording=False)
        try:
            if not recording.capturing:
                core.device.graphs.begin_capture(recording.stream)
            graph = core.device.graphs.end_capture(recording.stream)
        except BaseException:
            core.resources.streams.discard(recording.stream)
            raise
        core.resources.streams.give(recording.stream)
        number = core.graphs.add(RecordedGraph(graph, recording.uses))
        core.graphs.show(core.windows.reach.region)
        return number

    @in_turn()
    def replay(self, graph: int, memory: Region | None, deadline: Deadline, stream: int = OWN) -> None:
        """Start everything that a graph holds, in its order, behind the work of a stream.

        Args:
            graph: its number.
            memory: the guest's memory as it is now. What the graph reaches of it is at the same place as when it was
                recorded, and still registered, or the graph is dead.
            deadline: when all of it must have stopped.
            stream: its number.

        Raises:
            InvalidHandle: also if a buffer, a kernel or memory that the graph uses is gone.
            CapacityExhausted: no permit at the gate in time.
            LaunchRefused: the device refused.
        """
        core, work = self._core, self._core.work
        if memory is not None and core.windows.reach.direct:
            core.windows.extend(memory, deadline)
        found = core.graphs.usable(graph, core.windows.reach.region)
        work.streams.require(stream)
        work.permit.take(deadline)
        try:
            target, regions = work.find(stream), core.table.reachable()
            replay, pieces = core.device.graphs.replay, max(found.uses.pieces, 1)
            work.give(target, pieces, replay, found.graph, target.stream, regions, deadline)
            work.note_replay(deadline)  # not before: to make room for it may end all that is pending
        finally:
            work.permit.settle()
        core.launched += found.uses.launches
        core.replayed += 1

    @in_turn()
    def close(self, graph: int, deadline: Deadline) -> None:
        """Release a graph, once all work has ended."""
        self._core.graphs.require(graph)
        self._core.work.drain(deadline)
        self._core.graphs.close(graph)

    @in_turn(recording=True)
    def pieces(self, graph: int) -> int:
        """Return how many pieces of work a graph is."""
        return max(self._core.graphs[graph].uses.pieces, 1)

    def stop(self) -> list[Exception]:
        """Stop recording at the end of a session and drop what was recorded; return what the device raised."""
        core = self._core
        recording, core.graphs.recording = core.graphs.recording, None
        if recording is None:
            return []
        graphs, streams, failures = core.device.graphs, core.resources.streams, []
        if recording.capturing:
            failures = attempt(lambda stream: graphs.close_graph(graphs.end_capture(stream)), recording.stream)
        return failures + attempt(streams.discard if failures else streams.give, recording.stream)

    def _show_recording(self, *, recording: bool) -> None:
        """Send compiled code to Python while a stream records: it must know what the graph will reach."""
        core = self._core
        for stream in core.work.streams:
            core.layout.set_recording(stream.row, recording=recording)
        if recording:
            core.graphs.hide()
        else:
            core.graphs.show(core.windows.reach.region)
