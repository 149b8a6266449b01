"""Windows for the sessions of guarded kernels: each has a heap, a staging slot and a stop word, and is used again.

Opening a window takes milliseconds, so a session takes one that another has left. Nothing that one session put there is
seen by the next: what kernels can have written is cleared before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from tensorwasm.errors import InternalError, QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, SLACK_BYTES, WINDOW_BYTES, scratch_chunk
from tensorwasm.gpu.device.port import Device, attempt
from tensorwasm.gpu.device.protocols import AddressWindow, Event, Stream, UnifiedMemory
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.memory import pages
from tensorwasm.gpu.memory.suballocator import Suballocator
from tensorwasm.gpu.resources.idle_windows import IdleWindows
from tensorwasm.gpu.resources.stop_words import StopWord, StopWords
from tensorwasm.gpu.resources.window_heap import MappedBytes, WindowHeap, idle, window_width
from tensorwasm.gpu.resources.window_memory import MAX_BYTES, WindowMemory
from tensorwasm.gpu.staging import Slot
from tensorwasm.ptx.guarded import Width
from tensorwasm.values import MIB, Deadline, Region

SCRATCH_BYTES: Final = 8 * MIB
"""Of each window of 4 GiB: with 2 MiB more it takes 10 MiB of device memory, and opens in 13 ms on an H200."""
STAGE_AT: Final = 32 * MIB
"""The staging slot: a granule of the host's memory at this offset of every window."""
CLEARING_LIMIT_S: Final = 1.0
"""Longest wait for the clearing of a window, which takes microseconds on a GPU that is not full."""
_LEAST_IDLE: Final = 16
_IDLE_SHARE: Final = 4
"""Idle windows may take this part of the device's memory."""

_log: Final = logging.getLogger(__name__)


class TenantMemory(NamedTuple):
    """Whose a window is, and the device memory in it."""

    tenant: str
    account: Account
    heap: WindowHeap
    memory: Suballocator
    variables: Suballocator


