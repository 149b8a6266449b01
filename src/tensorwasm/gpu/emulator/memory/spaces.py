"""The address spaces of a batch of lanes, every access checked.

Global, constant and parameter memory are planes at their own addresses. Shared memory is one array for all blocks of
the batch, local memory one for all lanes; their addresses are offsets, and windows above every global address stand for
them in the generic space.

Source: PTX ISA 5.1 (State Spaces), 6.4.1.1 (Generic Addressing).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Array, BatchGeometry, Indices, Selection, indices, pick
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.emulator.memory.planes import (
    STRIDE_BYTES,
    WINDOW_BYTES,
    AddressMap,
    Frames,
    Plane,
    describe_miss,
    show_place,
)
from tensorwasm.gpu.emulator.memory.racecheck import RaceDetector
from tensorwasm.ptx.model import Instruction

SHARED_WINDOW: Final = 1 << 60
LOCAL_WINDOW: Final = SHARED_WINDOW + WINDOW_BYTES
PARAM_WINDOW: Final = LOCAL_WINDOW + WINDOW_BYTES
PARAM_DISTANCE: Final = LOCAL_WINDOW - PARAM_WINDOW
"""What is added to the local address of a function's parameter, so that adding the window of parameters leads there."""
WINDOWS: Final = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}

Addresses = NDArray[np.uint64]
Index = int | slice | Indices
Intent = Literal["load", "store", "atomic load", "atomic store", "update"]
Location = tuple[Plane, Index]
"""A plane, and where in it the accesses are, in units of their size."""
Update = Callable[[Array, Indices, Indices | None], Array]
"""A read-modify-write: takes the memory as elements, one index per access, and which accesses of the instruction these
are (None for all); returns the previous values."""


def to_local(addresses: Addresses) -> Addresses:
    """Replace addresses of functions' parameters by those of their places in local memory (PTX ISA 9.7.9.1)."""
    places = addresses - np.uint64(PARAM_DISTANCE % (1 << 64))
    return np.where(places < np.uint64(1 << 40), places, addresses)


