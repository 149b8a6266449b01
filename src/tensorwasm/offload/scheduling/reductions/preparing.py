"""Loops made ready for reductions in parts.

Where a compiler has unrolled a loop, an iteration reduces several terms that are alike but for their places: each
becomes an iteration of its own. Places in memory that a loop adds to become cells, which are loaded before the loop and
stored behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.affine import coefficient, counters, scale, shift, subtract
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Effect,
    Floor,
    Index,
    Load,
    Loop,
    SetCell,
    Statement,
    Store,
    Value,
    While,
    accesses_of,
    are_alike,
    load_of,
)
from tensorwasm.offload.opcodes import WIDTH_BITS
from tensorwasm.offload.scheduling.footprints import operands_first
from tensorwasm.offload.scheduling.reductions.copying import Copier, FreshNumbers
from tensorwasm.offload.scheduling.reductions.matching import Operator, reduction
from tensorwasm.offload.scheduling.rewriting import Body, pruned, statements_in, substituted, with_value

ADDRESS_BITS: Final = 32


def rerolled(loop: Loop, operators: Mapping[Cell, Operator], fresh: FreshNumbers, *, relaxed: bool) -> Loop:
    """A loop of statements with one term of each reduction in an iteration, or as it is if terms are not alike."""
    found = [_rolled(item, loop.counter, operators, relaxed=relaxed) for item in loop.body]
    copies = {number for number, _ in found}
    if len(copies) != 1 or copies <= {0, 1}:
        return loop
    (number,) = copies
    copier = Copier(fresh, lambda affine: _per_copy(affine, loop.counter, number))
    return Loop(loop.counter, scale(loop.trip, number), copier.body([item for _, item in found]))


def _rolled(
    item: Loop | Statement, number: int, operators: Mapping[Cell, Operator], *, relaxed: bool
) -> tuple[int, Loop | Statement]:
    """How many copies of an iteration a statement is, and the first of them; 0 if they are not alike."""
    if not isinstance(item, Statement) or item.domain != ALWAYS:
        return 0, item
    terms: dict[SetCell, list[Value]] = {}
    for effect in item.effects:
        if isinstance(effect, SetCell):
            found = reduction(effect.value, effect.cell, relaxed=relaxed) if effect.cell in operators else None
            if found is None:
                return 0, item
            terms[effect] = sorted(found.terms, key=_first_place)
    copies = {len(each) for each in terms.values()}
    if len(copies) != 1:
        return 0, item
    matcher = _CopyMatcher(number, *copies)
    if not all(matcher.are_copies(each[0], other, at) for each in terms.values() for at, other in enumerate(each)):
        return 0, item
    kept = set(operands_first(each[0] for each in terms.values()))
    effects: list[Effect] = [effect for effect in item.effects if effect in kept]
    for effect, (first, *_) in terms.items():
        effects.append(SetCell(effect.cell, operators[effect.cell].of(Carried(effect.cell), first)))
    return copies.pop(), Statement(item.number, ALWAYS, tuple(effects))


def _per_copy(affine: Affine, number: int, copies: int) -> Affine:
    """The expression for a counter of copies, of which each moves by a part of what an iteration does."""
    terms = tuple((term, factor // copies if term == number else factor) for term, factor in affine.terms)
    return Affine(affine.constant, terms)


def _first_place(term: Value) -> int:
    """The constant of the first address or index in a term."""
    for value in operands_first([term]):
        if isinstance(value, Load) and value.pointer.terms:
            return value.pointer.constant + value.offset
    for value in operands_first([term]):
        if isinstance(value, Index) and value.affine.terms:
            return value.affine.constant
    return 0


class _CopyMatcher:
    """Finds out whether terms are alike but for their places."""

    def __init__(self, number: int, copies: int) -> None:
        self._number, self._copies = number, copies

    def are_copies(self, first: Value, later: Value, at: int) -> bool:
        """The later value is what the first one is so many copies on."""

        def is_copy(one: Value, other: Value) -> bool:
            match one, other:
                case Carried(), Carried():
                    return one.cell is other.cell
                case Index(), Index():
                    return one.type == other.type and self._follows(one.affine, other.affine, at, WIDTH_BITS[one.type])
                case Load(), Load():
                    here, there = (shift(each.pointer, each.offset) for each in (one, other))
                    return one.opcode == other.opcode and self._follows(here, there, at, ADDRESS_BITS)
            return False

        return are_alike(first, later, is_copy)

    def _follows(self, one: Affine, other: Affine, at: int, bits: int) -> bool:
        """The other expression is as far ahead of the first as the counter's stride says, modulo its size."""
        stride = coefficient(one, self._number)
        hidden = any(isinstance(term, Floor) and self._number in counters(term.value) for term, _ in one.terms)
        distance = subtract(other, one)
        if hidden or distance.terms or stride % self._copies:
            return False
        return (distance.constant - at * (stride // self._copies)) % (1 << bits) == 0


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
