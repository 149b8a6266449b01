"""What one piece of work may touch, and how memory is taken away from work that may still touch it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.gpu.emulator.planes import Plane, host_bytes

Kind = Literal["device", "registered", "managed", "mapped"]
"""Device memory, registered host pages, managed memory, and memory mapped into a reserved range."""


@dataclass(slots=True, eq=False)
class Owner:
    """One allocation, registration or mapping.

    Attributes:
        plane: all of it.
        kind: what it is.
        gone: it has been released; nothing may touch it any more.
    """

    plane: Plane
    kind: Kind
    gone: bool = False

    @property
    def host(self) -> bool:
        """Whether the host reaches it under the same address."""
        return self.kind != "device"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of one owner: addresses ``start`` to ``end - 1``."""

    owner: Owner
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What of a reach is there, at one time.

    Attributes:
        releases: how many releases the table had seen then; without another, it is still so.
        owners: what is held.
        planes: the memory, ascending; mappings side by side are one plane.
    """

    releases: int
    owners: frozenset[Owner]
    planes: tuple[Plane, ...]


@dataclass(slots=True, eq=False)
class Reach:
    """Memory that work may touch.

    Attributes:
        segments: ascending; none overlap.
    """

    segments: tuple[Segment, ...] = ()
    _holding: Holding | None = None

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Reach:
        """Join segments that overlap or touch inside one owner."""
        found: list[Segment] = []
        for segment in sorted(segments, key=lambda one: one.start):
            last = found[-1] if found else None
            if last is not None and last.owner is segment.owner and segment.start <= last.end:
                found[-1] = Segment(last.owner, last.start, max(last.end, segment.end))
            else:
                found.append(segment)
        return cls(tuple(found))

    def holding(self, releases: int) -> Holding:
        """Return what is still there, given how many releases the table has seen."""
        if self._holding is None or self._holding.releases != releases:
            there = [segment for segment in self.segments if not segment.owner.gone]
            owners = frozenset(segment.owner for segment in there)
            self._holding = Holding(releases, owners, tuple(_planes(there)))
        return self._holding


def _planes(segments: Iterable[Segment]) -> Iterator[Plane]:
    run: list[Segment] = []
    for segment in segments:
        if run and run[-1].end == segment.start and run[-1].owner.kind == segment.owner.kind == "mapped":
            run.append(segment)
            continue
        if run:
            yield _plane(run[0].owner, run[0].start, run[-1].end)
        run = [segment]
    if run:
        yield _plane(run[0].owner, run[0].start, run[-1].end)


def _plane(owner: Owner, start: int, end: int) -> Plane:
    whole = owner.plane
    if not owner.host and (start, end) == (whole.base, whole.end):
        return whole
    if end > whole.end:
        return Plane(start, host_bytes(start, end - start), f"the {end - start}-byte host region")
    kind = "host region" if owner.host else "region"
    return Plane(start, whole.data[start - whole.base : end - whole.base], f"the {end - start}-byte {kind}")


NOWHERE: Final = Reach()
"""Work that may touch nothing."""


class Use:
    """Memory that running work holds. While it holds an owner, whoever releases that owner waits.

    A kernel looks at `stale` where it holds no address, and refreshes then; a copy is over soon.

    Attributes:
        reach: what was asked for.
        holding: what of it is there and held.
        stale: an owner that is held is to be let go.
    """

    __slots__ = ("_renew", "holding", "reach", "stale")

    def __init__(self, reach: Reach, holding: Holding, renew: Callable[[Use], None]) -> None:
        self.reach, self.holding, self._renew = reach, holding, renew
        self.stale = False

    def refresh(self) -> None:
        """Let go of what has been released."""
        self._renew(self)


class Ground:
    """The planes of a running kernel: its regions, and what it has besides.

    Attributes:
        use: its regions.
        planes: everything, ascending.
        starts: their bases.
    """

    __slots__ = ("_fixed", "planes", "starts", "use")

    def __init__(self, use: Use, fixed: Iterable[Plane]) -> None:
        self.use = use
        self._fixed = tuple(fixed)
        self._arrange()

    def refresh(self) -> None:
        """Let go of what has been released."""
        self.use.refresh()
        self._arrange()

    def _arrange(self) -> None:
        self.planes = sorted([*self.use.holding.planes, *self._fixed], key=lambda plane: plane.base)
        self.starts = [plane.base for plane in self.planes]
