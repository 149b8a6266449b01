"""Statements in parts, before, at and behind where a loop's counter is what an outer one says.

In place, `path[i][j]` from `path[i][k]` and `path[k][j]`: for one `k` iterations depend on one another only through row
and column `k`. Parts apart from these are parallel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Final

import islpy as isl

from tensorwasm.offload.affine import add, counter, scale, shift, subtract
from tensorwasm.offload.nest import Affine, Constraint, Floor, Nest, Statement, While
from tensorwasm.offload.scheduling.axes import Axis, AxisPlace
from tensorwasm.offload.scheduling.dependences import Dependence
from tensorwasm.offload.scheduling.model import StatementModel
from tensorwasm.offload.scheduling.polyhedra import integer
from tensorwasm.offload.scheduling.rewriting import copied, rewritten, statements_in

MAX_CUTS: Final = 2
"""Of a statement, each of which makes three parts of one."""


def split(
    nest: Nest, sequential: Collection[StatementModel], dependences: Sequence[Dependence]
) -> tuple[Nest, dict[int, int]]:
    """The nest with some statements in parts, and the number of the statement that each part is of.

    Args:
        nest: where the statements are from.
        sequential: those that are worth it.
        dependences: all of the nest.
    """
    cuts = {model.number: _cuts(model, dependences) for model in sequential if len(model.counters) > 1}
    origins: dict[int, int] = {}
    fresh = count(1 + max((each.number for each in statements_in(nest.body)), default=0))

    def change(statement: Statement) -> Sequence[Statement]:
        parts = [statement]
        for cut in cuts.get(statement.number, ()):
            parts = [part for each in parts for part in _parts(each, cut, fresh)]
        origins.update((part.number, statement.number) for part in parts if part is not statement)
        return parts

    return Nest(rewritten(nest.body, change), nest.results), origins


def _parts(statement: Statement, cut: Affine, fresh: Iterator[int]) -> Iterator[Statement]:
    """Yield the parts in which an expression is negative, 0, and positive."""
    if any(isinstance(effect, While) for effect in statement.effects):
        yield statement
        return
    negative = Constraint(shift(scale(cut, -1), -1))
    for constraint in (negative, Constraint(cut, equality=True), Constraint(shift(cut, -1))):
        domain = tuple((*part, constraint) for part in statement.domain)
        yield copied(statement, next(fresh), domain)


def _cuts(model: StatementModel, dependences: Sequence[Dependence]) -> list[Affine]:
    """Where dependences at one value of the outermost counter come from or lead to: expressions that are 0 there."""
    found: dict[Affine, None] = {}
    for each in dependences:
        if model not in (each.source, each.target) or each.source.counters[:1] != each.target.counters[:1]:
            continue
        inside = Axis(dict.fromkeys((each.source, each.target), AxisPlace(0))).uncarried(each)
        for pairs in inside.pairs.get_basic_maps() if inside is not None else ():
            sides = []
            if each.source is model:
                sides.append(isl.Map.from_basic_map(pairs).domain())
            if each.target is model:
                sides.append(isl.Map.from_basic_map(pairs).range())
            for side in sides:
                found |= dict.fromkeys(_thin(model, side))
    return list(found)[:MAX_CUTS]


def _thin(model: StatementModel, iterations: isl.Set) -> Iterator[Affine]:
    """Yield an expression for each counter that has one value in a set and one outer value, though not otherwise."""
    for dimension in range(1, len(model.counters)):
        value = _only_value(iterations, dimension)
        if value is not None and _only_value(model.domain, dimension) is None:
            outer = _affine(value, model.counters[0])
            if outer is not None:
                yield subtract(counter(model.counters[dimension]), outer)


def _only_value(iterations: isl.Set, dimension: int) -> isl.Aff | None:
    """A dimension as a function of the first one; None if it has several values."""
    kinds = isl.dim_type
    width = iterations.dim(kinds.set)
    flat = iterations.project_out(kinds.set, dimension + 1, width - dimension - 1)
    flat = flat.project_out(kinds.set, 1, dimension - 1)
    flat = flat.move_dims(kinds.param, 0, kinds.set, 0, 1)
    least, greatest = flat.coalesce().dim_min(0), flat.coalesce().dim_max(0)
    pieces = least.get_pieces()
    return pieces[0][1] if len(pieces) == 1 and least.is_equal(greatest) else None


def _affine(value: isl.Aff, outer: int) -> Affine | None:
    """The expression, with quotients of an outer counter; None if it is not whole."""
    kinds = isl.dim_type
    result = Affine()
    parts = [(value.get_constant_val(), Affine(1)), (value.get_coefficient_val(kinds.param, 0), counter(outer))]
    for index in range(value.dim(kinds.div)):
        if value.get_coefficient_val(kinds.div, index).is_zero():
            continue
        inner = value.get_div(index)
        divisor = inner.get_denominator_val()
        dividend = _affine(inner.scale_val(divisor), outer)
        if dividend is None or integer(divisor) < 2:
            return None
        parts.append(
            (value.get_coefficient_val(kinds.div, index), Affine(0, ((Floor(dividend, integer(divisor)), 1),)))
        )
    for factor, term in parts:
        if not factor.is_int():
            return None
        result = add(result, term, integer(factor))
    return result
