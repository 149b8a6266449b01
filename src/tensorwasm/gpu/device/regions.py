"""The address ranges that one session owns."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from tensorwasm.values import Region

_ADDRESS = attrgetter("address")


class RegionTable:
    """Disjoint regions, sorted by address. Replaced as a whole at each change, so that any thread may read it."""

    def __init__(self) -> None:
        self._regions: tuple[Region, ...] = ()

    def add(self, region: Region) -> None:
        """Add a region that overlaps none in the table."""
        at = bisect_right(self._regions, region.address, key=_ADDRESS)
        self._regions = (*self._regions[:at], region, *self._regions[at:])

    def remove(self, region: Region) -> None:
        """Remove a region that is in the table."""
        at = bisect_right(self._regions, region.address, key=_ADDRESS) - 1
        if at < 0 or self._regions[at] != region:
            raise ValueError(f"{region} is not in the table")
        self._regions = self._regions[:at] + self._regions[at + 1 :]

    def clear(self) -> None:
        """Remove all regions."""
        self._regions = ()

    def contains(self, address: int, length_bytes: int = 1) -> bool:
        """Return whether one region holds the whole range; an empty range counts as its first byte."""
        at = bisect_right(self._regions, address, key=_ADDRESS)
        return at > 0 and address + max(length_bytes, 1) <= self._regions[at - 1].end

    def snapshot(self) -> tuple[Region, ...]:
        """Return all regions, by address."""
        return self._regions
