"""Integers whose value is affine in counters, and what WebAssembly's instructions make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from tensorwasm.offload.affine import ZERO, add, content, quotient, scale, shift, subtract, wrap
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Constraint, Floor, ValueType

BITS: Final = {"i32": 32, "i64": 64}
_OPPOSITE: Final = {
    "eq": "ne", "ne": "eq",
    "lt_s": "ge_s", "ge_s": "lt_s", "gt_s": "le_s", "le_s": "gt_s",
    "lt_u": "ge_u", "ge_u": "lt_u", "gt_u": "le_u", "le_u": "gt_u",
}  # fmt: skip


Outcome = tuple[bool, tuple[Constraint, ...]]
"""Whether a condition holds where some constraints do."""


@dataclass(frozen=True, slots=True)
class Integer:
    """A value that is affine in counters, modulo ``2**32`` or ``2**64``."""

    type: ValueType
    affine: Affine

    @property
    def constant(self) -> int | None:
        """The unsigned value if it is the same in all iterations, else None."""
        return None if self.affine.terms else self.affine.constant % (1 << BITS[self.type])


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two values of so many bits: 1 if it holds, else 0."""

    relation: str
    left: Affine
    right: Affine
    bits: int

    def opposite(self) -> Comparison:
        """Return the comparison that holds if this one does not."""
        return Comparison(_OPPOSITE[self.relation], self.left, self.right, self.bits)

    def outcomes(self, scope: Scope) -> list[Outcome] | None:
        """Return disjoint conditions that together cover a scope, and the result under each; None if not known."""
        if self.relation in {"eq", "ne"}:
            return self._equality(scope, equal=self.relation == "eq")
        least, most = self.ordered()
        first = -(1 << (self.bits - 1)) if self.relation.endswith("_s") else 0
        left, right = scope.exact(least, first, self.bits), scope.exact(most, first, self.bits)
        if left is None or right is None:
            return None
        margin = shift(subtract(right, left), 0 if self.relation[1] == "e" else -1)
        upper, lower = scope.upper(margin), scope.lower(margin)
        if lower is not None and lower >= 0:
            return [(True, ())]
        if upper is not None and upper < 0:
            return [(False, ())]
        holds, fails = Constraint(margin), Constraint(shift(scale(margin, -1), -1))
        return [(True, (holds,)), (False, (fails,))]

    def ordered(self) -> tuple[Affine, Affine]:
        """Return the two values, the one first that is to be less."""
        return (self.left, self.right) if self.relation[0] == "l" else (self.right, self.left)

    def _equality(self, scope: Scope, *, equal: bool) -> list[Outcome] | None:
        difference = subtract(self.left, self.right)
        multiples = scope.multiples(difference, self.bits)
        if multiples is None or len(multiples) > 1:
            return None
        if not multiples:
            return [(not equal, ())]
        difference = shift(difference, -multiples[0])
        upper, lower = scope.upper(difference), scope.lower(difference)
        if upper == lower == 0:
            return [(equal, ())]
        parts: list[Outcome] = [(equal, (Constraint(difference, equality=True),))]
        if upper is None or upper > 0:
            parts.append((not equal, (Constraint(shift(difference, -1), equality=upper == 1),)))
        if lower is None or lower < 0:
            parts.append((not equal, (Constraint(shift(scale(difference, -1), -1), equality=lower == -1),)))
        return parts


def apply(opcode: str, operands: Sequence[Integer], scope: Scope) -> Integer | Comparison | None:
    """Return the result of an instruction; None if it is not affine."""
    kind, _, name = opcode.partition(".")
    bits = BITS[operands[0].type]
    affines = [operand.affine for operand in operands]
    if name == "eqz":
        return Comparison("eq", affines[0], ZERO, bits)
    if name in _OPPOSITE:
        return Comparison(name, affines[0], affines[1], bits)
    rule = _RULES.get(name)
    result = rule(affines, bits, scope) if rule else None
    if result is None or kind not in BITS:
        return None
    return Integer("i64" if kind == "i64" else "i32", wrap(result, BITS[kind]))


_Rule = Callable[[Sequence[Affine], int, Scope], Affine | None]


def _settled(value: Affine, scope: Scope) -> Affine:
    """Replace quotients that are the same in all iterations."""
    result = Affine(value.constant)
    for term, number in value.terms:
        alone = Affine(0, ((term, 1),))
        if isinstance(term, Floor):
            upper = scope.upper(alone)
            if upper is not None and upper == scope.lower(alone):
                alone = Affine(upper)
        result = add(result, alone, number)
    return result


def _multiply(values: Sequence[Affine], _bits: int, _scope: Scope) -> Affine | None:
    left, right = values
    if not right.terms:
        return scale(left, right.constant)
    return None if left.terms else scale(right, left.constant)


def _shift_left(values: Sequence[Affine], bits: int, _scope: Scope) -> Affine | None:
    return None if values[1].terms else scale(values[0], 1 << values[1].constant % bits)


def _divide(first: int | None) -> _Rule:
    """Return the rule of a division that rounds down; ``first`` is the least value of the operand's range."""

    def rule(values: Sequence[Affine], bits: int, scope: Scope) -> Affine | None:
        value, by = values
        if by.terms:
            return None
        divisor = by.constant % (1 << bits)
        exact = scope.exact(value, 0, bits)
        if exact is None or not divisor or (first is None and divisor >> (bits - 1)):
            return None
        if first is None and ((upper := scope.upper(exact)) is None or upper >> (bits - 1)):
            return None  # a negative number is rounded up
        return _settled(quotient(exact, divisor), scope)

    return rule


