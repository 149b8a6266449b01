"""A nest as polyhedra: the iterations of its statements, and the arrays and cells that they touch."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import islpy as isl

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Cell, Load, Loop, Nest, Statement, Store, Term, accesses_of, whiles_of
from tensorwasm.offload.program import Array
from tensorwasm.offload.scheduling.footprints import (
    AddressRange,
    Footprint,
    arrays_of,
    cell_accesses,
    cell_footprint,
    merged,
)
from tensorwasm.offload.scheduling.polyhedra import Row, constrain, set_columns, tuple_space, value_range

MAX_STATEMENTS: Final = 64
MAX_DEPTH: Final = 8
"""Of loops, and of quotients in quotients."""
MAX_EFFECTS: Final = 1024
MAX_DISJUNCTS: Final = 16
"""Of a statement's domain."""
MAX_CONSTRAINTS: Final = 64
"""Of each of them."""
MAX_COLUMNS: Final = 24
"""Loops and quotients of a statement."""


@dataclass(frozen=True, slots=True, eq=False)
class StatementModel:
    """A statement that runs at least once.

    Attributes:
        order: its place among the statements of the nest.
        counters: of the loops around it, outermost first; the first dimensions of its domain. The turns of loops in it
            and the quotients that its constraints and pointers contain are the others.
        positions: its place and that of each loop around it in the body that contains them, outermost first.
        lower: the least value of each dimension.
        upper: the greatest value of each dimension.
        loads: what its loads touch, each by itself.
    """

    number: int
    order: int
    counters: tuple[int, ...]
    positions: tuple[int, ...]
    domain: isl.Set
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    loads: tuple[Footprint, ...]

    def extent(self, dimension: int) -> int:
        """Values that a dimension may have."""
        return self.upper[dimension] - self.lower[dimension] + 1

    def iterations(self, fixed: Container[int] = ()) -> int:
        """At most how many iterations there are for one value of each fixed dimension."""
        return prod(self.extent(dimension) for dimension in range(len(self.counters)) if dimension not in fixed)


