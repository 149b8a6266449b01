"""Where the emulator's global memory comes from: device allocations, registered host pages, module variables.

Device addresses are synthetic, lie above every address a process can have, and are not used again, so that a use after
free is recognised and named. Host pages keep their real addresses.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import LaunchRefused, QuotaExceeded
from tensorwasm.values import Region

GLOBAL_BASE: Final = 1 << 52
CONST_WINDOW: Final = 1 << 56
WINDOW_BYTES: Final = 1 << 52
ALIGN_BYTES: Final = 256
GUARD_BYTES: Final = 4096
_HOST_BASE: Final = 1 << 16  # below it no system maps memory
_REMEMBERED: Final = 1024


@dataclass(slots=True, eq=False)
class Plane:
    """A run of bytes that kernels address.

    Attributes:
        base: address of the first byte.
        data: the bytes, ``(size,) uint8``.
        label: what it is, for fault messages.
        writable: False for constants and kernel parameters.
    """

    base: int
    data: NDArray[np.uint8]
    label: str
    writable: bool = True
    _views: dict[tuple[str, int], NDArray[Any]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Address one past the last byte."""
        return self.base + self.data.size

    def head(self, access_bytes: int) -> int:
        """Return the bytes before the first address that is a multiple of ``access_bytes``."""
        return -self.base % access_bytes

    def view(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return the aligned elements: ``(n,)`` of ``dtype``, or ``(n, count)`` for vectors."""
        key = (dtype.str, count)
        found = self._views.get(key)
        if found is None:
            size = dtype.itemsize * count
            head = self.head(size)
            length = max(0, (self.data.size - head) // size * size)
            found = self.data[head : head + length].view(dtype)
            if count > 1:
                found = found.reshape(-1, count)
            self._views[key] = found
        return found


def host_bytes(address: int, size_bytes: int) -> NDArray[np.uint8]:
    """Return memory of this process as a writable array. The caller vouches for the range."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * size_bytes).from_address(address)), np.uint8)


def shown_address(address: int) -> str:
    """Return an address for a message, unless it may tell where memory of this process lies."""
    return "a host address" if _HOST_BASE <= address < GLOBAL_BASE else f"{address:#x}"


class Allocations:
    """The allocation table. Every method may be called from any thread.

    Attributes:
        budget_bytes: most bytes of device memory, module variables included.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._device: dict[int, Plane] = {}
        self._variables: dict[int, Plane] = {}
        self._host: dict[int, int] = {}
        self._freed: OrderedDict[int, int] = OrderedDict()
        self._next = {False: GLOBAL_BASE, True: CONST_WINDOW}
        self._used_bytes = 0

    def allocate(self, size_bytes: int) -> Plane:
        """Return new zeroed device memory.

        Raises:
            QuotaExceeded: the budget has not so many bytes left.
        """
        with self._lock:
            plane = self._reserve(size_bytes, f"the {size_bytes}-byte allocation", constant=False)
            self._device[plane.base] = plane
            return plane

    def declare(self, name: str, size_bytes: int, *, constant: bool) -> Plane:
        """Return zeroed memory for a module's variable.

        Raises:
            QuotaExceeded: the budget has not so many bytes left.
        """
        kind = "constant" if constant else "variable"
        with self._lock:
            plane = self._reserve(size_bytes, f"the {size_bytes}-byte {kind} {name}", constant=constant)
            self._variables[plane.base] = plane
            return plane

    def _reserve(self, size_bytes: int, label: str, *, constant: bool) -> Plane:
        if size_bytes > self.budget_bytes - self._used_bytes:
            raise QuotaExceeded(
                f"{size_bytes} bytes of device memory asked, {self.budget_bytes - self._used_bytes} of "
                f"{self.budget_bytes} left"
            )
        data = np.zeros(size_bytes, np.uint8)
        self._used_bytes += size_bytes
        base = self._next[constant]
        self._next[constant] = base + -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES + GUARD_BYTES
        return Plane(base, data, label, writable=not constant)

    def free(self, address: int) -> None:
        """Release an allocation.

        Raises:
            LaunchRefused: nothing was allocated there.
        """
        with self._lock:
            plane = self._device.pop(address, None) or self._variables.pop(address, None)
            if plane is None:
                raise LaunchRefused(f"no allocation at {address:#x}")
            self._used_bytes -= plane.data.size
            self._freed[address] = plane.data.size
            if len(self._freed) > _REMEMBERED:
                self._freed.popitem(last=False)

    def register(self, address: int, size_bytes: int) -> None:
        """Make host pages reachable.

        Raises:
            LaunchRefused: the range is empty or overlaps a registered one.
        """
        with self._lock:
            if size_bytes < 1 or address < 1 or address + size_bytes > GLOBAL_BASE:
                raise LaunchRefused(f"no host memory of {size_bytes} bytes is there")
            for start, size in self._host.items():
                if start < address + size_bytes and address < start + size:
                    raise LaunchRefused(f"host memory of {size_bytes} bytes overlaps what is registered already")
            self._host[address] = size_bytes

    def unregister(self, address: int) -> None:
        """Undo `register`.

        Raises:
            LaunchRefused: nothing is registered there.
        """
        with self._lock:
            if self._host.pop(address, None) is None:
                raise LaunchRefused("no host memory is registered there")

    def bytes_at(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """Return a part of one device allocation.

        Raises:
            LaunchRefused: the range is not inside one.
        """
        with self._lock:
            for base, plane in self._device.items():
                if base <= address and address + size_bytes <= plane.end:
                    return plane.data[address - base : address - base + size_bytes]
        raise LaunchRefused(f"{size_bytes} bytes at {address:#x} are not inside a device allocation")

    def planes(self, regions: Iterable[Region]) -> list[Plane]:
        """Return planes for the regions of a launch, overlapping ones joined, ascending.

        Raises:
            LaunchRefused: a region is not inside one allocation or registration.
        """
        with self._lock:
            owners = sorted(
                [(plane.base, plane.data.size, plane) for plane in self._device.values()]
                + [(start, size, None) for start, size in self._host.items()],
                key=lambda owner: owner[0],
            )
        starts = [owner[0] for owner in owners]
        found: list[list[Any]] = []
        for region in sorted(regions, key=lambda one: one.address):
            at = bisect_right(starts, region.address) - 1
            if at < 0 or region.end > starts[at] + owners[at][1] or region.host != (owners[at][2] is None):
                where = shown_address(region.address)
                raise LaunchRefused(f"the {region.size_bytes} bytes at {where} are not memory of this device")
            if found and found[-1][0] == at and region.address <= found[-1][2]:
                found[-1][2] = max(found[-1][2], region.end)
            else:
                found.append([at, region.address, region.end])
        return [_plane(owners[at], start, end) for at, start, end in found]

    def freed_near(self, address: int) -> str | None:
        """Return what was freed at an address, or None."""
        with self._lock:
            for base, size in self._freed.items():
                if base <= address < base + size:
                    return f"inside a freed {size}-byte allocation at {base:#x} (use after free)"
        return None

    def count(self) -> tuple[int, int, int, int]:
        """Return allocations, their bytes, registrations, their bytes."""
        with self._lock:
            return (
                len(self._device),
                sum(plane.data.size for plane in self._device.values()),
                len(self._host),
                sum(self._host.values()),
            )


def _plane(owner: tuple[int, int, Plane | None], start: int, end: int) -> Plane:
    base, size, plane = owner
    if plane is None:
        return Plane(start, host_bytes(start, end - start), f"the {end - start}-byte host region")
    if (start, end) == (base, base + size):
        return plane
    return Plane(start, plane.data[start - base : end - base], f"the {end - start}-byte region")
