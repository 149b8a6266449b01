"""How the windows of a launch reach the device: in place, or through a slot of the staging ring.

Windows of the kind ``auto`` are staged until the copies have cost as much as registering the memory would
(`PIN_PRICE_BYTES`), and then the memory is registered: the rule of ski rental, at most twice the best choice. Compiled
code counts in the same fields of the session layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidPointer, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.arguments import Argument, HostWindow, RegionTable
from tensorwasm.gpu.device.limits import PIN_COPY_BYTES, PIN_PRICE_BYTES
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.reach import Reach
from tensorwasm.gpu.resources.device_resources import DeviceResources, TenantResources
from tensorwasm.gpu.resources.session_windows import SessionWindow
from tensorwasm.gpu.staging import BLOCK_BYTES, Placement, Slot, copy_back
from tensorwasm.gpu.state.numbered import GraphTable
from tensorwasm.gpu.state.work import SessionWork
from tensorwasm.values import Deadline, MemoryKind, Region

_WITHOUT_END: Final = 1 << 62
_RENT_BYTES: Final[Mapping[MemoryKind, int]] = {"auto": PIN_PRICE_BYTES, "staged": _WITHOUT_END}
"""Kinds of memory that may be staged, and how many bytes may be beside half of what the memory has: or without end."""


class Windows:
    """One guest's memory for its launches and copies. Not safe from several threads: the session takes turns.

    Args:
        resources: what the device's sessions share.
        tenancy: whose session it is.
        regions: what the session's kernels may touch.
        sheet: told along.
        work: waited for before memory is registered anew, or a slot is written.
        graphs: which of them may be replayed depends on what is reached.
        kind: of the guest's memory.
        session_window: of guarded kernels. They reach nothing but that, so that windows are staged in it, whatever the
            kind; its slot grows with them.

    Attributes:
        kind: of the guest's memory.
        reach: what is reached in place.
    """

    __slots__ = (
        "_counted",
        "_graphs",
        "_regions",
        "_resources",
        "_session_window",
        "_sheet",
        "_slot",
        "_tenancy",
        "_work",
        "kind",
        "reach",
    )

    def __init__(
        self,
        resources: DeviceResources,
        tenancy: TenantResources,
        regions: RegionTable,
        sheet: SessionLayoutWriter,
        work: SessionWork,
        graphs: GraphTable,
        kind: MemoryKind,
        session_window: SessionWindow | None = None,
    ) -> None:
        confined = session_window is not None
        self.reach = Reach(resources.device, tenancy.account, regions, sheet, kind, confined=confined)
        self._resources = resources
        self._tenancy = tenancy
        self._regions = regions
        self._sheet = sheet
        self._work = work
        self._graphs = graphs
        self.kind = kind
        self._session_window = session_window
        self._slot: Slot | None = None
        self._renew_rent()

    @property
    def confined(self) -> bool:
        """Whether kernels reach the guest's memory through the slot alone."""
        return self._session_window is not None and not self.reach.direct

    @property
    def _rents(self) -> bool:
        return self.kind in _RENT_BYTES or self.confined

    # ---------------------------------------------------------------------------------------- in place

    def extend(self, memory: Region, deadline: Deadline) -> None:
        """Have the device reach all of the guest's memory in place. Waits for all work if pages are registered anew.

        Raises:
            QuotaExceeded: over the tenant's cap on pinned memory.
            LaunchRefused: the device cannot register the pages, or this memory is to be staged only.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the device does not answer.
        """
        if not memory.size_bytes or memory == self.reach.region:
            return
        if self.kind == "staged" or self.confined:
            raise LaunchRefused("this function's memory is staged: only a launch that waits can have windows on it")
        if self._outdated(memory):
            self._work.wait_all(deadline)
        try:
            self.reach.extend(memory)
        finally:
            self._renew_rent()
            self._work.confine()
            self._graphs.show(self.reach.region)

    def extend_for_copy(self, window: HostWindow, memory: Region, deadline: Deadline) -> bool:
        """Prepare a copy between a window and the device; return whether the window is reached in place.

        Raises:
            InvalidPointer: the window is not inside the memory.
            QuotaExceeded: over the tenant's cap on pinned memory.
            LaunchRefused: the device cannot register the pages.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the device does not answer.
        """
        require_inside(window, memory)
        if self.kind != "staged" and not self.confined:
            self.extend(memory, deadline)
        return self.reach.holds(window.address, window.length_bytes)

    def prefer(self, memory: Region | None, length_bytes: int, deadline: Deadline) -> None:
        """Register the guest's memory for a copy of many bytes, where that is possible.

        Raises:
            DeviceLost: the device does not answer.
        """
        if memory is not None and (self.kind == "pinned" or length_bytes >= PIN_COPY_BYTES):
            with suppress(QuotaExceeded, LaunchRefused):
                self.extend(memory, deadline)

    # ----------------------------------------------------------------------------- what has to end before

    def before_start(self, memory: Region) -> list[int]:
        """Return the streams, by their numbers, that drain before work with windows on the memory can be started."""
        return self._busy() if self.confined or self._outdated(memory) else []

    def before_launch(self, memory: Region) -> list[int]:
        """Return the same for a launch that waits."""
        staging = self._rents and self.reach.region is None
        return self._busy() if staging or self._outdated(memory) else []

    def before_copy(self, memory: Region, stream: int) -> list[int]:
        """Return the same for a copy that is given to a stream."""
        if self.kind == "staged" or self.confined:
            return [number for number in self._busy() if number == stream]
        return self.before_start(memory)

    def _outdated(self, memory: Region) -> bool:
        """Return whether pages are registered, and not those of the memory as it is now."""
        return bool(memory.size_bytes and self.reach.pinned_bytes) and memory != self.reach.region

    def _busy(self) -> list[int]:
        return [stream.number for stream in self._work.streams if self._work.streams.busy(stream)]

    # ------------------------------------------------------------------------------------------ staged

    def place(self, windows: Sequence[HostWindow], memory: Region, deadline: Deadline) -> Placement | None:
        """Choose how a launch that waits reaches its windows: return their places in the slot, or None for in place.

        A slot is kept until the session ends, also when it is needed no more because the memory has been registered.

        Raises:
            InvalidPointer: a window is not inside the memory.
            QuotaExceeded: too much for the slot, of memory that is to be staged; or over the cap on pinned memory.
            CapacityExhausted: no slot is free for memory that is to be staged.
            LaunchRefused: the device cannot register the pages.
            KernelFault: the work in flight broke a rule.
            InvokeTimeout: the work in flight did not end in time.
            DeviceLost: the device does not answer.
        """
        if not memory.size_bytes:
            return None
        if self.confined:
            self._work.wait_all(deadline)  # the slot may have to grow
            return self._stage(windows, memory)
        rents = self.kind in _RENT_BYTES
        if rents and self.reach.region is None:
            placement = self._stage(windows, memory)
            if placement is not None and placement.used_bytes <= self._count_rent(memory):
                return placement
        try:
            self.extend(memory, deadline)
        except (QuotaExceeded, LaunchRefused):  # what cannot be bought is rented on
            placement = self._stage(windows, memory) if rents else None
            if placement is None:
                raise
            return placement
        return None

    def offer(self) -> None:
        """Have a slot for compiled code to find, if there are plenty and windows may be staged."""
        plenty = self.confined or self._resources.ring.plenty
        if self._rents and self.reach.region is None and plenty:
            with suppress(CapacityExhausted):
                self._take_slot()

    def locate(self, placement: Placement | None, arguments: Sequence[Argument]) -> Sequence[Argument]:
        """Return a launch's arguments with its windows where the device reaches them: in place without a placement."""
        displacement = self.reach.displacement
        if placement is None:
            return arguments if not displacement else [_displaced(argument, displacement) for argument in arguments]
        slot_at = self._require_slot().region.address
        return [
            placement.locate(argument, slot_at) if isinstance(argument, HostWindow) else argument
            for argument in arguments
        ]

    def copy_in(self, placement: Placement, deadline: Deadline) -> None:
        """Copy a launch's windows into the slot.

        Raises:
            KernelFault: the work in flight, which may write to the windows, broke a rule.
            InvokeTimeout: it did not end in time.
            DeviceLost: the device does not answer.
        """
        slot = self._require_slot()
        self._work.wait_all(deadline)
        slot.used_bytes = max(slot.used_bytes, placement.used_bytes)
        self._sheet.stage_left = max(self._sheet.stage_left - placement.used_bytes, 0)
        placement.copy_in(slot.view)

    def copy_out(self, placement: Placement) -> None:
        """Copy a launch's windows back, once it has ended."""
        placement.copy_out(self._require_slot().view)

    def finish(self, memory: Region) -> None:
        """Copy back what a staged launch of compiled code, which has ended, left in the slot.

        Raises:
            LaunchRefused: the layout names what is not the guest's; nothing is copied.
        """
        windows = self._sheet.staged_windows()
        self._sheet.forget_staged()
        copy_back(windows, memory, self._require_slot())

    def release(self, *, trusted: bool) -> list[Exception]:
        """Give the slot and the registration back, which no stream can reach; return what the device raised.

        Args:
            trusted: False if the device was lost: nobody else gets the slot then.
        """
        slot, self._slot = self._slot, None
        if slot is not None and trusted:
            slot.used_bytes = max(slot.used_bytes, self._sheet.stage_used)
            if self._session_window is not None:
                slot.used_bytes = 0  # all of it is cleared before the window has another session
            else:
                self._resources.ring.give(slot)
        return self.reach.release()

    def renew(self, cleared: bool) -> None:  # noqa: FBT001 - one caller, between any two guests
        """Clear what of the slot was used, and count the rent anew, for another guest.

        Args:
            cleared: whether clearing of the session's window has been started, and of the slot with it.
        """
        window = self._session_window
        if window is not None:
            if self.reach.direct:
                self.reach.move_out()
            if window.has_grown:
                self._shrink_slot(window)
        self._renew_rent()
        slot = self._slot
        if slot is not None:
            slot.used_bytes = 0 if cleared else max(slot.used_bytes, self._sheet.stage_used)
            if slot.used_bytes:
                slot.clear()
            self._sheet.stage_used = 0

    def _stage(self, windows: Sequence[HostWindow], memory: Region) -> Placement | None:
        if memory.address % BLOCK_BYTES:
            raise InternalError("guest memory is not whole pages")
        for window in windows:
            require_inside(window, memory)
        placement = Placement(windows, memory.address)
        if self._session_window is not None:
            self._fit_slot(self._session_window, placement.used_bytes)
            return placement
        slot_bytes = self._resources.ring.slot_bytes
        if placement.used_bytes > slot_bytes:
            if self.kind == "staged":
                raise QuotaExceeded(f"windows of {placement.used_bytes} bytes: at most {slot_bytes} are staged")
            return None
        try:
            self._take_slot()
        except CapacityExhausted:
            if self.kind == "staged":
                raise
            return None
        return placement

    def _renew_rent(self) -> None:
        """Let nothing be staged any more of memory that was bought, of other memory as much as its kind may."""
        self._counted = 0
        confined = self._session_window is not None and not self.reach.direct
        most_bytes = _WITHOUT_END if confined else _RENT_BYTES.get(self.kind, 0)
        self._sheet.stage_left = most_bytes if self.reach.region is None else 0

    def _count_rent(self, memory: Region) -> int:
        """Return how many bytes may still be staged of a memory of that size."""
        grown_bytes = max(memory.size_bytes - self._counted, 0)
        self._counted += grown_bytes
        self._sheet.stage_left += grown_bytes // 2
        return self._sheet.stage_left

    def _take_slot(self) -> None:
        if self._slot is None:
            own = self._session_window
            self._use_slot(self._resources.take_slot(self._tenancy.tenant) if own is None else own.slot)

    def _fit_slot(self, window: SessionWindow, size_bytes: int) -> None:
        """Have a slot of the session's window that is large enough, while nothing is in flight."""
        self._take_slot()
        if size_bytes > window.slot.region.size_bytes:
            window.slot.used_bytes = max(window.slot.used_bytes, self._sheet.stage_used)
            self._sheet.stage_used = 0
            self._regions.remove(window.slot.region)
            try:
                window.grow_slot(size_bytes)
            finally:
                self._use_slot(window.slot)

    def _shrink_slot(self, window: SessionWindow) -> None:
        if self._slot is not None and window.has_grown:
            self._regions.remove(window.slot.region)
            try:
                window.shrink_slot()
            finally:
                self._use_slot(window.slot)

    def _use_slot(self, slot: Slot) -> None:
        self._slot = slot
        self._regions.add(slot.region)
        self._sheet.show_slot(slot.region, slot.view)
        self._work.confine()

    def _require_slot(self) -> Slot:
        if self._slot is None:
            raise InternalError("no window is staged")
        return self._slot


def _displaced(argument: Argument, displacement: int) -> Argument:
    if isinstance(argument, HostWindow):
        return HostWindow(argument.address + displacement, argument.length_bytes)
    return argument


def require_inside(window: HostWindow, memory: Region) -> None:
    """Check a window once more, for what is copied by the host no device will check.

    Raises:
        InvalidPointer: it is not inside the memory.
    """
    if window.length_bytes < 0 or window.address < memory.address or window.address + window.length_bytes > memory.end:
        raise InvalidPointer("a window is not inside the guest's memory")
