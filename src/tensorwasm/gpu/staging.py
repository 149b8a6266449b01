"""Small windows of guest memory, copied through host memory that was registered with the device once.

Registering a sandbox's own memory costs 100 us and more; a kernel on a few kilobytes is over in ten. So its windows
are copied into a slot of a ring that host and device reach under one address, and back when the kernel has ended.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from tensorwasm.errors import CapacityExhausted, LaunchRefused
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.device.limits import STAGE_SLOT_BYTES, STAGE_SLOTS
from tensorwasm.gpu.device.port import Device, attempt
from tensorwasm.values import Region

BLOCK_BYTES: Final = 256
"""A window keeps its address modulo this, so that it is as aligned in its slot as it was in place."""

_process: Final = ctypes.PyDLL(None)  # short copies that keep the GIL
_copy: Final = _process.memmove
_copy.argtypes, _copy.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), None
_fill: Final = _process.memset
_fill.argtypes, _fill.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), None

_mapped: Final[set[mmap.mmap]] = set()
"""Rings that a device may still reach: not unmapped before they are unregistered, whoever forgets them."""


class Placement:
    """Where the windows of one launch lie in a slot.

    Windows that overlap or touch are one part there: a kernel that reaches a byte through two windows finds one byte.

    Args:
        windows: of one launch.
        base: address of the guest's memory, a multiple of `BLOCK_BYTES`.

    Attributes:
        used_bytes: from the start of the slot to the end of the last part.
        parts: first byte and end in the guest's memory, and place in the slot, ascending.
    """

    __slots__ = ("_base", "parts", "used_bytes")

    def __init__(self, windows: Iterable[HostWindow], base: int) -> None:
        self._base = base
        self.parts: list[tuple[int, int, int]] = []
        self.used_bytes = 0
        ranges = sorted((window.address - base, window.address - base + window.length_bytes) for window in windows)
        first, last = ranges[0]
        for start, end in ranges:
            if start > last:
                self._place(first, last)
                first, last = start, end
            last = max(last, end)
        self._place(first, last)

    def locate(self, window: HostWindow, slot_at: int) -> HostWindow:
        """Return where a window of the launch lies in the slot at that address."""
        offset = window.address - self._base
        first, _, place = next(part for part in reversed(self.parts) if part[0] <= offset)
        return HostWindow(slot_at + place + offset - first, window.length_bytes)

    def copy_in(self, slot_at: int) -> None:
        """Copy the windows from the guest's memory."""
        for first, end, place in self.parts:
            _copy(slot_at + place, self._base + first, end - first)

    def copy_out(self, slot_at: int) -> None:
        """Copy the windows back to the guest's memory."""
        for first, end, place in self.parts:
            _copy(self._base + first, slot_at + place, end - first)

    def _place(self, first: int, end: int) -> None:
        place = -(-self.used_bytes // BLOCK_BYTES) * BLOCK_BYTES + first % BLOCK_BYTES
        self.parts.append((first, end, place))
        self.used_bytes = place + end - first


def copy_back(windows: Sequence[tuple[int, int, int]], memory: Region, slot: Slot) -> None:
    """Copy windows that compiled code placed (offset, length, place) back to the guest's memory.

    Raises:
        LaunchRefused: one is not inside the memory or not inside the slot; none was copied.
    """
    for offset, length_bytes, place in windows:
        if offset + length_bytes > memory.size_bytes or place + length_bytes > slot.region.size_bytes:
            raise LaunchRefused(f"{length_bytes} bytes at {offset} are no window of this guest")
    for offset, length_bytes, place in windows:
        _copy(memory.address + offset, slot.view + place, length_bytes)


class Slot:
    """Memory for windows that one session has.

    Attributes:
        region: its range, as the device reaches it.
        view: where the host reaches it.
        tenant: who had it last; "" if nobody had.
        used_bytes: how far it was written since it was cleared.
    """

    __slots__ = ("region", "tenant", "used_bytes", "view")

    def __init__(self, region: Region, view: int) -> None:
        self.region = region
        self.view = view
        self.tenant = ""
        self.used_bytes = 0

    def clear(self) -> None:
        """Clear what was used, which no stream can reach any more."""
        if self.used_bytes:
            _fill(self.view, 0, min(self.used_bytes, self.region.size_bytes))
            self.used_bytes = 0

    def clear_all(self) -> None:
        """Clear all of it: a kernel may have written past its windows."""
        _fill(self.view, 0, self.region.size_bytes)
        self.used_bytes = 0


class StagingRing:
    """The slots of one device. Safe from any thread. The memory is made and registered when the first slot is taken.

    Nothing that one session put into a slot is there for the next: what it used is cleared when it gives the slot back,
    and all of the slot before another tenant gets it, for a kernel may have written past its windows.

    Args:
        device: where it is registered.
        slots: how many.
        slot_bytes: of each, whole pages.

    Attributes:
        refused: whether the device does not reach such memory.
    """

    def __init__(self, device: Device, slots: int = STAGE_SLOTS, slot_bytes: int = STAGE_SLOT_BYTES) -> None:
        self._device = device
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._lock = threading.Lock()
        self._idle: list[Slot] = []
        self._memory: mmap.mmap | None = None
        self._address = 0
        self.refused = False

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return self._slot_bytes

    @property
    def idle(self) -> int:
        """Slots that nobody has."""
        with self._lock:
            return len(self._idle)

    @property
    def plenty(self) -> bool:
        """Whether most slots are idle, so that one may be had before it is needed."""
        return self._memory is None or 2 * len(self._idle) > self._slots

    def take(self, tenant: str) -> Slot:
        """Return a slot of zeros.

        Raises:
            CapacityExhausted: none is free, or the device does not reach such memory.
            DeviceLost: the device does not answer.
        """
        with self._lock:
            if self._memory is None:
                self._open()
            if not self._idle:
                raise CapacityExhausted(f"all {self._slots} slots for small windows are taken")
            slot = self._choose(tenant)
        if slot.tenant not in {tenant, ""}:
            slot.clear_all()
        slot.tenant = tenant
        return slot

    def give(self, slot: Slot) -> None:
        """Give a slot back, which no stream can reach any more."""
        slot.clear()
        with self._lock:
            self._idle.append(slot)

    def close(self) -> list[Exception]:
        """Release the memory unless somebody has a slot; return what the device raised."""
        with self._lock:
            memory, self._memory = self._memory, None
            if memory is None:
                return []
            unused = len(self._idle) == self._slots
            self._idle = []
            failures = attempt(self._device.unregister, self._address) if unused else []
            if unused and not failures:
                _mapped.remove(memory)
                memory.close()
            return failures

    def _choose(self, tenant: str) -> Slot:
        """Take the tenant's own last slot, else one that nobody had, else the one idle for longest."""
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].tenant == tenant:
                return self._idle.pop(at)
        fresh = next((at for at, slot in enumerate(self._idle) if not slot.tenant), 0)
        return self._idle.pop(fresh)

    def _open(self) -> None:
        if self.refused:
            raise CapacityExhausted("this device does not reach memory for small windows")
        memory = mmap.mmap(-1, self._slots * self._slot_bytes)
        address = _address(memory)
        try:
            self._device.register(address, len(memory))
        except LaunchRefused as error:
            memory.close()
            self.refused = True
            raise CapacityExhausted(f"this device does not reach memory for small windows: {error}") from None
        _mapped.add(memory)
        self._memory, self._address = memory, address
        starts = range(address, address + len(memory), self._slot_bytes)
        self._idle = [Slot(Region(start, self._slot_bytes, host=True), start) for start in starts]


def _address(memory: mmap.mmap) -> int:
    """Return where memory is mapped, holding no buffer of it: it could not be closed otherwise."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
