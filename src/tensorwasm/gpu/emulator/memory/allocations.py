"""The table of global memory: device allocations, host pages, module variables; and device memory under a cap."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tensorwasm.errors import LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.memory.planes import (
    CONST_WINDOW,
    GLOBAL_BASE,
    HOST_BASE,
    AccessRanges,
    Allocation,
    MemoryKind,
    MemoryLease,
    Plane,
    Segment,
    host_bytes,
    show_address,
)
from tensorwasm.values import Region

ALIGN_BYTES: Final = 256
GUARD_BYTES: Final = 4096
_REMEMBERED_RELEASES: Final = 1024
_RECENT_LOOKUPS: Final = 8
"""Lists of regions whose ranges are kept: sessions launch with the same list many times."""


class AllocationTable:
    """The allocation table of a device. Every method may be called from any thread.

    A release waits until running work has let go of the memory: a copy when it ends, a kernel at its next check, a few
    steps later. An access after that is a fault.

    The budget bounds device memory, module variables and managed memory; an allocation beyond it raises
    `QuotaExceeded`. A release or look-up of memory that is not in the table raises `LaunchRefused`, as does host memory
    that is empty or overlaps other memory.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._changed = threading.Condition(threading.Lock())
        self._table: dict[int, Allocation] = {}
        self._starts: list[int] = []
        self._variables: dict[int, Plane] = {}
        self._reserved: dict[int, int] = {}
        self._freed: OrderedDict[int, int] = OrderedDict()
        self._next = {False: GLOBAL_BASE, True: CONST_WINDOW}
        self._leases: set[MemoryLease] = set()
        self._releases = 0
        self._recent: deque[tuple[tuple[Region, ...], AccessRanges]] = deque(maxlen=_RECENT_LOOKUPS)

    # -------------------------------------------------------------------------------------- device memory

    def allocate(self, size_bytes: int, pattern: int = 0) -> int:
        """Return the address of new device memory, every byte of which is ``pattern``."""
        with self._changed:
            plane = self._new_plane(size_bytes, f"the {size_bytes}-byte allocation", constant=False)
            self._insert(Allocation(plane, "device"))
        if pattern:
            plane.data.fill(pattern)
        return plane.base

    def declare(self, name: str, size_bytes: int, *, constant: bool) -> Plane:
        """Return zeroed memory for a module's variable."""
        kind = "constant" if constant else "variable"
        with self._changed:
            plane = self._new_plane(size_bytes, f"the {size_bytes}-byte {kind} {name}", constant=constant)
            self._variables[plane.base] = plane
            return plane

    def _new_plane(self, size_bytes: int, label: str, *, constant: bool) -> Plane:
        self._check_budget(size_bytes)
        data = np.zeros(size_bytes, np.uint8)
        self._used_bytes += size_bytes
        base = self._next[constant]
        self._next[constant] = base + -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES + GUARD_BYTES
        return Plane(base, data, label, writable=not constant)

    def _check_budget(self, size_bytes: int) -> None:
        left_bytes = self._budget_bytes - self._used_bytes
        if size_bytes > left_bytes:
            raise QuotaExceeded(
                f"{size_bytes} bytes of device memory requested, {left_bytes} of {self._budget_bytes} left"
            )

    def free(self, address: int) -> None:
        """Release device memory or a variable."""
        with self._changed:
            plane = self._variables.pop(address, None)
            if plane is None:
                plane = self._withdraw(address, "device", f"no allocation at {address:#x}")
            self._used_bytes -= plane.data.size
            self._freed[address] = plane.data.size
            if len(self._freed) > _REMEMBERED_RELEASES:
                self._freed.popitem(last=False)

    def charge(self, size_bytes: int) -> None:
        """Take from the budget; a negative number is given back."""
        with self._changed:
            self._check_budget(size_bytes)
            self._used_bytes += size_bytes

    def free_bytes(self) -> int:
        """Return what is left of the budget."""
        with self._changed:
            return self._budget_bytes - self._used_bytes

    # ---------------------------------------------------------------------------------------- host memory

    def add_host(self, address: int, size_bytes: int, kind: MemoryKind) -> None:
        """Make host memory reachable; managed memory is charged to the budget."""
        with self._changed:
            if size_bytes < 1 or address < 1 or address + size_bytes > GLOBAL_BASE:
                raise LaunchRefused(f"no host memory of {size_bytes} bytes is there")
            at = bisect_left(self._starts, address + size_bytes) - 1
            if at >= 0 and self._table[self._starts[at]].plane.end > address:
                raise LaunchRefused(f"host memory of {size_bytes} bytes overlaps what is registered already")
            if kind == "managed":
                self._check_budget(size_bytes)
                self._used_bytes += size_bytes
            self._insert(Allocation(Plane(address, host_bytes(address, size_bytes), "host memory"), kind))

    def remove_host(self, address: int, kind: MemoryKind) -> int:
        """Undo `add_host`; return how many bytes there were."""
        with self._changed:
            size_bytes = self._withdraw(address, kind, f"no host memory is {kind} there").data.size
            if kind == "managed":
                self._used_bytes -= size_bytes
            return size_bytes

    def add_reserved(self, address: int, size_bytes: int) -> None:
        """Note a range of this process's addresses that no copy may touch, except where host memory is added."""
        with self._changed:
            self._reserved[address] = size_bytes

    def remove_reserved(self, address: int) -> None:
        """Undo `add_reserved`."""
        with self._changed:
            del self._reserved[address]

    # --------------------------------------------------------------------------------- insertion, removal

    def _insert(self, allocation: Allocation) -> None:
        self._table[allocation.plane.base] = allocation
        insort(self._starts, allocation.plane.base)

    def _withdraw(self, address: int, kind: MemoryKind, refusal: str) -> Plane:
        """Take an allocation from the table, and wait until no lease holds it."""
        allocation = self._table.get(address)
        if allocation is None or allocation.kind != kind:
            raise LaunchRefused(refusal)
        del self._table[address], self._starts[bisect_left(self._starts, address)]
        allocation.released = True
        self._releases += 1
        self._recent.clear()
        for lease in self._leases:
            lease.stale = lease.stale or allocation in lease.held.allocations
        self._changed.wait_for(lambda: not any(allocation in lease.held.allocations for lease in self._leases))
        return allocation.plane

    def clear(self) -> None:
        """Release everything except the host's pages, which are the caller's."""
        with self._changed:
            while self._table:
                address, allocation = next(iter(self._table.items()))
                self._withdraw(address, allocation.kind, "")
            self._variables.clear()
            self._reserved.clear()
            self._used_bytes = 0

    # ---------------------------------------------------------------------------------------------- look-up

    def _allocation_at(self, address: int) -> Allocation | None:
        """Return the last allocation that begins at or before an address."""
        at = bisect_right(self._starts, address) - 1
        return self._table[self._starts[at]] if at >= 0 else None

    def _segments(self, start: int, end: int) -> list[Segment] | None:
        """Return the parts of a range by allocation; None if some of it is absent. Only mappings are adjacent."""
        found: list[Segment] = []
        while True:
            allocation = self._allocation_at(start)
            if allocation is None or not allocation.plane.base <= start <= allocation.plane.end:
                return None
            if end <= allocation.plane.end:
                return [*found, Segment(allocation, start, end)]
            if allocation.kind != "mapped" or start == allocation.plane.end:
                return None
            found.append(Segment(allocation, start, allocation.plane.end))
            start = allocation.plane.end

    def _region(self, region: Region) -> list[Segment]:
        """Return the segments of a region; none if it is not memory of this device."""
        found = self._segments(region.address, region.end) or []
        return found if found and found[0].allocation.host == region.host else []

    def ranges(self, regions: Sequence[Region]) -> AccessRanges:
        """Return what a launch with these regions may touch."""
        key, found = tuple(regions), list[Segment]()
        with self._changed:
            for known, ranges in self._recent:
                if known == key:
                    return ranges
            for region in key:
                segments = self._region(region)
                if not segments:
                    where = show_address(region.address)
                    raise LaunchRefused(f"the {region.size_bytes} bytes at {where} are not memory of this device")
                found += segments
            self._recent.append((key, made := AccessRanges.of(found)))
            return made

    def present_ranges(self, regions: Sequence[Region]) -> AccessRanges:
        """Return what a launch may touch of those regions that are present."""
        try:
            return self.ranges(regions)
        except LaunchRefused:
            with self._changed:
                return AccessRanges.of(segment for region in regions for segment in self._region(region))

    def span(self, address: int, size_bytes: int) -> AccessRanges | None:
        """Return a range of memory of any kind, or None if it is absent."""
        with self._changed:
            segments = self._segments(address, address + size_bytes) if size_bytes >= 0 else None
        return None if segments is None else AccessRanges(tuple(segments))

    def host_span(self, address: int, size_bytes: int) -> AccessRanges | None:
        """Return a range of the table's host memory, or None if it is host memory that the table does not know."""
        found = self.span(address, size_bytes)
        if found is not None and found.segments[0].allocation.host:
            return found
        end = address + size_bytes
        with self._changed:
            below = self._allocation_at(end - 1)
            part = below is not None and below.plane.end > address
            reserved = any(start < end and address < start + size for start, size in self._reserved.items())
        if address < HOST_BASE or end > GLOBAL_BASE or part or reserved:
            raise LaunchRefused(f"{size_bytes} bytes at {show_address(address)} are not host memory")
        return None

    def describe_freed(self, address: int) -> str | None:
        """Return, for messages, which freed allocation an address was in, or None."""
        with self._changed:
            for base, size in self._freed.items():
                if base <= address < base + size:
                    return f"inside a freed {size}-byte allocation at {base:#x} (use after free)"
        return None

    def totals(self) -> tuple[Counter[MemoryKind], Counter[MemoryKind]]:
        """Return how many allocations there are of each kind, and their bytes."""
        count, size_bytes = Counter[MemoryKind](), Counter[MemoryKind]()
        with self._changed:
            for allocation in self._table.values():
                count[allocation.kind] += 1
                size_bytes[allocation.kind] += allocation.plane.data.size
        return count, size_bytes

    # ----------------------------------------------------------------------------------------------- leases

    @contextmanager
    def lease(self, ranges: AccessRanges) -> Iterator[MemoryLease]:
        """Hold memory for the length of a ``with``."""
        with self._changed:
            lease = MemoryLease(ranges, ranges.held(self._releases))
            self._leases.add(lease)
        try:
            yield lease
        finally:
            with self._changed:
                self._leases.discard(lease)
                self._changed.notify_all()

    def renew(self, lease: MemoryLease) -> None:
        """Let a lease go of memory that is to be released."""
        with self._changed:
            lease.stale = False
            lease.held = lease.ranges.held(self._releases)
            self._changed.notify_all()


