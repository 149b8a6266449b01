"""Copies of statements and loops of a nest, for other counters and cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count

from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Constraint,
    Effect,
    Index,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
    ValueType,
    While,
    values_of,
    whiles_of,
)
from tensorwasm.offload.scheduling.footprints import cell_accesses, operands_first
from tensorwasm.offload.scheduling.rewriting import Body, loops_in, statements_in


class FreshNumbers:
    """Numbers of statements, counters and cells that a nest does not have."""

    def __init__(self, nest: Nest) -> None:
        statements = list(statements_in(nest.body))
        cells = (access.cell.number for each in statements for access in cell_accesses(each))
        self._statements = count(1 + max((each.number for each in statements), default=0))
        turns = (each.counter for statement in statements for each in whiles_of(statement.effects))
        self._counters = count(1 + max((*turns, *(loop.counter for loop in loops_in(nest.body))), default=0))
        self._cells = count(1 + max(cells, default=0))

    def counter(self) -> int:
        """A loop's."""
        return next(self._counters)

    def cell(self, type_: ValueType, counters: tuple[int, ...]) -> Cell:
        """A cell of a type."""
        return Cell(next(self._cells), type_, counters)

    def statement(self, *effects: Effect) -> Statement:
        """A statement that always runs."""
        return Statement(next(self._statements), ((),), effects)

    def renumbered(self, statement: Statement) -> Statement:
        """The statement with a number of its own."""
        return Statement(next(self._statements), statement.domain, statement.effects)


@dataclass(frozen=True, slots=True)
class Copier:
    """Copies what has no `While`.

    Attributes:
        fresh: numbers for the copies.
        moved: an expression for other counters.
        loops: numbers in place of those of loops.
        cells: cells in place of others.
    """

    fresh: FreshNumbers
    moved: Callable[[Affine], Affine]
    loops: Mapping[int, int] = field(default_factory=dict)
    cells: Mapping[Cell, Cell] = field(default_factory=dict)

    def body(self, items: Iterable[Loop | Statement]) -> Body:
        """The items with counters, cells and effects of their own."""
        return tuple(self._loop(item) if isinstance(item, Loop) else self.statement(item) for item in items)

    def _loop(self, loop: Loop) -> Loop:
        return Loop(self.loops[loop.counter], self.moved(loop.trip), self.body(loop.body))

    def statement(self, statement: Statement) -> Statement:
        """The statement with effects of its own."""
        values = self.values(chain(values_of(statement.effects), statement.effects))
        domain = tuple(
            tuple(Constraint(self.moved(each.value), each.equality) for each in part) for part in statement.domain
        )
        effects = tuple(self._effect(effect, values) for effect in statement.effects)
        return self.fresh.renumbered(Statement(0, domain, effects))

    def values(self, roots: Iterable[Value | Effect]) -> dict[Value, Value]:
        """Copies of values and of all that they are made of."""
        made: dict[Value, Value] = {}
        for value in operands_first(each for each in roots if not isinstance(each, Store | SetCell | While)):
            made[value] = self._value(value, made)
        return made

    def _value(self, value: Value, made: Mapping[Value, Value]) -> Value:
        match value:
            case Index():
                return Index(value.type, self.moved(value.affine))
            case Load():
                return Load(value.opcode, self.moved(value.pointer), value.offset)
            case Carried():
                return Carried(self.cells.get(value.cell, value.cell))
            case Operation():
                operands = tuple(made[operand] for operand in value.operands)
                return value if operands == value.operands else Operation(value.type, value.opcode, operands)
            case _:
                return value

    def _effect(self, effect: Effect, values: Mapping[Value, Value]) -> Effect:
        match effect:
            case Load():
                return values[effect]  # type: ignore[return-value]  # of a load it is one
            case Store():
                pointer = self.moved(effect.pointer)
                return Store(effect.opcode, pointer, effect.offset, values[effect.value])
            case SetCell():
                return SetCell(self.cells.get(effect.cell, effect.cell), values[effect.value])
            case While():
                raise TypeError("a loop of data is not copied")
