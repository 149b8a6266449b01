"""Runs of bytes that kernels address, and where in the address space each kind of memory lies.

Device addresses are synthetic, lie above every address a process can have, and are not used again, so that a use after
free is recognised and named. Host pages keep their real addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GLOBAL_BASE: Final = 1 << 52
CONST_WINDOW: Final = 1 << 56
WINDOW_BYTES: Final = 1 << 52
HOST_BASE: Final = 1 << 16  # below it no system maps memory
_NEAR_BYTES: Final = 1 << 16


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
    return "a host address" if HOST_BASE <= address < GLOBAL_BASE else f"{address:#x}"


def show_place(planes: Iterable[Plane], address: int) -> str:
    """Return an address for a message; a place in this process only as the byte of a host region that is near."""
    plane = _nearest(planes, address)
    if plane is None or plane.base >= GLOBAL_BASE:
        return shown_address(address)
    if plane.base - _NEAR_BYTES < address < plane.end + _NEAR_BYTES:
        return f"byte {address - plane.base} of {plane.label}"
    return f"{shown_address(address)} far from {plane.label}"


def tell_nearest(planes: Iterable[Plane], address: int) -> str:
    """Return the end of a message: which memory an address misses, and by how much."""
    plane = _nearest(planes, address)
    if plane is None:
        return ", and the kernel may touch no memory"
    if plane.base < GLOBAL_BASE:
        return ""
    if address < plane.base:
        where = f", {plane.base - address} bytes before"
    elif address >= plane.end:
        where = f", {address - plane.end} bytes past the end of"
    else:
        where = f", at the last {plane.end - address} bytes of"
    return f"{where} {plane.label} at {plane.base:#x}"


def _nearest(planes: Iterable[Plane], address: int) -> Plane | None:
    return min(planes, key=lambda one: max(one.base - address, address - one.end + 1, 0), default=None)