@dataclass(frozen=True, slots=True, eq=False)
class NestModel:
    """The statements of a nest that run, and the memory that they touch.

    Attributes:
        cell_extents: for each cell that is used, the values of each of its counters.
    """

    statements: tuple[StatementModel, ...]
    arrays: tuple[Array, ...]
    array_of: Mapping[Load | Store, int]
    wraps: Mapping[Load | Store, int]
    cell_extents: Mapping[Cell, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A statement where it stands."""

    statement: Statement
    loops: tuple[Loop, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A statement that runs at least once, before the arrays are known."""

    place: _Place
    domain: isl.Set
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    wraps: list[tuple[Load | Store, int]]
    accesses: list[AddressRange]

    @property
    def counters(self) -> tuple[int, ...]:
        """Of the loops around it."""
        return tuple(loop.counter for loop in self.place.loops)


_Terms = dict[int, int]
"""The coefficient by column; that of column -1 is the constant."""


class _Columns:
    """The dimensions of a statement: its counters, those of loops in it, and each quotient as soon as it is met."""

    def __init__(self, counters: tuple[int, ...]) -> None:
        self._columns: dict[Term, int] = {counter: column for column, counter in enumerate(counters)}
        self.definitions: list[tuple[_Terms, int]] = []

    def __len__(self) -> int:
        return len(self._columns)

    def terms(self, affine: Affine, depth: int = 0) -> _Terms:
        """The expression by columns."""
        if depth > MAX_DEPTH or len(self) > MAX_COLUMNS:
            raise Declined(DeclineReason.TOO_LARGE, "quotients")
        terms = {-1: affine.constant}
        for term, coefficient in affine.terms:
            column = self._columns.get(term)
            if column is None:
                if isinstance(term, int):
                    raise Declined(DeclineReason.NOT_AFFINE, "a counter outside its loop")
                dividend = self.terms(term.value, depth + 1)
                column = self._columns.setdefault(term, len(self))
                quotient = {**dividend, column: -term.divisor}
                negated = {key: -value for key, value in quotient.items()}
                self.definitions += [(quotient, 0), (negated, term.divisor - 1)]
            terms[column] = terms.get(column, 0) + coefficient
        return terms

    def count(self, counter: int, limit: Affine) -> None:
        """Add a counter of less than a limit, which is at least 1."""
        most = self.terms(limit)
        column = self._columns.setdefault(counter, len(self))
        self.definitions += [({column: 1}, 0), ({**most, column: -1}, -1)]

    def row(self, terms: _Terms, added: int = 0) -> Row:
        """The terms as a row of the present number of columns."""
        return (*(terms.get(column, 0) for column in range(len(self))), terms.get(-1, 0) + added)


def model(context: isl.Context, nest: Nest, memory_bytes: int) -> NestModel:
    """The model of a nest on a memory of a size.

    Raises:
        Declined: an access would trap, or a limit is exceeded.
    """
    places = list(_places(nest.body, (), ()))
    if len(places) > MAX_STATEMENTS or sum(len(place.statement.effects) for place in places) > MAX_EFFECTS:
        raise Declined(DeclineReason.TOO_LARGE, "statements")
    running = [run for place in places if (run := _running(context, place, memory_bytes)) is not None]
    arrays, array_of = arrays_of(access for run in running for access in run.accesses)
    extents = _cell_extents(running)
    wraps: dict[Load | Store, int] = {}
    for run in running:
        for effect, wrap in run.wraps:
            if wraps.setdefault(effect, wrap) != wrap:
                raise Declined(DeclineReason.WRAPS, "one access in two places")
    statements = tuple(_statement(order, run, array_of, extents) for order, run in enumerate(running))
    return NestModel(statements, arrays, array_of, wraps, extents)


def _places(
    body: tuple[Loop | Statement, ...], loops: tuple[Loop, ...], positions: tuple[int, ...]
) -> Iterator[_Place]:
    if len(loops) > MAX_DEPTH:
        raise Declined(DeclineReason.TOO_LARGE, "loops in loops")
    for position, item in enumerate(body):
        if isinstance(item, Loop):
            yield from _places(item.body, (*loops, item), (*positions, position))
        else:
            yield _Place(item, loops, (*positions, position))


def _running(context: isl.Context, place: _Place, memory_bytes: int) -> _Running | None:
    """The statement's domain and accesses; None if it never runs."""
    statement = place.statement
    if len(statement.domain) > MAX_DISJUNCTS or any(len(part) > MAX_CONSTRAINTS for part in statement.domain):
        raise Declined(DeclineReason.TOO_LARGE, "conditions")
    columns = _Columns(tuple(loop.counter for loop in place.loops))
    bounds: list[tuple[_Terms, int]] = []
    for depth, loop in enumerate(place.loops):
        trip = columns.terms(loop.trip)
        bounds += [({depth: 1}, 0), ({**trip, depth: trip.get(depth, 0) - 1}, -1)]
    parts = [[(columns.terms(each.value), each.equality) for each in part] for part in statement.domain]
    for each in whiles_of(statement.effects):
        if each.turns is not None:
            columns.count(each.counter, each.turns)
    memory = list(accesses_of(statement.effects))
    pointers = [columns.terms(effect.pointer) for effect in memory]
    space = tuple_space(context, f"S{statement.number}", len(columns))
    domain = isl.Set.empty(space)
    always = [columns.row(terms, added) for terms, added in (*bounds, *columns.definitions)]
    for part in parts:
        basic = constrain(
            isl.BasicSet.universe(space),
            set_columns(len(columns)),
            [*always, *(columns.row(terms) for terms, equality in part if not equality)],
            [columns.row(terms) for terms, equality in part if equality],
        )
        domain = domain.union(isl.Set.from_basic_set(basic))
    if domain.is_empty():
        return None
    ranges = [value_range(domain, (*([0] * column), 1)) for column in range(len(columns))]
    running = _Running(place, domain, tuple(low for low, _ in ranges), tuple(high for _, high in ranges), [], [])
    for effect, pointer in zip(memory, pointers, strict=True):
        _locate(running, effect, columns.row(pointer), memory_bytes)
    return running


def _locate(running: _Running, effect: Load | Store, row: Row, memory_bytes: int) -> None:
    """Add an access with its exact range and the multiple of 2**32 that makes its pointer exact."""
    least, greatest = value_range(running.domain, row[:-1])
    wrap = -(least + row[-1] >> 32 << 32)
    if greatest + row[-1] + wrap >= 1 << 32:
        raise Declined(DeclineReason.WRAPS)
    constant = row[-1] + wrap + effect.offset
    end = greatest + constant + effect.size_bytes
    if end > memory_bytes:
        raise Declined(DeclineReason.OUT_OF_BOUNDS)
    running.wraps.append((effect, wrap))
    running.accesses.append(AddressRange(effect, (*row[:-1], constant), least + constant, end))


def _cell_extents(running: list[_Running]) -> dict[Cell, tuple[int, ...]]:
    """For each cell, how many values from 0 each of its counters has."""
    extents: dict[Cell, tuple[int, ...]] = {}
    for run in running:
        upper = dict(zip(run.counters, run.upper, strict=False))
        for access in cell_accesses(run.place.statement):
            if not upper.keys() >= set(access.counters):
                raise Declined(DeclineReason.NOT_AFFINE, "a counter outside its loop")
            own = tuple(upper[counter] + 1 for counter in access.counters)
            extents[access.cell] = tuple(map(max, own, extents.get(access.cell, own)))
    return extents


def _statement(
    order: int, run: _Running, array_of: Mapping[Load | Store, int], extents: Mapping[Cell, tuple[int, ...]]
) -> StatementModel:
    statement, counters = run.place.statement, run.counters
    columns = {counter: column for column, counter in enumerate(counters)}
    footprints = [
        Footprint(array_of[each.effect], each.row, each.effect.size_bytes, isinstance(each.effect, Store))
        for each in run.accesses
    ]
    loads = tuple(each for each in footprints if not each.write)
    footprints += [
        cell_footprint(access, extents[access.cell], columns, len(run.upper) + 1) for access in cell_accesses(statement)
    ]
    return StatementModel(
        statement.number,
        order,
        counters,
        run.place.positions,
        run.domain,
        run.lower,
        run.upper,
        merged(footprints),
        loads,
    )
