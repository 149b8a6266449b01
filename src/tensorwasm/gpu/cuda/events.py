"""Events of a GPU: `tensorwasm.gpu.device.protocols.Events`.

Source: CUDA Driver API, "Event Management".
"""

from __future__ import annotations

from tensorwasm.errors import InvalidHandle, InvokeTimeout
from tensorwasm.gpu.cuda import delays
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.handles import CudaEvent
from tensorwasm.gpu.device.protocols import Event, Stream
from tensorwasm.values import NEVER, Deadline


class CudaEvents:
    """Order between streams. A stream that records takes no part: it would draw the others into its recording."""

    def __init__(self, core: Core) -> None:
        """Make nothing yet."""
        self._core = core

    def open_event(self) -> Event:
        """See `Events.open_event`.

        Raises:
            QuotaExceeded: the driver has no memory for it.
            DeviceLost: the device does not answer.
        """
        core = self._core
        with core.calling:
            event = CudaEvent(core.streams.make_event())
            core.ledger.events.add(event)
            return event

    def close_event(self, event: Event) -> None:
        """See `Events.close_event`.

        Raises:
            InvalidHandle: the event is not open here.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._own(event)
        core.retire(core.ledger.events, own, self._destroy)

    def record(self, event: Event, stream: Stream) -> None:
        """See `Events.record`.

        Raises:
            InvalidHandle: event or stream is not open here.
            LaunchRefused: the stream records.
            DeviceLost: the device does not answer.
        """
        core, mark, own = self._core, self._own(event), self._core.running(stream)
        with core.calling:
            number = own.dues.mark()
            core.driver.call("cuEventRecord", mark.handle, own.handle)
            mark.source, mark.number, mark.deadline = own, number, own.dues.latest

    def wait_event(self, stream: Stream, event: Event) -> None:
        """See `Events.wait_event`.

        Raises:
            InvalidHandle: event or stream is not open here.
            LaunchRefused: the stream records.
            DeviceLost: the device does not answer.
        """
        core, mark, own = self._core, self._own(event), self._core.running(stream)
        with core.calling:
            core.driver.call("cuStreamWaitEvent", own.handle, mark.handle, 0)
            if mark.deadline is not None:
                own.dues.add(mark.deadline)

    def event_reached(self, event: Event) -> bool:
        """See `Events.event_reached`.

        Raises:
            InvalidHandle: the event is not open here.
            KernelFault: a kernel faulted; the device is lost.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._own(event)
        with core.waiting:
            reached = core.streams.ended("cuEventQuery", own.handle)
        if reached:
            _end(own)
        return reached

    def patience(self, event: Event) -> Deadline:
        """See `Events.patience`: the latest deadline of the work before the mark, and what it may overrun that by.

        Raises:
            InvalidHandle: the event is not open here.
        """
        due = self._own(event).deadline
        return NEVER if due is None or due.at_ns is None else Deadline(due.at_ns + delays.OVERRUN_GRACE_NS)

    def synchronize_event(self, event: Event, deadline: Deadline) -> None:
        """See `Events.synchronize_event`. Other threads run meanwhile.

        Raises:
            InvalidHandle: the event is not open here.
            KernelFault: a kernel faulted; the device is lost.
            InvokeTimeout: the deadline passed and the work is still running; if the work's own has passed too, the
                device is lost.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._own(event)
        with core.waiting:
            reached = core.streams.wait_event(own.handle, deadline)
        if not reached:
            if own.source is not None and own.deadline is not None and own.deadline.expired():
                core.overrun(own.source, own.deadline)
            raise InvokeTimeout("the deadline passed and the work before the event is still running")
        _end(own)

    def _destroy(self, event: CudaEvent) -> None:
        self._core.destroy_event(event.handle)

    def _own(self, event: Event) -> CudaEvent:
        if not isinstance(event, CudaEvent) or event not in self._core.ledger.events:
            raise InvalidHandle("the event is not open on this device")
        return event


def _end(event: CudaEvent) -> None:
    """Forget the work before a mark that was reached."""
    if event.source is not None:
        event.source.dues.end(event.number)
