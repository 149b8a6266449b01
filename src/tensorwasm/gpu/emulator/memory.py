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

from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.faults import Site, fault
from tensorwasm.gpu.emulator.frames import STRIDE_BYTES, Frames
from tensorwasm.gpu.emulator.geometry import Geometry
from tensorwasm.gpu.emulator.lanes import Array, Selection, indices, pick
from tensorwasm.gpu.emulator.planes import WINDOW_BYTES, Plane, show_place, tell_nearest
from tensorwasm.gpu.emulator.reach import Ground
from tensorwasm.gpu.emulator.shadow import Shadow

SHARED_WINDOW: Final = 1 << 60
LOCAL_WINDOW: Final = SHARED_WINDOW + WINDOW_BYTES
PARAM_WINDOW: Final = LOCAL_WINDOW + WINDOW_BYTES
PARAM_DISTANCE: Final = LOCAL_WINDOW - PARAM_WINDOW
"""What the address of a function's parameter has in front of its place among the locals, so that the window of
parameters leads there too."""
WINDOWS: Final = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}

Addresses = NDArray[np.uint64]
Index = int | slice | NDArray[np.int64]
Intent = Literal["load", "store", "atomic load", "atomic store", "update"]
Place = tuple[Plane, Index]
_LOADS: Final = ("load", "atomic load")
_STORES: Final = ("store", "atomic store")
_PLAIN: Final = ("load", "store")
Update = Callable[[Array, NDArray[np.int64], NDArray[np.int64] | None], Array]
"""A read-modify-write: takes the memory as elements, one index per access, and which accesses of the instruction these
are (None for all); returns what was there before."""


def to_local(addresses: Addresses) -> Addresses:
    """Return local addresses with those of functions' parameters replaced by their places among the locals.

    Source: PTX ISA 9.7.9.1 (a parameter whose address a function takes lies in its local memory).
    """
    places = addresses - np.uint64(PARAM_DISTANCE % (1 << 64))
    return np.where(places < np.uint64(1 << 40), places, addresses)


