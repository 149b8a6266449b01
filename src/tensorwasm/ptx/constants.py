"""Constant expressions, folded as they are read.

Integers are 64 bits wide, signed unless a literal needs the 64th bit or says ``U``; arithmetic wraps.

Source: PTX ISA 4.5 (Constants), its table "Constant Expression Evaluation Rules".
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from tensorwasm.ptx.lexer import Cursor, literal, shown
from tensorwasm.ptx.model import Float, Int

MAX_EXPRESSION_DEPTH: Final = 64
WARP_SZ: Final = 32

_WORD: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
_DECIMAL_FLOAT: Final = re.compile(r"(?=.*[.eE])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class _Whole(NamedTuple):
    value: int
    unsigned: bool = False


_Constant = _Whole | float


def wrap_signed(value: int) -> int:
    """Return ``value`` modulo 2**64 in -(2**63) .. 2**63 - 1."""
    return ((value + _SIGN) & _WORD) - _SIGN


def _whole(value: int, *, unsigned: bool) -> _Whole:
    return _Whole(value & _WORD if unsigned else wrap_signed(value), unsigned)


def _divide(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    return left - right * _divide(left, right)


def _shift_left(left: int, right: int) -> int:
    return left << right if right < 64 else 0


def _shift_right(left: int, right: int) -> int:
    return left >> min(right, 64)


def _divide_floats(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


_PRECEDENCE: Final = {
    **dict.fromkeys(("*", "/", "%"), 10),
    **dict.fromkeys(("+", "-"), 9),
    **dict.fromkeys(("<<", ">>"), 8),
    **dict.fromkeys(("<", ">", "<=", ">="), 7),
    **dict.fromkeys(("==", "!="), 6),
    "&": 5,
    "^": 4,
    "|": 3,
    "&&": 2,
    "||": 1,
}
ADDITIVE: Final = _PRECEDENCE["+"]

_ARITHMETIC: Final[dict[str, Callable[[int, int], int]]] = {
    "*": operator.mul,
    "/": _divide,
    "%": _remainder,
    "+": operator.add,
    "-": operator.sub,
}
_SHIFTS: Final[dict[str, Callable[[int, int], int]]] = {"<<": _shift_left, ">>": _shift_right}
_BITWISE: Final[dict[str, Callable[[int, int], int]]] = {"&": operator.and_, "^": operator.xor, "|": operator.or_}
_LOGICAL: Final[dict[str, Callable[[bool, bool], bool]]] = {"&&": operator.and_, "||": operator.or_}
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_FLOAT_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "*": operator.mul,
    "/": _divide_floats,
    "+": operator.add,
    "-": operator.sub,
}


_AFTER_LITERAL: Final = frozenset({",", ";", "}", ")", "]"})
_CONSTANT_STARTS: Final = frozenset({"-", "+", "~", "!", "(", "WARP_SZ"})


def starts_constant(word: str) -> bool:
    """Return whether an operand that begins with ``word`` is a constant expression."""
    return word[:1].isdigit() or word in _CONSTANT_STARTS or (word[:1] == "." and word[1:2].isdigit())


def parse_constant(cursor: Cursor, floor: int = 0) -> Int | Float:
    """Read and fold a constant expression.

    Args:
        cursor: at the first word of the expression.
        floor: stop before an operator that binds less tightly, and before ``?``; 0 reads everything.

    Raises:
        MalformedPtx: not a constant expression, a division by zero, an integer past 64 bits, too deep.
    """
    word = cursor.peek()
    if word[:2] in {"0f", "0F"} and len(word) == 10:
        cursor.at += 1
        return Float(int.from_bytes(bytes.fromhex(word[2:]), "big"), 32)
    if word[:2] in {"0d", "0D"} and len(word) == 18 and cursor.tokens[cursor.at + 1] in _AFTER_LITERAL:
        cursor.at += 1  # not through a float, which need not keep the payload of a NaN
        return Float(int.from_bytes(bytes.fromhex(word[2:]), "big"), 64)
    value = _parse_expression(cursor, 0, floor)
    if isinstance(value, _Whole):
        return Int(value.value)
    return Float(int.from_bytes(struct.pack("<d", value), "little"), 64)


def parse_whole(cursor: Cursor, floor: int = 0) -> int:
    """Read and fold a constant expression that must be an integer.

    Raises:
        MalformedPtx: as `parse_constant`, and for a floating-point value.
    """
    start = cursor.at
    value = parse_constant(cursor, floor)
    if isinstance(value, Float):
        raise cursor.error("an integer expected, not a floating-point constant", start)
    return value.value


def _parse_expression(cursor: Cursor, depth: int, floor: int) -> _Constant:
    if depth > MAX_EXPRESSION_DEPTH:
        raise cursor.error(f"a constant expression nested more than {MAX_EXPRESSION_DEPTH} deep")
    value = _parse_binary(cursor, depth, floor)
    if floor or cursor.peek() != "?":
        return value
    cursor.at += 1
    yes = _parse_expression(cursor, depth + 1, 0)
    cursor.expect(":")
    no = _parse_expression(cursor, depth + 1, 0)
    return yes if _truth(value) else no


def _parse_binary(cursor: Cursor, depth: int, floor: int) -> _Constant:
    """Read operands and operators with two stacks, so that the depth is that of parentheses alone."""
    values = [_parse_unary(cursor, depth)]
    pending: list[int] = []
    while True:
        if cursor.at >= cursor.due:
            cursor.look()
        precedence = _PRECEDENCE.get(cursor.peek(), 0)
        while pending and _PRECEDENCE[cursor.tokens[pending[-1]]] >= precedence:
            right, left = values.pop(), values.pop()
            values.append(_apply(cursor, pending.pop(), left, right))
        if not precedence or precedence < floor:
            return values[0]
        pending.append(cursor.at)
        cursor.at += 1
        values.append(_parse_unary(cursor, depth))


def _parse_unary(cursor: Cursor, depth: int) -> _Constant:
    first = cursor.at
    while _is_prefix(cursor):
        cursor.at += 3 if cursor.peek() == "(" else 1
    last = cursor.at
    value = _parse_primary(cursor, depth)
    at = last
    while at > first:
        at -= 1
        if cursor.tokens[at] == ")":
            at -= 2
            value = _cast(cursor, at, value)
        else:
            value = _negate(cursor, at, value)
    return value


def _is_prefix(cursor: Cursor) -> bool:
    word = cursor.peek()
    if word == "(":
        return cursor.tokens[cursor.at + 1] in {".s64", ".u64"} and cursor.tokens[cursor.at + 2] == ")"
    return word in {"+", "-", "!", "~"}


def _parse_primary(cursor: Cursor, depth: int) -> _Constant:
    start = cursor.at
    word = cursor.take()
    if word == "(":
        value = _parse_expression(cursor, depth + 1, 0)
        cursor.expect(")")
        return value
    if word == "WARP_SZ":
        return _Whole(WARP_SZ)
    number = literal(word)
    if number is not None:
        if number > _WORD:
            raise cursor.error(f"{shown(word)} does not fit 64 bits", start)
        return _Whole(number, unsigned=number >= _SIGN or word.endswith("U"))
    if word[:2] in {"0d", "0D"} and len(word) == 18:
        return float(struct.unpack(">d", bytes.fromhex(word[2:]))[0])
    if _DECIMAL_FLOAT.fullmatch(word):
        return float(word)
    raise cursor.error(f"a constant expected, not {shown(word)}", start)


def _truth(value: _Constant) -> bool:
    return bool(value.value if isinstance(value, _Whole) else value)


def _cast(cursor: Cursor, at: int, value: _Constant) -> _Constant:
    if not isinstance(value, _Whole):
        raise cursor.error("a cast of a floating-point constant", at)
    return _whole(value.value, unsigned=cursor.tokens[at + 1] == ".u64")


def _negate(cursor: Cursor, at: int, value: _Constant) -> _Constant:
    sign = cursor.tokens[at]
    if not isinstance(value, _Whole):
        if sign in {"+", "-"}:
            return -value if sign == "-" else value
        raise cursor.error(f"{sign!r} of a floating-point constant", at)
    if sign == "-":
        # The compilers write -9223372036854775808 for the least signed value, whose literal is unsigned.
        least = value.value == _SIGN and cursor.tokens[at + 1] != "("
        return _whole(-value.value, unsigned=value.unsigned and not least)
    if sign == "~":
        return _whole(~value.value, unsigned=True)
    if sign == "!":
        return _Whole(int(not value.value))
    return value


def _apply(cursor: Cursor, at: int, left: _Constant, right: _Constant) -> _Constant:
    symbol = cursor.tokens[at]
    if isinstance(left, _Whole) and isinstance(right, _Whole):
        if symbol in {"/", "%"} and not right.value:
            raise cursor.error("a division by zero in a constant expression", at)
        return _apply_whole(symbol, left, right)
    if isinstance(left, _Whole) or isinstance(right, _Whole):
        raise cursor.error(f"{symbol!r} between an integer and a floating-point constant", at)
    if symbol in _COMPARISONS:
        return _Whole(int(_COMPARISONS[symbol](left, right)))
    if symbol in _FLOAT_ARITHMETIC:
        return _FLOAT_ARITHMETIC[symbol](left, right)
    raise cursor.error(f"{symbol!r} of floating-point constants", at)


def _apply_whole(symbol: str, left: _Whole, right: _Whole) -> _Whole:
    if symbol in _SHIFTS:
        return _whole(_SHIFTS[symbol](left.value, right.value & _WORD), unsigned=left.unsigned)
    if symbol in _LOGICAL:
        return _Whole(int(_LOGICAL[symbol](bool(left.value), bool(right.value))))
    if symbol in _BITWISE:
        return _whole(_BITWISE[symbol](left.value, right.value), unsigned=True)
    unsigned = left.unsigned or right.unsigned
    first, second = _whole(left.value, unsigned=unsigned).value, _whole(right.value, unsigned=unsigned).value
    if symbol in _COMPARISONS:
        return _Whole(int(_COMPARISONS[symbol](first, second)))
    return _whole(_ARITHMETIC[symbol](first, second), unsigned=unsigned)
