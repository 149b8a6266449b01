"""Planes, the runs of bytes that kernels address; what a launch may touch, and how memory is taken away from it.

Device addresses are synthetic, lie above every address that a process can have, and are not used again, so that a use
after free is recognised and named. Host pages keep their real addresses.

An `AllocationTable` hands out `AccessRanges`; work holds them by a `MemoryLease` while it runs. A release of memory
marks the leases on it as stale and waits until each has been renewed or has ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

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


# ---------------------------------------------------------------------------------------------- what a launch may touch

MemoryKind = Literal["device", "registered", "managed", "mapped", "window"]
"""Device memory, registered host pages, managed memory, memory mapped into a reserved range, windows of addresses."""


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation, registration or mapping; nothing may touch it once it is released."""

    plane: Plane
    kind: MemoryKind
    released: bool = False

    @property
    def host(self) -> bool:
        """Whether the host reaches it under the same address."""
        return self.kind != "device"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of one allocation: addresses ``start`` to ``end - 1``."""

    allocation: Allocation
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The memory of some access ranges that has not been released, as long as ``releases`` is the table's count.

    The planes are ascending; adjacent mappings are one plane.
    """

    releases: int
    allocations: frozenset[Allocation]
    planes: tuple[Plane, ...]


@dataclass(slots=True, eq=False)
class AccessRanges:
    """Memory that work may touch: ascending segments, none of which overlap."""

    segments: tuple[Segment, ...] = ()
    _held: HeldMemory | None = None

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> AccessRanges:
        """Join segments that overlap or touch inside one allocation."""
        found: list[Segment] = []
        for segment in sorted(segments, key=lambda one: one.start):
            last = found[-1] if found else None
            if last is not None and last.allocation is segment.allocation and segment.start <= last.end:
                found[-1] = Segment(last.allocation, last.start, max(last.end, segment.end))
            else:
                found.append(segment)
        return cls(tuple(found))

    def held(self, releases: int) -> HeldMemory:
        """Return what has not been released, given how many releases the table has seen."""
        if self._held is None or self._held.releases != releases:
            present = [segment for segment in self.segments if not segment.allocation.released]
            allocations = frozenset(segment.allocation for segment in present)
            self._held = HeldMemory(releases, allocations, tuple(_planes(present)))
        return self._held


NOTHING: Final = AccessRanges()
"""Work that may touch nothing."""


def _planes(segments: Iterable[Segment]) -> Iterator[Plane]:
    """Yield the memory of ascending segments; adjacent mappings make one plane."""
    run: list[Segment] = []
    for segment in segments:
        if run and run[-1].end == segment.start and run[-1].allocation.kind == segment.allocation.kind == "mapped":
            run.append(segment)
            continue
        if run:
            yield _plane(run)
        run = [segment]
    if run:
        yield _plane(run)


def _plane(run: list[Segment]) -> Plane:
    allocation, start, end = run[0].allocation, run[0].start, run[-1].end
    whole = allocation.plane
    if not allocation.host and (start, end) == (whole.base, whole.end):
        return whole
    if end > whole.end:
        return Plane(start, host_bytes(start, end - start), f"the {end - start}-byte host region")
    kind = "host region" if allocation.host else "region"
    return Plane(start, whole.data[start - whole.base : end - whole.base], f"the {end - start}-byte {kind}")


@dataclass(slots=True, eq=False)
class MemoryLease:
    """Memory that running work holds. A release of any of it waits until the lease is renewed or ends.

    A kernel looks at `stale` where it holds no address, and renews then; a copy ends soon.
    """

    ranges: AccessRanges
    held: HeldMemory
    stale: bool = False


class AddressMap:
    """The planes of a running kernel, ascending, and their bases: regions, the module's variables, parameters."""

    __slots__ = ("_fixed", "lease", "planes", "starts")

    def __init__(self, lease: MemoryLease, fixed: Iterable[Plane]) -> None:
        """Arrange the regions of a lease and planes that are never released."""
        self.lease, self._fixed = lease, tuple(fixed)
        self.arrange()

    def arrange(self) -> None:
        """Sort the planes again, after the lease was renewed."""
        self.planes = sorted([*self.lease.held.planes, *self._fixed], key=lambda plane: plane.base)
        self.starts = [plane.base for plane in self.planes]