class Memory:
    """Memory of one batch. Addresses are ``(n,) uint64``, parallel to a selection of n lanes.

    Attributes:
        geometry: who the lanes are.
        shared_bytes: shared memory of one block.
        frames: local memory of the lanes.
        shadow: access history of shared memory.
    """

    def __init__(
        self,
        geometry: Geometry,
        ground: Ground,
        allocations: Allocations,
        atomicity: threading.Lock,
        shared_bytes: int,
        frame_bytes: int,
        granule_bytes: int,
        check: Callable[[], None],
    ) -> None:
        """Make shared and local memory, all zero, and shared memory uninitialised.

        Args:
            geometry: who the lanes are.
            ground: global, constant and parameter memory.
            allocations: the device's table, for naming what was freed.
            atomicity: held during every atomic update of global memory.
            shared_bytes: shared memory of one block.
            frame_bytes: local memory of one lane.
            granule_bytes: narrowest access to shared memory.
            check: looks at the clock.
        """
        self.geometry, self._allocations, self._atomicity = geometry, allocations, atomicity
        self._check = check
        self._ground = ground
        self._planes, self._starts = ground.planes, ground.starts
        self.shared_bytes = shared_bytes
        self._shared_stride = -(-shared_bytes // STRIDE_BYTES) * STRIDE_BYTES
        self._shared = Plane(0, np.zeros(self._shared_stride * geometry.blocks, np.uint8), "shared memory")
        self.frames = Frames(geometry.lanes, frame_bytes)
        self.shadow = Shadow(self._shared.data.size, granule_bytes, geometry.block, geometry.thread, geometry.warp)
        self._bases: dict[int, NDArray[np.int64]] = {}

    def settle(self) -> None:
        """Let go of memory that has been released. Nothing of it may be in hand: call it between two steps."""
        if self._ground.use.stale:
            self._ground.refresh()
            self._planes, self._starts = self._ground.planes, self._ground.starts

    def _place(
        self, space: str, site: Site, who: Selection, addresses: Addresses, size: int, intent: Intent
    ) -> Place | None:
        """Check accesses and find them; None if they lie in several planes, each of which has been checked to exist."""
        return _PLACES[space](self, site, who, addresses, size, intent)

    # ------------------------------------------------------------------------------------------ access

    def load(
        self,
        space: str,
        site: Site,
        who: Selection,
        addresses: Addresses,
        dtype: np.dtype[Any],
        count: int = 1,
        *,
        atomic: bool = False,
    ) -> Array:
        """Return what the lanes read: ``(n,)`` of ``dtype``, or ``(n, count)``.

        Raises:
            KernelFault: an access breaks a rule.
        """
        place = self._place(space, site, who, addresses, dtype.itemsize * count, "atomic load" if atomic else "load")
        if place is None:
            return self._load_parts(space, site, who, addresses, dtype, count, atomic=atomic)
        plane, index = place
        view = plane.view(dtype, count)
        if isinstance(index, int):
            return np.repeat(view[index : index + 1], addresses.size, axis=0)
        if isinstance(index, slice):
            return view[index].copy()
        return view.take(index, axis=0)

    def store(
        self,
        space: str,
        site: Site,
        who: Selection,
        addresses: Addresses,
        values: Array,
        *,
        atomic: bool = False,
    ) -> None:
        """Write ``(n,)`` or ``(n, count)`` values. Where lanes overlap, the last one wins.

        Raises:
            KernelFault: an access breaks a rule.
        """
        count = values.shape[1] if values.ndim == 2 else 1
        size = values.dtype.itemsize * count
        place = self._place(space, site, who, addresses, size, "atomic store" if atomic else "store")
        if place is None:
            for part, positions in self._parts(space, site, who, addresses, size):
                lanes = self._lanes(who)[positions]
                self.store(part, site, lanes, addresses[positions], values[positions], atomic=atomic)
            return
        plane, index = place
        view = plane.view(values.dtype, count)
        if isinstance(index, int):
            view[index] = values[-1]
            return
        view[index] = values
        if plane is self._shared and not atomic and not isinstance(index, slice):
            self._check_overlaps(site, who, index, size, view, values)

    def update(
        self, space: str, site: Site, who: Selection, addresses: Addresses, dtype: np.dtype[Any], run: Update
    ) -> Array:
        """Run an atomic update and return what was there before, ``(n,)`` of ``dtype``.

        Raises:
            KernelFault: an access breaks a rule.
        """
        place = self._place(space, site, who, addresses, dtype.itemsize, "update")
        if place is not None:
            plane, index = place
            with self._atomicity:
                return run(plane.view(dtype, 1), _flat(index, addresses.size), None)
        before = np.empty(addresses.size, dtype)
        for part, positions in self._parts(space, site, who, addresses, dtype.itemsize):
            lanes = self._lanes(who)[positions]

            def run_part(view: Array, index: NDArray[np.int64], inner: Array | None, at: Array = positions) -> Array:
                return run(view, index, at if inner is None else at[inner])

            before[positions] = self.update(part, site, lanes, addresses[positions], dtype, run_part)
        return before

    def unset(self, space: str, site: Site, who: Selection, addresses: Addresses, size_bytes: int) -> None:
        """Make shared memory uninitialised again; checked like a store.

        Raises:
            KernelFault: an access breaks a rule.
        """
        place = self._place(space, site, who, addresses, size_bytes, "store")
        if place is not None and place[0] is self._shared:
            self.shadow.unset(_flat(place[1], addresses.size), size_bytes)

    # ---------------------------------------------------------------------------------------- placement

    def _place_global(
        self, site: Site, who: Selection, addresses: Addresses, size: int, intent: Intent
    ) -> Place | None:
        low, high = int(addresses.min()), int(addresses.max())
        self._check_alignment(site, who, addresses, size)
        at = bisect_right(self._starts, low) - 1
        if at < 0 or high + size > self._planes[at].end:
            self._require_planes(site, who, addresses, size)
            return None
        plane = self._planes[at]
        if not plane.writable and intent not in _LOADS:
            self._fault(site, who, 0, f"writes {low:#x}, inside {plane.label} at {plane.base:#x}, which is read-only")
        origin = plane.base + plane.head(size)
        if low == high:
            return plane, (low - origin) // size
        if _ascending(addresses, low, high, size):
            first = (low - origin) // size
            return plane, slice(first, first + addresses.size)
        index = addresses - np.uint64(origin)
        index >>= np.uint64(size.bit_length() - 1)
        return plane, index.view(np.int64)

    def _place_generic(
        self, site: Site, who: Selection, addresses: Addresses, size: int, intent: Intent
    ) -> Place | None:
        low = int(addresses.min())
        if low < SHARED_WINDOW:
            if int(addresses.max()) < SHARED_WINDOW:
                return self._place_global(site, who, addresses, size, intent)
            return None
        space = next((name for name, window in WINDOWS.items() if window <= low < window + WINDOW_BYTES), None)
        if space is None:
            self._out_of_bounds(site, who, addresses, int(addresses.argmin()), size)
        if int(addresses.max()) >= WINDOWS[space] + WINDOW_BYTES:
            return None
        if space == "param":
            return self._place_global(site, who, addresses, size, intent)
        return self._place(space, site, who, addresses - np.uint64(WINDOWS[space]), size, intent)

    def _place_param(self, site: Site, who: Selection, addresses: Addresses, size: int, intent: Intent) -> Place | None:
        return self._place_generic(site, who, addresses + np.uint64(PARAM_WINDOW), size, intent)

    def _place_shared(self, site: Site, who: Selection, offsets: Addresses, size: int, intent: Intent) -> Place:
        if int(offsets.max()) + size > self.shared_bytes:
            at = int((offsets > self.shared_bytes - size).argmax()) if self.shared_bytes >= size else 0
            self._beyond(site, who, int(offsets[at]), at, size, "shared memory of the block", self.shared_bytes)
        self._check_alignment(site, who, offsets, size)
        index = (offsets >> np.uint64(size.bit_length() - 1)).view(np.int64)
        index += pick(self._base(size), who)
        note = self.shadow.store if intent in _STORES else self.shadow.load
        mistake = note(index, size, who, atomic=intent not in _PLAIN)
        if mistake is not None:
            self._fault(site, who, mistake[0], f"{mistake[1]} at shared address {int(offsets[mistake[0]]):#x}")
        return self._shared, index

    def _place_local(self, site: Site, who: Selection, offsets: Addresses, size: int, _intent: Intent) -> Place:
        limit = self.frames.size_bytes
        if int(offsets.max()) + size > limit:
            offsets = to_local(offsets)
        if int(offsets.max()) + size > limit:
            at = int((offsets > limit - size).argmax()) if limit >= size else 0
            self._beyond(site, who, int(offsets[at]), at, size, "local memory of the thread", limit)
        self._check_alignment(site, who, offsets, size)
        return self.frames.plane, self.frames.index(offsets, size, who)

    def _base(self, size: int) -> NDArray[np.int64]:
        found = self._bases.get(size)
        if found is None:
            found = self._bases[size] = self.geometry.block * (self._shared_stride // size)
        return found

    # ------------------------------------------------------------------------- accesses to several planes

    def _load_parts(
        self,
        space: str,
        site: Site,
        who: Selection,
        addresses: Addresses,
        dtype: np.dtype[Any],
        count: int,
        *,
        atomic: bool,
    ) -> Array:
        values = np.empty(addresses.size if count == 1 else (addresses.size, count), dtype)
        for part, positions in self._parts(space, site, who, addresses, dtype.itemsize * count):
            lanes = self._lanes(who)[positions]
            values[positions] = self.load(part, site, lanes, addresses[positions], dtype, count, atomic=atomic)
        return values

    def _parts(
        self, space: str, site: Site, who: Selection, addresses: Addresses, size: int
    ) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Split accesses so that each part lies in one plane; yield the space to access the part in and its positions.

        There may be as many parts as lanes, so the clock is looked at between them.
        """
        full = addresses + np.uint64(PARAM_WINDOW) if space == "param" else addresses
        above = full >= SHARED_WINDOW
        keys = np.where(above, -1 - (full >> np.uint64(52)).astype(np.int64), 0)
        below = np.flatnonzero(~above)
        if below.size:
            self._require_planes(site, who, full, size, below)
            keys[below] = np.searchsorted(np.array(self._starts, np.uint64), full[below], "right")
        for key in np.unique(keys):
            self._check()
            yield space, np.flatnonzero(keys == key)

    def _require_planes(
        self, site: Site, who: Selection, addresses: Addresses, size: int, among: Array | None = None
    ) -> None:
        some = addresses if among is None else addresses[among]
        at = np.searchsorted(np.array(self._starts, np.uint64), some, "right") - 1
        lasts = np.array([plane.end - size for plane in self._planes] or [0], np.int64).astype(np.uint64)
        bad = (at < 0) | (some > lasts[np.maximum(at, 0)])
        if bad.any():
            first = int(bad.argmax())
            self._out_of_bounds(site, who, addresses, first if among is None else int(among[first]), size)

    # ------------------------------------------------------------------------------------------- faults

    def _lanes(self, who: Selection) -> NDArray[np.int64]:
        return indices(who, self.geometry.lanes)

    def _fault(self, site: Site, who: Selection, position: int, reason: str) -> NoReturn:
        fault(self.geometry, site, int(self._lanes(who)[position]), reason)

    def _check_alignment(self, site: Site, who: Selection, addresses: Addresses, size: int) -> None:
        if int(np.bitwise_or.reduce(addresses)) & (size - 1):
            at = int((addresses & np.uint64(size - 1)).astype(np.bool_).argmax())
            reason = f"accesses {size} bytes at {show_place(self._planes, int(addresses[at]))}, which is misaligned"
            self._fault(site, who, at, reason)

    def _check_overlaps(
        self, site: Site, who: Selection, index: NDArray[np.int64], size: int, view: Array, values: Array
    ) -> None:
        lost = self.shadow.overlaps(index, size, who)
        if lost.any():
            differs = (view[index] != values).reshape(index.size, -1).any(axis=1)
            if differs.any():
                at = int(differs.argmax())
                offset = int(index[at] - pick(self._base(size), who)[at]) * size
                reason = f"races: another thread writes another value at shared address {offset:#x} at the same time"
                self._fault(site, who, at, reason)

    def _beyond(
        self, site: Site, who: Selection, offset: int, position: int, size: int, what: str, limit: int
    ) -> NoReturn:
        reason = f"accesses {size} bytes at {offset:#x}, outside the {limit} bytes of {what}"
        self._fault(site, who, position, reason)

    def _out_of_bounds(self, site: Site, who: Selection, addresses: Addresses, position: int, size: int) -> NoReturn:
        address = int(addresses[position])
        where = show_place(self._planes, address)
        freed = self._allocations.freed_near(address)
        near = tell_nearest(self._planes, address) if freed is None else f", {freed}"
        self._fault(site, who, position, f"accesses {size} bytes at {where}{near}")


def _ascending(addresses: Addresses, low: int, high: int, size: int) -> bool:
    if high - low != (addresses.size - 1) * size or int(addresses[0]) != low or int(addresses[-1]) != high:
        return False
    return bool((addresses[1:] - addresses[:-1] == size).all())


def _flat(index: Index, count: int) -> NDArray[np.int64]:
    if isinstance(index, int):
        return np.full(count, index, np.int64)
    if isinstance(index, slice):
        return np.arange(index.start, index.stop)
    return index


_PLACES: Final[dict[str, Callable[..., Place | None]]] = {
    "global": Memory._place_global,  # noqa: SLF001 - the table of the class's own methods
    "const": Memory._place_global,  # noqa: SLF001 - as above
    "generic": Memory._place_generic,  # noqa: SLF001 - as above
    "param": Memory._place_param,  # noqa: SLF001 - as above
    "shared": Memory._place_shared,  # noqa: SLF001 - as above
    "local": Memory._place_local,  # noqa: SLF001 - as above
}