# ---------------------------------------------------------------------------------------------------------------- pools

GRANULARITY_BYTES: Final = 2 << 20
"""A cap is rounded up to a multiple of it, as hardware does."""
PATTERN: Final = 0xA5
"""What memory of a pool is filled with, so that no test can take it for cleared."""


@dataclass(slots=True, eq=False)
class EmulatedPool:
    """A cap, and what has been allocated under it, in bytes by address."""

    cap_bytes: int
    used_bytes: int = 0
    allocated: dict[int, int] = field(default_factory=dict)


class EmulatedPools:
    """The open pools of a device; others are refused with `InvalidHandle`."""

    capped: Final = True

    def __init__(self, allocations: AllocationTable) -> None:
        self._allocations = allocations
        self._lock = threading.Lock()
        self.open: Final = OpenObjects(EmulatedPool, "the pool is not open on this device")

    def open_pool(self, max_bytes: int) -> Pool:
        """Return a pool that holds at most that many bytes, rounded up to `GRANULARITY_BYTES`."""
        return self.open.add(EmulatedPool(-(-max_bytes // GRANULARITY_BYTES) * GRANULARITY_BYTES))

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """Return the address of memory of the pool, 256-byte aligned and full of `PATTERN`."""
        own = self.open.require(pool)
        charged_bytes = -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        with self._lock:
            left_bytes = own.cap_bytes - own.used_bytes
            if charged_bytes > left_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes of a pool requested, {left_bytes} of {own.cap_bytes} left")
            own.used_bytes += charged_bytes
        try:
            address = self._allocations.allocate(size_bytes, PATTERN)
        except BaseException:
            with self._lock:
                own.used_bytes -= charged_bytes
            raise
        with self._lock:
            own.allocated[address] = charged_bytes
        return address

    def pool_free(self, pool: Pool, address: int) -> None:
        """Return memory to the pool."""
        own = self.open.require(pool)
        with self._lock:
            charged_bytes = own.allocated.pop(address, None)
        if charged_bytes is None:
            raise LaunchRefused(f"the pool has no memory at {address:#x}")
        self._allocations.free(address)
        with self._lock:
            own.used_bytes -= charged_bytes

    def close_pool(self, pool: Pool) -> None:
        """Release a pool."""
        if isinstance(pool, EmulatedPool) and pool.used_bytes:
            raise LaunchRefused(f"{pool.used_bytes} bytes are still allocated from the pool")
        self.open.discard(pool)
