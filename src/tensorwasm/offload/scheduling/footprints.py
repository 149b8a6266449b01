"""What statements touch: arrays as connected ranges of linear memory, and the elements of cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Load,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
    accesses_of,
    values_of,
)
from tensorwasm.offload.program import Array
from tensorwasm.offload.scheduling.polyhedra import Row

Region = Cell | int
"""A cell, or the number of an array."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The bytes of an array or elements of a cell that a statement touches: ``size`` of them from a row's value."""

    region: Region
    row: Row
    size: int
    write: bool


@dataclass(frozen=True, slots=True, eq=False)
class AddressRange:
    """A load or store, the row of its exact address, and the bytes from ``first`` to ``end`` that it may touch."""

    effect: Load | Store
    row: Row
    first: int
    end: int


def arrays_of(accesses: Iterable[AddressRange]) -> tuple[tuple[Array, ...], dict[Load | Store, int]]:
    """The connected ranges of bytes, and the number of the one that each access is in.

    Raises:
        Declined: one load or store stands in two statements and touches two arrays.
    """
    groups: list[list[AddressRange]] = []
    end = -1
    for access in sorted(accesses, key=lambda each: each.first):
        if access.first >= end:
            groups.append([])
        groups[-1].append(access)
        end = max(end, access.end)
    array_of: dict[Load | Store, int] = {}
    for number, group in enumerate(groups):
        for access in group:
            if array_of.setdefault(access.effect, number) != number:
                raise Declined(DeclineReason.TOO_LARGE, "one access in two arrays")
    return tuple(_array(number, group) for number, group in enumerate(groups)), array_of


def may_meet(one: Load | Store, other: Load | Store, array_of: Mapping[Load | Store, int]) -> bool:
    """Two accesses may touch one byte as far as their arrays tell; one without a known array may touch every byte."""
    arrays = array_of.get(one), array_of.get(other)
    return None in arrays or arrays[0] == arrays[1]


def tell_arrays(array_of: dict[Load | Store, int], statements: Iterable[Statement], parts: Iterable[Statement]) -> None:
    """Add the arrays of what parts of statements access: those that these access at the same places."""
    places: dict[tuple[Affine, int], int | None] = {}
    for access in _accesses(statements):
        key, array = (access.pointer, access.offset), array_of.get(access)
        places[key] = array if places.setdefault(key, array) == array else None
    for access in _accesses(parts):
        array = places.get((access.pointer, access.offset))
        if array is not None:
            array_of.setdefault(access, array)


def _accesses(statements: Iterable[Statement]) -> Iterator[Load | Store]:
    return (access for each in statements for access in accesses_of(each.effects))


def _array(number: int, accesses: Sequence[AddressRange]) -> Array:
    first = accesses[0].first
    divided = [part for each in accesses for part in (*each.row[:-1], each.row[-1] - first, each.effect.size_bytes)]
    return Array(
        number,
        first,
        size_bytes=max(each.end for each in accesses) - first,
        granule_bytes=gcd(16, *divided),
        read=any(isinstance(each.effect, Load) for each in accesses),
        written=any(isinstance(each.effect, Store) for each in accesses),
    )


def operands_first(values: Iterable[Value]) -> list[Value]:
    """Values and all that they are made of, each once and after its operands."""
    ordered: dict[Value, None] = {}
    pending = list(values)
    while pending:
        value = pending[-1]
        missing = [each for each in value.operands if each not in ordered] if isinstance(value, Operation) else []
        if missing and value not in ordered:
            pending += missing
        else:
            ordered[value] = None
            pending.pop()
    return list(ordered)


def cells_in(values: Iterable[Value]) -> list[Cell]:
    """The cells whose content values contain, each once."""
    return list(dict.fromkeys(value.cell for value in operands_first(values) if isinstance(value, Carried)))


class CellAccess(NamedTuple):
    """What a statement reads or writes of a cell: the one that the values of counters choose."""

    cell: Cell
    counters: tuple[int, ...]
    write: bool


def cell_accesses(statement: Statement) -> list[CellAccess]:
    """The cells that a statement reads, and then those that it writes."""
    effects = statement.effects
    read = (value for value in operands_first(values_of(effects)) if isinstance(value, Carried))
    written = (each.cell for each in effects if isinstance(each, SetCell))
    return [
        *dict.fromkeys(CellAccess(each.cell, each.counters, write=False) for each in read),
        *(CellAccess(cell, cell.counters, write=True) for cell in written),
    ]


def cell_footprint(access: CellAccess, extents: Sequence[int], columns: Mapping[int, int], width: int) -> Footprint:
    """The element of a cell that a statement touches, whose rows have a width and whose counters are in columns."""
    row = [0] * width
    for position, counter in enumerate(access.counters):
        row[columns[counter]] = prod(extents[position + 1 :])
    return Footprint(access.cell, tuple(row), 1, access.write)


def merged(footprints: Iterable[Footprint]) -> tuple[Footprint, ...]:
    """The same footprints with those that meet or overlap as one; a written one absorbs what is read within it."""
    intervals: dict[tuple[Region, Row, bool], list[tuple[int, int]]] = {}
    for each in footprints:
        interval = (each.row[-1], each.row[-1] + each.size)
        intervals.setdefault((each.region, each.row[:-1], each.write), []).append(interval)
    joined = {key: _joined(parts) for key, parts in intervals.items()}
    return tuple(
        Footprint(region, (*row, first), end - first, write)
        for (region, row, write), parts in joined.items()
        for first, end in parts
        if write or not any(low <= first and end <= high for low, high in joined.get((region, row, True), ()))
    )


def _joined(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    intervals.sort()
    joined = intervals[:1]
    for first, end in intervals[1:]:
        if first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
