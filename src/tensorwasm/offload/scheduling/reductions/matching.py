"""What a cell becomes as its content and terms in any order: operators whose results do not depend on order.

Those on integers are exact modulo their size. The least and the greatest float are exact but for NaNs, and where data
selects them, in place of ``min`` and ``max``, but for the sign of a zero. Sums and products of floats have one result
for one order; a relaxed mode takes another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from tensorwasm.offload.nest import (
    Carried,
    Cell,
    Constant,
    Effect,
    Loop,
    Operation,
    SetCell,
    Statement,
    Value,
    ValueType,
)
from tensorwasm.offload.opcodes import WIDTH_BITS
from tensorwasm.offload.scheduling.footprints import operands_first

MAX_TERMS: Final = 64
"""Of what one iteration adds."""

_INTEGERS: Final = ("add", "mul", "and", "or", "xor")
_FLOATS: Final = ("min", "max")
_RELAXED: Final = ("add", "mul")
_LEAST: Final = {"lt": True, "le": True, "gt": False, "ge": False}
_INFINITY: Final = {"f32": 0x7F800000, "f64": 0x7FF0000000000000}
_ONE: Final = {"i32": 1, "i64": 1, "f32": 0x3F800000, "f64": 0x3FF0000000000000}


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator on two values of a type: an opcode without it, or ``min`` and ``max`` of integers by their sign."""

    type: ValueType
    name: str

    @property
    def identity(self) -> Constant:
        """What leaves the other operand as it is."""
        bits = WIDTH_BITS[self.type]
        sign, ones = 1 << (bits - 1), (1 << bits) - 1
        if self.name == "mul":
            return Constant(self.type, _ONE[self.type])
        if self.type in _INFINITY:
            least = _INFINITY[self.type] | (0 if self.name == "min" else sign)
            return Constant(self.type, sign if self.name == "add" else least)
        known = {"and": ones, "min_u": ones, "min_s": ones ^ sign, "max_s": sign}
        return Constant(self.type, known.get(self.name, 0))

    def of(self, one: Value, other: Value) -> Value:
        """The result for two operands."""
        if self.name[:4] in {"min_", "max_"}:
            less = "lt" if self.name.startswith("min") else "gt"
            test = Operation("i32", f"{self.type}.{less}{self.name[3:]}", (one, other))
            return Operation(self.type, "select", (one, other, test))
        return Operation(self.type, f"{self.type}.{self.name}", (one, other))

    def all_of(self, terms: Iterable[Value]) -> Value:
        """The result for terms."""
        return reduce(self.of, terms)


@dataclass(frozen=True, slots=True)
class Reduction:
    """The content of a cell and terms under an operator, which is None if there are no terms.

    Attributes:
        selected: the least or greatest of floats is one that data selects.
    """

    operator: Operator | None
    terms: tuple[Value, ...] = ()
    selected: bool = False


def reduction(value: Value, cell: Cell, *, relaxed: bool = False) -> Reduction | None:
    """The value as a reduction of a cell's content; None if it is none whose order does not show.

    Args:
        value: what contains the content of the cell.
        cell: of which its content is an operand.
        relaxed: whether that is so for sums and products of floats, too.
    """
    matcher = _ReductionMatcher(value, cell, relaxed=relaxed)
    return matcher.match(value)


class _ReductionMatcher:
    """Takes a value apart along what contains the content of a cell."""

    def __init__(self, value: Value, cell: Cell, *, relaxed: bool) -> None:
        self._cell, self._relaxed = cell, relaxed
        self._holding: set[Value] = set()
        self._found: dict[Value, Reduction | None] = {}
        for each in operands_first([value]):
            operands = each.operands if isinstance(each, Operation) else ()
            is_content = isinstance(each, Carried) and each.cell is cell
            if is_content or not self._holding.isdisjoint(operands):
                self._holding.add(each)

    def match(self, value: Value) -> Reduction | None:
        if value not in self._found:
            self._found[value] = self._match(value)
        return self._found[value]

    def _match(self, value: Value) -> Reduction | None:
        if isinstance(value, Carried) and value.cell is self._cell:
            return Reduction(None)
        if not isinstance(value, Operation) or value.type != self._cell.type:
            return None
        if value.opcode == "select":
            return self._least(value) if value.operands[2] in self._holding else self._either(value)
        kind, _, name = value.opcode.partition(".")
        operator = Operator(value.type, "add" if name == "sub" else name)
        known = _FLOATS + _RELAXED * self._relaxed if kind in _INFINITY else _INTEGERS
        holding = [operand for operand in value.operands if operand in self._holding]
        if operator.name not in known or len(holding) != 1 or (name == "sub" and holding[0] is not value.operands[0]):
            return None
        (term,) = (operand for operand in value.operands if operand is not holding[0])
        return self._with(holding[0], operator, _terms(term, operator, negated=name == "sub"))

    def _with(
        self, inner: Value, operator: Operator, terms: list[Value], *, selected: bool = False
    ) -> Reduction | None:
        found = self.match(inner)
        if found is None or found.operator not in (None, operator) or len(found.terms) + len(terms) > MAX_TERMS:
            return None
        return Reduction(operator, (*found.terms, *terms), selected or found.selected)

    def _either(self, value: Operation) -> Reduction | None:
        """What one of two reductions is, whichever a condition selects that does not depend on the cell."""
        then, otherwise = (self.match(operand) for operand in value.operands[:2])
        if then is None or otherwise is None:
            return None
        operator = then.operator or otherwise.operator
        if operator is None or {then.operator, otherwise.operator} - {operator, None}:
            return None
        common = 0
        for one, other in zip(then.terms, otherwise.terms, strict=False):
            if one is not other:
                break
            common += 1
        selected = then.selected or otherwise.selected
        if selected and max(len(then.terms), len(otherwise.terms)) > common + 1:
            return None  # of several terms as one, zeros of both signs do not show
        sides = [operator.all_of(side.terms[common:] or (operator.identity,)) for side in (then, otherwise)]
        term = Operation(value.type, "select", (*sides, value.operands[2]))
        return Reduction(operator, (*then.terms[:common], term), selected)

    def _least(self, value: Operation) -> Reduction | None:
        """The lesser or the greater of two values, which a comparison of them selects."""
        then, otherwise, test = value.operands
        is_least = True
        while isinstance(test, Operation) and test.opcode == "i32.eqz":
            test, is_least = test.operands[0], not is_least
        if not isinstance(test, Operation) or test.operands not in ((then, otherwise), (otherwise, then)):
            return None
        kind, _, name = test.opcode.partition(".")
        relation, _, sign = name.partition("_")
        if kind != value.type or relation not in _LEAST or then is otherwise:
            return None
        is_least ^= not _LEAST[relation]
        is_least ^= test.operands[0] is not then
        inner, term = (then, otherwise) if then in self._holding else (otherwise, then)
        if term in self._holding:
            return None
        operator = Operator(value.type, ("min" if is_least else "max") + (f"_{sign}" if sign else ""))
        return self._with(inner, operator, [term], selected=not sign)


