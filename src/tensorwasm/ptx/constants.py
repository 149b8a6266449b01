"""Constant expressions, folded as they are read.

Integers are 64 bits wide, signed unless a literal needs the 64th bit or ends in ``U``; arithmetic wraps.

Source: PTX ISA 4.5 (Constants), its table "Constant Expression Evaluation Rules".
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from tensorwasm.ptx.lexer import Cursor, literal, shown
from tensorwasm.ptx.model import Float, Int

MAX_EXPRESSION_DEPTH: Final = 64
WARP_SZ: Final = 32

_WORD: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
_DECIMAL_FLOAT: Final = re.compile(r"(?=.*[.eE])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_AFTER_LITERAL: Final = frozenset({",", ";", "}", ")", "]"})
_CONSTANT_STARTS: Final = frozenset({"-", "+", "~", "!", "(", "WARP_SZ"})


class _Integer(NamedTuple):
    value: int
    unsigned: bool = False


_Constant = _Integer | float


def wrap_signed(value: int) -> int:
    """Return ``value`` modulo 2**64 in -(2**63) .. 2**63 - 1."""
    return ((value + _SIGN) & _WORD) - _SIGN


def _wrap(value: int, *, unsigned: bool) -> _Integer:
    return _Integer(value & _WORD if unsigned else wrap_signed(value), unsigned)


# ------------------------------------------------------------------------------------------------- operators


def _divide(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _divide_floats(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1.0, right)


class _Operator(NamedTuple):
    """A binary operator.

    Attributes:
        precedence: the higher, the more tightly it binds.
        kind: the rule for the types of integer operands and of the result.
        integers: its value for integers; results that are too large wrap.
        floats: its value for floating-point operands, None if it takes none.
    """

    precedence: int
    kind: Literal["arithmetic", "shift", "comparison", "bitwise", "logical"]
    integers: Callable[[int, int], int]
    floats: Callable[[float, float], float] | None = None


ADDITIVE: Final = 9
_OPERATORS: Final = {
    "*": _Operator(10, "arithmetic", operator.mul, operator.mul),
    "/": _Operator(10, "arithmetic", _divide, _divide_floats),
    "%": _Operator(10, "arithmetic", lambda left, right: left - right * _divide(left, right)),
    "+": _Operator(ADDITIVE, "arithmetic", operator.add, operator.add),
    "-": _Operator(ADDITIVE, "arithmetic", operator.sub, operator.sub),
    "<<": _Operator(8, "shift", lambda left, right: left << right if right < 64 else 0),
    ">>": _Operator(8, "shift", lambda left, right: left >> min(right, 64)),
    "<": _Operator(7, "comparison", operator.lt, operator.lt),
    ">": _Operator(7, "comparison", operator.gt, operator.gt),
    "<=": _Operator(7, "comparison", operator.le, operator.le),
    ">=": _Operator(7, "comparison", operator.ge, operator.ge),
    "==": _Operator(6, "comparison", operator.eq, operator.eq),
    "!=": _Operator(6, "comparison", operator.ne, operator.ne),
    "&": _Operator(5, "bitwise", operator.and_),
    "^": _Operator(4, "bitwise", operator.xor),
    "|": _Operator(3, "bitwise", operator.or_),
    "&&": _Operator(2, "logical", lambda left, right: bool(left) and bool(right)),
    "||": _Operator(1, "logical", lambda left, right: bool(left) or bool(right)),
}


def _apply(cursor: Cursor, at: int, left: _Constant, right: _Constant) -> _Constant:
    symbol = cursor.tokens[at]
    form = _OPERATORS[symbol]
    if isinstance(left, _Integer) and isinstance(right, _Integer):
        cursor.require(right.value or symbol not in {"/", "%"}, "a division by zero in a constant expression", at)
        return _apply_integers(form, left, right)
    if isinstance(left, _Integer) or isinstance(right, _Integer):
        raise cursor.error(f"{symbol!r} between an integer and a floating-point constant", at)
    if form.floats is None:
        raise cursor.error(f"{symbol!r} of floating-point constants", at)
    value = form.floats(left, right)
    return _Integer(int(value)) if form.kind == "comparison" else value


def _apply_integers(form: _Operator, left: _Integer, right: _Integer) -> _Integer:
    if form.kind == "shift":
        return _wrap(form.integers(left.value, right.value & _WORD), unsigned=left.unsigned)
    if form.kind == "bitwise":
        return _wrap(form.integers(left.value, right.value), unsigned=True)
    unsigned = left.unsigned or right.unsigned
    value = form.integers(_wrap(left.value, unsigned=unsigned).value, _wrap(right.value, unsigned=unsigned).value)
    return _wrap(value, unsigned=unsigned) if form.kind == "arithmetic" else _Integer(int(value))


def _apply_prefix(cursor: Cursor, at: int, value: _Constant) -> _Constant:
    sign = cursor.tokens[at]
    if not isinstance(value, _Integer):
        cursor.require(sign in {"+", "-"}, f"{sign!r} of a floating-point constant", at)
        return -value if sign == "-" else value
    match sign:
        case "-":
            # The compilers write -9223372036854775808 for the least signed value, whose literal is unsigned.
            least = value.value == _SIGN and cursor.tokens[at + 1] != "("
            return _wrap(-value.value, unsigned=value.unsigned and not least)
        case "~":
            return _wrap(~value.value, unsigned=True)
        case "!":
            return _Integer(int(not value.value))
    return value


# --------------------------------------------------------------------------------------------------- parsers


def starts_constant(word: str) -> bool:
    """Return whether an operand that begins with ``word`` is a constant expression."""
    return word[:1].isdigit() or word in _CONSTANT_STARTS or (word[:1] == "." and word[1:2].isdigit())


def parse_constant(cursor: Cursor, floor: int = 0) -> Int | Float:
    """Read and fold a constant expression up to ``?`` or an operator of a precedence below ``floor``; 0 reads all."""
    word = cursor.peek()
    if word[:2] in {"0f", "0F"} and len(word) == 10:
        cursor.at += 1
        return Float(int.from_bytes(bytes.fromhex(word[2:]), "big"), 32)
    if word[:2] in {"0d", "0D"} and len(word) == 18 and cursor.tokens[cursor.at + 1] in _AFTER_LITERAL:
        cursor.at += 1  # not through a Python float, which may change the payload of a NaN
        return Float(int.from_bytes(bytes.fromhex(word[2:]), "big"), 64)
    value = _parse_expression(cursor, 0, floor)
    if isinstance(value, _Integer):
        return Int(value.value)
    return Float(int.from_bytes(struct.pack("<d", value), "little"), 64)


def parse_integer(cursor: Cursor, floor: int = 0) -> int:
    """Read a constant expression as `parse_constant`; it must be an integer."""
    start = cursor.at
    value = parse_constant(cursor, floor)
    if isinstance(value, Float):
        raise cursor.error("an integer expected, not a floating-point constant", start)
    return value.value


def _parse_expression(cursor: Cursor, depth: int, floor: int) -> _Constant:
    if depth > MAX_EXPRESSION_DEPTH:
        raise cursor.error(f"a constant expression nested more than {MAX_EXPRESSION_DEPTH} deep")
    value = _parse_binary(cursor, depth, floor)
    if floor or not cursor.accept("?"):
        return value
    yes = _parse_expression(cursor, depth + 1, 0)
    cursor.expect(":")
    no = _parse_expression(cursor, depth + 1, 0)
    return yes if (value.value if isinstance(value, _Integer) else value) else no


def _parse_binary(cursor: Cursor, depth: int, floor: int) -> _Constant:
    """Read operands and operators with two stacks: recursion is as deep as parentheses nest."""
    values = [_parse_unary(cursor, depth)]
    pending: list[int] = []
    while True:
        if cursor.at >= cursor.due:
            cursor.look()
        form = _OPERATORS.get(cursor.peek())
        precedence = form.precedence if form else 0
        while pending and _OPERATORS[cursor.tokens[pending[-1]]].precedence >= precedence:
            right, left = values.pop(), values.pop()
            values.append(_apply(cursor, pending.pop(), left, right))
        if not precedence or precedence < floor:
            return values[0]
        pending.append(cursor.at)
        cursor.at += 1
        values.append(_parse_unary(cursor, depth))


def _parse_unary(cursor: Cursor, depth: int) -> _Constant:
    """Read an operand with its prefixes, which apply from the last to the first."""
    prefixes: list[int] = []
    while True:
        prefix = cursor.tokens[cursor.at : cursor.at + 3]
        is_cast = prefix in (["(", ".s64", ")"], ["(", ".u64", ")"])
        if not is_cast and prefix[0] not in {"+", "-", "!", "~"}:
            break
        prefixes.append(cursor.at)
        cursor.at += 3 if is_cast else 1
    value = _parse_primary(cursor, depth)
    for at in reversed(prefixes):
        if cursor.tokens[at] != "(":
            value = _apply_prefix(cursor, at, value)
        elif isinstance(value, _Integer):
            value = _wrap(value.value, unsigned=cursor.tokens[at + 1] == ".u64")
        else:
            raise cursor.error("a cast of a floating-point constant", at)
    return value


def _parse_primary(cursor: Cursor, depth: int) -> _Constant:
    start = cursor.at
    word = cursor.take()
    if word == "(":
        value = _parse_expression(cursor, depth + 1, 0)
        cursor.expect(")")
        return value
    if word == "WARP_SZ":
        return _Integer(WARP_SZ)
    number = literal(word)
    if number is not None:
        cursor.require(number <= _WORD, f"{shown(word)} does not fit 64 bits", start)
        return _Integer(number, unsigned=number >= _SIGN or word.endswith("U"))
    if word[:2] in {"0d", "0D"} and len(word) == 18:
        return float(struct.unpack(">d", bytes.fromhex(word[2:]))[0])
    if _DECIMAL_FLOAT.fullmatch(word):
        return float(word)
    raise cursor.error(f"a constant expected, not {shown(word)}", start)
