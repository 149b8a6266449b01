"""Events of a GPU: `tensorwasm.gpu.device.protocols.Events`.

Source: CUDA Driver API, "Event Management".
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.cuda import delays
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.handles import CudaEvent
from tensorwasm.gpu.device.protocols import Event, Stream
from tensorwasm.values import NEVER, Deadline


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
