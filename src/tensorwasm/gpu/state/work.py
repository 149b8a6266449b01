"""The work of one session: given to its streams, counted, waited for.

On a stream of its own, the session's work has ended when the stream has drained. On a stream that sessions share,
others' work may go on behind it without end: an event is recorded behind the session's last work, and waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec

from tensorwasm.errors import DeviceLost, InvokeTimeout, KernelFault
from tensorwasm.gpu.device.port import attempt
from tensorwasm.gpu.device.protocols import Event, Stream
from tensorwasm.gpu.limits.gate import GatePermit
from tensorwasm.gpu.limits.queue_credits import QueueCredits
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.resources.session_windows import SessionWindow
from tensorwasm.gpu.state.numbered import OFTEN_NS, OWN, IdleCheck, SessionStream, StreamTable
from tensorwasm.ptx.guarded import TRAPPED
from tensorwasm.values import Deadline, Region

CLOSE_GRACE_S: Final = 1.0
"""Shortest time that the end of a session waits for work that is still running."""

_P = ParamSpec("_P")
_log = logging.getLogger(__name__)


class SessionWork:
    """Streams, the work on them, and the permit and the credits that it needs. The session's lock is held.

    What is given, waited for or asked for raises what the device's method does (`tensorwasm.gpu.device`).

    Args:
        resources: what the device's sessions share.
        layout: where work is counted, by compiled code too.
        reachable: returns what the session's kernels may touch.
        streams: most that the guest may open.
        window: of guarded kernels: says whether one has stopped before its end, and stops them; None without a guard.
    """

    __slots__ = (
        *("_clearing", "_device", "_failed", "_layout", "_notifying", "_reachable", "_replays_due", "_replays_seen"),
        *("_resources", "_tenant", "_window", "credits", "permit", "streams"),
    )

    def __init__(
        self,
        resources: DeviceResources,
        layout: SessionLayoutWriter,
        reachable: Callable[[], Sequence[Region]],
        streams: int,
        window: SessionWindow | None,
        tenant: str,
    ) -> None:
        self._resources, self._tenant = resources, tenant
        self._device = device = resources.device
        self._layout = layout
        self._reachable = reachable
        self._window = window
        self._replays_due: Deadline | None = None
        self._replays_seen = 0
        self._clearing: Event | None = None  # behind the clearing of every buffer
        self._notifying: Stream | None = None
        self._failed = False  # set at the end of the session, where an error is not raised
        self.streams = StreamTable(device, resources.streams, layout, streams)
        self.permit = GatePermit(resources.gate, layout, IdleCheck(device, self.streams, layout), tenant)
        idle, guarded = IdleCheck(device, self.streams, layout, OFTEN_NS), window is not None
        self.credits = QueueCredits(resources.queue_capacity, layout, idle, tenant, guarded=guarded)

    @property
    def renewable(self) -> bool:
        """Whether all that the session had on the device is its own stream, with nothing to do."""
        unused = self.streams.next_number == 1 and self._clearing is None and self._notifying is None
        return unused and not self._layout.pending

    def confine(self) -> None:
        """Tell the device what compiled code may reach: for every stream, after every change."""
        for stream in self.streams:
            self._confine(stream)

    # ------------------------------------------------------------------------------------------ giving

    def find(self, number: int) -> SessionStream:
        """Return a stream, opening the instance's own if need be."""
        stream = self.streams.get(number)
        if stream is None:
            self.streams.require(number)
            stream = self.streams.add(OWN)
            self._watch(stream)
            self._confine(stream)
        return stream

    def known(self, number: int) -> SessionStream | None:
        """Return a stream, None for the instance's own while that has never had work."""
        self.streams.require(number)
        return self.streams.get(number)

    def open(self) -> SessionStream:
        """Return a new stream, behind the clearing of every buffer that there is."""
        stream = self.streams.open()
        self._watch(stream)
        if self._clearing is not None:
            self.put_behind(stream, self._clearing)
        self._confine(stream)
        return stream

    def clear(self, region: Region) -> None:
        """Start filling a new buffer with zeros, ahead of everything that any stream is given next."""
        own = self.find(OWN)
        if self._clearing is None:
            self._clearing = self._resources.events.take()
        self.give(own, 1, self._device.fill, region.address, region.size_bytes, own.stream)
        self.record(own, self._clearing)
        for stream in self.streams:
            if stream is not own:
                self.put_behind(stream, self._clearing)

    def record(self, stream: SessionStream, event: Event) -> None:
        """Set an event behind the work that a stream was given so far."""
        self.give(stream, 1, self._device.events.record, event, stream.stream)

    def put_behind(self, stream: SessionStream, event: Event) -> None:
        """Put what a stream is given next behind an event."""
        self.give(stream, 1, self._device.events.wait_event, stream.stream, event)

    def give(
        self, stream: SessionStream, pieces: int, start: Callable[_P, object], *args: _P.args, **named: _P.kwargs
    ) -> None:
        """Start work on a stream: counted before the device has it, and not at all if the device refuses it.

        A session of guarded kernels waits until there is room for it; one on a fiber has made room already.
        """
        own, until = self.credits, self._layout.deadline
        try:
            while own.waits and not own.take(pieces):
                waits = [partial(self.wait, each, until) for each in (stream, *self.streams)]
                self.permit.spare(partial(own.await_room, pieces, waits, until), until)
            with self.streams.counting(stream, pieces):
                start(*args, **named)
        finally:
            if own.waits:  # the steps of a fiber may give more
                own.given()

    # ----------------------------------------------------------------------------------------- waiting

    def require_unstopped(self, deadline: Deadline) -> None:
        """Check that no guarded kernel of the session has stopped before its end.

        Raises:
            InvokeTimeout: one was stopped at its deadline; after the one given here nothing else is told.
            KernelFault: one has executed a trap, or threads of it would have waited for each other for ever.
        """
        status = 0 if self._window is None else self._window.stop.status
        if status == TRAPPED and not deadline.expired():
            raise KernelFault("a kernel ended with a trap, a failed assertion or threads that cannot go on together")
        if status:
            raise InvokeTimeout("a kernel was stopped at its deadline")

    def wait(self, stream: SessionStream, deadline: Deadline) -> None:
        """Wait for one stream."""
        self._drain(stream, deadline)
        self.require_unstopped(deadline)

    def note_replay(self, deadline: Deadline) -> None:
        """Note that a graph is replayed: kernels in graphs have no deadline of their own, and are stopped from here."""
        if self._replays_due is None or self._replays_due.at_ns is None or deadline.at_ns is None:
            self._replays_due = deadline
        else:
            self._replays_due = Deadline(max(self._replays_due.at_ns, deadline.at_ns))

    def note_replays(self) -> None:
        """Note the graphs that compiled code has replayed, under the deadline of the guest's call; no ended ones."""
        _, replays, _ = self._layout.traffic
        if not self._layout.pending:
            self._replays_due, self._replays_seen = None, replays
        elif replays != self._replays_seen:
            self._replays_seen = replays
            self.note_replay(self._layout.deadline)

    def _drain(self, stream: SessionStream, deadline: Deadline) -> None:
        """Wait for one stream; guarded kernels of graphs that are late are stopped, and not the device given up."""
        self.note_replays()
        due = self._replays_due
        if self._window is not None and due is not None and due.at_ns is not None and self.streams.busy(stream):
            with suppress(InvokeTimeout):
                self._await(stream, deadline.earlier(due))
            self._window.stop.late = due.expired()
            self._await(stream, deadline)
            self._window.stop.late = False  # what comes next is not
        else:
            self._await(stream, deadline)

    def _await(self, stream: SessionStream, deadline: Deadline) -> None:
        if self.streams.busy(stream):
            with self._resources.long_work.waiting(stream, self._tenant, self._layout):
                event = self._record_end(stream)
                if event is None:
                    self._device.synchronize(stream.stream, deadline)
                else:
                    self._device.events.synchronize_event(event, deadline)
                self.streams.count_drained(stream)
                self.credits.settle()

    def wait_all(self, deadline: Deadline) -> None:
        """Wait for every stream, keeping the permit."""
        if self._layout.pending:
            for stream in self.streams:
                self.wait(stream, deadline)

    def drain(self, deadline: Deadline) -> None:
        """Wait for every stream."""
        self.wait_all(deadline)
        self.permit.settle()

    def ended(self, stream: SessionStream) -> bool:
        """Return whether a stream has nothing to do; never waits."""
        if self.streams.busy(stream):
            if not self._reached(stream):
                return False
            self._settle(stream)
            self.require_unstopped(self._layout.deadline)
        return True

    def idle(self) -> bool:
        """Return whether no stream has anything to do; never waits."""
        return not [stream for stream in self.streams if not self.ended(stream)]  # each is asked: that lets it run

    def conclude(self, stream: SessionStream) -> None:
        """Count all work of a stream as ended, as the device has notified; what a shared one still has is of others."""
        if not self.ended(stream):
            self._settle(stream)
            self.require_unstopped(self._layout.deadline)

    def notify(self, stream: SessionStream, function: int, argument: int) -> bool:
        """Have a C function called when the work that a stream has now is over; return whether there is any."""
        if self.ended(stream):
            return False
        self._resources.long_work.begin_for(stream, self._tenant)
        self._device.native.notify(stream.stream, function, argument)
        return True

    def notify_behind(self, event: Event, function: int, argument: int) -> None:
        """Have a C function called when the work before an event is over, whatever follows it in its own stream."""
        if self._notifying is None:
            self._notifying = self._resources.streams.take()
        self._device.events.wait_event(self._notifying, event)
        self._device.native.notify(self._notifying, function, argument)

    def close(self, stream: SessionStream, deadline: Deadline) -> None:
        """Wait for a stream and give it back."""
        self.wait(stream, deadline)
        self.permit.settle()
        failures = self._forget(stream)
        self.streams.close(stream)
        if failures:
            raise failures[0]

    # ------------------------------------------------------------------------------- the session's end

    def has_ended(self) -> tuple[bool, bool]:
        """Wait at the end of a session for its work, which cannot be taken out of a stream and may reach its memory.

        The wait is a second at most. On a shared stream and on a busy device it lasts as long as others' work may hold
        up the session's (`Device.delayed`): until the deadlines of that work, and what may overrun (`Events.patience`).

        Returns:
            Whether nothing is known to run any more, and whether that can be trusted.
        """
        if not self._layout.pending:
            self.permit.leave()
            return True, True
        ended, trusted, limit = True, True, Deadline.after(CLOSE_GRACE_S)
        for stream in self.streams:
            try:
                self._await_end(stream, limit)
                continue
            except DeviceLost:  # nothing is left to wait for, and no answer on what still runs can be trusted
                trusted = False
            except Exception as error:  # noqa: BLE001 - the end of a session raises nothing, even if the device breaks its contract
                if not (isinstance(error, KernelFault) or self._broke_off(stream)):
                    _log.exception("work on the GPU outlived its session: what it can reach is abandoned")
                    ended = False
                    continue
                self._failed = True
            self.streams.count_drained(stream)
        if ended:
            self.permit.leave()
        else:
            self.permit.keep()
            self.credits.kept = True
        return ended, trusted

    def release(self, *, healthy: bool) -> list[Exception]:
        """Give the drained streams back; return what the device raised."""
        streams, events = self._resources.streams, self._resources.events
        healthy = healthy and (not self._failed or streams.fixed)
        failures = [error for stream in self.streams for error in self._forget(stream)]
        failures += self.streams.release(healthy=healthy)
        if self._clearing is not None:
            failures += attempt(events.give if healthy else events.discard, self._clearing)
            self._clearing = None
        if self._notifying is not None:  # what it waited for has ended; what it is given next comes behind the rest
            failures += attempt(streams.give if healthy else streams.discard, self._notifying)
            self._notifying = None
        return failures

    def _await_end(self, stream: SessionStream, limit: Deadline) -> None:
        """Wait for a stream at the end of a session, and on while others' work may be what holds it up."""
        until = self._patience(stream, limit) if self.streams.busy(stream) else limit
        while True:
            try:
                return self._drain(stream, until)
            except InvokeTimeout:
                if not self._device.delayed(stream.stream):
                    raise
                until = Deadline.after(CLOSE_GRACE_S)

    def _broke_off(self, stream: SessionStream) -> bool:
        """Return whether a stream has nothing running although it cannot be waited for."""
        try:
            return self._reached(stream)
        except (KernelFault, InvokeTimeout):
            # Asking does not wait: the work was stopped at its own deadline, and the device remembers it for that.
            return True
        except Exception:  # noqa: BLE001 - as above: an answer that cannot be trusted
            return False

    # -------------------------------------------------------------------------- where work ends in a stream

    def _watch(self, stream: SessionStream) -> None:
        """Know a stream until `_forget`: sessions that come to share it ask for the deadlines of its work."""
        stream.announced = self._layout.traffic
        stream.announce = partial(self._announce, stream)
        self._resources.streams.join(stream.stream, stream.announce)

    def _forget(self, stream: SessionStream) -> list[Exception]:
        """Forget a stream whose work has ended; return what the device raised."""
        self._resources.long_work.end_for(stream)
        announce, stream.announce = stream.announce, None  # it refers to the stream
        if announce is not None:
            self._resources.streams.part(stream.stream, announce)
        event, stream.end_event, stream.end_state = stream.end_event, None, None
        return [] if event is None else attempt(self._resources.events.give, event)

    def _reached(self, stream: SessionStream) -> bool:
        """Return whether the session's work on a stream that had some has ended; never waits."""
        event = self._record_end(stream)
        return self._device.ended(stream.stream) if event is None else self._device.events.event_reached(event)

    def _patience(self, stream: SessionStream, least: Deadline) -> Deadline:
        """Return how long to wait, at the session's end, for its work on a stream.

        That is ``least`` on a stream of its own. On a shared one it is as long as the work there, others' included, may
        take before the device is given up for it; ``least`` if that has no deadline.
        """
        event = self._record_end(stream)
        until = least if event is None else self._device.events.patience(event)
        return least if until.at_ns is None or least.at_ns is None or until.at_ns < least.at_ns else until

    def _record_end(self, stream: SessionStream) -> Event | None:
        """Return an event behind the session's work on a stream, None on a stream of its own."""
        stock = self._resources.streams
        if not stock.shared(stream.stream):
            self._announce(stream)
            return None
        state = self._layout.given(stream.row), *self._layout.traffic
        if stream.end_event is None:
            stream.end_event = self._resources.events.take()
        if stream.end_state != state:  # else it stands: recorded anew, it would be behind others' work
            stock.announce(stream.stream)
            self._device.events.record(stream.end_event, stream.stream)
            stream.end_state = state
        return stream.end_event

    def _announce(self, stream: SessionStream) -> None:
        """Inform the device of work that only compiled code knows of. Other sessions' threads call it too."""
        given, traffic = self._layout.given(stream.row), self._layout.traffic
        if given and (given != stream.started or traffic != stream.announced):
            stream.announced = traffic
            self._device.native.started(stream.stream, self._layout.deadline)

    # ------------------------------------------------------------------------------------------- parts

    def _settle(self, stream: SessionStream) -> None:
        self.streams.count_drained(stream)
        self._resources.long_work.end_for(stream)
        self.permit.settle()
        self.credits.settle()

    def _confine(self, stream: SessionStream) -> None:
        if self._layout.layout is not None:
            self._device.native.confine(stream.stream, self._reachable(), self._layout.deadline)
