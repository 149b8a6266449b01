"""Graphs of a GPU by stream capture: `tensorwasm.gpu.device.protocols.Graphs`.

The capture is relaxed. The stricter modes forbid calls that might synchronise, such as allocations, to the capturing
thread or to every thread of the process until the recording ends: another tenant's allocation, or another library's,
would then fail or spoil the recording. And they tie the end to the thread of the beginning, but a guest that waits may
go on elsewhere. What the relaxed mode gives up, a guard against such a call inside the recording, is not needed: only
launches and copies are put into a recording stream.

Source: CUDA Driver API, "Graph Management", "Stream Management" (cuStreamBeginCapture,
cuThreadExchangeStreamCaptureMode).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tensorwasm.errors import InvalidHandle, InvokeTimeout, LaunchRefused
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.handles import CudaGraph, CudaStream
from tensorwasm.gpu.cuda.results import SUCCESS, DriverFailure
from tensorwasm.gpu.device.protocols import Graph, Stream
from tensorwasm.values import Deadline, Region


class CudaGraphs:
    """Records and replays."""

    def __init__(self, core: Core) -> None:
        """Record nothing yet."""
        self._core = core
        self._lock = threading.Lock()

    def begin_capture(self, stream: Stream) -> None:
        """See `Graphs.begin_capture`.

        Raises:
            InvalidHandle: the stream is not open here.
            LaunchRefused: the stream is recording already, or cannot.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._core.stream(stream)
        with self._lock, core.calling:
            if own.recording:
                raise LaunchRefused("the stream is recording already")
            mode = core.driver.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            core.driver.call("cuStreamBeginCapture", own.handle, mode)
            own.recording = True

    def end_capture(self, stream: Stream) -> Graph:
        """See `Graphs.end_capture`. A launch that was refused meanwhile may have spoilt the recording.

        Raises:
            InvalidHandle: the stream is not open here.
            LaunchRefused: the stream is not recording, or what was recorded cannot be replayed.
            QuotaExceeded: there is no memory for the graph; the stream records no longer.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._core.stream(stream)
        with self._lock, core.calling:
            if not own.recording:
                raise LaunchRefused("the stream is not recording")
            recorded = self._end(own)
            try:
                core.streams.order(own)  # behind what was cleared meanwhile: compiled code gives it work without asking
                graph = CudaGraph(core.driver.call("cuGraphInstantiate", recorded, 0))
            finally:
                core.undo("cuGraphDestroy", recorded)  # the executable graph stands alone
            core.ledger.graphs.add(graph)
            return graph

    def replay(
        self,
        graph: Graph,
        stream: Stream,
        regions: Sequence[Region],  # noqa: ARG002 - the hardware has no allocation table of ours to check against
        deadline: Deadline,
    ) -> None:
        """See `Graphs.replay`.

        Raises:
            InvalidHandle: the graph or the stream is not open here.
            InvokeTimeout: the deadline has passed already, nothing ran.
            LaunchRefused: the stream is recording, or the driver refused; nothing ran.
            DeviceLost: the device does not answer.
        """
        core, made, own = self._core, self._own(graph), self._core.running(stream)
        if deadline.expired():
            raise InvokeTimeout("the deadline passed before the replay")
        with core.calling:
            core.streams.order(own)
            core.give(own, deadline, "cuGraphLaunch", made.handle, own.handle)

    def graph_handle(self, graph: Graph) -> int:
        """See `Graphs.graph_handle`.

        Raises:
            InvalidHandle: the graph is not open here.
        """
        return int(self._own(graph).handle)

    def close_graph(self, graph: Graph) -> None:
        """See `Graphs.close_graph`.

        Raises:
            InvalidHandle: the graph is not open here.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._own(graph)
        core.retire(core.ledger.graphs, own, lambda item: core.release("cuGraphExecDestroy", item.handle))

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
        """Return what was recorded; the stream records no longer, whatever happens.

        Raises:
            DriverFailure: it was spoilt, or the driver does not give it out.
            LaunchRefused: it was spoilt.
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

    def _own(self, graph: Graph) -> CudaGraph:
        if not isinstance(graph, CudaGraph) or graph not in self._core.ledger.graphs:
            raise InvalidHandle("the graph is not open on this device")
        return graph