class SessionWindow:
    """A window with all that one session at a time has in it.

    Attributes:
        window: of the device.
        slot: the staging slot.
        stop: tells kernels to stop.
        tenant: whose sessions use it.
        heap: device memory of the tenant in it.
        memory: what buffers are cut from.
        variables: what variables of modules are cut from.
        regions: all that guarded kernels may touch.
        cleared: reached when the clearing that was started has ended; None from the start.
        soiled: whether kernels may have written what no clearing was started for.
    """

    __slots__ = (
        *("_account", "_grown", "_linear", "_opened", "_owner", "_scratch", "_users", "cleared", "heap"),
        *("memory", "regions", "slot", "soiled", "stop", "tenant", "variables", "window"),
    )

    def __init__(
        self,
        owner: SessionWindows,
        window: AddressWindow,
        slot: Slot,
        stop: StopWord,
        memory: TenantMemory,
        scratch: Sequence[tuple[int, int]],
    ) -> None:
        self._owner = owner
        self.window = window
        self._scratch = scratch
        self.slot = slot
        self.stop = stop
        self._grown: tuple[Slot, Reservation] | None = None
        self._linear: WindowMemory | None = None
        self.hand_over(memory)
        self._users = 0
        self._opened = self.soiled = False
        self.cleared: Event | None = None
        whole = Region(window.address - SLACK_BYTES, window.size_bytes + 2 * SLACK_BYTES, host=True)
        self.regions = (whole, *stop.regions)

    def hand_over(self, memory: TenantMemory) -> None:
        """Make the window a tenant's, with device memory of its own."""
        self.tenant, self._account, self.heap, self.memory, self.variables = memory
        self.heap.spare = self._spare

    def _spare(self) -> None:
        """Give up addresses that are only kept for later."""
        self.drop_memory()
        self.memory.trim()
        self.variables.trim()

    @property
    def address(self) -> int:
        """The window's first byte, on the device."""
        return self.window.address

    @property
    def clear_ranges(self) -> list[tuple[int, int]]:
        """All that kernels can have written to, by addresses of the device; nothing if that may change."""
        return [] if self.extended else list(self._scratch)

    @property
    def extended(self) -> bool:
        """Whether it has more memory than for scratch and the slot that it has for good."""
        return self._linear is not None or self._grown is not None or bool(self.heap.mapped_parts())

    @property
    def size_bytes(self) -> int:
        """Addresses that it has."""
        return self.window.size_bytes

    @property
    def width(self) -> Width:
        """Which kernels the session has."""
        return window_width(self.size_bytes)

    @property
    def idle_bytes(self) -> int:
        """Device memory that it takes while no session has it, or a little more."""
        return scratch_chunk(SCRATCH_BYTES, self.size_bytes) + 2 * GRANULE_BYTES

    def grow_slot(self, size_bytes: int) -> None:
        """Replace the slot, which nothing in flight reaches, by one that is large enough.

        Raises:
            QuotaExceeded: over the tenant's cap on memory that the device reaches, or there is no room for it.
        """
        size_bytes = pages.rounded(size_bytes, GRANULE_BYTES)
        self.shrink_slot()
        with self._account.reserve_pinned(size_bytes) as reservation, ExitStack() as undo:
            address = self.heap.reserve(size_bytes)
            undo.callback(self.heap.unreserve, address, size_bytes)
            view = self.heap.map_host(address, size_bytes)
            undo.pop_all()
            reservation.commit()
        self.slot.clear()
        self.slot, self._grown = Slot(Region(address, size_bytes, host=True), view), (self.slot, reservation)

    def shrink_slot(self) -> None:
        """Go back to the slot that the window has for good."""
        if self._grown is not None:
            large = self.slot.region
            self.heap.unmap(large.address)
            self.heap.unreserve(large.address, large.size_bytes)
            (self.slot, reservation), self._grown = self._grown, None
            reservation.release()

    @property
    def has_grown(self) -> bool:
        """Whether the slot is another one than the window has for good."""
        return self._grown is not None

    def open_memory(self, unified: UnifiedMemory, size_bytes: int, capacity_bytes: int) -> WindowMemory:
        """Return zeroed memory for the session's guest, which keeps the window in use until it is closed.

        Raises:
            QuotaExceeded: over the tenant's cap on pinned memory, or there is no room for it.
            LaunchRefused: there are no addresses for it.
        """
        if self._opened:
            raise InternalError("a session has one linear memory")
        if self._linear is not None and self._linear.capacity_bytes < min(capacity_bytes, MAX_BYTES):
            self.drop_memory()
        if self._linear is None:
            self._linear = WindowMemory(unified, self.heap, self._account, capacity_bytes, self._end_memory)
        self._opened = True
        self._users += 1
        try:
            self._linear.begin(size_bytes)
        except BaseException:
            self._linear.close()
            raise
        return self._linear

    def drop_memory(self) -> None:
        """Unmap the linear memory that is kept for the next guest, if no guest has it."""
        if self._linear is not None and not self._opened:
            memory, self._linear = self._linear, None
            memory.release()

    def begin(self) -> None:
        """Begin to use the window, for a session."""
        self._users += 1
        self.soiled = True

    def _end_memory(self) -> None:
        if failures := self._end():
            _log.error("a window of addresses was not given back: %s", failures[0])

    def _end(self) -> list[Exception]:
        """End a use of the window; with the last one it is given back."""
        self._users -= 1
        if self._users:
            return []
        self._opened = False
        return self._owner.give(self)

    def clear(self, stream: Stream) -> None:
        """Start clearing all that kernels may have written, behind the work already in a stream."""
        self._owner.clear(self, stream)
        if self._linear is not None:
            self._linear.clear(stream)

    def give_back(self) -> list[Exception]:
        """End the session's use: nothing in flight reaches the window any more. Return what the device raised.

        It is given back when the guest's memory has been closed, too.
        """
        self.heap.settle = idle
        return self._end()


