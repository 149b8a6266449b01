"""The model of a loop nest for one set of integer inputs: its loops, its statements, and the values they compute.

Integers that addresses, bounds and conditions are made of are affine expressions in loop counters. Bounds and
conditions are exact; pointers are exact modulo 2**32. All other values are trees of WebAssembly's own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

ValueType = Literal["i32", "i64", "f32", "f64"]

LOAD_BYTES: Final[Mapping[str, int]] = {
    "i32.load": 4,
    "i64.load": 8,
    "f32.load": 4,
    "f64.load": 8,
    "i32.load8_s": 1,
    "i32.load8_u": 1,
    "i32.load16_s": 2,
    "i32.load16_u": 2,
    "i64.load8_s": 1,
    "i64.load8_u": 1,
    "i64.load16_s": 2,
    "i64.load16_u": 2,
    "i64.load32_s": 4,
    "i64.load32_u": 4,
}
"""Bytes that each load reads."""

STORE_BYTES: Final[Mapping[str, int]] = {
    "i32.store": 4,
    "i64.store": 8,
    "f32.store": 4,
    "f64.store": 8,
    "i32.store8": 1,
    "i32.store16": 2,
    "i64.store8": 1,
    "i64.store16": 2,
    "i64.store32": 4,
}
"""Bytes that each store writes."""


def load_of(store: str) -> str:
    """Return the load that reads what a store writes, and extends it by zeros."""
    load = store.replace("store", "load")
    return load if load in LOAD_BYTES else f"{load}_u"


@dataclass(frozen=True, slots=True)
class Floor:
    """The largest integer that is at most ``value / divisor``; the divisor is at least 2."""

    value: Affine
    divisor: int


Term = int | Floor
"""The number of a loop counter, or a quotient."""


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant`` plus each term times its coefficient, which is not 0; no term appears twice."""

    constant: int = 0
    terms: tuple[tuple[Term, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """``value >= 0``, or ``value == 0`` if it is an equality."""

    value: Affine
    equality: bool = False


Domain = tuple[tuple[Constraint, ...], ...]
"""A union of sets of iterations: in each set all its constraints hold."""

ALWAYS: Final[Domain] = ((),)


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A number, as its bits."""

    type: ValueType
    bits: int


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """What a local of the function held when the nest began; only those that are not `Index` are inputs."""

    type: ValueType
    local: int


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """An affine expression as a value, reduced modulo 2**32 or 2**64."""

    type: ValueType
    affine: Affine


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """The present content of a cell.

    Attributes:
        others: counters whose values choose the cell in place of those that index it; none for these themselves.
    """

    cell: Cell
    others: tuple[int, ...] = ()

    @property
    def counters(self) -> tuple[int, ...]:
        """Whose values choose the cell."""
        return self.others or self.cell.counters

    @property
    def type(self) -> ValueType:
        """That of the cell."""
        return self.cell.type


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A numeric instruction that cannot trap, or ``select``; operands are in the order in which they were pushed."""

    type: ValueType
    opcode: str
    operands: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """A load, and the value it read. It runs where it stands among the effects of its statement.

    ``pointer`` is exact modulo 2**32: the address is ``pointer mod 2**32 + offset``.
    """

    opcode: str
    pointer: Affine
    offset: int

    @property
    def type(self) -> ValueType:
        """Of the value."""
        return _type_of(self.opcode)

    @property
    def size_bytes(self) -> int:
        """Bytes that it reads."""
        return LOAD_BYTES[self.opcode]


@dataclass(frozen=True, slots=True, eq=False)
class TurningScalar:
    """What a `While` changes: its content when a turn begins, and behind the loop that in the end."""

    type: ValueType


Value = Constant | Input | Index | Carried | Operation | Load | TurningScalar


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A store; ``pointer`` as for `Load`."""

    opcode: str
    pointer: Affine
    offset: int
    value: Value

    @property
    def size_bytes(self) -> int:
        """Bytes that it writes."""
        return STORE_BYTES[self.opcode]


@dataclass(frozen=True, slots=True, eq=False)
class SetCell:
    """A new content of a cell."""

    cell: Cell
    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class While:
    """A loop without stores of which data decides when it ends, within one iteration of a statement.

    Scalars begin as what is initial. If the loop is entered, its effects run in turns; at the end of a turn all scalars
    change at once, and another turn follows if ``again``, from before the change, is not 0.

    Attributes:
        counter: number of the turn, from 0; only what is in the loop depends on it.
        turns: at least 1, and no less than there are; None if that is not known.
        entered: whether there is a turn; None if there always is.
        after: of each scalar, from before the change.
    """

    counter: int
    turns: Affine | None
    entered: Value | None
    scalars: tuple[TurningScalar, ...]
    initial: tuple[Value, ...]
    effects: tuple[Load | While, ...]
    after: tuple[Value, ...]
    again: Value


Effect = Load | Store | SetCell | While


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A scalar that iterations or statements hand on: there is one for each value of the counters that index it."""

    number: int
    type: ValueType
    counters: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A straight piece of one iteration, run for the iterations in its domain.

    Loads and stores run in their order. Cells change all at once at the end, so every `Carried` is the content from
    before the statement. Every load that a value depends on is among the effects.
    """

    number: int
    domain: Domain
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop, whose counter runs from 0 to ``trip - 1``; the trip depends on outer counters and may be 0 or less."""

    counter: int
    trip: Affine
    body: tuple[Loop | Statement, ...]


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops and statements in program order.

    Counters are numbered from 0, each belongs to one loop.

    Attributes:
        results: what locals hold after the nest, by local; of `Constant`, `Input`, `Index`, `Carried` and operations
            on these, without counters.
    """

    body: tuple[Loop | Statement, ...]
    results: Mapping[int, Value] = field(default_factory=dict)


def values_of(effects: Iterable[Effect]) -> Iterator[Value]:
    """Yield what effects compute from values, those in loops of data among them, but not what loads read."""
    for effect in effects:
        if isinstance(effect, While):
            yield from (effect.entered,) if effect.entered is not None else ()
            yield from effect.initial
            yield from values_of(effect.effects)
            yield from (*effect.after, effect.again)
        elif not isinstance(effect, Load):
            yield effect.value


def are_alike(one: Value, other: Value, is_same: Callable[[Value, Value], bool]) -> bool:
    """Return whether two values are the same operations on the same constants and inputs, and on others that match.

    Args:
        one: a value.
        other: another one.
        is_same: returns whether two indices, two loads or two contents of cells match.
    """
    pending, seen = [(one, other)], set[tuple[Value, Value]]()
    while pending:
        pair = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        match pair:
            case Constant() as mine, Constant() as its:
                same = (mine.type, mine.bits) == (its.type, its.bits)
            case Input() as mine, Input() as its:
                same = mine.local == its.local
            case Operation() as mine, Operation() as its:
                same = (mine.opcode, mine.type, len(mine.operands)) == (its.opcode, its.type, len(its.operands))
                pending += zip(mine.operands, its.operands, strict=False)
            case _:
                same = type(pair[0]) is type(pair[1]) and is_same(*pair)
        if not same:
            return False
    return True


def whiles_of(effects: Iterable[Effect]) -> Iterator[While]:
    """Yield loops of data, the outer ones first."""
    for effect in effects:
        if isinstance(effect, While):
            yield effect
            yield from whiles_of(effect.effects)


def accesses_of(effects: Iterable[Effect]) -> Iterator[Load | Store]:
    """Yield loads and stores in order."""
    for effect in effects:
        if isinstance(effect, While):
            yield from accesses_of(effect.effects)
        elif not isinstance(effect, SetCell):
            yield effect


def _type_of(opcode: str) -> ValueType:
    return opcode.partition(".")[0]  # type: ignore[return-value]  # the keys of LOAD_BYTES begin with one
