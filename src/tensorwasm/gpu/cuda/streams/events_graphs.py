"""Events of a GPU, and graphs by stream capture: `tensorwasm.gpu.device.protocols.Events` and `Graphs`.

The capture is relaxed. The stricter modes forbid calls that might synchronise, such as allocations, to the capturing
thread or to every thread of the process until the recording ends: another tenant's allocation, or another library's,
would then fail or spoil the recording. And they tie the end to the thread of the beginning, but a guest that waits may
go on elsewhere. The relaxed mode does not guard against such a call inside the recording; that is not needed, for
only launches and copies are put into a recording stream.

Source: CUDA Driver API, "Event Management", "Graph Management", "Stream Management" (cuStreamBeginCapture,
cuThreadExchangeStreamCaptureMode).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwasm.errors import InvokeTimeout, LaunchRefused
from tensorwasm.gpu.cuda import delays
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.driver.calls import SUCCESS, DriverFailure
from tensorwasm.gpu.cuda.handles import CudaEvent, CudaGraph, CudaStream
from tensorwasm.gpu.device.protocols import Event, Graph, Stream
from tensorwasm.values import NEVER, Deadline, Region


@dataclass(frozen=True, slots=True, eq=False)
class CudaEvents:
    """Order between streams; see `CudaDevice` for what every method raises.

    A stream that records is refused: it would draw the others into its recording.
    """

    _core: Core

    def open_event(self) -> Event:
        """See `Events.open_event`."""
        with self._core.calling:
            return self._core.live.events.enter(CudaEvent(self._core.streams.make_event()))

    def close_event(self, event: Event) -> None:
        """See `Events.close_event`."""
        core, live = self._core, self._core.live.events
        core.retire(live, live.require(event), lambda own: core.destroy_event(own.handle))

    def record(self, event: Event, stream: Stream) -> None:
        """See `Events.record`."""
        core, mark, own = self._core, self._core.live.events.require(event), self._core.require_running(stream)
        with core.calling:
            number = own.dues.mark()
            core.driver.call("cuEventRecord", mark.handle, own.handle)
            mark.source, mark.number, mark.deadline = own, number, own.dues.latest

    def wait_event(self, stream: Stream, event: Event) -> None:
        """See `Events.wait_event`."""
        core, mark, own = self._core, self._core.live.events.require(event), self._core.require_running(stream)
        with core.calling:
            core.driver.call("cuStreamWaitEvent", own.handle, mark.handle, 0)
            if mark.deadline is not None:
                own.dues.add(mark.deadline)

    def event_reached(self, event: Event) -> bool:
        """See `Events.event_reached`."""
        core, own = self._core, self._core.live.events.require(event)
        with core.waiting:
            reached = core.streams.ended("cuEventQuery", own.handle)
        if reached:
            _end_work_before(own)
        return reached

    def patience(self, event: Event) -> Deadline:
        """See `Events.patience`: the latest deadline of the work before the mark, and what it may overrun that by."""
        due = self._core.live.events.require(event).deadline
        return NEVER if due is None or due.at_ns is None else Deadline(due.at_ns + delays.OVERRUN_GRACE_NS)

    def synchronize_event(self, event: Event, deadline: Deadline) -> None:
        """See `Events.synchronize_event`. Other threads run meanwhile. Long overdue work loses the device."""
        core, own = self._core, self._core.live.events.require(event)
        with core.waiting:
            reached = core.streams.wait_event(own.handle, deadline)
        if not reached:
            if own.source is not None and own.deadline is not None and own.deadline.expired():
                core.overrun(own.source, own.deadline)
            raise InvokeTimeout("the deadline passed and the work before the event is still running")
        _end_work_before(own)


def _end_work_before(event: CudaEvent) -> None:
    if event.source is not None:
        event.source.dues.end(event.number)


@dataclass(frozen=True, slots=True, eq=False)
class CudaGraphs:
    """Records and replays; see `CudaDevice` for what every method raises."""

    _core: Core
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_capture(self, stream: Stream) -> None:
        """See `Graphs.begin_capture`."""
        core, own = self._core, self._core.live.streams.require(stream)
        with self._lock, core.calling:
            if own.recording:
                raise LaunchRefused("the stream is recording already")
            mode = core.driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            core.driver.call("cuStreamBeginCapture", own.handle, mode)
            own.recording = True

    def end_capture(self, stream: Stream) -> Graph:
        """See `Graphs.end_capture`. A launch that was refused meanwhile may have spoilt the recording."""
        core, own = self._core, self._core.live.streams.require(stream)
        with self._lock, core.calling:
            if not own.recording:
                raise LaunchRefused("the stream is not recording")
            recorded = self._end(own)
            try:
                core.streams.order(own)  # behind what was cleared meanwhile: compiled code gives it work without asking
                graph = CudaGraph(core.driver.call("cuGraphInstantiate", recorded, 0))
            finally:
                core.undo("cuGraphDestroy", recorded)  # the executable graph stands alone
            return core.live.graphs.enter(graph)

    def replay(
        self,
        graph: Graph,
        stream: Stream,
        regions: Sequence[Region],  # noqa: ARG002 - the hardware has no allocation table of ours to check against
        deadline: Deadline,
    ) -> None:
        """See `Graphs.replay`.

        Raises:
            InvokeTimeout: the deadline has passed already, nothing ran.
            LaunchRefused: the driver refused; nothing ran.
        """
        core, own = self._core, self._core.require_running(stream)
        made = core.live.graphs.require(graph)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the replay")
        with core.calling:
            core.streams.order(own)
            core.submit(own, deadline, "cuGraphLaunch", made.handle, own.handle)

    def graph_handle(self, graph: Graph) -> int:
        """See `Graphs.graph_handle`."""
        return int(self._core.live.graphs.require(graph).handle)

    def close_graph(self, graph: Graph) -> None:
        """See `Graphs.close_graph`."""
        core, live = self._core, self._core.live.graphs
        core.retire(live, live.require(graph), lambda own: core.release("cuGraphExecDestroy", own.handle))

    def abandon(self, stream: CudaStream) -> None:
        """End a stream's recording, if it has one, and throw it away. The context must be bound."""
        with self._lock:
            if not stream.recording:
                return
            try:
                self._core.undo("cuGraphDestroy", self._end(stream))
            except DriverFailure as failure:
                self._core.judge(failure)
            except LaunchRefused:
                return  # it was spoilt: there is nothing to throw away

    def _end(self, stream: CudaStream) -> Any:
        """Return what was recorded; the stream records no longer, even if this raises.

        Raises:
            LaunchRefused: the recording was spoilt.
        """
        driver = self._core.driver
        stream.recording = False
        code, recorded = driver.attempt("cuStreamEndCapture", stream.handle)
        if code != SUCCESS:
            again, recorded = driver.attempt("cuStreamEndCapture", stream.handle)
            if again == SUCCESS and int(recorded):
                self._core.undo("cuGraphDestroy", recorded)
            raise DriverFailure("cuStreamEndCapture", code)
        if not int(recorded):
            raise LaunchRefused("what was recorded cannot be replayed: an operation in it was refused")
        return recorded
