"""The work of one session: given to its streams, counted, waited for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tensorwasm.errors import CallerError, DeviceLost, InvokeTimeout, KernelFault, LimitError
from tensorwasm.gpu.device.protocols import Event, Stream
from tensorwasm.gpu.device.regions import RegionTable
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.limits.permit import GatePermit
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.state.completion import StreamCompletions
from tensorwasm.gpu.state.idleness import IdleCheck
from tensorwasm.gpu.state.streams import OWN, SessionStream, StreamTable
from tensorwasm.values import Deadline, Region

CLOSE_GRACE_S: Final = 1.0
"""How long the end of a session waits at least for work that is still running."""

_log = logging.getLogger(__name__)


class SessionWork:
    """Streams, what is on them, and the place at the gate that it needs. The session takes turns.

    Args:
        commons: what the device's sessions share.
        sheet: where work is counted, by compiled code too.
        regions: what the session's kernels may touch.
        streams: most that the guest may open.

    Attributes:
        lanes: the streams.
        place: at the gate.
    """

    __slots__ = ("_aside", "_commons", "_device", "_ends", "_failed", "_filled", "_regions", "_sheet", "lanes", "place")

    def __init__(
        self, commons: DeviceResources, sheet: SessionLayoutWriter, regions: RegionTable, streams: int
    ) -> None:
        self._commons = commons
        self._device = commons.device
        self._sheet = sheet
        self._regions = regions
        self._filled: Event | None = None
        self._aside: Stream | None = None
        self._failed = False  # work did, at the end of the session, where the session was not told
        self.lanes = StreamTable(commons.device, commons.streams, sheet, streams)
        self._ends = StreamCompletions(commons.device, commons.streams, commons.events, sheet)
        self.place = GatePermit(commons.gate, sheet, IdleCheck(commons.device, self.lanes, sheet))

    @property
    def renewable(self) -> bool:
        """Whether all that the session had on the device is its own stream, with nothing to do."""
        return not self._sheet.pending and self.lanes.unused and self._filled is None and self._aside is None

    @property
    def lingers(self) -> bool:
        """Whether there is work that was not seen to end: others' may be ahead of it, or in its way."""
        return self._sheet.pending != 0

    # ----------------------------------------------------------------------------------- compiled code

    def begin_call(self, deadline: Deadline) -> None:
        """Say when what compiled code starts from now on must have stopped.

        Raises:
            DeviceLost: the device does not answer.
        """
        self._sheet.begin_call(deadline)
        self.confine()

    def confine(self) -> None:
        """Tell the device what compiled code may reach: for every stream, after every change.

        Raises:
            DeviceLost: the device does not answer.
        """
        if self._sheet.pad is not None:
            for lane in self.lanes:
                self._confine(lane)

    # ------------------------------------------------------------------------------------------ giving

    def find(self, number: int) -> SessionStream:
        """Return a stream, opening the instance's own if need be.

        Raises:
            InvalidHandle: no such stream.
            DeviceLost: the device does not answer.
        """
        lane = self.lanes.get(number)
        if lane is None:
            lane = self.lanes.find(number)
            self._ends.watch(lane)
            self._confine(lane)
        return lane

    def known(self, number: int) -> SessionStream | None:
        """Return a stream, None for the instance's own while that has never had work.

        Raises:
            InvalidHandle: no such stream.
        """
        self.lanes.require(number)
        return self.lanes.get(number)

    def open(self) -> SessionStream:
        """Return a new stream, behind the clearing of every buffer that there is.

        Raises:
            QuotaExceeded: the session has as many as it may.
            DeviceLost: the device does not answer.
        """
        lane = self.lanes.open()
        self._ends.watch(lane)
        if self._filled is not None:
            self.put_behind(lane, self._filled)
        self._confine(lane)
        return lane

    def clear(self, region: Region) -> None:
        """Start filling a new buffer with zeros, ahead of all that any stream is given next.

        Raises:
            DeviceLost: the device does not answer.
        """
        own = self.find(OWN)
        if self._filled is None:
            self._filled = self._commons.events.take()
        with self.giving(own):
            self._device.fill(region.address, region.size_bytes, own.stream)
        self.mark(own, self._filled)
        for lane in self.lanes:
            if lane is not own:
                self.put_behind(lane, self._filled)

    def mark(self, lane: SessionStream, event: Event) -> None:
        """Set an event behind the work that a stream was given so far.

        Raises:
            DeviceLost: the device does not answer.
        """
        with self.giving(lane):
            self._device.events.record(event, lane.stream)

    def put_behind(self, lane: SessionStream, event: Event) -> None:
        """Put what a stream is given next behind an event.

        Raises:
            DeviceLost: the device does not answer.
        """
        with self.giving(lane):
            self._device.events.wait_event(lane.stream, event)

    @contextmanager
    def giving(self, lane: SessionStream, pieces: int = 1) -> Iterator[None]:
        """Count work as started, before the device has it; not if the device refuses it."""
        self.lanes.count_started(lane, pieces)
        try:
            yield
        except (CallerError, LimitError, KernelFault):  # nothing of it runs: refused, or ended by its fault
            self.lanes.count_refused(lane, pieces)
            raise

    @contextmanager
    def admitted(self, deadline: Deadline) -> Iterator[None]:
        """Hold a place at the gate, longer if work is pending then.

        Raises:
            CapacityExhausted: none came free in time.
        """
        self.place.take(deadline)
        try:
            yield
        finally:
            self.place.settle()

    # ----------------------------------------------------------------------------------------- waiting

    def wait(self, lane: SessionStream, deadline: Deadline) -> None:
        """Wait for one stream.

        Raises:
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device does not answer.
        """
        if self.lanes.busy(lane):
            self._ends.synchronize(lane, deadline)
            self.lanes.count_drained(lane)

    def wait_all(self, deadline: Deadline) -> None:
        """Wait for every stream, keeping the place.

        Raises:
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device does not answer.
        """
        if self._sheet.pending:
            for lane in self.lanes:
                self.wait(lane, deadline)

    def drain(self, deadline: Deadline) -> None:
        """Wait for every stream.

        Raises:
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device does not answer.
        """
        self.wait_all(deadline)
        self.place.settle()

    def ended(self, lane: SessionStream) -> bool:
        """Return whether a stream has nothing to do; never waits.

        Raises:
            KernelFault: a kernel broke a rule.
            DeviceLost: the device does not answer.
        """
        if self.lanes.busy(lane):
            if not self._ends.reached(lane):
                return False
            self.lanes.count_drained(lane)
            self.place.settle()
        return True

    def conclude(self, lane: SessionStream) -> None:
        """Count off all work of a stream, which is over because the device has notified of it; never waits.

        What the device still has on a stream that is shared is others'.

        Raises:
            KernelFault: a kernel broke a rule.
            DeviceLost: the device does not answer.
        """
        if not self.ended(lane):
            self.lanes.count_drained(lane)
            self.place.settle()

    def notify(self, lane: SessionStream, function: int, argument: int) -> bool:
        """Have a C function called when the work that a stream has now is over; return whether there is any.

        Raises:
            KernelFault: a kernel broke a rule.
            DeviceLost: the device does not answer.
        """
        if self.ended(lane):
            return False
        self._device.native.notify(lane.stream, function, argument)
        return True

    def notify_behind(self, event: Event, function: int, argument: int) -> None:
        """Have a C function called when the work before an event is over, whatever follows it in its own stream.

        Raises:
            DeviceLost: the device does not answer.
        """
        if self._aside is None:
            self._aside = self._commons.streams.take()
        self._device.events.wait_event(self._aside, event)
        self._device.native.notify(self._aside, function, argument)

    def take_recorder(self) -> Stream:
        """Return a stream for recording, on which nothing else is until it is given back.

        Raises:
            QuotaExceeded: the device has no stream to spare.
            DeviceLost: the device does not answer.
        """
        return self._commons.streams.take(alone=True)

    def give_recorder(self, stream: Stream, *, healthy: bool = True) -> None:
        """Give it back; one whose recording failed serves nobody again.

        Raises:
            DeviceLost: the device does not answer.
        """
        (self._commons.streams.give if healthy else self._commons.streams.discard)(stream)

    def close(self, lane: SessionStream, deadline: Deadline) -> None:
        """Wait for a stream and give it back.

        Raises:
            KernelFault: a kernel broke a rule.
            InvokeTimeout: the deadline passed.
            DeviceLost: the device does not answer.
        """
        self.wait(lane, deadline)
        self.place.settle()
        failures = self._ends.forget(lane)
        self.lanes.close(lane)
        if failures:
            raise failures[0]

    def has_ended(self) -> tuple[bool, bool]:
        """Wait at the end of a session: a second at most, or for as long as others' work may hold up the session's.

        On a stream that is shared, and on a device that is busy, that may be until the deadlines of that work have
        passed, and what the device lets it overrun them by. Nobody can take the session's work out of a stream, and it
        may yet reach its memory.

        Returns:
            Whether nothing runs any more, as far as anybody knows, and whether that can be trusted.
        """
        if not self._sheet.pending:
            self.place.leave()
            return True, True
        ended, trusted, limit = True, True, Deadline.after(CLOSE_GRACE_S)
        for lane in self.lanes:
            try:
                self._await_end(lane, limit)
            except KernelFault:
                self._failed = True
                self.lanes.count_drained(lane)
            except DeviceLost:
                # Nothing left to wait for, and no word to be trusted on what still runs.
                self.lanes.count_drained(lane)
                trusted = False
            except Exception:  # noqa: BLE001 - the end of a session raises nothing, even if the device breaks its promises
                if self._broke_off(lane):
                    self._failed = True
                    self.lanes.count_drained(lane)
                else:
                    _log.exception("work on the GPU outlived its session: what it can reach is abandoned")
                    ended = False
        if ended:
            self.place.leave()
        else:
            self.place.keep()
        return ended, trusted

    def _await_end(self, lane: SessionStream, limit: Deadline) -> None:
        """Wait for a stream at the end of a session, and on while others' work may be what holds it up."""
        until = self._ends.patience(lane, limit) if self.lanes.busy(lane) else limit
        while True:
            try:
                self.wait(lane, until)
            except InvokeTimeout:
                if not self._device.delayed(lane.stream):
                    raise
                until = Deadline.after(CLOSE_GRACE_S)
            else:
                return

    def release(self, *, healthy: bool) -> list[Exception]:
        """Give the streams back, which have drained; return what the device raised."""
        failures = [error for lane in self.lanes for error in self._ends.forget(lane)]
        healthy = healthy and (not self._failed or self._commons.streams.fixed)
        failures += self.lanes.release(healthy=healthy)
        if self._filled is not None:
            failures += attempt(self._commons.events.give if healthy else self._commons.events.discard, self._filled)
            self._filled = None
        if self._aside is not None:  # what it waited for has ended; whatever it is given next comes behind the rest
            failures += attempt(self._commons.streams.give if healthy else self._commons.streams.discard, self._aside)
            self._aside = None
        return failures

    def _confine(self, lane: SessionStream) -> None:
        if self._sheet.pad is not None:
            self._device.native.confine(lane.stream, self._regions.snapshot(), self._sheet.deadline)

    def _broke_off(self, lane: SessionStream) -> bool:
        """Return whether a stream has nothing running although it cannot be waited for."""
        try:
            return self._ends.reached(lane)
        except (KernelFault, InvokeTimeout):
            return (
                True  # asking waits for nothing: the work was stopped at its own deadline, and is remembered for that
            )
        except Exception:  # noqa: BLE001 - as above: an answer that cannot be trusted
            return False