def _remainder(divide: _Rule) -> _Rule:
    def rule(values: Sequence[Affine], bits: int, scope: Scope) -> Affine | None:
        result = divide(values, bits, scope)
        return None if result is None else add(values[0], result, -(values[1].constant % (1 << bits)))

    return rule


def _shift_right(values: Sequence[Affine], bits: int, scope: Scope, *, signed: bool) -> Affine | None:
    value, by = values
    exact = None if by.terms else scope.exact(value, -(1 << (bits - 1)) if signed else 0, bits)
    return None if exact is None else _settled(quotient(exact, 1 << by.constant % bits), scope)


def _and(values: Sequence[Affine], bits: int, scope: Scope) -> Affine | None:
    left, right = values
    if not left.terms:
        left, right = right, left
    if right.terms:
        return None
    mask = right.constant % (1 << bits)
    if not left.terms:
        return Affine(left.constant & mask)
    if not mask:
        return ZERO
    low, high = (mask & -mask).bit_length() - 1, mask.bit_length()
    if mask != (1 << high) - (1 << low):
        return None
    value = scope.exact(left, 0, bits) or left  # what is cut off is less than 2**bits either way
    kept = scale(_settled(quotient(value, 1 << low), scope), 1 << low)
    return kept if high == bits else add(kept, _settled(quotient(value, 1 << high), scope), -(1 << high))


def _or(values: Sequence[Affine], bits: int, scope: Scope) -> Affine | None:
    left, right = values
    if not left.terms and not right.terms:
        return Affine((left.constant | right.constant) % (1 << bits))
    for high, low in ((left, right), (right, left)):
        unit = _power_of_two(high, bits)
        exact = scope.exact(low, 0, bits)
        if exact is not None and (upper := scope.upper(exact)) is not None and upper < unit:
            return add(high, exact)
    return None


def _power_of_two(value: Affine, bits: int) -> int:
    """Return the largest power of two that is known to divide a value, up to ``2**bits``."""
    return gcd(content(value), value.constant, 1 << bits)


def _xor(values: Sequence[Affine], bits: int, scope: Scope) -> Affine | None:
    left, right = values
    if not left.terms and not right.terms:
        return Affine((left.constant ^ right.constant) % (1 << bits))
    if not left.terms:
        left, right = right, left
    if right.terms:
        return _or(values, bits, scope)
    mask, unit = right.constant % (1 << bits), _power_of_two(left, bits)
    low, run = mask % unit, mask // unit  # the bits that the value does not have, and those that it may have
    if run and not run & (run + 1):
        end = mask - low + unit
        exact = scope.exact(left, 0, bits) if end < 1 << bits else left
        if exact is not None and (end == 1 << bits or ((upper := scope.upper(exact)) is not None and upper < end)):
            return subtract(Affine(mask), exact)
    return _or(values, bits, scope)


def _sign_extension(bits: int) -> _Rule:
    return lambda values, _bits, scope: scope.exact(values[0], -(1 << (bits - 1)), bits)


_UNSIGNED: Final = _divide(0)
_SIGNED: Final = _divide(None)
_RULES: Final[dict[str, _Rule]] = {
    "add": lambda values, _bits, _scope: add(values[0], values[1]),
    "sub": lambda values, _bits, _scope: subtract(values[0], values[1]),
    "mul": _multiply,
    "shl": _shift_left,
    "shr_u": lambda values, bits, scope: _shift_right(values, bits, scope, signed=False),
    "shr_s": lambda values, bits, scope: _shift_right(values, bits, scope, signed=True),
    "div_u": _UNSIGNED,
    "div_s": _SIGNED,
    "rem_u": _remainder(_UNSIGNED),
    "rem_s": _remainder(_SIGNED),
    "and": _and,
    "or": _or,
    "xor": _xor,
    "wrap_i64": lambda values, _bits, _scope: values[0],
    "extend_i32_u": lambda values, _bits, scope: scope.exact(values[0], 0, 32),
    "extend_i32_s": lambda values, _bits, scope: scope.exact(values[0], -(1 << 31), 32),
    "extend8_s": _sign_extension(8),
    "extend16_s": _sign_extension(16),
    "extend32_s": _sign_extension(32),
}


def apply_to_comparisons(opcode: str, operands: Sequence[object]) -> Integer | Comparison | None:
    """Return the result of an instruction of which an operand is a comparison; None if that must be decided first."""
    if opcode == "i32.eqz" and isinstance(operands[0], Comparison):
        return operands[0].opposite()
    if len(operands) != 2 or opcode not in {"i32.and", "i32.or", "i32.xor"}:
        return None
    comparison, other = operands
    if isinstance(other, Comparison):
        comparison, other = other, comparison
    bit = other.constant if isinstance(other, Integer) else None
    if bit not in {0, 1} or not isinstance(comparison, Comparison):
        return None
    if opcode == "i32.and":
        return comparison if bit else number("i32", 0)
    if opcode == "i32.or":
        return number("i32", 1) if bit else comparison
    return comparison.opposite() if bit else comparison


def check_divisor(opcode: str, divisor: object) -> None:
    """Refuse a division by what is not known to be neither 0 nor -1.

    Raises:
        Declined: it may trap.
    """
    value = divisor.constant if isinstance(divisor, Integer) else None
    minus_one = (1 << BITS[opcode[:3]]) - 1
    if not value or (value == minus_one and opcode.endswith("_s")):
        raise Declined(DeclineReason.INSTRUCTION, f"{opcode} by what may be 0")


def truth(value: Integer) -> Comparison:
    """Return whether an integer is not 0."""
    return Comparison("ne", value.affine, ZERO, BITS[value.type])


def number(kind: ValueType, value: int) -> Integer:
    """Return a constant."""
    return Integer(kind, wrap(Affine(value), BITS[kind]))
