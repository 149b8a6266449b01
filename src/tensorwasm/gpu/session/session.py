"""One instance's share of a device: its parts, and its life."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Self, TypeVar

from tensorwasm.errors import InvokeTimeout
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.device.port import Device
from tensorwasm.gpu.device.releases import attempt
from tensorwasm.gpu.launcher import Launcher
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, Accounts
from tensorwasm.gpu.limits.permit import GatePermit
from tensorwasm.gpu.limits.queue_credits import QueueCredits
from tensorwasm.gpu.limits.quota import PROCESS_GATE, PROCESS_LEDGER, Gate, MemoryLedger
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.session.buffers import SessionBuffers
from tensorwasm.gpu.session.capture import Capture
from tensorwasm.gpu.session.events import SessionEvents
from tensorwasm.gpu.session.graphs import SessionGraphs
from tensorwasm.gpu.session.handles import SessionHandles
from tensorwasm.gpu.session.kernels import SessionKernels
from tensorwasm.gpu.session.lock import SessionLock
from tensorwasm.gpu.session.restore import Restore
from tensorwasm.gpu.session.statistics import SessionStatistics, describe_compiled
from tensorwasm.gpu.session.streams import SessionStreams
from tensorwasm.gpu.state.events import EventTable
from tensorwasm.gpu.state.graph_book import GraphBook
from tensorwasm.gpu.state.idleness import IdleCheck
from tensorwasm.gpu.state.resource_table import ResourceTable
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.gpu.windows import Windows
from tensorwasm.saved import SavedSession
from tensorwasm.values import Deadline, DeviceInfo, MemoryKind

_LIMITS: Final = SessionLimits()

_log = logging.getLogger(__name__)
_R = TypeVar("_R")


class Session:
    """One instance's share of a device.

    Methods of its parts take turns, so any thread may call. A refusal (CallerError, LimitError) has changed nothing,
    nor has a `SessionKernels.load` that ran out of time; any other error poisons the session. The parts of a poisoned
    or closed session answer every method with DeviceLost. While a stream records a graph, only launches and copies on
    that stream, and `SessionGraphs.end`, are allowed.

    Streams, events and graphs have numbers from 1 on that are never used twice; stream 0 is the instance's own. A
    stream, the registration of guest memory, a staging slot and the place at the gate are taken when first needed.

    Args:
        device: outlives the session.
        limits: what this session may hold.
        ledger: charged for device memory; the process's own unless a test brings one. Not used with ``commons``.
        gate: entered while work is on the device; likewise.
        architecture: compute capability that PTX is chosen for, None for the device's own.
        commons: what the device's sessions share, outlives the session; None for a session that shares nothing.
        tenant: registered; whose account is charged.
        memory_kind: of the guest's memory. ``staged``: windows of launches that wait are copied through a slot.
            ``pinned``: they are reached in place, registered when first needed. ``auto``: staged until that has cost as
            much as registering (`tensorwasm.gpu.windows`). ``managed``, ``vmm``: reached in place from the start.
        pad: kept true from now until `close`, and left empty. None if no compiled code serves the guest.

    Attributes:
        buffers: device memory.
        kernels: what runs.
        streams: where it runs.
        events: marks in them.
        graphs: what they recorded.

    Raises:
        InvalidArgs: no such tenant is registered.
    """

    def __init__(
        self,
        device: Device,
        limits: SessionLimits | None = None,
        ledger: MemoryLedger = PROCESS_LEDGER,
        gate: Gate = PROCESS_GATE,
        architecture: tuple[int, int] | None = None,
        *,
        commons: DeviceResources | None = None,
        tenant: str = DEFAULT_TENANT,
        memory_kind: MemoryKind = "pinned",
        pad: SessionLayout | None = None,
    ) -> None:
        self._own_commons: DeviceResources | None = None
        if commons is None:
            self._own_commons = commons = DeviceResources(device, Accounts(ledger), gate)
        self._device = device
        limits = limits or _LIMITS
        self._commons = commons
        self._tenancy = tenancy = commons.tenancy(tenant)
        self._sheet = sheet = SessionLayoutWriter(pad, commons.driver_at() if pad is not None else 0)
        self._holdings = holdings = ResourceTable(commons, tenancy, limits, sheet, architecture or commons.architecture)
        self._work = work = SessionWork(commons, sheet, holdings.regions, limits.streams)
        self._book = book = GraphBook(device, sheet, limits.graphs)
        self._windows = windows = Windows(commons, tenancy, holdings.regions, sheet, work, book, memory_kind)
        self._launcher = launcher = Launcher(device, holdings, windows, work, sheet, book, limits.graph_launches)
        self._marks = marks = EventTable(commons.events, limits.events)
        self._turns = turns = SessionLock(sheet, holdings, launcher)
        self.buffers = SessionBuffers(turns, device, holdings, windows, work, book, launcher)
        self._share = share = QueueCredits(commons.backlog, sheet, IdleCheck(device, work.lanes, sheet))
        self.kernels = SessionKernels(turns, sheet, holdings, windows, work, book, launcher, share)
        self.streams = SessionStreams(turns, work, share)
        self.events = SessionEvents(turns, device, work, marks)
        self.graphs = SessionGraphs(turns, work, book, launcher)
        numbers = SessionHandles(holdings, sheet, work, marks, book)
        self._capture = Capture(turns, device, sheet, holdings, windows, work, marks, book, launcher, numbers)
        self._restore = Restore(turns, device, holdings, work, marks, book, numbers)
        self._native = 0, 0, 0
        self._release_failures = 0
        self._abandoned = False

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._device.info

    @property
    def failure(self) -> BaseException | None:
        """What poisoned the session, or None."""
        return self._turns.failure

    @property
    def abandoned(self) -> bool:
        """See `SessionStatistics.abandoned`."""
        return self._abandoned

    @property
    def place(self) -> GatePermit:
        """The place at the gate, for whoever waits for it without a thread."""
        return self._work.place

    @property
    def share(self) -> QueueCredits:
        """The share of what may be pending on the device; without a bound until somebody sets one."""
        return self._share

    @property
    def lingers(self) -> bool:
        """Whether `close` would wait for work, perhaps behind others'; for who runs the guest."""
        return not self._turns.closed and self._work.lingers

    @property
    def pad(self) -> SessionLayout | None:
        """The pad that is kept true, or None."""
        return self._sheet.pad

    @property
    def confined(self) -> bool:
        """Whether `enter` has to be called before a guest, because the device confines what compiled code gives it."""
        return self._device.native.confines

    def attempt(self, work: Callable[[], _R]) -> _R:
        """Do with this session what may take its place at the gate, without waiting for that.

        Raises:
            NoPlace: there is none now. All is as before; once `place` was waited for, it may be attempted again.
        """
        with self._turns.lock:
            return self._work.place.attempt(work)

    def enter(self, deadline: Deadline) -> None:
        """Say, before a guest's call, when it must have ended. Nothing on a session that is over.

        Raises:
            DeviceLost: the device does not answer.
        """
        turns = self._turns
        with turns.lock:
            if turns.failure is None and not turns.closed:
                try:
                    self._work.begin_call(deadline)
                except BaseException as error:
                    turns.judge(error)
                    raise

    def leave(self) -> None:
        """Say that a guest's call has ended: the place at the gate is given back unless work is pending."""
        turns = self._turns
        with turns.lock:
            if not turns.closed and not self._sheet.pending:
                self._work.place.leave()

    def capture(self, deadline: Deadline, parent: SavedSession | None = None) -> SavedSession:
        """Read the session into plain values, once all its work has ended; it goes on as before. Blocks.

        Call it between two calls of the guest. An address that a kernel stored means nothing where the session is
        restored: buffers and memory lie elsewhere there.

        Args:
            deadline: when the work must have ended; whoever waits for it then does not stop it.
            parent: the whole of an earlier state of the session, or of what this one was restored from. Of a buffer
                that it has, only pages that differ from it are read into the result.

        Raises:
            NotCapturable: the session is over, a stream records, there are graphs, or a kernel may have written to
                variables of its module, which are not read; the message says which.
            InvalidSnapshot: the parent makes no sense, or is another session's.
            InvokeTimeout: the work did not end in time; all is as before.
            KernelFault: the work broke a rule.
            DeviceLost: the device does not answer.
        """
        return self._capture.take(deadline, parent)

    def restore(self, saved: SavedSession, deadline: Deadline) -> None:
        """Make a new session what a saved one was, charged to this one's tenant and limits. Blocks.

        Every number that the guest has means the same again, and none of them is given twice. Kernels go through the
        checks of `SessionKernels.load`, for this device. The kind of memory is whatever this session was opened with.

        Args:
            saved: whole; what it says is checked like anything that comes from elsewhere.
            deadline: when all of it must have been done.

        Raises:
            InvalidSnapshot: it contradicts itself.
            InvalidArgs: the session is not new.
            QuotaExceeded: over a limit of the session, the tenant or the process, or the device has no memory left.
            MalformedPtx: a kernel's text does not parse, or the device's compiler refuses it.
            UnsupportedPtx: a kernel, which is named, asks for what the device lacks.
            InvalidKernel: a text has no such entry.
            InvokeTimeout: the deadline passed. If contents were on their way already, the session is over, as it is
                after any other error from there on.
            DeviceUnavailable: this machine cannot assemble a kernel now.
            DeviceLost: the session is over, or the device does not answer.
        """
        self._restore.put(saved, deadline)

    def statistics(self) -> SessionStatistics:
        """Return a snapshot."""
        sheet, turns = self._sheet, self._turns
        launched, replayed, refused = self._native if turns.closed else sheet.counters()
        if not (turns.used or turns.closed):  # there is nothing but what compiled code has done
            return describe_compiled(sheet.loads, sheet.loaded_bytes, launched, replayed, refused)
        holdings, work, launcher = self._holdings, self._work, self._launcher
        return SessionStatistics(
            allocations=len(holdings.buffers),
            device_bytes=holdings.device_bytes,
            kernels=len(holdings.kernels) + sheet.loads,
            ptx_bytes=holdings.ptx_bytes + sheet.loaded_bytes,
            pinned_bytes=self._windows.reach.pinned_bytes,
            kernels_launched=launcher.launched + launched,
            back_pressure_rejections=work.place.rejected,
            release_failures=self._release_failures,
            abandoned=self._abandoned,
            staged_launches=launcher.staged,
            replays=launcher.replayed + replayed,
            quota_refusals=turns.refused + refused,
            streams=work.lanes.count,
            events=self._marks.count,
            graphs=self._book.count,
        )

    def renew(self) -> bool:
        """Make the session as good as new for the next guest of its tenant, once a guest and its memory have gone.

        It keeps its stream, its slot, cleared, its place at the gate, and the kernels, which compiled code may give to
        a guest that brings the same text. What a guest sees of it is what it sees of a new one.

        Returns:
            Whether it could be done: it cannot if anything failed or is left, or was ever there that has a number. Such
            a session is to be closed.
        """
        turns = self._turns
        if turns.closed:
            return False
        if turns.used:
            with turns.lock:
                if not self._renewable() or not self._renew_books():
                    return False
        self._windows.renew()
        self._work.place.renew()
        self._holdings.forget_loads()
        return True

    def park(self) -> None:
        """Keep the session, which was renewed, for whoever resumes it; it may be closed from now on, until then."""
        self._commons.parking.put(self)

    def resume(self) -> bool:
        """Return whether a parked session is the caller's, and as good as one that is opened now.

        If not, it is to be closed: its tenant has gone, or its device, or it has been closed already.
        """
        taken = self._commons.parking.take(self)
        return taken and self._tenancy.account.registered and self._device.native.usable

    def close(self) -> None:
        """Release everything. Idempotent; raises nothing; waits at most a second for work still running.

        On a stream that sessions share, work of others may be ahead of this session's. There it waits for as long as
        the latest of it may run: until its deadline, and what the device lets it overrun that by before the GPU is
        given up (`SessionEvents.patience`); a second at least, and no longer if there is no deadline. It waits on,
        too, while others' work is what may keep this session's from ending at all (`Device.delayed`).

        Call it before the guest's pages go, and look at `SessionStatistics.abandoned` before they are used again: what
        running work can reach stays allocated, registered and charged, for no moment is safe to release it.
        """
        turns = self._turns
        with turns.lock:
            if turns.closed:
                return
            turns.closed = True
            self._sheet.disarm()
            self._native = self._sheet.counters()
            stopped = self._launcher.stop_recording()
            ended, trusted = self._work.has_ended()
            if ended:
                self._share.leave()
                self._release(stopped, trusted=trusted)
            self._abandoned = not (ended and trusted) or self._windows.reach.region is not None
            self._sheet.wipe()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.close()

    def _renewable(self) -> bool:
        if self._turns.failure is not None or self._launcher.recording is not None or self._sheet.staged:
            return False
        parts = self._marks.unused and self._book.unused and self._holdings.renewable and self._work.renewable
        return parts and self._windows.reach.region is None

    def _renew_books(self) -> bool:
        if attempt(ResourceTable.renew, self._holdings):
            return False
        self._launcher.renew()
        self._turns.refused = 0
        self._turns.used = False
        return True

    def _release(self, failures: list[Exception], *, trusted: bool) -> None:
        failure = self._turns.failure
        # Where streams are made once, a deadline that passed leaves them as they were, now that the work has ended.
        late = isinstance(failure, InvokeTimeout) and self._commons.streams.fixed
        healthy = trusted and not failures and (failure is None or late)
        if self._book.count:
            failures += self._book.release()
        failures += self._holdings.release()
        failures += self._windows.release(trusted=trusted)
        if self._marks.count:
            failures += self._marks.release()
        failures += self._work.release(healthy=healthy)
        if self._own_commons is not None:
            failures += self._own_commons.close()
        self._release_failures = len(failures)
        if failures:
            _log.error("a device failed to release %d things at the end of a session: %s", len(failures), failures[0])
