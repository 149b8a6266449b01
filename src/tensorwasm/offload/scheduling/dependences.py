"""Which iterations of which statements must stay in order: pairs that touch one place, one of them with a write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import islpy as isl

from tensorwasm.offload.scheduling.footprints import Footprint
from tensorwasm.offload.scheduling.intervals import Interval, narrowed
from tensorwasm.offload.scheduling.model import StatementModel
from tensorwasm.offload.scheduling.polyhedra import Column, Row, constrain, integer


@dataclass(frozen=True, slots=True, eq=False)
class Dependence:
    """Pairs of iterations of two statements that must stay in order.

    Attributes:
        pairs: a map from iterations of the source to later ones of the target.
        equalities: echelon form of the equations that hold for all pairs, over the dimensions of the source and then
            those of the target: rows that are 0, each with the first column that is not 0 and that no later row has.
    """

    source: StatementModel
    target: StatementModel
    pairs: isl.Map
    equalities: tuple[tuple[int, Row], ...]

    def difference(
        self, source_dimension: int, target_dimension: int, source_scale: int = 1, target_scale: int = 1
    ) -> int | None:
        """How much more a multiple of the target's dimension is than one of the source's; None if it differs."""
        row = [0] * (len(self.source.lower) + len(self.target.lower) + 1)
        row[source_dimension], row[len(self.source.lower) + target_dimension] = -source_scale, target_scale
        factor = 1
        for column, equation in self.equalities:
            if row[column]:
                scale, subtracted = equation[column], row[column]
                row = [scale * mine - subtracted * other for mine, other in zip(row, equation, strict=True)]
                factor *= scale
        return None if any(row[:-1]) or row[-1] % factor else row[-1] // factor


def dependences(statements: tuple[StatementModel, ...]) -> tuple[Dependence, ...]:
    """All dependences of a nest, one for each ordered pair of statements that has one."""
    found = []
    for source in statements:
        for target in statements:
            pairs = _ordered_conflicts(source, target)
            if pairs is not None:
                found.append(dependence(source, target, pairs))
    return tuple(found)


def dependence(source: StatementModel, target: StatementModel, pairs: isl.Map) -> Dependence:
    """The dependence of pairs that are not empty."""
    kinds = isl.dim_type
    matrix = pairs.affine_hull().equalities_matrix(kinds.div, kinds.param, kinds.in_, kinds.out, kinds.cst)
    width = matrix.cols()
    rows = [
        tuple(integer(matrix.get_element_val(row, column)) for column in range(width)) for row in range(matrix.rows())
    ]
    local = width - len(source.lower) - len(target.lower) - 1
    return Dependence(
        source, target, pairs, tuple((column - local, row[local:]) for column, row in _echelon(rows) if column >= local)
    )


def _echelon(rows: list[Row]) -> list[tuple[int, Row]]:
    """The rows after elimination, each with its first column that is not 0."""
    result = []
    for column in range(len(rows[0]) - 1 if rows else 0):
        pivot = next((row for row in rows if row[column]), None)
        if pivot is not None:
            result.append((column, pivot))
            rows = [_reduced(row, pivot, column) for row in rows if row is not pivot]
    return result


def _reduced(row: Row, pivot: Row, column: int) -> Row:
    """A multiple of a row less a multiple of a pivot, with 0 in a column."""
    reduced = [pivot[column] * mine - row[column] * other for mine, other in zip(row, pivot, strict=True)]
    divisor = gcd(*reduced) or 1
    return tuple(number // divisor for number in reduced)


def _ordered_conflicts(source: StatementModel, target: StatementModel) -> isl.Map | None:
    """Pairs of which the source's is the earlier, that touch one place with a write; None if there are none."""
    common = _common_loops(source, target)
    levels = [*range(common), *([common] if source.order < target.order else [])]
    product: isl.Map | None = None
    result: isl.Map | None = None
    for first, second in _meeting(source, target):
        for level in levels:
            conflict = _conflict(source, target, first, second, level, common)
            if conflict is not None:
                product = product or isl.Map.from_domain_and_range(source.domain, target.domain)
                pairs = product.intersect(isl.Map.from_basic_map(conflict))
                if not pairs.is_empty():
                    result = pairs if result is None else result.union(pairs)
    return result


def _common_loops(source: StatementModel, target: StatementModel) -> int:
    """How many loops are around both."""
    common = 0
    for mine, other in zip(source.counters, target.counters, strict=False):
        if mine != other:
            break
        common += 1
    return common


def _meeting(source: StatementModel, target: StatementModel) -> Iterator[tuple[Footprint, Footprint]]:
    for first in source.footprints:
        for second in target.footprints:
            if first.region == second.region and (first.write or second.write):
                yield first, second


def _conflict(
    source: StatementModel, target: StatementModel, first: Footprint, second: Footprint, level: int, common: int
) -> isl.BasicMap | None:
    """Pairs, within the bounds of both, that touch one place and whose common counters first differ at a level.

    Intervals of what each counter and each difference of common counters may be are narrowed first. That often shows
    that there are none, and it finds that counters are equal where the places are a matrix's, which isl does not see
    in one equation of addresses.
    """
    variables: list[Interval] = [
        *zip(source.lower, source.upper, strict=True),
        *zip(target.lower[common:], target.upper[common:], strict=True),
    ]
    differences = [
        (target.lower[loop] - source.upper[loop], target.upper[loop] - source.lower[loop]) for loop in range(common)
    ]
    for loop in range(min(level + 1, common)):
        low, high = differences[loop]
        least, greatest = (0, 0) if loop < level else (1, high)
        differences[loop] = (max(low, least), min(high, greatest))
    coefficients = [-value for value in first.row[:-1]]
    for loop in range(common):
        coefficients[loop] += second.row[loop]
    coefficients += second.row[common:-1]
    coefficients += second.row[:common]
    apart = second.row[-1] - first.row[-1]
    overlap = (1 - second.size - apart, first.size - 1 - apart)
    intervals = narrowed(coefficients, [*variables, *differences], overlap)
    if intervals is None:
        return None
    return _map_of(source, target, first, second, intervals[len(variables) :], level)


def _map_of(
    source: StatementModel,
    target: StatementModel,
    first: Footprint,
    second: Footprint,
    differences: list[Interval],
    level: int,
) -> isl.BasicMap:
    width, other_width = len(source.lower), len(target.lower)
    columns: tuple[Column, ...] = (
        *((isl.dim_type.in_, position) for position in range(width)),
        *((isl.dim_type.out, position) for position in range(other_width)),
    )
    negative = tuple(-value for value in first.row)
    distance = (*negative[:-1], *second.row[:-1], second.row[-1] + negative[-1])
    non_negative = [(*distance[:-1], distance[-1] + second.size - 1)]
    non_negative.append((*(-value for value in distance[:-1]), first.size - 1 - distance[-1]))
    zero = []
    for loop, (low, high) in enumerate(differences):
        row = [0] * (width + other_width + 1)
        row[loop], row[width + loop] = -1, 1
        if low == high:
            zero.append((*row[:-1], -low))
        elif loop == level:
            non_negative.append((*row[:-1], -low))
    space = isl.Space.map_from_domain_and_range(source.domain.get_space(), target.domain.get_space())
    return constrain(isl.BasicMap.universe(space), columns, non_negative, zero)
