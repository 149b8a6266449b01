"""Floating-point arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from oracles.alu.bits import bit
from oracles.alu.form import Form, Judge, width, wrap
from oracles.formats import (
    FORMATS,
    NAN,
    Number,
    Real,
    add,
    decode,
    divide,
    encode,
    is_nan,
    is_negative,
    is_tiny,
    multiply,
    negated,
    root,
)


def flushed(bits: int, type_: str) -> int:
    form = FORMATS[type_]
    size = form.exponent + form.mantissa
    return bits if bits >> form.mantissa & (2**form.exponent - 1) else bits & (1 << size)


def load(form: Form, bits: int, type_: str) -> Number:
    return decode(flushed(bits, type_) if "ftz" in form.flags and type_ != "f64" else bits, type_)


def any_nan(type_: str) -> Callable[[int], bool]:
    return lambda bits: is_nan(decode(bits, type_))


def store(form: Form, value: Number, type_: str) -> Any:
    """Round, flush, saturate."""
    if is_nan(value) and "sat" in form.flags:
        return 0
    if is_nan(value) and type_ == "f64":
        return any_nan("f64")
    flushes = "ftz" in form.flags and type_ in {"f32", "f16"}
    if flushes and isinstance(value, Real) and value.value and is_tiny(value, type_, form.mode):
        value = Real.of(0, negative=value.negative)  # an H200 asks before, the manual says not when to ask
    bits = encode(value, type_, form.mode, finite="satfinite" in form.flags)
    if "sat" in form.flags or "relu" in form.flags:
        result = decode(bits, type_)
        if not is_nan(result) and (is_negative(result) or (isinstance(result, Real) and result.value == 0)):
            return 0
        one = encode(Real.of(1), type_)
        above = result == math.inf or (isinstance(result, Real) and result.value > 1)
        return one if "sat" in form.flags and above else bits
    return bits


_ARITHMETIC: dict[str, Callable[..., Number]] = {
    "add": lambda mode, x, y: add(x, y, mode),
    "sub": lambda mode, x, y: add(x, negated(y), mode),
    "mul": lambda _, x, y: multiply(x, y),
    "fma": lambda mode, x, y, z: NAN if any(map(is_nan, (x, y, z))) else add(multiply(x, y), z, mode),
    "mad": lambda mode, x, y, z: NAN if any(map(is_nan, (x, y, z))) else add(multiply(x, y), z, mode),
    "div": lambda _, x, y: divide(x, y),
    "rcp": lambda _, x: divide(Real.of(1), x),
    "sqrt": lambda _, x: root(x),
    "abs": lambda _, x: negated(x) if is_negative(x) else x,
    "neg": lambda _, x: negated(x),
}


def arithmetic(form: Form) -> Judge:
    compute, type_ = _ARITHMETIC[form.opcode], form.last

    def judge(*sources: int) -> tuple[Any]:
        return (store(form, compute(form.mode, *(load(form, bits, type_) for bits in sources)), type_),)

    return judge


def order(x: Number) -> tuple[Any, bool]:
    """Rank numbers, -0 below +0."""
    return (x.value if isinstance(x, Real) else x), not is_negative(x)


def selection(form: Form) -> Judge:
    pick = min if form.opcode == "min" else max
    type_ = form.last

    def judge(a: int, b: int, *others: int) -> tuple[Any]:
        if others:  # of three magnitudes: of the first two, and then of that and the third
            return judge(judge(a, b)[0], *others)
        x, y = (load(form, bits, type_) for bits in (a, b))
        flip = is_negative(x) != is_negative(y) if not (is_nan(x) or is_nan(y)) else bool((a ^ b) >> (width(type_) - 1))
        if "abs" in form.flags:
            x, y = (negated(z) if is_negative(z) else z for z in (x, y))
        if is_nan(x) or is_nan(y):
            other = y if is_nan(x) else x
            result = NAN if "NaN" in form.flags or is_nan(other) else other
        else:
            result = pick(x, y, key=order)
        if "xorsign" in form.flags and not is_nan(result) and is_negative(result) != flip:
            result = negated(result)
        return (store(form, result, type_),)

    return judge


def copysign(form: Form) -> Judge:
    size = width(form.last) - 1
    return lambda a, b: (wrap(b, size) | bit(a, size) << size,)


def testp(form: Form) -> Judge:
    type_, kind = form.last, form.flags[0]
    smallest = Fraction(2) ** FORMATS[type_].lowest

    def judge(a: int) -> tuple[bool]:
        x = decode(a, type_)
        finite = isinstance(x, Real)
        size = abs(x.value) if isinstance(x, Real) else Fraction(0)
        return (
            {
                "finite": finite,
                "infinite": not finite and not is_nan(x),
                "number": not is_nan(x),
                "notanumber": is_nan(x),
                "normal": finite and not 0 < size < smallest,  # zero is normal, as NVIDIA GPUs have it
                "subnormal": 0 < size < smallest,
            }[kind],
        )

    return judge
