"""Atomic operations of lanes that may meet at one address, in lane order.

Each update takes the memory as elements, one element index and one operand (or two) per access, writes the outcome and
returns what each access found. ``check`` raises an error when the kernel has to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.lanes import Array, Indices

Check = Callable[[], None]
_ROUNDS_PER_CHECK: Final = 256


class Segments:
    """Accesses sorted by address, stably: a segment is all accesses to one element, in lane order.

    ``order`` has the position of each sorted access; the others are of each segment: its first sorted access, its
    number of accesses and its element.
    """

    def __init__(self, index: Indices) -> None:
        self.order = np.argsort(_sort_keys(index), kind="stable")
        ranked = index[self.order]
        self.starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
        self.sizes = np.diff(np.append(self.starts, index.size))
        self.elements = ranked[self.starts]

    def rounds(self, check: Check) -> Iterator[tuple[Indices, Indices]]:
        """Yield, for the first, second, ... access of every segment, positions of the accesses and their elements."""
        for rank in range(int(self.sizes.max())):
            if rank % _ROUNDS_PER_CHECK == 0:
                check()
            alive = self.sizes > rank
            yield self.order[self.starts[alive] + rank], self.elements[alive]

    def unsort(self, ranked: Array) -> Array:
        """Return values of sorted accesses in the order of the accesses."""
        values = np.empty_like(ranked)
        values[self.order] = ranked
        return values


def are_distinct(index: Indices) -> bool:
    """Return whether no two accesses meet."""
    if index.size == 1:
        return True
    steps = index[1:] - index[:-1]
    if int(steps.min()) > 0:
        return True
    ranked = np.sort(_sort_keys(index), kind="stable")
    return not bool((ranked[1:] == ranked[:-1]).any())


def _sort_keys(index: Indices) -> Array:
    """Return keys in the same order, of 16 bits where that is enough: NumPy sorts those by radix."""
    low = int(index.min())
    return (index - low).astype(np.uint16) if int(index.max()) - low < 1 << 16 else index


def apply_only(function: np.ufunc, view: Array, index: Indices, operands: Sequence[Array], _check: Check) -> Array:
    """Update with a binary function where the previous values are not wanted; what it returns has no meaning."""
    function.at(view, index, operands[0])
    return operands[0]


def in_rounds(
    combine: Callable[..., Array], view: Array, index: Indices, operands: Sequence[Array], check: Check
) -> Array:
    """Update in as many rounds as there are accesses to the element with the most."""
    if are_distinct(index):
        before = view[index]
        view[index] = combine(before, *operands)
        return before
    before = np.empty(index.size, view.dtype)
    for positions, elements in Segments(index).rounds(check):
        found = view[elements]
        before[positions] = found
        view[elements] = combine(found, *(operand[positions] for operand in operands))
    return before


def accumulate(function: np.ufunc, view: Array, index: Indices, operands: Sequence[Array], check: Check) -> Array:
    """Update with a binary function; elements with many accesses are updated by running totals."""
    (operand,) = operands
    if are_distinct(index):
        before = view[index]
        view[index] = function(before, operand)
        return before
    segments = Segments(index)
    if segments.sizes.size >= int(segments.sizes.max()):
        return in_rounds(function, view, index, operands, check)
    before = np.empty(index.size, view.dtype)
    for turn, (start, size, element) in enumerate(zip(segments.starts, segments.sizes, segments.elements, strict=True)):
        if turn % _ROUNDS_PER_CHECK == 0:
            check()
        positions = segments.order[start : start + size]
        totals = function.accumulate(
            np.concatenate((view[element : element + 1], operand[positions])), dtype=view.dtype
        )
        before[positions] = totals[:-1]
        view[element] = totals[-1]
    return before


def exchange(view: Array, index: Indices, operand: Array) -> Array:
    """Exchange: every access finds what the one before it left."""
    segments = Segments(index)
    ranked = operand[segments.order]
    found = np.empty_like(ranked)
    found[1:] = ranked[:-1]
    found[segments.starts] = view[segments.elements]
    view[segments.elements] = ranked[segments.starts + segments.sizes - 1]
    return segments.unsort(found)


def compare_and_swap(view: Array, index: Indices, operands: Sequence[Array], check: Check) -> Array:
    """Compare and swap, given expected and wanted values; a round is a swap of each element that succeeds."""
    segments = Segments(index)
    expected, wanted = (operand[segments.order] for operand in operands)
    owner = np.repeat(np.arange(segments.starts.size), segments.sizes)
    rank = np.arange(index.size)
    current = view[segments.elements]
    done = segments.starts.copy()
    found = np.empty_like(expected)
    turn = 0
    while True:
        if turn % _ROUNDS_PER_CHECK == 0:
            check()
        turn += 1
        waiting = rank >= done[owner]
        found[waiting] = current[owner[waiting]]
        swaps = np.flatnonzero(waiting & (expected == current[owner]) & (wanted != current[owner]))
        if not swaps.size:
            break
        winners, first = np.unique(owner[swaps], return_index=True)
        at = swaps[first]
        current[winners] = wanted[at]
        done[winners] = at + 1
        others = np.ones(done.size, np.bool_)
        others[winners] = False
        done[others] = (segments.starts + segments.sizes)[others]
    view[segments.elements] = current
    return segments.unsort(found)


def flush(values: Array) -> Array:
    """Return single-precision values with subnormal ones replaced by zeros of their sign."""
    small = np.abs(values) < np.finfo(np.float32).tiny
    cleared: Array = np.where(small, np.copysign(np.float32(0), values), values)
    return cleared


def increment(value: Array, bound: Array) -> Array:
    """Count up, from the bound (or above it) to 0."""
    counted: Array = np.where(value >= bound, value.dtype.type(0), value + value.dtype.type(1))
    return counted


def decrement(value: Array, bound: Array) -> Array:
    """Count down, from 0 (or from above the bound) to the bound."""
    counted: Array = np.where((value == 0) | (value > bound), bound, value - value.dtype.type(1))
    return counted


def count_cyclic(direction: int, view: Array, index: Indices, bound: int) -> Array:
    """Count up or down with one bound for all accesses, however many meet."""
    segments = Segments(index)
    start = np.repeat(view[segments.elements], segments.sizes).astype(np.uint64)
    rank = (np.arange(index.size) - np.repeat(segments.starts, segments.sizes)).astype(np.uint64)
    last = np.repeat(segments.sizes, segments.sizes).astype(np.uint64)
    total = _after(direction, start, last, bound)
    view[segments.elements] = total[segments.starts].astype(view.dtype)
    return segments.unsort(_after(direction, start, rank, bound).astype(view.dtype))


def _after(direction: int, start: Array, times: Array, bound: int) -> Array:
    """Return what counting ``times`` times makes of ``start``."""
    cycle = np.uint64(bound + 1)
    outside = start > np.uint64(bound)
    if direction > 0:
        inside = (start + times) % cycle
        entered = (times - np.uint64(1)) % cycle
    else:
        inside = (start + times * np.uint64(bound)) % cycle
        entered = np.uint64(bound) - (times - np.uint64(1)) % cycle
    counted: Array = np.where(outside & (times > 0), entered, np.where(outside, start, inside))
    return counted
