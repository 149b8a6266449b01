"""What a launch may touch, and how memory is taken away from a kernel that may still touch it.

An `AllocationTable` hands out `AccessRanges`; work holds them by a `MemoryLease` while it runs. A release of memory
marks the leases on it as stale and waits until each has been renewed or has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.gpu.emulator.memory.planes import Plane, host_bytes

MemoryKind = Literal["device", "registered", "managed", "mapped"]
"""Device memory, registered host pages, managed memory, and memory mapped into a reserved range."""


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
