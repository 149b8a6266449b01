"""Where the emulator's global memory comes from: device allocations, host pages, module variables."""

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
from tensorwasm.gpu.emulator.planes import CONST_WINDOW, GLOBAL_BASE, HOST_BASE, Plane, host_bytes, shown_address
from tensorwasm.gpu.emulator.reach import Kind, Owner, Reach, Segment, Use
from tensorwasm.values import Region

ALIGN_BYTES: Final = 256
GUARD_BYTES: Final = 4096
_REMEMBERED: Final = 1024
_RECENT: Final = 8
"""Lists of regions that are not looked up anew; sessions launch with the same one many times."""


@dataclass(frozen=True, slots=True)
class Census:
    """How much memory there is of each kind, by its kind: how many pieces, and their bytes."""

    pieces: Counter[Kind] = field(default_factory=Counter)
    size_bytes: Counter[Kind] = field(default_factory=Counter)


class Allocations:
    """The allocation table. Every method may be called from any thread.

    Whoever releases memory waits until running work has let go of it: a copy when it is over, a kernel when it next
    looks, within a few steps; an access after that is a fault.

    Attributes:
        budget_bytes: most bytes of device memory, module variables and managed memory included.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._changed = threading.Condition(threading.Lock())
        self._owners: dict[int, Owner] = {}
        self._starts: list[int] = []
        self._variables: dict[int, Plane] = {}
        self._fenced: dict[int, int] = {}
        self._freed: OrderedDict[int, int] = OrderedDict()
        self._next = {False: GLOBAL_BASE, True: CONST_WINDOW}
        self._used_bytes = 0
        self._uses: set[Use] = set()
        self._releases = 0
        self._recent: deque[tuple[tuple[Region, ...], Reach]] = deque(maxlen=_RECENT)

    # -------------------------------------------------------------------------------------- device memory

    def allocate(self, size_bytes: int, pattern: int = 0) -> Plane:
        """Return new device memory, every byte of which is ``pattern``.

        Raises:
            QuotaExceeded: the budget has not so many bytes left.
        """
        with self._changed:
            plane = self._reserve(size_bytes, f"the {size_bytes}-byte allocation", constant=False)
            self._insert(Owner(plane, "device"))
        if pattern:
            plane.data.fill(pattern)
        return plane

    def declare(self, name: str, size_bytes: int, *, constant: bool) -> Plane:
        """Return zeroed memory for a module's variable.

        Raises:
            QuotaExceeded: the budget has not so many bytes left.
        """
        kind = "constant" if constant else "variable"
        with self._changed:
            plane = self._reserve(size_bytes, f"the {size_bytes}-byte {kind} {name}", constant=constant)
            self._variables[plane.base] = plane
            return plane

    def _reserve(self, size_bytes: int, label: str, *, constant: bool) -> Plane:
        self._check_budget(size_bytes)
        data = np.zeros(size_bytes, np.uint8)
        self._used_bytes += size_bytes
        base = self._next[constant]
        self._next[constant] = base + -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES + GUARD_BYTES
        return Plane(base, data, label, writable=not constant)

    def _check_budget(self, size_bytes: int) -> None:
        if size_bytes > self.budget_bytes - self._used_bytes:
            raise QuotaExceeded(
                f"{size_bytes} bytes of device memory asked, {self.budget_bytes - self._used_bytes} of "
                f"{self.budget_bytes} left"
            )

    def free(self, address: int) -> None:
        """Release device memory or a variable.

        Raises:
            LaunchRefused: nothing was allocated there.
        """
        with self._changed:
            plane = self._variables.pop(address, None)
            if plane is None:
                plane = self._withdraw(address, "device", f"no allocation at {address:#x}")
            self._used_bytes -= plane.data.size
            self._freed[address] = plane.data.size
            if len(self._freed) > _REMEMBERED:
                self._freed.popitem(last=False)

    def free_bytes(self) -> int:
        """Return what is left of the budget."""
        with self._changed:
            return self.budget_bytes - self._used_bytes

    # ---------------------------------------------------------------------------------------- host memory

    def register(self, address: int, size_bytes: int) -> None:
        """Make host pages reachable.

        Raises:
            LaunchRefused: the range is empty or overlaps one that is reachable already.
        """
        self.admit(address, size_bytes, "registered")

    def unregister(self, address: int) -> None:
        """Undo `register`.

        Raises:
            LaunchRefused: nothing is registered there.
        """
        self.dismiss(address, "registered")

    def admit(self, address: int, size_bytes: int, kind: Kind) -> None:
        """Make host memory of any kind reachable; managed memory is charged to the budget.

        Raises:
            LaunchRefused: the range is empty or overlaps one that is reachable already.
            QuotaExceeded: the budget has not so many bytes left.
        """
        with self._changed:
            if size_bytes < 1 or address < 1 or address + size_bytes > GLOBAL_BASE:
                raise LaunchRefused(f"no host memory of {size_bytes} bytes is there")
            at = bisect_left(self._starts, address + size_bytes) - 1
            if at >= 0 and self._owners[self._starts[at]].plane.end > address:
                raise LaunchRefused(f"host memory of {size_bytes} bytes overlaps what is registered already")
            if kind == "managed":
                self._check_budget(size_bytes)
                self._used_bytes += size_bytes
            self._insert(Owner(Plane(address, host_bytes(address, size_bytes), "host memory"), kind))

    def dismiss(self, address: int, kind: Kind) -> int:
        """Undo `admit`; return how many bytes there were.

        Raises:
            LaunchRefused: nothing of this kind begins there.
        """
        with self._changed:
            size_bytes = self._withdraw(address, kind, f"no host memory is {kind} there").data.size
            if kind == "managed":
                self._used_bytes -= size_bytes
            return size_bytes

    # ------------------------------------------------------------------------------------------- the table

    def _insert(self, owner: Owner) -> None:
        self._owners[owner.plane.base] = owner
        insort(self._starts, owner.plane.base)

    def _withdraw(self, address: int, kind: Kind, refusal: str) -> Plane:
        """Take an owner from the table, and from the work that holds it."""
        owner = self._owners.get(address)
        if owner is None or owner.kind != kind:
            raise LaunchRefused(refusal)
        del self._owners[address], self._starts[bisect_left(self._starts, address)]
        owner.gone = True
        self._releases += 1
        self._recent.clear()
        for use in self._uses:
            use.stale = use.stale or owner in use.holding.owners
        self._changed.wait_for(lambda: not any(owner in use.holding.owners for use in self._uses))
        return owner.plane

    def _owner_at(self, address: int) -> Owner | None:
        at = bisect_right(self._starts, address) - 1
        return self._owners[self._starts[at]] if at >= 0 else None

    def _segments(self, start: int, end: int) -> list[Segment] | None:
        """Return the parts of a range by owner; None if some of it is not there. Only mappings lie side by side."""
        found: list[Segment] = []
        while True:
            owner = self._owner_at(start)
            if owner is None or not owner.plane.base <= start <= owner.plane.end:
                return None
            if end <= owner.plane.end:
                return [*found, Segment(owner, start, end)]
            if owner.kind != "mapped" or start == owner.plane.end:
                return None
            found.append(Segment(owner, start, owner.plane.end))
            start = owner.plane.end

    def reach(self, regions: Sequence[Region]) -> Reach:
        """Return what a launch may touch.

        Raises:
            LaunchRefused: a region is not inside one allocation or registration.
        """
        key, found = tuple(regions), list[Segment]()
        with self._changed:
            for known, reach in self._recent:
                if known == key:
                    return reach
            for region in key:
                segments = self._segments(region.address, region.end)
                if segments is None or segments[0].owner.host != region.host:
                    where = shown_address(region.address)
                    raise LaunchRefused(f"the {region.size_bytes} bytes at {where} are not memory of this device")
                found += segments
            self._recent.append((key, reached := Reach.of(found)))
            return reached

    def reach_there(self, regions: Sequence[Region]) -> Reach:
        """Return what a launch may touch of those regions that are there."""
        try:
            return self.reach(regions)
        except LaunchRefused:
            return Reach.of(segment for region in regions for segment in self._there(region))

    def _there(self, region: Region) -> list[Segment]:
        with self._changed:
            found = self._segments(region.address, region.end) or []
        return found if found and found[0].owner.host == region.host else []

    def span(self, address: int, size_bytes: int) -> Reach | None:
        """Return a range of memory of any kind, or None if it is not there."""
        with self._changed:
            segments = self._segments(address, address + size_bytes) if size_bytes >= 0 else None
        return None if segments is None else Reach(tuple(segments))

    def host_span(self, address: int, size_bytes: int) -> Reach | None:
        """Return a range of host memory of the table, or None if it is host memory that the table does not know.

        Raises:
            LaunchRefused: it is no host memory, or only a part of it is there.
        """
        found = self.span(address, size_bytes)
        if found is not None and found.segments[0].owner.host:
            return found
        end = address + size_bytes
        with self._changed:
            below = self._owner_at(end - 1)
            part = below is not None and below.plane.end > address
            fenced = any(start < end and address < start + size for start, size in self._fenced.items())
        if address < HOST_BASE or end > GLOBAL_BASE or part or fenced:
            raise LaunchRefused(f"{size_bytes} bytes at {shown_address(address)} are not host memory")
        return None

    def fence(self, address: int, size_bytes: int) -> None:
        """Note a range of this process's addresses that nobody may touch, but for what is admitted in it."""
        with self._changed:
            self._fenced[address] = size_bytes

    def unfence(self, address: int) -> None:
        """Undo `fence`."""
        with self._changed:
            del self._fenced[address]

    @contextmanager
    def using(self, reach: Reach) -> Iterator[Use]:
        """Hold memory for the length of a ``with``."""
        with self._changed:
            use = Use(reach, reach.holding(self._releases), self._renew)
            self._uses.add(use)
        try:
            yield use
        finally:
            with self._changed:
                self._uses.discard(use)
                self._changed.notify_all()

    def _renew(self, use: Use) -> None:
        with self._changed:
            use.stale = False
            use.holding = use.reach.holding(self._releases)
            self._changed.notify_all()

    def clear(self) -> None:
        """Release everything but the host's pages, which are the caller's."""
        with self._changed:
            while self._owners:
                address, owner = next(iter(self._owners.items()))
                self._withdraw(address, owner.kind, "")
            self._variables.clear()
            self._fenced.clear()
            self._used_bytes = 0

    def freed_near(self, address: int) -> str | None:
        """Return what was freed at an address, or None."""
        with self._changed:
            for base, size in self._freed.items():
                if base <= address < base + size:
                    return f"inside a freed {size}-byte allocation at {base:#x} (use after free)"
        return None

    def census(self) -> Census:
        """Return how much there is."""
        census = Census()
        with self._changed:
            for owner in self._owners.values():
                census.pieces[owner.kind] += 1
                census.size_bytes[owner.kind] += owner.plane.data.size
        return census
