"""One instance's part of a device: what it consists of, and its life."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, Self, TypeVar

from tensorwasm.errors import InternalError, InvokeTimeout
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.device.port import Device, Stream, attempt
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, PROCESS_LEDGER, Accounts, MemoryLedger
from tensorwasm.gpu.limits.gate import PROCESS_GATE, Gate
from tensorwasm.gpu.native.layout import CLEARING_STARTED, SessionLayout
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.resources.session_windows import CLEARING_LIMIT_S, SessionWindow
from tensorwasm.gpu.resources.window_memory import WindowMemory
from tensorwasm.gpu.session.buffers import SessionBuffers
from tensorwasm.gpu.session.core import SessionCore
from tensorwasm.gpu.session.graphs import SessionGraphs
from tensorwasm.gpu.session.kernels import SessionKernels
from tensorwasm.gpu.session.snapshots import SessionSnapshots
from tensorwasm.gpu.session.streams import SessionEvents, SessionStreams
from tensorwasm.gpu.state.numbered import OWN
from tensorwasm.saved import SavedSession
from tensorwasm.values import Deadline, DeviceInfo, MemoryKind

_LIMITS: Final = SessionLimits()
_CLEARING_NS: Final = 100_000
"""Longer than a GPU that is not full takes to clear a window without memory of its tenant: 50 us on an H200."""

_log = logging.getLogger(__name__)
_R = TypeVar("_R")


class SessionStatistics(NamedTuple):
    """A snapshot of a session. A tuple, because every invocation has one.

    Attributes:
        device_bytes: charged for buffers and for the variables of loaded modules.
        pinned_bytes: guest memory registered with the device.
        kernels_launched: launches the device accepted, those of replayed graphs and of compiled code included.
        back_pressure_rejections: launches refused because there was no permit at the gate.
        abandoned: close found work still running, or a device that does not answer or keeps the guest's pages. What
            that work could reach, the guest's pages included, must not be used again in this process.
        staged_launches: launches whose windows Python copied through a staging slot, before or after.
        quota_refusals: requests refused by a limit of the session, the tenant or the process.
    """

    allocations: int = 0
    device_bytes: int = 0
    kernels: int = 0
    ptx_bytes: int = 0
    pinned_bytes: int = 0
    kernels_launched: int = 0
    back_pressure_rejections: int = 0
    release_failures: int = 0
    abandoned: bool = False
    staged_launches: int = 0
    replays: int = 0
    quota_refusals: int = 0
    streams: int = 0
    events: int = 0
    graphs: int = 0


@lru_cache(maxsize=64)
def _describe_compiled(kernels: int, ptx_bytes: int, launched: int, replays: int, refusals: int) -> SessionStatistics:
    """Return the snapshot of a session that compiled code alone has used; many sessions have equal ones."""
    return SessionStatistics(
        kernels=kernels, ptx_bytes=ptx_bytes, kernels_launched=launched, replays=replays, quota_refusals=refusals
    )


class Session:
    """One instance's part of a device; see the package for the errors of its methods.

    Streams, events and graphs have numbers from 1 on that are never used twice; stream 0 is the instance's own. A
    stream, the registration of guest memory, a staging slot and the permit at the gate are taken when first needed.

    Args:
        ledger: charged for device memory; the process's own unless a test brings one. Not used with ``resources``.
        gate: entered while work is on the device; likewise.
        architecture: compute capability that PTX is chosen for, None for the device's own.
        resources: what the device's sessions share, outlives the session; None for a session that shares nothing.
        memory_kind: of the guest's memory. ``staged``: windows of launches that wait are copied through a slot.
            ``pinned``: they are reached in place, registered when first needed. ``auto``: staged until that has cost as
            much as registering (`tensorwasm.gpu.windows`). ``managed``, ``vmm``: reached in place from the start.
        layout: memory that is shared with compiled code, kept up to date from now until `close`, and left empty; None
            without compiled code.
        guarded: as for `DeviceResources`; not used with ``resources``.

    Attributes:
        permit: at the gate, for guests that wait for it without a thread.
        credits: the session's credits for work pending on the device.
        abandoned: as in `SessionStatistics`.
    """

    def __init__(
        self,
        device: Device,
        limits: SessionLimits | None = None,
        ledger: MemoryLedger = PROCESS_LEDGER,
        gate: Gate = PROCESS_GATE,
        architecture: tuple[int, int] | None = None,
        *,
        resources: DeviceResources | None = None,
        tenant: str = DEFAULT_TENANT,
        memory_kind: MemoryKind = "pinned",
        layout: SessionLayout | None = None,
        guarded: bool = False,
    ) -> None:
        self._own_resources: DeviceResources | None = None
        if resources is None:
            self._own_resources = resources = DeviceResources(device, Accounts(ledger), gate, guarded=guarded)
        self._core = core = SessionCore(resources, tenant, limits or _LIMITS, architecture, memory_kind, layout)
        self.credits = core.credits
        self.graphs = SessionGraphs(core)
        self.buffers = SessionBuffers(core)
        self.kernels = SessionKernels(core)
        self.streams = SessionStreams(core)
        self.events = SessionEvents(core)
        self.permit = core.work.permit
        self.layout = layout
        self.abandoned = False
        self._native = 0, 0, 0
        self._ending = threading.Lock()
        self._clearing: Stream | None = None  # where Python has the window cleared for the next guest
        self._clearing_since_ns = self._release_failures = 0

    @property
    def info(self) -> DeviceInfo:
        """What the device is."""
        return self._core.device.info

    @property
    def failure(self) -> BaseException | None:
        """What poisoned the session, or None."""
        return self._core.failure

    @property
    def waited_s(self) -> float:
        """How long the guest has waited for the device since its call began."""
        return self._core.layout.waited_ns * 1e-9

    @property
    def lingers(self) -> bool:
        """Whether `close` would wait for work that was not seen to end, perhaps behind that of other sessions."""
        return not self._core.closed and self._core.layout.pending != 0

    @property
    def confined(self) -> bool:
        """Whether `enter` has to be called before a guest (`Native.confines`)."""
        return self._core.device.native.confines

    def open_memory(self, size_bytes: int, capacity_bytes: int, *, waits: bool = True) -> WindowMemory:
        """Return the guest's linear memory, in the session's window: guarded kernels reach it in place.

        It lives until it is closed, which is after the session.

        Args:
            size_bytes: usable at once.
            capacity_bytes: up to where it may grow.
            waits: whether growing waits for kernels in flight; otherwise it is refused while there are any.

        Raises:
            InternalError: the session has no window, or has had a memory.
            DeviceLost: the session is over.
            QuotaExceeded: over the tenant's cap on pinned memory, or there is no room for it.
            LaunchRefused: there are no addresses for it.
        """
        core = self._core
        with core.lock:
            core.begin(recording=False)
            if core.window is None:
                raise InternalError("a session without a guard has no window for its guest's memory")
            memory = core.window.open_memory(core.device.unified, size_bytes, capacity_bytes)
            if not waits:
                memory.settle = core.settle_at_once
            core.windows.reach.settle_in(memory.displacement)
            return memory

    def attempt(self, work: Callable[[], _R]) -> _R:
        """See `GatePermit.attempt`."""
        with self._core.lock:
            return self._core.work.permit.attempt(work)

    def enter(self, deadline: Deadline) -> None:
        """Set, before a guest's call, when it must have ended. Does nothing on a session that is over."""
        core = self._core
        with core.lock:
            if core.failure is None and not core.closed:
                try:
                    core.work.note_replays()
                    core.layout.begin_call(deadline)
                    core.work.confine()
                except BaseException as error:
                    core.judge(error)
                    raise

    def leave(self) -> None:
        """End a guest's call: the permit at the gate is given back unless work is pending."""
        core = self._core
        with core.lock:
            if not core.closed and not core.layout.pending:
                core.work.permit.leave()

    def capture(self, deadline: Deadline, parent: SavedSession | None = None) -> SavedSession:
        """Read the session into plain values between two calls of the guest, once all its work has ended. Blocks.

        An address that a kernel stored means nothing where the session is restored: buffers lie elsewhere there.

        Args:
            deadline: when the work must have ended; it is not stopped then.
            parent: the whole of an earlier state of the session, or of what this one was restored from. Of a buffer
                that it has, only pages that differ from it are read into the result.

        Raises:
            NotCapturable: the session is over, a stream records, there are graphs, or a kernel may have written to
                variables of its module, which are not read; the message says which.
            InvalidSnapshot: the parent contradicts itself, or is another session's.
            InvokeTimeout: the work did not end in time; the session goes on as before.
        """
        return SessionSnapshots(self._core).take(deadline, parent)

    def restore(self, saved: SavedSession, deadline: Deadline) -> None:
        """Make a new session what a saved one was, charged to this one's tenant and limits. Blocks.

        Every number that the guest has means the same again, and none of them is given twice. Kernels go through the
        checks of `SessionKernels.load`, for this device. The kind of memory is what this session was opened with.

        An error while contents are written ends the session. Errors of `SessionBuffers.allocate` and
        `SessionKernels.load` are raised as well as:

        Raises:
            InvalidSnapshot: what was saved, which is checked first, contradicts itself.
            InvalidArgs: the session is not new.
            InvokeTimeout: the deadline for all of it passed.
        """
        SessionSnapshots(self._core).put(saved, deadline)

    def statistics(self) -> SessionStatistics:
        """Return a snapshot."""
        core, layout = self._core, self._core.layout
        launched, replayed, refused = self._native if core.closed else layout.counters()
        if not (core.used or core.closed):  # only compiled code has done anything
            return _describe_compiled(layout.loads, layout.loaded_bytes, launched, replayed, refused)
        table, work = core.table, core.work
        return SessionStatistics(
            allocations=len(table.buffers),
            device_bytes=table.device_bytes,
            kernels=len(table.kernels) + layout.loads,
            ptx_bytes=table.ptx_bytes + layout.loaded_bytes,
            pinned_bytes=core.windows.reach.pinned_bytes,
            kernels_launched=core.launched + launched,
            back_pressure_rejections=work.permit.rejected,
            release_failures=self._release_failures,
            abandoned=self.abandoned,
            staged_launches=core.staged,
            replays=core.replayed + replayed,
            quota_refusals=core.refused + refused,
            streams=work.streams.count,
            events=len(core.events),
            graphs=len(core.graphs),
        )

    def renew(self) -> bool:
        """Make the session as good as new for the next guest of its tenant, once a guest and its memory are gone.

        It keeps its stream, its cleared slot, its permit at the gate, and the kernels, which compiled code may give to
        a guest that brings the same text. A guest sees no difference from a new session. Returns False, and is to be
        closed, if anything failed or is left, or anything with a number was ever there.
        """
        core, window, used = self._core, self._core.window, self._core.used
        if core.closed or (window is not None and window.stop.status):
            return False
        soiled = core.launched + core.layout.counters()[0] > 0
        if used and not core.renew():
            return False
        if window is not None and (used or soiled):
            soiled = soiled or window.extended  # Python writes there before any launch
            if attempt(self._clear, window, used, soiled):
                return False
        if attempt(core.windows.renew, window is not None and soiled):
            return False
        core.work.permit.renew()
        core.table.forget_loads()
        return True

    def _clear(self, window: SessionWindow, used: bool, soiled: bool) -> None:  # noqa: FBT001 - one caller
        """Have the window cleared for the next guest, unless compiled code has done that.

        What compiled code clears is all there is until Python maps more.
        """
        core, started = self._core, self._core.layout.clearing == CLEARING_STARTED
        if soiled:
            self._clearing_since_ns = time.monotonic_ns()
        if started and not used:
            return
        ranges = window.clear_ranges
        core.layout.show_clear(ranges)
        if soiled and not (started and ranges):
            self._clearing = core.work.find(OWN).stream
            window.clear(self._clearing)

    def park(self) -> None:
        """Keep the session, which was renewed, in the pool; it may be closed from now on, until `resume`."""
        self._core.resources.session_pool.put(self)

    @property
    def clearing(self) -> bool:
        """Whether the device was told so lately to clear the session's window that it may still be at it."""
        return time.monotonic_ns() - self._clearing_since_ns < _CLEARING_NS

    def resume(self) -> bool:
        """Return whether a pooled session is the caller's, and as good as one that is opened now.

        If not, it is to be closed: its tenant or its device is gone, it has been closed already, or its tenant has
        another cap, for which a window has another size.
        """
        core = self._core
        if not core.resources.session_pool.take(self):
            return False
        if core.window is not None:
            core.layout.show_timer(core.device.timer_offset_ns)
            if not core.layout.clearing and not self._is_cleared():  # compiled code looks whether it has ended
                return False
        return core.cap_stands() and core.device.native.usable

    def await_clearing(self) -> bool:
        """Wait briefly until the device has cleared the session's window; return whether it has."""
        with self._core.lock:
            return self._core.closed or self._is_cleared()

    def _is_cleared(self) -> bool:
        core, stream = self._core, self._clearing
        if stream is None and core.layout.clearing:
            stream = core.work.find(OWN).stream
        if stream is not None and attempt(core.device.synchronize, stream, Deadline.after(CLEARING_LIMIT_S)):
            return False
        self._clearing, self._clearing_since_ns, core.layout.clearing = None, 0, 0
        return True

    def stop_kernels(self, *, wanted: bool = True) -> None:
        """Tell guarded kernels of the session to stop, or to run again, from any thread."""
        with self._ending:
            if self._core.window is not None and not self._core.closed:
                self._core.window.stop.stopping = wanted

    def close(self) -> None:
        """Release everything. Idempotent; raises nothing; waits as `SessionWork.has_ended` for work still running.

        Call it before the guest's pages go, and look at `abandoned` before they are used again: what running work can
        reach stays allocated, registered and charged, for no moment is safe to release it.
        """
        core = self._core
        with core.lock:
            if core.closed:
                return
            with self._ending:  # then the window may be another session's
                core.closed = True
            core.layout.disarm()
            self._native = core.layout.counters()
            cleared = self._is_cleared()
            stopped = self.graphs.stop()
            if core.window is not None and core.layout.pending:
                core.window.stop.stopping = True
            ended, trusted = core.work.has_ended()
            ended = ended and cleared
            if ended:
                self.credits.leave()
                self._release(stopped, trusted=trusted)
            self.abandoned = not (ended and trusted) or core.windows.reach.region is not None
            core.layout.wipe()

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session."""
        self.close()

    def _release(self, failures: list[Exception], *, trusted: bool) -> None:
        core = self._core
        # Where streams are made once, a deadline that passed leaves them as they were, now that the work has ended.
        late = isinstance(core.failure, InvokeTimeout) and core.resources.streams.fixed
        healthy = trusted and not failures and (core.failure is None or late)
        failures += core.graphs.release() + core.table.release() + core.windows.release(trusted=trusted)
        failures += self.events.release() + core.work.release(healthy=healthy)
        if core.window is not None and trusted:
            failures += core.window.give_back()
        if self._own_resources is not None:
            failures += self._own_resources.close()
        self._release_failures = len(failures)
        if failures:
            _log.error("a device failed to release %d things at the end of a session: %s", len(failures), failures[0])
