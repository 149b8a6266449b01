"""Every numeric instruction of Wasm 1.0, sign extension and saturating truncation among them, on bit patterns.

Arithmetic that results in a NaN gives the canonical, positive one, as wasmtime does if it is configured to.
Source: Wasm core 2.0, 4.3.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from functools import partial

Instruction = Callable[..., int]


class Trapped(Exception):
    """An instruction traps."""


_INTEGERS = {"i32": 32, "i64": 64}
_FLOATS = {"f32": ("<f", "<I"), "f64": ("<d", "<Q")}
_CANONICAL_NAN = {"f32": 0x7FC00000, "f64": 0x7FF8000000000000}
_SIGN = {"f32": 1 << 31, "f64": 1 << 63}


def to_signed(bits: int, width: int) -> int:
    return bits - (bits >> (width - 1) << width)


def to_float(type_: str, bits: int) -> float:
    as_float, as_bits = _FLOATS[type_]
    return struct.unpack(as_float, struct.pack(as_bits, bits))[0]


def to_bits(type_: str, value: float) -> int:
    """Round a number to a format; every NaN is the canonical one."""
    if math.isnan(value):
        return _CANONICAL_NAN[type_]
    as_float, as_bits = _FLOATS[type_]
    try:
        raw = struct.pack(as_float, value)
    except OverflowError:
        raw = struct.pack(as_float, math.copysign(math.inf, value))
    return struct.unpack(as_bits, raw)[0]


# ------------------------------------------------------------------------------------------------------------- integers


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise Trapped("integer divide by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _divide_signed(width: int, a: int, b: int) -> int:
    quotient = _divide(a, b)
    if quotient == 1 << (width - 1):
        raise Trapped("integer overflow")
    return quotient


def _rotate(width: int, a: int, count: int) -> int:
    count %= width
    return a << count | a >> (width - count)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "gt": operator.gt,
    "le": operator.le,
    "ge": operator.ge,
}


def _integer_instructions(type_: str, width: int) -> dict[str, Instruction]:
    mask = (1 << width) - 1
    sign = partial(to_signed, width=width)
    table: dict[str, Instruction] = {
        "eqz": lambda a: int(a == 0),
        "clz": lambda a: width - a.bit_length(),
        "ctz": lambda a: (a & -a).bit_length() - 1 if a else width,
        "popcnt": int.bit_count,
        "add": lambda a, b: a + b & mask,
        "sub": lambda a, b: a - b & mask,
        "mul": lambda a, b: a * b & mask,
        "div_s": lambda a, b: _divide_signed(width, sign(a), sign(b)) & mask,
        "div_u": _divide,
        "rem_s": lambda a, b: sign(a) - sign(b) * _divide(sign(a), sign(b)) & mask,
        "rem_u": lambda a, b: a - b * _divide(a, b),
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
        "shl": lambda a, b: a << b % width & mask,
        "shr_s": lambda a, b: sign(a) >> b % width & mask,
        "shr_u": lambda a, b: a >> b % width,
        "rotl": lambda a, b: _rotate(width, a, b) & mask,
        "rotr": lambda a, b: _rotate(width, a, width - b % width) & mask,
    }
    for name, compare in _COMPARISONS.items():
        if name in {"eq", "ne"}:
            table[name] = lambda a, b, compare=compare: int(compare(a, b))
        else:
            table[f"{name}_s"] = lambda a, b, compare=compare: int(compare(sign(a), sign(b)))
            table[f"{name}_u"] = lambda a, b, compare=compare: int(compare(a, b))
    for narrow in (8, 16, 32):
        if narrow < width:
            low = (1 << narrow) - 1
            table[f"extend{narrow}_s"] = lambda a, narrow=narrow, low=low: to_signed(a & low, narrow) & mask
    return {f"{type_}.{name}": function for name, function in table.items()}


# --------------------------------------------------------------------------------------------------------------- floats


def _divide_float(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, math.copysign(1, a) * math.copysign(1, b))


def _least(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    if a == b:
        return a if math.copysign(1, a) < 0 else b
    return min(a, b)


def _to_integral(rounded: Callable[[float], int], a: float) -> float:
    return math.copysign(float(rounded(a)), a) if math.isfinite(a) else a


_ARITHMETIC: dict[str, Callable[..., float]] = {
    "ceil": partial(_to_integral, math.ceil),
    "floor": partial(_to_integral, math.floor),
    "trunc": partial(_to_integral, math.trunc),
    "nearest": partial(_to_integral, round),
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else math.nan,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide_float,
    "min": _least,
    "max": lambda a, b: -_least(-a, -b),
}
"""In f64. Rounded to f32 afterwards, the result is the same as in f32 at once: 53 bits are at least 2 * 24 + 2."""


def _float_instructions(type_: str) -> dict[str, Instruction]:
    sign = _SIGN[type_]
    table: dict[str, Instruction] = {
        "abs": lambda a: a & ~sign,
        "neg": lambda a: a ^ sign,
        "copysign": lambda a, b: a & ~sign | b & sign,
    }
    for name, compute in _ARITHMETIC.items():
        table[name] = lambda *bits, compute=compute: to_bits(type_, compute(*[to_float(type_, each) for each in bits]))
    for name, compare in _COMPARISONS.items():
        table[name] = lambda a, b, compare=compare: int(compare(to_float(type_, a), to_float(type_, b)))
    return {f"{type_}.{name}": function for name, function in table.items()}


# ---------------------------------------------------------------------------------------------------------- conversions


def _truncate(width: int, value: float, *, signed: bool, saturating: bool) -> int:
    low, high = (-1 << (width - 1), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if not saturating and not math.isfinite(value):
        raise Trapped("invalid conversion to integer" if math.isnan(value) else "integer overflow")
    if math.isnan(value):
        return 0
    whole = math.trunc(value) if math.isfinite(value) else math.copysign(math.inf, value)
    if not saturating and not low <= whole <= high:
        raise Trapped("integer overflow")
    return int(max(low, min(high, whole))) & ((1 << width) - 1)


def _float_of(number: int) -> float:
    """Convert to f64, rounding to odd, so that rounding to f32 afterwards is as good as rounding once."""
    excess = max(0, abs(number).bit_length() - 53)
    kept = abs(number) >> excess
    if kept << excess != abs(number):
        kept |= 1
    return math.copysign(float(kept << excess), number)


def _from_float(type_: str, convert: Callable[[float], int]) -> Instruction:
    return lambda a: convert(to_float(type_, a))


def _to_float(type_: str, number: Callable[[int], int]) -> Instruction:
    rounded = _float_of if type_ == "f32" else float
    return lambda a: to_bits(type_, rounded(number(a)))


def _conversions() -> dict[str, Instruction]:
    table: dict[str, Instruction] = {
        "i32.wrap_i64": lambda a: a & 0xFFFFFFFF,
        "i64.extend_i32_s": lambda a: to_signed(a, 32) & ((1 << 64) - 1),
        "i64.extend_i32_u": lambda a: a,
        "f32.demote_f64": lambda a: to_bits("f32", to_float("f64", a)),
        "f64.promote_f32": lambda a: to_bits("f64", to_float("f32", a)),
    }
    for to, from_ in (("i32", "f32"), ("i64", "f64"), ("f32", "i32"), ("f64", "i64")):
        table[f"{to}.reinterpret_{from_}"] = lambda a: a
    for integer, width in _INTEGERS.items():
        for float_ in _FLOATS:
            for kind in "su":
                for name, saturating in (("trunc", False), ("trunc_sat", True)):
                    truncate = partial(_truncate, width, signed=kind == "s", saturating=saturating)
                    table[f"{integer}.{name}_{float_}_{kind}"] = _from_float(float_, truncate)
                number = partial(to_signed, width=width) if kind == "s" else int
                table[f"{float_}.convert_{integer}_{kind}"] = _to_float(float_, number)
    return table


NUMERIC: dict[str, Instruction] = {
    name: function
    for table in (
        *(_integer_instructions(type_, width) for type_, width in _INTEGERS.items()),
        *(_float_instructions(type_) for type_ in _FLOATS),
        _conversions(),
    )
    for name, function in table.items()
}
"""By name. They take and return bits, and raise `Trapped`."""
_BINARY = {*_COMPARISONS, "add", "sub", "mul", "div", "rem", "and", "or", "xor", "shl", "shr"}
_BINARY |= {"rotl", "rotr", "min", "max", "copysign"}
ARITY = {name: 2 if name.partition(".")[2].partition("_")[0] in _BINARY else 1 for name in NUMERIC}
"""Operands of each."""