def _terms(value: Value, operator: Operator, *, negated: bool) -> list[Value]:
    """The terms of a value without the cell, each negated if that is wanted."""
    if isinstance(value, Operation) and value.opcode.partition(".")[0] == operator.type:
        name = value.opcode.partition(".")[2]
        if name == operator.name or (operator.name == "add" and name == "sub"):
            first, second = value.operands
            behind = _terms(second, operator, negated=negated ^ (name == "sub"))
            return [*_terms(first, operator, negated=negated), *behind]
    if not negated:
        return [value]
    if operator.type in _INFINITY:
        return [Operation(operator.type, f"{operator.type}.neg", (value,))]
    return [Operation(operator.type, f"{operator.type}.sub", (Constant(operator.type, 0), value))]


_MET = Operator("i32", "or")
_BITS: dict[ValueType, ValueType] = {"f32": "i32", "f64": "i64"}
_NAN = {"f32": 0x7FC00000, "f64": 0x7FF8000000000000}


@dataclass(frozen=True, slots=True)
class ZeroWatch:
    """Cells beside others of ``min`` or ``max`` that are 1 if the zero was met that it does not prefer.

    ``a[i] > m ? a[i] : m`` is ``max`` but for a NaN, and for a zero where the other sign is met too. Where that matters
    the result becomes a NaN, and as for every NaN whose bits show, the region declines.
    """

    operator: Operator
    cells: dict[Cell, Cell]

    def begin(self, cell: Cell) -> SetCell:
        """What sets the cell beside one, before the loop."""
        return SetCell(self.cells[cell], self._is_zero(Carried(cell), preferred=False))

    def step(self, effect: SetCell, source: Cell, found: Reduction) -> tuple[Effect, Effect]:
        """What sets a cell to a reduction of another one, and the cell beside it."""
        content: Value = Carried(source)
        met: Value = Carried(self.cells[source])
        for term in found.terms:
            content = self.operator.of(content, term)
            met = _MET.of(met, self._is_zero(term, preferred=False))
        return SetCell(effect.cell, content), SetCell(self.cells[effect.cell], met)

    def end(self, cell: Cell) -> SetCell:
        """What makes the content of a cell a NaN if that of its zero is open, and shows it, behind the loop."""
        kind, bits = self.operator.type, _BITS[self.operator.type]
        content, met = Carried(cell), Carried(self.cells[cell])
        both = Operation("i32", "i32.and", (met, self._is_zero(content, preferred=True)))
        open_ = Operation(kind, "select", (Constant(kind, _NAN[kind]), content, both))
        shown = Operation(bits, f"{bits}.reinterpret_{kind}", (open_,))
        return SetCell(cell, Operation(kind, f"{kind}.reinterpret_{bits}", (shown,)))

    def _is_zero(self, value: Value, *, preferred: bool) -> Value:
        kind = _BITS[self.operator.type]
        negative = preferred == (self.operator.name == "min")
        zero = Constant(kind, 1 << (WIDTH_BITS[kind] - 1) if negative else 0)
        shown = Operation(kind, f"{kind}.reinterpret_{self.operator.type}", (value,))
        return Operation("i32", f"{kind}.eq", (shown, zero))


def with_effects(loop: Loop, of: Callable[[Effect], tuple[Effect, ...]]) -> Loop:
    """The loop with others in place of all effects in it."""
    body: list[Loop | Statement] = []
    for item in loop.body:
        if isinstance(item, Loop):
            body.append(with_effects(item, of))
        else:
            effects = tuple(new for effect in item.effects for new in of(effect))
            body.append(Statement(item.number, item.domain, effects))
    return Loop(loop.counter, loop.trip, tuple(body))
