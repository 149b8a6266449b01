"""Places in memory that a loop adds to, as cells: they are loaded before the loop, and stored behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorwasm.offload.affine import counters, shift, subtract
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Effect,
    Load,
    SetCell,
    Statement,
    Store,
    Value,
    While,
    accesses_of,
    load_of,
)
from tensorwasm.offload.scheduling.copying import FreshNumbers
from tensorwasm.offload.scheduling.rewriting import Body, pruned, statements_in, substituted, with_value


@dataclass(frozen=True, slots=True, eq=False)
class LiftedPlace:
    """A place that a loop need not touch.

    Attributes:
        statement: what accesses it in the loop.
        cell: what holds its content meanwhile.
        before: what sets a cell that the loop had not, to the place's content; None if it had.
        without: the statement as it becomes.
        after: what stores the cell's content.
    """

    statement: Statement
    cell: Cell
    before: tuple[Effect, ...] | None
    without: Statement
    after: Store


def liftable(
    body: Body, number: int, around: tuple[int, ...], array_of: Mapping[Load | Store, int], fresh: FreshNumbers
) -> Iterator[LiftedPlace]:
    """Yield places at which a statement right in the body of a loop stores in every iteration.

    Nothing else in the body accesses the arrays that they are in.

    Args:
        body: of the loop.
        number: its counter.
        around: counters of the loops around it.
        array_of: of each access that runs.
        fresh: numbers for cells.
    """
    for statement in body:
        if not isinstance(statement, Statement) or statement.domain != ALWAYS:
            continue
        if any(isinstance(effect, While) for effect in statement.effects):
            continue
        stores = {array_of.get(effect): effect for effect in statement.effects if isinstance(effect, Store)}
        for array, store in stores.items():
            accesses = [
                each
                for other in statements_in(body)
                for each in accesses_of(other.effects)
                if array_of.get(each) in {array, None}
            ]
            inside = set(statement.effects)
            staying = number not in counters(store.pointer) and store.opcode.endswith(".store")
            only = array is not None and all(each in inside and _is_at(each, store) for each in accesses)
            if staying and only:
                yield from _lifted(statement, store, around, fresh)


def _is_at(access: Load | Store, store: Store) -> bool:
    """The access is a whole one of the store's type to its place."""
    distance = subtract(shift(access.pointer, access.offset), shift(store.pointer, store.offset))
    return distance == Affine() and access.opcode in {store.opcode, load_of(store.opcode)}


def _lifted(statement: Statement, store: Store, around: tuple[int, ...], fresh: FreshNumbers) -> Iterator[LiftedPlace]:
    accessed = [each for each in statement.effects if isinstance(each, Load | Store) and _is_at(each, store)]
    setters = [each for each in statement.effects if isinstance(each, SetCell)]
    after = Store(store.opcode, store.pointer, store.offset, store.value)
    if not any(isinstance(each, Load) for each in accessed):
        cell = next((each.cell for each in setters if each.value is store.value), None)
        if cell is not None:
            effects = tuple(each for each in statement.effects if each not in accessed)
            for part in pruned(Statement(statement.number, ALWAYS, effects)):
                yield LiftedPlace(statement, cell, None, part, with_value(after, Carried(cell)))  # type: ignore[arg-type]
        return
    load = Load(load_of(store.opcode), store.pointer, store.offset)
    cell = fresh.cell(load.type, around)
    content: Value = Carried(cell)
    replaced: dict[Value, Value] = {}
    kept: list[Effect] = []
    for effect in statement.effects:
        if isinstance(effect, Load) and effect in accessed:
            replaced[effect] = content
        elif isinstance(effect, Store) and effect in accessed:
            content = substituted([effect.value], replaced)[effect.value]
        elif isinstance(effect, Store | SetCell):
            kept.append(with_value(effect, substituted([effect.value], replaced)[effect.value]))
        else:
            kept.append(effect)
    part = Statement(statement.number, ALWAYS, (*kept, SetCell(cell, content)))
    yield LiftedPlace(statement, cell, (load, SetCell(cell, load)), part, with_value(after, Carried(cell)))  # type: ignore[arg-type]
