"""Changes of the statements of a nest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

from tensorwasm.offload.affine import shift, subtract
from tensorwasm.offload.nest import (
    Carried,
    Cell,
    Domain,
    Effect,
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
from tensorwasm.offload.scheduling.footprints import cells_in, operands_first

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
        places[load] < places[earlier] and array_of.get(load) == array_of.get(earlier) and not _are_apart(load, earlier)
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
