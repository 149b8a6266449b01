"""Axes: one loop counter of each of several statements, plus a constant, such that dependences stay within a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import islpy as isl

from tensorwasm.offload.scheduling.dependences import Dependence, dependence
from tensorwasm.offload.scheduling.model import StatementModel
from tensorwasm.offload.scheduling.polyhedra import Row, constrain


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """For each statement a dimension and a shift: the axis' value is the sum of the counter and the shift."""

    places: Mapping[StatementModel, tuple[int, int]]

    def dimension(self, statement: StatementModel) -> int:
        """The statement's dimension."""
        return self.places[statement][0]

    @property
    def lower(self) -> int:
        """The least value."""
        return min(each.lower[dimension] + shift for each, (dimension, shift) in self.places.items())

    @property
    def upper(self) -> int:
        """The greatest value."""
        return max(each.upper[dimension] + shift for each, (dimension, shift) in self.places.items())

    @property
    def extent(self) -> int:
        """Values in its range."""
        return self.upper - self.lower + 1

    def uncarried(self, given: Dependence) -> Dependence | None:
        """The part of a dependence whose pairs are at one value; None if there is none."""
        pairs = self._restricted(given, [], [self._distance(given)])
        return None if pairs.is_empty() else dependence(given.source, given.target, pairs)

    def ascends(self, given: Dependence) -> bool:
        """No pair of a dependence goes to a lower value."""
        distance = self._distance(given)
        backward = (*(-value for value in distance[:-1]), -distance[-1] - 1)
        return self._restricted(given, [backward], []).is_empty()

    def _distance(self, given: Dependence) -> Row:
        """How much greater the target's value is, over the dimensions of both."""
        (source_dimension, source_shift), (target_dimension, target_shift) = (
            self.places[given.source],
            self.places[given.target],
        )
        row = [0] * (len(given.source.lower) + len(given.target.lower))
        row[source_dimension] = -1
        row[len(given.source.lower) + target_dimension] = 1
        return (*row, target_shift - source_shift)

    @staticmethod
    def _restricted(given: Dependence, non_negative: Sequence[Row], zero: Sequence[Row]) -> isl.Map:
        columns = [
            *((isl.dim_type.in_, position) for position in range(len(given.source.lower))),
            *((isl.dim_type.out, position) for position in range(len(given.target.lower))),
        ]
        limits = constrain(isl.BasicMap.universe(given.pairs.get_space()), columns, non_negative, zero)
        return given.pairs.intersect(isl.Map.from_basic_map(limits))


def fixed_dimensions(statement: StatementModel, fixed: Iterable[Axis]) -> set[int]:
    """The dimensions of a statement that axes fix."""
    return {axis.dimension(statement) for axis in fixed}


def within(dependences: Iterable[Dependence], statements: Iterable[StatementModel]) -> list[Dependence]:
    """The dependences among some statements."""
    among = set(statements)
    return [each for each in dependences if each.source in among and each.target in among]


def axes(statements: Sequence[StatementModel], dependences: Sequence[Dependence], fixed: Sequence[Axis]) -> list[Axis]:
    """The axes with more than one value that no dependence crosses."""
    seed = min(statements, key=lambda each: len(each.counters))
    candidates = (_grown(seed, dimension, statements, dependences, fixed) for dimension in _free(seed, fixed))
    return [
        axis
        for axis in candidates
        if axis is not None and axis.extent > 1 and not any(_crosses(axis, each) for each in dependences)
    ]


def monotone_axes(
    statements: Sequence[StatementModel], dependences: Sequence[Dependence], fixed: Sequence[Axis]
) -> list[Axis]:
    """Axes along which all dependences ascend, the nest's own outermost loop first."""
    first = statements[0]
    shared = [
        Axis(dict.fromkeys(statements, (dimension, 0)))
        for dimension in _free(first, fixed)
        if all(each.counters[: dimension + 1] == first.counters[: dimension + 1] for each in statements)
    ]
    seed = min(statements, key=lambda each: len(each.counters))
    grown = (_grown(seed, dimension, statements, dependences, fixed) for dimension in _free(seed, fixed))
    found: list[Axis] = []
    for axis in (*shared, *grown):
        is_new = axis is not None and all(axis.places != other.places for other in found)
        if axis is not None and is_new and all(axis.ascends(each) for each in dependences):
            found.append(axis)
    return found


def _free(statement: StatementModel, fixed: Sequence[Axis]) -> list[int]:
    taken = fixed_dimensions(statement, fixed)
    return [dimension for dimension in range(len(statement.counters)) if dimension not in taken]


def _grown(
    seed: StatementModel,
    dimension: int,
    statements: Sequence[StatementModel],
    dependences: Sequence[Dependence],
    fixed: Sequence[Axis],
) -> Axis | None:
    """The axis of a statement's dimension, carried to the others along dependences that keep a distance.

    A statement that none such reaches takes the counter of a loop that it shares with one before.
    """
    places = {seed: (dimension, 0)}
    while len(places) < len(statements):
        found = next((each for each in _neighbours(places, dependences, fixed)), None)
        if found is None:
            found = next((each for each in _sharing(places, statements, fixed)), None)
        if found is None:
            return None
        statement, place = found
        places[statement] = place
    return Axis(places)


_Places = dict[StatementModel, tuple[int, int]]


def _neighbours(
    places: _Places, dependences: Sequence[Dependence], fixed: Sequence[Axis]
) -> Iterator[tuple[StatementModel, tuple[int, int]]]:
    for each in dependences:
        if each.source in places and each.target not in places:
            dimension, shift = places[each.source]
            for other in _free(each.target, fixed):
                distance = each.difference(dimension, other)
                if distance is not None:
                    yield each.target, (other, shift - distance)
        elif each.target in places and each.source not in places:
            dimension, shift = places[each.target]
            for other in _free(each.source, fixed):
                distance = each.difference(other, dimension)
                if distance is not None:
                    yield each.source, (other, shift + distance)


def _sharing(
    places: _Places, statements: Sequence[StatementModel], fixed: Sequence[Axis]
) -> Iterator[tuple[StatementModel, tuple[int, int]]]:
    for statement in statements:
        if statement not in places:
            for other, (dimension, shift) in places.items():
                for own in _free(statement, fixed):
                    if statement.counters[own] == other.counters[dimension]:
                        yield statement, (own, shift)


def _crosses(axis: Axis, given: Dependence) -> bool:
    """A dependence goes from one value to another."""
    (source_dimension, source_shift), (target_dimension, target_shift) = (
        axis.places[given.source],
        axis.places[given.target],
    )
    return given.difference(source_dimension, target_dimension) != source_shift - target_shift
