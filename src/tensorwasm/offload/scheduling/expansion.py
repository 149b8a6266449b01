"""Cells in place of an array that every iteration of outer loops fills and reads anew.

`sum[p]` of a row, which the next row overwrites, keeps rows apart in time only. With a place for each row's, rows are
parallel, and the array itself holds what the last one leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tensorwasm.offload.affine import counter, shift, substitute, subtract
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constraint,
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
    accesses_of,
    load_of,
)
from tensorwasm.offload.scheduling.model import NestModel, StatementModel
from tensorwasm.offload.scheduling.rewriting import rewritten, statements_in, substituted, with_value
from tensorwasm.offload.scheduling.storage import MAX_SCRATCH_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class _Expansion:
    """A cell for what a store writes.

    Attributes:
        repeated: the counters of the loops that write the same places anew.
        readers: for each load, the counters whose values choose what it reads.
    """

    cell: Cell
    store: Store
    repeated: tuple[int, ...]
    readers: Mapping[Load, tuple[int, ...]]


def expanded(nest: Nest, model: NestModel) -> tuple[Nest, dict[int, int]]:
    """The nest with cells in place of arrays that iterations fill and read, and the origins of parts of statements.

    The last iteration's stores are a part of their own: few threads have them to do.
    """
    search = _ExpansionSearch(nest, model)
    found = [each for array in model.arrays if (each := search.expansion(array.number)) is not None]
    origins: dict[int, int] = {}
    fresh = 1 + max((each.number for each in statements_in(nest.body)), default=0)
    by_store = {each.store: (each, fresh + index) for index, each in enumerate(found)}
    loads: dict[Value, Value] = {load: _read(each, load, at) for each in found for load, at in each.readers.items()}

    def change(statement: Statement) -> Sequence[Statement]:
        changed = _with_cells(statement, loads, {store: each.cell for store, (each, _) in by_store.items()})
        lasts = [by_store[effect] for effect in statement.effects if isinstance(effect, Store) and effect in by_store]
        if lasts:
            origins.update(dict.fromkeys((statement.number, *(number for _, number in lasts)), statement.number))
        return [changed, *(_last(each, number, search.loops) for each, number in lasts)]

    return Nest(rewritten(nest.body, change), nest.results), origins


def _read(expansion: _Expansion, load: Load, at: tuple[int, ...]) -> Value:
    value = Carried(expansion.cell, at)
    if load.type == value.type:
        return value
    return Operation(load.type, f"{load.type}.reinterpret_{value.type}", (value,))


def _with_cells(statement: Statement, loads: Mapping[Value, Value], cells: Mapping[Store, Cell]) -> Statement:
    """The statement with values in place of loads, and changes of cells in place of stores."""
    if not any(effect in loads or effect in cells for effect in statement.effects):
        return statement
    changing = [effect.value for effect in statement.effects if isinstance(effect, Store | SetCell)]
    made = substituted(changing, loads)
    effects: list[Effect] = []
    for effect in statement.effects:
        if isinstance(effect, Store) and effect in cells:
            effects.append(SetCell(cells[effect], made[effect.value]))
        elif isinstance(effect, Store | SetCell):
            effects.append(with_value(effect, made[effect.value]))
        elif effect not in loads:
            effects.append(effect)
    return Statement(statement.number, statement.domain, tuple(effects))


def _last(expansion: _Expansion, number: int, loops: Mapping[int, Loop]) -> Statement:
    """The statement that stores what the last iteration of the repeating loops leaves."""
    store = expansion.store
    at_end = (
        Constraint(shift(counter(each), 1 - loops[each].trip.constant), equality=True) for each in expansion.repeated
    )
    return Statement(number, (tuple(at_end),), (with_value(store, Carried(expansion.cell)),))


class _ExpansionSearch:
    """Finds arrays of a nest that may be cells."""

    def __init__(self, nest: Nest, model: NestModel) -> None:
        self.loops = {loop.counter: loop for loop in _loops_in(nest.body)}
        self._models = {each.number: each for each in model.statements}
        self._statements = [each for each in statements_in(nest.body) if each.number in self._models]
        self._array_of = model.array_of
        self._number = 1 + max((cell.number for cell in _cells_of(nest, model)), default=-1)

    def expansion(self, array: int) -> _Expansion | None:
        """The expansion of an array that one store writes and that loads read behind it, in the same iteration."""
        users = [
            (statement, access)
            for statement in self._statements
            for access in accesses_of(statement.effects)
            if self._array_of[access] == array
        ]
        stores = [(statement, access) for statement, access in users if isinstance(access, Store)]
        loads = [(statement, access) for statement, access in users if isinstance(access, Load)]
        if len(stores) != 1 or not loads or any(_has_loops(statement) for statement, _ in users):
            return None
        statement, store = stores[0]
        writer = self._models[statement.number]
        repeated = self._repeated(statement, writer, store)
        shared = min(_common(writer, self._models[reader.number]) for reader, _ in loads)
        readers = {load: self._chosen(writer, store, self._models[reader.number], load) for reader, load in loads}
        known = {load: at for load, at in readers.items() if at is not None}
        count = prod(upper + 1 for upper in writer.upper[: len(writer.counters)])
        if not repeated or not set(repeated) <= set(writer.counters[:shared]) or len(known) < len(readers):
            return None
        if count * store.size_bytes > MAX_SCRATCH_BYTES:
            return None
        cell = Cell(self._number, store.value.type, writer.counters)
        self._number += 1
        return _Expansion(cell, store, repeated, known)

    def _repeated(self, statement: Statement, writer: StatementModel, store: Store) -> tuple[int, ...]:
        """The counters of loops that write the same places in each turn; none if not all others write other ones."""
        strides = {term: factor for term, factor in store.pointer.terms if isinstance(term, int)}
        whole = load_of(store.opcode).endswith(".load") and len(strides) == len(store.pointer.terms)
        repeated = tuple(each for each in writer.counters if each not in strides)
        trips = {each: self.loops[each].trip for each in writer.counters}
        steady = all(not trips[each].terms for each in repeated)
        steady &= all(
            term not in repeated for trip in trips.values() for term, _ in trip.terms if isinstance(term, int)
        )
        steady &= all(isinstance(term, int) for trip in trips.values() for term, _ in trip.terms)
        if not whole or not steady or statement.domain != ALWAYS:
            return ()
        size_bytes = store.size_bytes
        for each in sorted(strides, key=lambda each: abs(strides[each])):
            if abs(strides[each]) < size_bytes:
                return ()
            size_bytes += abs(strides[each]) * (writer.extent(writer.counters.index(each)) - 1)
        return repeated

    def _chosen(
        self, writer: StatementModel, store: Store, reader: StatementModel, load: Load
    ) -> tuple[int, ...] | None:
        """The counters of a load's loops in place of those of the store that has written what it reads."""
        common = _common(writer, reader)
        if load_of(store.opcode).partition(".")[2] != load.opcode.partition(".")[2] or reader is writer:
            return None
        if load.size_bytes != store.size_bytes or writer.positions[common] >= reader.positions[common]:
            return None
        by_stride = {factor: term for term, factor in load.pointer.terms if term in reader.counters[common:]}
        strides = dict(store.pointer.terms)
        others = [by_stride.get(strides.get(each, 0)) for each in writer.counters[common:]]
        chosen = (*writer.counters[:common], *(each for each in others if isinstance(each, int)))
        if len(chosen) < len(writer.counters):
            return None
        renamed = {own: counter(other) for own, other in zip(writer.counters, chosen, strict=True)}
        pairs = [(store.pointer, load.pointer, store.offset - load.offset)]
        pairs += [(self.loops[own].trip, self.loops[other].trip, 0) for own, other in zip(renamed, chosen, strict=True)]
        same = all(shift(subtract(substitute(one, renamed), other), ahead) == Affine() for one, other, ahead in pairs)
        return chosen if same else None


def _common(one: StatementModel, other: StatementModel) -> int:
    """How many loops are around both statements."""
    pairs = enumerate(zip(one.counters, other.counters, strict=False))
    return next((depth for depth, (mine, its) in pairs if mine != its), min(len(one.counters), len(other.counters)))


def _has_loops(statement: Statement) -> bool:
    return any(isinstance(effect, While) for effect in statement.effects)


def _cells_of(nest: Nest, model: NestModel) -> Iterator[Cell]:
    yield from model.cell_extents
    for statement in statements_in(nest.body):
        yield from (effect.cell for effect in statement.effects if isinstance(effect, SetCell))


def _loops_in(body: Iterable[Loop | Statement]) -> Iterator[Loop]:
    for item in body:
        if isinstance(item, Loop):
            yield item
            yield from _loops_in(item.body)
