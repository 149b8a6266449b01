"""Selections of lanes: which lanes of a batch an instruction runs for.

A selection is None (every lane), a slice (a contiguous run) or an ascending ``(n,) int64`` index array. The first two
let registers be used without copying them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Selection = slice | NDArray[np.int64] | None


def pick(values: Array, who: Selection) -> Array:
    """Return the selected lanes of a one-dimensional array; a view where possible."""
    if who is None:
        return values
    if type(who) is slice:
        return values[who]
    return values.take(who)


def indices(who: Selection, lanes: int) -> NDArray[np.int64]:
    """Return a selection of ``lanes`` lanes as an index array."""
    if who is None:
        return np.arange(lanes)
    if isinstance(who, slice):
        return np.arange(who.start, who.stop)
    return who


def select(index: NDArray[np.int64], lanes: int) -> Selection:
    """Return the tightest selection for a non-empty ascending index array."""
    if index.size == lanes:
        return None
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == index.size:
        return slice(first, last + 1)
    return index


def narrow(who: Selection, mask: NDArray[np.bool_], lanes: int) -> Selection:
    """Return the part of a selection where ``mask`` is set; at least one lane must be."""
    if who is None:
        return select(np.flatnonzero(mask), lanes)
    if type(who) is slice:
        return select(np.flatnonzero(mask) + who.start, lanes)
    return select(who[mask], lanes)


def merge(first: Selection, second: Selection, lanes: int) -> Selection:
    """Return the union of two disjoint selections."""
    mask = np.zeros(lanes, np.bool_)
    mask[first] = True
    mask[second] = True
    return select(np.flatnonzero(mask), lanes)
