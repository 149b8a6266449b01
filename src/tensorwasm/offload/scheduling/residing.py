"""Places in memory in place of cells that hold what is there, and statements that store twice as two.

Compilers keep in a register what a loop adds up and stores in each iteration. As memory it is a place that other loops
know, so that iterations of all of them may run in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import islpy as isl

from tensorwasm.offload.affine import counters, shift, subtract
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Effect,
    Load,
    Nest,
    SetCell,
    Statement,
    Store,
    Value,
    While,
    load_of,
)
from tensorwasm.offload.scheduling.footprints import cells_in, may_meet
from tensorwasm.offload.scheduling.model import NestModel, StatementModel
from tensorwasm.offload.scheduling.rewriting import (
    pruned,
    rewritten,
    statements_in,
    substituted,
    with_contents,
    with_value,
)


def resident(nest: Nest, model: NestModel) -> Nest:
    """The nest with loads in place of cells that always hold what is at one place; the same nest if there are none."""
    kept = set(cells_in(nest.results.values()))
    found = {cell: place for cell in model.cell_extents if cell not in kept and (place := _place(nest, model, cell))}
    # A cell that is set to another one is as good as this one.
    while wrong := [cell for cell in found if not _holds(nest, model, cell, found)]:
        for cell in wrong:
            del found[cell]
    if not found:
        return nest

    def change(statement: Statement) -> Sequence[Statement]:
        for cell, place in found.items():
            used = cell in cells_in(effect.value for effect in statement.effects if isinstance(effect, Store | SetCell))
            sets = any(isinstance(effect, SetCell) and effect.cell is cell for effect in statement.effects)
            if used or sets:
                load = Load(place.opcode, place.pointer, place.offset)
                statement = with_contents(statement, {cell: load} if used else {}, cell)
        return pruned(statement)

    return Nest(rewritten(nest.body, change), nest.results)


def reloading(nest: Nest) -> Nest:
    """The nest with a load behind each store but a statement's last one, in place of the value in what follows."""
    return Nest(rewritten(nest.body, _reloading), nest.results)


def _place(nest: Nest, model: NestModel, cell: Cell) -> Load | None:
    """The place that a setter of a cell names, as a load of it."""
    for statement in statements_in(nest.body):
        stores = [effect for effect in statement.effects if isinstance(effect, Store)]
        for effect in statement.effects:
            if isinstance(effect, SetCell) and effect.cell is cell:
                if isinstance(effect.value, Load) and not stores:
                    return effect.value if _is_whole(effect.value) and _within(effect.value, cell) else None
                if stores and stores[-1].value is effect.value:
                    load = Load(load_of(stores[-1].opcode), stores[-1].pointer, stores[-1].offset)
                    return load if _is_whole(load) and _within(load, cell) else None
                if isinstance(effect.value, Carried) and not stores:
                    return _place(nest, model, effect.value.cell) if effect.value.cell.number < cell.number else None
    return None


def _is_whole(load: Load) -> bool:
    return load.opcode.endswith(".load")


def _within(load: Load, cell: Cell) -> bool:
    return set(counters(load.pointer)) <= set(cell.counters)


def _is_at(access: Load | Store, place: Load) -> bool:
    distance = subtract(shift(access.pointer, access.offset), shift(place.pointer, place.offset))
    return distance == Affine() and access.size_bytes == place.size_bytes


def _holds(nest: Nest, model: NestModel, cell: Cell, places: dict[Cell, Load]) -> bool:
    """Whatever sets the cell leaves it equal to its place, which nothing else changes before its last use."""
    place = places[cell]
    listed = [each for each in statements_in(nest.body) if any(each.number == m.number for m in model.statements)]
    models = {each.number: each for each in model.statements}
    setters = [each for each in listed if any(isinstance(e, SetCell) and e.cell is cell for e in each.effects)]
    users = [each for each in listed if cell in cells_in(_values(each))]
    if any(isinstance(effect, While) for each in (*setters, *users) for effect in each.effects):
        return False
    if not users or not all(_sets_to_place(each, cell, places) for each in setters):
        return False
    first = min(map(listed.index, setters))
    for index, between in enumerate(listed):
        if index < first and not _is_inside(models[between.number], cell):
            continue
        if between in setters or not _may_store(between, models[between.number], place, cell, model):
            continue
        for position, user in ((listed.index(user), user) for user in users):
            follows = position > index or _share_a_loop(models[between.number], models[user.number], cell)
            if follows and not _are_disjoint(models[between.number], models[user.number], cell):
                return False
    return True


def _values(statement: Statement) -> Iterator[Value]:
    return (effect.value for effect in statement.effects if isinstance(effect, Store | SetCell))


def _is_inside(model: StatementModel, cell: Cell) -> bool:
    """The statement is in a loop that the cell's counters do not name."""
    return len(model.counters) > len(cell.counters)


def _share_a_loop(one: StatementModel, other: StatementModel, cell: Cell) -> bool:
    """Two statements are in one loop that the cell's counters do not name."""
    inner = len(cell.counters)
    return _is_inside(one, cell) and one.counters[: inner + 1] == other.counters[: inner + 1]


def _sets_to_place(statement: Statement, cell: Cell, places: dict[Cell, Load]) -> bool:
    value = next(effect.value for effect in statement.effects if isinstance(effect, SetCell) and effect.cell is cell)
    stores = [effect for effect in statement.effects if isinstance(effect, Store)]
    if stores:
        return stores[-1].value is value and _is_at(stores[-1], places[cell])
    if isinstance(value, Load):
        return _is_at(value, places[cell]) and value.opcode == places[cell].opcode
    return isinstance(value, Carried) and value.cell in places and _is_at(places[value.cell], places[cell])


def _may_store(statement: Statement, model: StatementModel, place: Load, cell: Cell, whole: NestModel) -> bool:
    """A statement in the loops of a cell may store to its place."""
    if model.counters[: len(cell.counters)] != cell.counters:
        return False
    for store in statement.effects:
        if not isinstance(store, Store) or not may_meet(place, store, whole.array_of):
            continue
        distance = subtract(shift(store.pointer, store.offset), shift(place.pointer, place.offset))
        if distance.terms or -store.size_bytes < distance.constant < place.size_bytes:
            return True
    return False


def _are_disjoint(one: StatementModel, other: StatementModel, cell: Cell) -> bool:
    """Two statements never run at one value of a cell's counters."""
    outer = len(cell.counters)
    sets = []
    for model in (one, other):
        width = model.domain.dim(isl.dim_type.set)
        sets.append(model.domain.project_out(isl.dim_type.set, outer, width - outer).reset_tuple_id())
    return sets[0].intersect(sets[1]).is_empty()


def _reloading(statement: Statement) -> Sequence[Statement]:
    effects: list[Effect] = []
    replacements: dict[Value, Value] = {}
    for effect in statement.effects:
        if not isinstance(effect, Store | SetCell):
            effects.append(effect)
            continue
        made = substituted([effect.value], replacements)[effect.value]
        effects.append(with_value(effect, made))
        if isinstance(effect, Store) and load_of(effect.opcode).endswith(".load"):
            load = Load(load_of(effect.opcode), effect.pointer, effect.offset)
            replacements[effect.value] = load
            effects.append(load)
    return pruned(Statement(statement.number, statement.domain, tuple(effects)))
