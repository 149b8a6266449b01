"""Axes: a multiple of one counter of each of several statements, plus a constant.

Those of a grid are such that dependences stay within a value, those of the host's loops such that none goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

import islpy as isl

from tensorwasm.offload.scheduling.dependences import Dependence, dependence
from tensorwasm.offload.scheduling.model import StatementModel
from tensorwasm.offload.scheduling.polyhedra import Row, constrain

UNROLLED: Final = (2, 4, 8, 3, 5)
"""By how many iterations of a loop another one's counter may move."""


class AxisPlace(NamedTuple):
    """The value is ``scale`` times the dimension, plus ``shift``."""

    dimension: int
    shift: int = 0
    scale: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """For each statement its place on the axis."""

    places: Mapping[StatementModel, AxisPlace]

    def dimension(self, statement: StatementModel) -> int:
        """The statement's dimension."""
        return self.places[statement].dimension

    @property
    def lower(self) -> int:
        """The least value."""
        return min(at.scale * each.lower[at.dimension] + at.shift for each, at in self.places.items())

    @property
    def upper(self) -> int:
        """The greatest value."""
        return max(at.scale * each.upper[at.dimension] + at.shift for each, at in self.places.items())

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
        source, target = self.places[given.source], self.places[given.target]
        row = [0] * (len(given.source.lower) + len(given.target.lower))
        row[source.dimension] = -source.scale
        row[len(given.source.lower) + target.dimension] = target.scale
        return (*row, target.shift - source.shift)

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
        Axis(dict.fromkeys(statements, AxisPlace(dimension)))
        for dimension in _free(first, fixed)
        if all(each.counters[: dimension + 1] == first.counters[: dimension + 1] for each in statements)
    ]
    seed = min(statements, key=lambda each: len(each.counters))
    grown = (_grown(seed, dimension, statements, dependences, fixed) for dimension in _free(seed, fixed))
    inner = (_grown_inside(seed, dimension, statements, dependences, fixed) for dimension in _free(seed, fixed))
    found: list[Axis] = []
    for axis in (each for some in (shared, grown, inner) for each in some):
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
    places = {seed: AxisPlace(dimension)}
    while len(places) < len(statements):
        found = next(_neighbours(places, dependences, fixed, [1]), None)
        found = found or next(_sharing(places, statements, fixed), None)
        if found is None:
            return None
        statement, place = found
        places[statement] = place
    return Axis(places)


def _grown_inside(
    seed: StatementModel,
    dimension: int,
    statements: Sequence[StatementModel],
    dependences: Sequence[Dependence],
    fixed: Sequence[Axis],
) -> Axis | None:
    """The axis of a statement's dimension, carried to multiples of others' innermost counters where none goes back.

    That is the time at which a place gets another one's part of its value, where loops add up all parts of one.
    """
    places = {seed: AxisPlace(dimension)}
    while len(places) < len(statements):
        found = [*_neighbours(places, dependences, fixed, (1, *UNROLLED)), *_sharing(places, statements, fixed)]
        found.sort(key=lambda each: (len(each[0].counters) - each[1].dimension, each[1].scale))
        for statement, place in dict.fromkeys(found):
            axis = Axis({**places, statement: place})
            known = [each for each in within(dependences, axis.places) if statement in (each.source, each.target)]
            if all(axis.ascends(each) for each in known):
                places[statement] = place
                break
        else:
            return None
    return Axis(places)


_Places = dict[StatementModel, AxisPlace]


def _neighbours(
    places: _Places, dependences: Sequence[Dependence], fixed: Sequence[Axis], factors: Sequence[int]
) -> Iterator[tuple[StatementModel, AxisPlace]]:
    for each in dependences:
        if each.source in places and each.target not in places:
            dimension, shift, scale = places[each.source]
            for other, factor in product(_free(each.target, fixed), factors):
                distance = each.difference(dimension, other, scale, scale * factor)
                if distance is not None:
                    yield each.target, AxisPlace(other, shift - distance, scale * factor)
        elif each.target in places and each.source not in places:
            dimension, shift, scale = places[each.target]
            for other, factor in product(_free(each.source, fixed), factors):
                distance = each.difference(other, dimension, scale * factor, scale)
                if distance is not None:
                    yield each.source, AxisPlace(other, shift + distance, scale * factor)


def _sharing(
    places: _Places, statements: Sequence[StatementModel], fixed: Sequence[Axis]
) -> Iterator[tuple[StatementModel, AxisPlace]]:
    for statement in statements:
        if statement not in places:
            for other, place in places.items():
                for own in _free(statement, fixed):
                    if statement.counters[own] == other.counters[place.dimension]:
                        yield statement, place._replace(dimension=own)


def _crosses(axis: Axis, given: Dependence) -> bool:
    """A dependence goes from one value to another."""
    source, target = axis.places[given.source], axis.places[given.target]
    distance = given.difference(source.dimension, target.dimension, source.scale, target.scale)
    return distance != source.shift - target.shift
