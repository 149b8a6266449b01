"""`Shares`: where on one GPU the shares of its workers lie, side by side, so that no two overlap.

How large the driver makes a share is known only where it is taken, so a place is said by the shares before it. So
nothing moves while somebody is behind it: who leaves leaves a gap of the same size, for whoever fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tensorwasm.values import SmPlacement


@dataclass(slots=True)
class _Cell:
    """A part of the row: multiprocessors that were asked for when it was made, and the worker that has it now."""

    multiprocessors: int
    owner: int | None


class Shares:
    """The shares of one GPU, one after the other. Not thread-safe.

    Args:
        sizes: of all shares that will be taken, in multiprocessors.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._unit = math.gcd(*sizes)
        self._cells: list[_Cell] = []

    def take(self, owner: int, multiprocessors: int) -> SmPlacement:
        """Return a place for a worker's share: the smallest gap that is large enough, else behind all others.

        Whether the GPU is large enough for it, its process finds out.
        """
        start, end = self._find_gap(multiprocessors)
        if start == end:
            self._cells.append(_Cell(multiprocessors, owner))
        for cell in self._cells[start:end]:
            cell.owner = owner
        return SmPlacement(self._unit, tuple(cell.multiprocessors for cell in self._cells[:start]))

    def leave(self, owner: int) -> None:
        """Note that a worker has gone; one without a share is fine."""
        for cell in self._cells:
            if cell.owner == owner:
                cell.owner = None
        while self._cells and self._cells[-1].owner is None:
            self._cells.pop()

    def _find_gap(self, multiprocessors: int) -> tuple[int, int]:
        """Return the cells of a gap, from and to; behind all cells, none."""
        found = len(self._cells), len(self._cells)
        smallest = math.inf
        for start in range(len(self._cells)):
            size = 0
            for end, cell in enumerate(self._cells[start:], start + 1):
                if cell.owner is not None:
                    break
                size += cell.multiprocessors
                if size >= multiprocessors:
                    found, smallest = ((start, end), size) if size < smallest else (found, smallest)
                    break
        return found
