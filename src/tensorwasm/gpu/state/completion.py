"""Where a session's own work ends in its streams, also in those that other sessions give work to as well.

A stream of one session has ended when it has drained. On a stream that sessions share that would be too late: others'
work may go on behind this session's for ever. There an event is recorded behind its last work and waited for.
"""

from __future__ import annotations

from functools import partial

from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.device.protocols import Event
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.stream_stock import Stock, StreamStock
from tensorwasm.gpu.state.streams import SessionStream
from tensorwasm.values import Deadline


class StreamCompletions:
    """The ends of one session's work. Not safe from several threads, but for what it has the streams' stock call.

    Args:
        device: where the streams are.
        streams: knows which are shared.
        events: where marks come from.
        sheet: where work is counted.
    """

    __slots__ = ("_device", "_events", "_sheet", "_streams")

    def __init__(self, device: Device, streams: StreamStock, events: Stock[Event], sheet: SessionLayoutWriter) -> None:
        self._device = device
        self._streams = streams
        self._events = events
        self._sheet = sheet

    def watch(self, lane: SessionStream) -> None:
        """Know a stream of the session until `forget`: sessions that come to share it will ask for its deadlines."""
        lane.announced = self._sheet.traffic
        lane.announce = partial(self._announce, lane)
        self._streams.join(lane.stream, lane.announce)

    def forget(self, lane: SessionStream) -> list[Exception]:
        """Forget a stream whose work has ended; return what the device raised."""
        if lane.announce is not None:
            self._streams.part(lane.stream, lane.announce)
        mark, lane.mark, lane.marked = lane.mark, None, None
        return [] if mark is None else attempt(self._events.give, mark)

    def synchronize(self, lane: SessionStream, deadline: Deadline) -> None:
        """Wait for the session's work on a stream that has some.

        Raises:
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device does not answer.
        """
        mark = self._mark(lane)
        if mark is None:
            self._device.synchronize(lane.stream, deadline)
        else:
            self._device.events.synchronize_event(mark, deadline)

    def reached(self, lane: SessionStream) -> bool:
        """Return whether the session's work on a stream that had some has ended; never waits.

        Raises:
            KernelFault: a kernel broke a rule.
            DeviceLost: the device does not answer.
        """
        mark = self._mark(lane)
        return self._device.ended(lane.stream) if mark is None else self._device.events.event_reached(mark)

    def patience(self, lane: SessionStream, least: Deadline) -> Deadline:
        """Return how long to wait for the session's work on a stream at its end.

        On a stream of its own not longer than ``least``. On one that is shared as long as the work there may take, of
        others too, before the device is given up for it; if that has no deadline, no longer either.

        Raises:
            DeviceLost: the device does not answer.
        """
        mark = self._mark(lane)
        until = least if mark is None else self._device.events.patience(mark)
        if until.at_ns is None or least.at_ns is None or until.at_ns < least.at_ns:
            return least
        return until

    def _mark(self, lane: SessionStream) -> Event | None:
        """Return a mark behind the session's work on a stream, None on a stream of its own.

        A mark that stands is not set anew: others' work would get in front of it.
        """
        if not self._streams.shared(lane.stream):
            self._announce(lane)
            return None
        state = self._sheet.given(lane.row), *self._sheet.traffic
        if lane.mark is None:
            lane.mark = self._events.take()
        if lane.marked != state:
            self._streams.announce(lane.stream)
            self._device.events.record(lane.mark, lane.stream)
            lane.marked = state
        return lane.mark

    def _announce(self, lane: SessionStream) -> None:
        """Tell the device of work that only compiled code knows of. Called by other sessions too, on their threads."""
        given, traffic = self._sheet.given(lane.row), self._sheet.traffic
        if given and (given != lane.started or traffic != lane.announced):
            lane.announced = traffic
            self._device.native.started(lane.stream, self._sheet.deadline)
