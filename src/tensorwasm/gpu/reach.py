"""The guest's memory as the device reaches it: registered in place, or reachable from the start."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.device.arguments import HostWindow, RegionTable
from tensorwasm.gpu.device.port import Device, Stream, attempt
from tensorwasm.gpu.limits.accounts import Account, Reservation
from tensorwasm.gpu.memory.prefetch import PREFETCH_BYTES, Prefetch
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import MemoryKind, Region

_REACHABLE: Final = frozenset({"managed", "vmm"})


class Reach:
    """How much of one guest's memory the device reaches. None of it waits: whoever extends it has drained.

    Args:
        device: registers pages.
        account: charged for pinned ones.
        regions: of the session.
        sheet: told along.
        kind: of the memory. ``managed`` and ``vmm`` are reached without being registered, and charged elsewhere.
        confined: whether kernels reach memory of their session's window alone.

    Attributes:
        region: what is reached now, by the host's addresses; None for nothing.
        direct: whether it is reached without being registered.
        displacement: what is added to an address of the host for the same byte's on the device.
    """

    __slots__ = (
        *("_account", "_device", "_prefetch", "_regions", "_reservations", "_sheet"),
        *("direct", "displacement", "region"),
    )

    def __init__(
        self,
        device: Device,
        account: Account,
        regions: RegionTable,
        sheet: SessionLayoutWriter,
        kind: MemoryKind,
        *,
        confined: bool = False,
    ) -> None:
        self.direct = kind in _REACHABLE and not confined
        self.displacement = 0
        self.region: Region | None = None
        self._device = device
        self._account = account
        self._regions = regions
        self._sheet = sheet
        self._reservations: list[Reservation] = []
        self._prefetch = Prefetch(device) if kind == "managed" and self.direct else None

    @property
    def pinned_bytes(self) -> int:
        """Guest memory that is registered with the device."""
        return self.region.size_bytes if self.region is not None and not self.direct else 0

    def settle_in(self, displacement: int) -> None:
        """Set that the guest's memory lies in the session's window."""
        self.direct, self.displacement = True, displacement

    def move_out(self) -> None:
        """Set that the session's window has no memory of a guest."""
        self.direct, self.displacement = False, 0

    def on_device(self, region: Region) -> Region:
        """Return where the device reaches a region of the host."""
        return Region(region.address + self.displacement, region.size_bytes, host=True)

    def holds(self, address: int, length_bytes: int) -> bool:
        """Return whether a range of the guest's memory is reached."""
        region = self.region
        return region is not None and region.address <= address and address + length_bytes <= region.end

    def extend(self, memory: Region) -> None:
        """Reach all of the guest's memory as it is now, which is not what `region` says.

        A grown memory is registered anew as a whole: a range that straddles two registrations is one the driver
        refuses to copy. A refusal over the quota leaves all as it was, one by the device leaves nothing registered.

        Raises:
            QuotaExceeded: over the tenant's cap on pinned memory.
            LaunchRefused: the device cannot register the pages.
            DeviceLost: the device does not answer.
        """
        if memory.address % mmap.PAGESIZE or memory.size_bytes % mmap.PAGESIZE:
            raise InternalError("guest memory is not whole pages")
        if self.direct:
            self._forget()
        else:
            self._pin(memory)
        self.region = memory
        self._regions.add(self.on_device(memory))
        self._show()

    def movable(self, windows: Sequence[HostWindow]) -> list[Region]:
        """Return what of a launch's windows is to be moved to the device first, by `move`; mostly nothing."""
        if self._prefetch is None or self.region is None:
            return []
        return self._prefetch.choose(((window.address, window.length_bytes) for window in windows), self.region)

    def move(self, spans: Sequence[Region], stream: Stream) -> None:
        """Start moving what `movable` returned, behind the work in a stream that does not record.

        Raises:
            KernelFault: a kernel faulted; the device may be lost.
            DeviceLost: the device does not answer.
        """
        if self._prefetch is not None:
            self._prefetch.start(spans, stream)
            self._show()

    def release(self) -> list[Exception]:
        """Reach nothing any more; return what the device raised: `region` stays then, for it may still reach that."""
        if self.region is None:
            return []
        failures = [] if self.direct else attempt(self._device.unregister, self.region.address)
        if not failures:
            self._forget()
        return failures

    def _show(self) -> None:
        """Show compiled code what it may pass on as it lies: nothing, where a window may have to be moved first."""
        region, prefetch = self.region, self._prefetch
        if region is not None and prefetch is not None and prefetch.effective and region.size_bytes >= PREFETCH_BYTES:
            region = None
        self._sheet.show_reach(region, self.displacement)

    def _pin(self, memory: Region) -> None:
        more_bytes = memory.size_bytes - self.pinned_bytes
        with ExitStack() as undo:
            reservation = undo.enter_context(self._account.reserve_pinned(max(more_bytes, 0)))
            if self.region is not None:
                self._device.unregister(self.region.address)
                undo.callback(self._forget)
            self._device.register(memory.address, memory.size_bytes)
            undo.pop_all()
        if self.region is not None:
            self._regions.remove(self.region)
        reservation.commit()
        self._reservations.append(reservation)

    def _forget(self) -> None:
        if self.region is not None:
            self._regions.remove(self.on_device(self.region))
            self.region = None
            self._sheet.show_reach(None)
        for reservation in self._reservations:
            reservation.release()
        self._reservations.clear()
