"""Changes of the statements of a nest: in parts by their effects, and in parts by their iterations.

By iterations, statements are cut before, at and behind where a loop's counter is what an outer one says. In place,
`path[i][j]` from `path[i][k]` and `path[k][j]`: for one `k` iterations depend on one another only through row and
column `k`, and parts apart from these are parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

import islpy as isl

from tensorwasm.offload.affine import add, counter, scale, shift, subtract
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Constraint,
    Domain,
    Effect,
    Floor,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
    While,
    values_of,
)
from tensorwasm.offload.scheduling.axes import Axis, AxisPlace
from tensorwasm.offload.scheduling.dependences import Dependence
from tensorwasm.offload.scheduling.footprints import cells_in, may_meet, operands_first
from tensorwasm.offload.scheduling.model import StatementModel
from tensorwasm.offload.scheduling.polyhedra import integer

Body = tuple[Loop | Statement, ...]


def rewritten(body: Body, change: Callable[[Statement], Sequence[Statement]]) -> Body:
    """The body with other statements in place of each of its statements, and without loops that are empty then."""
    items: list[Loop | Statement] = []
    for item in body:
        if isinstance(item, Statement):
            items += change(item)
        elif inner := rewritten(item.body, change):
            items.append(item if inner == item.body else Loop(item.counter, item.trip, inner))
    return tuple(items)


def pruned(statement: Statement) -> Sequence[Statement]:
    """The statement without loads whose values nothing uses; nothing if it has no other effects."""
    needed = needed_loads(values_of(statement.effects))
    effects = tuple(effect for effect in statement.effects if not isinstance(effect, Load) or effect in needed)
    if effects == statement.effects:
        return [statement]
    return [Statement(statement.number, statement.domain, effects)] if effects else []


def needed_loads(values: Iterable[Value]) -> set[Load]:
    """The loads that values depend on."""
    return {value for value in operands_first(values) if isinstance(value, Load)}


def with_contents(statement: Statement, contents: Mapping[Cell, Load], unset: Cell | None = None) -> Statement:
    """The statement with loads at its begin in place of the contents of cells, and not setting a cell any more.

    Nothing in a `While` uses these cells.
    """
    changing = [effect for effect in statement.effects if isinstance(effect, Store | SetCell)]
    values = operands_first(effect.value for effect in changing)
    replacements: dict[Value, Value] = {
        value: contents[value.cell] for value in values if isinstance(value, Carried) and value.cell in contents
    }
    made = substituted([effect.value for effect in changing], replacements)
    effects: list[Effect] = list(contents.values())
    for effect in statement.effects:
        if isinstance(effect, Load | While):
            effects.append(effect)
        elif isinstance(effect, Store) or effect.cell is not unset:
            effects.append(with_value(effect, made[effect.value]))
    return Statement(statement.number, statement.domain, tuple(effects))


def with_value(effect: Store | SetCell, value: Value) -> Store | SetCell:
    """The effect with another value."""
    if isinstance(effect, Store):
        return Store(effect.opcode, effect.pointer, effect.offset, value)
    return SetCell(effect.cell, value)


def substituted(values: Iterable[Value], replacements: Mapping[Value, Value]) -> dict[Value, Value]:
    """The values and all that they are made of, each with what it is after replacements."""
    made: dict[Value, Value] = {}
    for value in operands_first(values):
        made[value] = replacements.get(value, value)
        if isinstance(value, Operation):
            operands = tuple(made[operand] for operand in value.operands)
            if operands != value.operands:
                made[value] = Operation(value.type, value.opcode, operands)
    return made


def copied(statement: Statement, number: int, domain: Domain) -> Statement:
    """The statement, which has no `While`, with another number and domain, and effects of its own."""
    copies: dict[Value, Value] = {
        load: Load(load.opcode, load.pointer, load.offset) for load in statement.effects if isinstance(load, Load)
    }
    made = substituted(values_of(statement.effects), copies)
    effects: list[Effect] = []
    for effect in statement.effects:
        if isinstance(effect, Load):
            copy = copies[effect]
            effects += [copy] if isinstance(copy, Load) else []
        elif not isinstance(effect, While):
            effects.append(with_value(effect, made[effect.value]))
    return Statement(number, domain, tuple(effects))


def statements_in(body: Iterable[Loop | Statement]) -> Iterator[Statement]:
    """All statements, in order."""
    for item in body:
        if isinstance(item, Loop):
            yield from statements_in(item.body)
        else:
            yield item


def loops_in(body: Iterable[Loop | Statement]) -> Iterator[Loop]:
    """All loops, in order."""
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from loops_in(item.body)


def divided(nest: Nest, numbers: Container[int], array_of: Mapping[Load | Store, int]) -> Nest:
    """The nest with the statements of some numbers in parts with new numbers; the same nest if none has parts."""
    fresh = count(1 + max((each.number for each in statements_in(nest.body)), default=0))

    def change(statement: Statement) -> Sequence[Statement]:
        parts = _parts(statement, array_of) if statement.number in numbers else []
        return [Statement(next(fresh), statement.domain, part) for part in parts] if len(parts) > 1 else [statement]

    body = rewritten(nest.body, change)
    return nest if body == nest.body else Nest(body, nest.results)


def _parts(statement: Statement, array_of: Mapping[Load | Store, int]) -> list[tuple[Effect, ...]]:
    """The effects in parts: all loads, stores and cells have the same values if the parts run one after another.

    Stores keep their order, and cells change after them. Parts are one if a load of the later would otherwise come
    after a store, or a cell's content after its change.
    """
    effects = statement.effects
    if any(isinstance(effect, While) for effect in effects):
        return [effects]
    places = {effect: place for place, effect in enumerate(effects)}
    roots: list[Store | SetCell] = [
        *(effect for effect in effects if isinstance(effect, Store)),
        *(effect for effect in effects if isinstance(effect, SetCell)),
    ]
    groups: list[list[_Root]] = []
    for effect in roots:
        root = _Root(effect, needed_loads([effect.value]), set(cells_in([effect.value])))
        joined = (
            index
            for index, group in enumerate(groups)
            if any(_must_join(earlier.effect, root, places, array_of) for earlier in group)
        )
        first = next(joined, len(groups))
        groups[first:] = [[*chain.from_iterable(groups[first:]), root]]
    if len(groups) == 1:
        return [effects]
    return [_with_own_loads(group, places) for group in groups]


@dataclass(frozen=True, slots=True, eq=False)
class _Root:
    """A store or change of a cell, and what its value depends on."""

    effect: Store | SetCell
    loads: set[Load]
    cells: set[Cell]


def _must_join(
    earlier: Store | SetCell, later: _Root, places: Mapping[Effect, int], array_of: Mapping[Load | Store, int]
) -> bool:
    if isinstance(earlier, SetCell):
        return earlier.cell in later.cells
    return any(
        places[load] < places[earlier] and may_meet(load, earlier, array_of) and not _are_apart(load, earlier)
        for load in later.loads
    )


def _are_apart(load: Load, store: Store) -> bool:
    """The two never touch one byte in one iteration, if both are within memory."""
    distance = subtract(shift(store.pointer, store.offset), shift(load.pointer, load.offset))
    forward = distance.constant % (1 << 32)
    return not distance.terms and load.size_bytes <= forward <= (1 << 32) - store.size_bytes


def _with_own_loads(group: Sequence[_Root], places: Mapping[Effect, int]) -> tuple[Effect, ...]:
    """The effects of a part in order, with loads of its own, because no load may be in two statements."""
    loads = sorted(set[Load]().union(*(root.loads for root in group)), key=places.__getitem__)
    copies: dict[Value, Value] = {load: Load(load.opcode, load.pointer, load.offset) for load in loads}
    made = substituted([root.effect.value for root in group], copies)
    ordered: list[tuple[int, Effect]] = [(places[load], own) for load in loads if isinstance(own := copies[load], Load)]
    ordered += [(places[root.effect], with_value(root.effect, made[root.effect.value])) for root in group]
    return tuple(effect for _, effect in sorted(ordered, key=lambda item: item[0]))


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
            parts = [part for each in parts for part in _split_parts(each, cut, fresh)]
        origins.update((part.number, statement.number) for part in parts if part is not statement)
        return parts

    return Nest(rewritten(nest.body, change), nest.results), origins


def _split_parts(statement: Statement, cut: Affine, fresh: Iterator[int]) -> Iterator[Statement]:
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
