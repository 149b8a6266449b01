"""Planes, the runs of bytes that kernels address, and where in the address space each kind of memory lies.

Device addresses are synthetic, lie above every address that a process can have, and are not used again, so that a use
after free is recognised and named. Host pages keep their real addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Indices, Selection, pick, rows

GLOBAL_BASE: Final = 1 << 52
CONST_WINDOW: Final = 1 << 56
WINDOW_BYTES: Final = 1 << 52
HOST_BASE: Final = 1 << 16  # below it no system maps memory
STRIDE_BYTES: Final = 32
"""Alignment of each lane's frame and each block's shared memory: the widest access."""
_NEAR_BYTES: Final = 1 << 16

Bytes = NDArray[np.uint8]


@dataclass(slots=True, eq=False)
class Plane:
    """A run of bytes that kernels address.

    Attributes:
        base: address of the first byte.
        label: what it is, for fault messages.
        writable: False for constants and kernel parameters.
    """

    base: int
    data: Bytes
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


class Frames:
    """Local memory of a batch: one frame of bytes per lane, all zero at first.

    That a thread reads what it has not written is no fault here: compilers copy structures with the padding in them.

    Attributes:
        size_bytes: of each frame.
        plane: all frames, lane after lane.
    """

    def __init__(self, lanes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        stride_bytes = -(-size_bytes // STRIDE_BYTES) * STRIDE_BYTES
        self.plane = Plane(0, np.zeros(stride_bytes * lanes, np.uint8), "local memory")
        self._matrix = self.plane.data.reshape(lanes, stride_bytes)
        self._bases: dict[int, Indices] = {}

    def index(self, offsets: NDArray[np.uint64], size_bytes: int, active: Selection) -> Indices:
        """Return the index of accesses in the plane, in units of their size, a power of two up to 32.

        Offsets are in the frame of each accessing lane, in bounds and aligned.
        """
        base = self._bases.get(size_bytes)
        if base is None:
            lanes, stride_bytes = self._matrix.shape
            base = self._bases[size_bytes] = np.arange(lanes) * (stride_bytes // size_bytes)
        index = (offsets >> np.uint64(size_bytes.bit_length() - 1)).view(np.int64)
        index += pick(base, active)
        return index

    def read(self, start: int, size_bytes: int, active: Selection) -> Bytes:
        """Return bytes of the selected frames, ``(n, size_bytes)``; a view unless ``active`` is an array."""
        return self._matrix[:, start : start + size_bytes][rows(active)]

    def write(self, start: int, values: Bytes, active: Selection) -> None:
        """Write ``(n, size)`` bytes into the selected frames."""
        self._matrix[rows(active), start : start + values.shape[1]] = values

    def clear(self, start: int, size_bytes: int, active: Selection) -> None:
        """Fill bytes of the selected frames with zeros."""
        self._matrix[rows(active), start : start + size_bytes] = 0


def host_bytes(address: int, size_bytes: int) -> Bytes:
    """Return memory of this process as a writable array. The caller vouches for the range."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * size_bytes).from_address(address)), np.uint8)


# ------------------------------------------------------------------------------------------- addresses in messages


def show_address(address: int) -> str:
    """Return an address for a message, unless it shows where memory of this process lies."""
    return "a host address" if HOST_BASE <= address < GLOBAL_BASE else f"{address:#x}"


def show_place(planes: Iterable[Plane], address: int) -> str:
    """Return an address for a message; one of this process only as an offset in a host region nearby."""
    plane = _nearest(planes, address)
    if plane is None or plane.base >= GLOBAL_BASE:
        return show_address(address)
    if plane.base - _NEAR_BYTES < address < plane.end + _NEAR_BYTES:
        return f"byte {address - plane.base} of {plane.label}"
    return f"{show_address(address)} far from {plane.label}"


def describe_miss(planes: Iterable[Plane], address: int) -> str:
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