class BatchMemory:
    """Memory of one batch. Addresses are ``(n,) uint64``, parallel to a selection of n lanes.

    Every access raises `KernelFault` if it breaks a rule.

    Attributes:
        frames: local memory of the lanes.
        races: access history of shared memory.
    """

    def __init__(
        self,
        geometry: BatchGeometry,
        address_map: AddressMap,
        allocations: AllocationTable,
        atomicity: threading.Lock,
        shared_bytes: int,
        frame_bytes: int,
        granule_bytes: int,
        check: Callable[[], None],
    ) -> None:
        """Make shared and local memory, all zero, and shared memory uninitialised.

        ``address_map`` is global, constant and parameter memory; ``atomicity`` is held during every atomic update of
        it. Shared memory is that of one block, a frame the local memory of one lane, a granule the narrowest access to
        shared memory. ``check`` raises an error when the kernel has to stop.
        """
        self.geometry, self._allocations, self._atomicity, self._check = geometry, allocations, atomicity, check
        self._map, self._planes, self._starts = address_map, address_map.planes, address_map.starts
        self.shared_bytes = shared_bytes
        self._shared_stride = -(-shared_bytes // STRIDE_BYTES) * STRIDE_BYTES
        self._shared = Plane(0, np.zeros(self._shared_stride * geometry.blocks, np.uint8), "shared memory")
        self.frames = Frames(geometry.lanes, frame_bytes)
        self.races = RaceDetector(self._shared.data.size, granule_bytes, geometry.block, geometry.thread, geometry.warp)
        self._bases: dict[int, Indices] = {}

    def drop_released(self) -> None:
        """Let go of memory that is to be released. No step may hold a part of it: call this between two steps."""
        if self._map.lease.stale:
            self._allocations.renew(self._map.lease)
            self._map.arrange()
            self._planes, self._starts = self._map.planes, self._map.starts

    # ------------------------------------------------------------------------------------------ access

    def load(
        self,
        space: str,
        site: Instruction,
        active: Selection,
        addresses: Addresses,
        dtype: np.dtype[Any],
        count: int = 1,
        *,
        atomic: bool = False,
    ) -> Array:
        """Return what the lanes read: ``(n,)`` of ``dtype``, or ``(n, count)``."""
        size = dtype.itemsize * count
        location = _LOCATE[space](self, site, active, addresses, size, "atomic load" if atomic else "load")
        if location is None:
            values = np.empty(addresses.size if count == 1 else (addresses.size, count), dtype)
            for lanes, part in self._parts(space, site, active, addresses, size):
                values[part] = self.load(space, site, lanes, addresses[part], dtype, count, atomic=atomic)
            return values
        plane, index = location
        view = plane.view(dtype, count)
        if isinstance(index, int):
            return np.repeat(view[index : index + 1], addresses.size, axis=0)
        if isinstance(index, slice):
            return view[index].copy()
        return view.take(index, axis=0)

    def store(
        self,
        space: str,
        site: Instruction,
        active: Selection,
        addresses: Addresses,
        values: Array,
        *,
        atomic: bool = False,
    ) -> None:
        """Write ``(n,)`` or ``(n, count)`` values. Where lanes overlap, the last one wins."""
        count = values.shape[1] if values.ndim == 2 else 1
        size = values.dtype.itemsize * count
        location = _LOCATE[space](self, site, active, addresses, size, "atomic store" if atomic else "store")
        if location is None:
            for lanes, part in self._parts(space, site, active, addresses, size):
                self.store(space, site, lanes, addresses[part], values[part], atomic=atomic)
            return
        plane, index = location
        view = plane.view(values.dtype, count)
        if isinstance(index, int):
            view[index] = values[-1]
            return
        view[index] = values
        if plane is self._shared and not atomic and not isinstance(index, slice):
            self._check_overlaps(site, active, index, size, view, values)

    def update(
        self, space: str, site: Instruction, active: Selection, addresses: Addresses, dtype: np.dtype[Any], run: Update
    ) -> Array:
        """Run an atomic update and return the previous values, ``(n,)`` of ``dtype``."""
        location = _LOCATE[space](self, site, active, addresses, dtype.itemsize, "update")
        if location is not None:
            plane, index = location
            with self._atomicity:
                return run(plane.view(dtype, 1), _flat(index, addresses.size), None)
        before = np.empty(addresses.size, dtype)
        for lanes, part in self._parts(space, site, active, addresses, dtype.itemsize):

            def run_part(view: Array, index: Indices, inner: Array | None, at: Array = part) -> Array:
                return run(view, index, at if inner is None else at[inner])

            before[part] = self.update(space, site, lanes, addresses[part], dtype, run_part)
        return before

    def unset(self, space: str, site: Instruction, active: Selection, addresses: Addresses, size_bytes: int) -> None:
        """Make shared memory uninitialised again; checked like a store."""
        location = _LOCATE[space](self, site, active, addresses, size_bytes, "store")
        if location is not None and location[0] is self._shared:
            self.races.unset(_flat(location[1], addresses.size), size_bytes)

    # ----------------------------------------------------------------------------- location, one method a space
    # Each checks accesses and returns where they are; None if they are in several planes, all of which exist.

    def _locate_global(
        self, site: Instruction, active: Selection, addresses: Addresses, size: int, intent: Intent
    ) -> Location | None:
        low, high = int(addresses.min()), int(addresses.max())
        self._check_alignment(site, active, addresses, size)
        at = bisect_right(self._starts, low) - 1
        if at < 0 or high + size > self._planes[at].end:
            self._require_planes(site, active, addresses, size)
            return None
        plane = self._planes[at]
        if not plane.writable and intent not in ("load", "atomic load"):
            reason = f"writes {low:#x}, inside {plane.label} at {plane.base:#x}, which is read-only"
            self._fault(site, active, 0, reason)
        origin = plane.base + plane.head(size)
        if low == high:
            return plane, (low - origin) // size
        if _is_contiguous(addresses, low, high, size):
            first = (low - origin) // size
            return plane, slice(first, first + addresses.size)
        index = addresses - np.uint64(origin)
        index >>= np.uint64(size.bit_length() - 1)
        return plane, index.view(np.int64)

    def _locate_generic(
        self, site: Instruction, active: Selection, addresses: Addresses, size: int, intent: Intent
    ) -> Location | None:
        low = int(addresses.min())
        if low < SHARED_WINDOW:
            if int(addresses.max()) < SHARED_WINDOW:
                return self._locate_global(site, active, addresses, size, intent)
            return None
        space = next((name for name, window in WINDOWS.items() if window <= low < window + WINDOW_BYTES), None)
        if space is None:
            self._out_of_bounds(site, active, addresses, int(addresses.argmin()), size)
        if int(addresses.max()) >= WINDOWS[space] + WINDOW_BYTES:
            return None
        if space == "param":
            return self._locate_global(site, active, addresses, size, intent)
        return _LOCATE[space](self, site, active, addresses - np.uint64(WINDOWS[space]), size, intent)

    def _locate_param(
        self, site: Instruction, active: Selection, addresses: Addresses, size: int, intent: Intent
    ) -> Location | None:
        return self._locate_generic(site, active, addresses + np.uint64(PARAM_WINDOW), size, intent)

    def _locate_shared(
        self, site: Instruction, active: Selection, offsets: Addresses, size: int, intent: Intent
    ) -> Location:
        self._check_bounds(site, active, offsets, size, "shared memory of the block", self.shared_bytes)
        self._check_alignment(site, active, offsets, size)
        index = (offsets >> np.uint64(size.bit_length() - 1)).view(np.int64)
        index += pick(self._base(size), active)
        note = self.races.store if intent in ("store", "atomic store") else self.races.load
        mistake = note(index, size, active, atomic=intent not in ("load", "store"))
        if mistake is not None:
            self._fault(site, active, mistake[0], f"{mistake[1]} at shared address {int(offsets[mistake[0]]):#x}")
        return self._shared, index

    def _locate_local(
        self, site: Instruction, active: Selection, offsets: Addresses, size: int, _intent: Intent
    ) -> Location:
        limit = self.frames.size_bytes
        if int(offsets.max()) + size > limit:
            offsets = to_local(offsets)
            self._check_bounds(site, active, offsets, size, "local memory of the thread", limit)
        self._check_alignment(site, active, offsets, size)
        return self.frames.plane, self.frames.index(offsets, size, active)

    def _base(self, size: int) -> Indices:
        """Return the index of each lane's shared memory, in units of ``size`` bytes."""
        found = self._bases.get(size)
        if found is None:
            found = self._bases[size] = self.geometry.block * (self._shared_stride // size)
        return found

    # ------------------------------------------------------------------------- accesses to several planes

    def _parts(
        self, space: str, site: Instruction, active: Selection, addresses: Addresses, size: int
    ) -> Iterator[tuple[Indices, Indices]]:
        """Split accesses so that each part is in one plane; yield lanes and positions of each part."""
        full = addresses + np.uint64(PARAM_WINDOW) if space == "param" else addresses
        above = full >= SHARED_WINDOW
        keys = np.where(above, -1 - (full >> np.uint64(52)).astype(np.int64), 0)
        below = np.flatnonzero(~above)
        if below.size:
            self._require_planes(site, active, full, size, below)
            keys[below] = np.searchsorted(np.array(self._starts, np.uint64), full[below], "right")
        lanes = indices(active, self.geometry.lanes)
        for key in np.unique(keys):
            self._check()  # there may be as many parts as lanes
            part = np.flatnonzero(keys == key)
            yield lanes[part], part

    def _require_planes(
        self, site: Instruction, active: Selection, addresses: Addresses, size: int, among: Indices | None = None
    ) -> None:
        some = addresses if among is None else addresses[among]
        at = np.searchsorted(np.array(self._starts, np.uint64), some, "right") - 1
        lasts = np.array([plane.end - size for plane in self._planes] or [0], np.int64).astype(np.uint64)
        bad = (at < 0) | (some > lasts[np.maximum(at, 0)])
        if bad.any():
            first = int(bad.argmax())
            self._out_of_bounds(site, active, addresses, first if among is None else int(among[first]), size)

    # ------------------------------------------------------------------------------------------- faults

    def _fault(self, site: Instruction, active: Selection, position: int, reason: str) -> NoReturn:
        self.geometry.fault(site, int(indices(active, self.geometry.lanes)[position]), reason)

    def _check_alignment(self, site: Instruction, active: Selection, addresses: Addresses, size: int) -> None:
        if int(np.bitwise_or.reduce(addresses)) & (size - 1):
            at = int((addresses & np.uint64(size - 1)).astype(np.bool_).argmax())
            reason = f"accesses {size} bytes at {show_place(self._planes, int(addresses[at]))}, which is misaligned"
            self._fault(site, active, at, reason)

    def _check_bounds(
        self, site: Instruction, active: Selection, offsets: Addresses, size: int, what: str, limit: int
    ) -> None:
        if int(offsets.max()) + size > limit:
            at = int((offsets > limit - size).argmax()) if limit >= size else 0
            reason = f"accesses {size} bytes at {int(offsets[at]):#x}, outside the {limit} bytes of {what}"
            self._fault(site, active, at, reason)

    def _check_overlaps(
        self, site: Instruction, active: Selection, index: Indices, size: int, view: Array, values: Array
    ) -> None:
        if self.races.overlaps(index, size, active).any():
            differs = (view[index] != values).reshape(index.size, -1).any(axis=1)
            if differs.any():
                at = int(differs.argmax())
                offset = int(index[at] - pick(self._base(size), active)[at]) * size
                reason = f"races: another thread writes another value at shared address {offset:#x} at the same time"
                self._fault(site, active, at, reason)

    def _out_of_bounds(
        self, site: Instruction, active: Selection, addresses: Addresses, position: int, size: int
    ) -> NoReturn:
        address = int(addresses[position])
        freed = self._allocations.describe_freed(address)
        near = describe_miss(self._planes, address) if freed is None else f", {freed}"
        self._fault(site, active, position, f"accesses {size} bytes at {show_place(self._planes, address)}{near}")


def _is_contiguous(addresses: Addresses, low: int, high: int, size: int) -> bool:
    if high - low != (addresses.size - 1) * size or int(addresses[0]) != low or int(addresses[-1]) != high:
        return False
    return bool((addresses[1:] - addresses[:-1] == size).all())


def _flat(index: Index, count: int) -> Indices:
    """Return an index as one index per access."""
    if isinstance(index, int):
        return np.full(count, index, np.int64)
    if isinstance(index, slice):
        return np.arange(index.start, index.stop)
    return index


_LOCATE: Final[dict[str, Callable[..., Location | None]]] = {
    "global": BatchMemory._locate_global,  # noqa: SLF001 - the table of the class's own methods
    "const": BatchMemory._locate_global,  # noqa: SLF001 - as above
    "generic": BatchMemory._locate_generic,  # noqa: SLF001 - as above
    "param": BatchMemory._locate_param,  # noqa: SLF001 - as above
    "shared": BatchMemory._locate_shared,  # noqa: SLF001 - as above
    "local": BatchMemory._locate_local,  # noqa: SLF001 - as above
}