class SessionWindows:
    """The windows of one device. Thread-safe.

    Args:
        device: outlives them.
        drop_session: closes a session that is only kept for later; returns whether there was one.

    Attributes:
        stops: the stop words.
    """

    def __init__(self, device: Device, drop_session: Callable[[], bool] = lambda: False) -> None:
        self._device = device
        self._drop_session = drop_session
        self._windows = device.windows
        self.stops = StopWords(device)
        least_bytes = _LEAST_IDLE * (SCRATCH_BYTES + 2 * GRANULE_BYTES)
        self._lock = threading.Lock()
        self._idle = IdleWindows[SessionWindow](max(least_bytes, device.info.memory_bytes // _IDLE_SHARE))
        self._mapped: dict[str, MappedBytes] = {}
        self._stream: Stream | None = None
        self._closed = False

    @property
    def idle(self) -> int:
        """Windows that no session has."""
        return len(self._idle)

    def take(self, tenant: str, account: Account, size_bytes: int = WINDOW_BYTES) -> SessionWindow:
        """Return a window of a size with nothing of an earlier session in it, if possible the tenant's own last one.

        Raises:
            QuotaExceeded: there is no memory for another one.
            LaunchRefused: the device has no windows.
        """
        taken = self._choose(tenant, size_bytes)
        if taken is not None and taken.tenant != tenant and self._hand_over(taken, tenant, account):
            taken = None
        if taken is None:
            taken = self._open(tenant, account, size_bytes)
        taken.begin()
        return taken

    def clear(self, window: SessionWindow, stream: Stream) -> None:
        """Start clearing all that kernels may have written, behind the work already in a stream."""
        self._windows.clear_scratch(window.window, stream, window.heap.mapped_parts())

    def give(self, window: SessionWindow) -> list[Exception]:
        """Take a window back, which nothing in flight can reach any more; return what the device raised.

        The session has given back its memory and cleared what it used of the slot.
        """
        failures = attempt(window.shrink_slot) or ([] if self._closed else attempt(self._clean, window))
        with self._lock:
            kept = not failures and not self._closed and self._idle.has_room(window)
            if kept:
                self._idle.add(window)
        if kept:
            return []
        failures += self._close(window)
        return failures + (self.stops.close() if self._closed else [])

    def trim(self) -> bool:
        """Free device memory: close an idle window or, without one, a pooled session, whose window is idle then.

        Returns whether anything was closed; the caller may try again.
        """
        with self._lock:
            window = self._idle.take_any()
        return self._drop_session() if window is None else not self._close(window)

    def close(self) -> list[Exception]:
        """Close all windows that no session has, and others when they are given back; return what the device raised."""
        with self._lock:
            self._closed = True
            idle = self._idle.take_all()
        failures = [error for window in idle for error in self._close(window)]
        with self._lock:
            clearing, self._stream = self._stream, None
        if clearing is not None:
            failures += attempt(self._device.close_stream, clearing)
        return failures + self.stops.close()

    def _choose(self, tenant: str, size_bytes: int) -> SessionWindow | None:
        """Take an idle window of a size: the tenant's own last one, else the one that is idle for longest."""
        with self._lock:
            window = self._idle.choose(tenant, size_bytes)
        if window is not None and attempt(self._await_clearing, window):
            with self._lock:
                self._idle.add(window)  # the GPU is busy: later
            return None
        if window is not None and window.soiled:
            self._close(window)
            return None
        return window

    def _open(self, tenant: str, account: Account, size_bytes: int) -> SessionWindow:
        while True:
            try:
                window = self._windows.open_window(SCRATCH_BYTES, size_bytes)
                break
            except QuotaExceeded:
                if not self.trim():
                    raise
        with ExitStack() as undo:
            undo.callback(self._windows.close_window, window)
            view = self._windows.map_slot(window, STAGE_AT)
            scratch = self._windows.scratch_ranges(window)
            stop = self.stops.take()
            undo.pop_all()
        slot = Slot(Region(window.address + STAGE_AT, GRANULE_BYTES, host=True), view)
        return SessionWindow(self, window, slot, stop, self._memory(window, tenant, account), scratch)

    def _hand_over(self, window: SessionWindow, tenant: str, account: Account) -> list[Exception]:
        """Make a window another tenant's, with memory of its own; one of which something is left is closed instead."""
        failures = attempt(self._release_memory, window)
        if failures:
            return failures + self._close(window)
        window.heap.mapped.join(-window.heap.parts)
        window.hand_over(self._memory(window.window, tenant, account))
        return []

    def _memory(self, window: AddressWindow, tenant: str, account: Account) -> TenantMemory:
        with self._lock:
            mapped = self._mapped.setdefault(tenant, MappedBytes(account))
        heap = WindowHeap(self._windows, window, mapped)
        mapped.join(heap.parts)
        memory = variables = Suballocator(heap, account, spare=self.trim, granule_bytes=GRANULE_BYTES)
        if heap.variables is not None:
            variables = Suballocator(heap.variables, account, spare=self.trim, granule_bytes=GRANULE_BYTES)
        return TenantMemory(tenant, account, heap, memory, variables)

    def _release_memory(self, window: SessionWindow) -> None:
        window.drop_memory()
        window.memory.close()
        window.variables.close()
        if window.heap.held_bytes:
            raise InternalError("the device has kept memory of a window")

    def _clean(self, window: SessionWindow) -> None:
        """Make a window as it was, but for what is being cleared when this returns."""
        self.stops.clear(window.stop)
        with self._lock:
            if self._stream is None:
                self._stream = self._device.open_stream()
            stream = self._stream
        if window.cleared is None:
            window.cleared = self._device.events.open_event()
        try:
            window.clear(stream)
        finally:  # what was started is waited for, even if the rest was refused
            self._device.events.record(window.cleared, stream)
        window.soiled = False

    def _await_clearing(self, window: SessionWindow) -> None:
        if window.cleared is not None:
            self._device.events.synchronize_event(window.cleared, Deadline.after(CLEARING_LIMIT_S))

    def _close(self, window: SessionWindow) -> list[Exception]:
        """Release a window; one whose clearing does not end stays, for it is in flight."""
        if failures := attempt(self._await_clearing, window):
            with self._lock:
                if not self._closed:
                    self._idle.add(window)
            return failures
        if window.cleared is not None:
            failures += attempt(self._device.events.close_event, window.cleared)
        failures += attempt(self._release_memory, window)
        window.heap.mapped.remove(window.heap.held_bytes)
        window.heap.mapped.join(-window.heap.parts)
        failures += attempt(self._windows.close_window, window.window)
        return failures + attempt(self.stops.give, window.stop)
