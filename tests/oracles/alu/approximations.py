"""Approximate functions and the errors the manual allows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from oracles.alu.floats import flushed
from oracles.alu.form import Form, Judge
from oracles.formats import FORMATS, NAN, Number, Real, decode, divide, encode, is_nan, multiply, root


@dataclass(frozen=True)
class Bound:
    """The error that the manual allows: absolute, relative, or in units of the last place of the result's format."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: int = 0


def _binary64(function: Callable[[float], float]) -> Callable[[Number], Number]:
    """Lift a function of the standard library; its own error is far below every bound here."""

    def lifted(x: Number) -> Number:
        argument = math.copysign(float(x.value), -1 if x.negative else 1) if isinstance(x, Real) else x
        try:
            result = function(argument)
        except ValueError:
            return NAN
        except OverflowError:
            return math.inf
        return Real.of(Fraction(result), negative=math.copysign(1, result) < 0) if math.isfinite(result) else result

    return lifted


def _log2(x: Number) -> Number:
    if isinstance(x, Real) and x.value == 0:
        return -math.inf
    return _binary64(math.log2)(x)


def _exp2(x: Number) -> Number:
    if isinstance(x, Real) and x.value < -1100:
        return Real.of(0)
    return _binary64(math.exp2)(x)


def _trigonometric_bound(x: Number) -> Bound:
    """Return the bound on sin and cos; beyond 100 pi there is none, but no value is further off than this."""
    size = abs(x.value) if isinstance(x, Real) else 0
    return Bound(absolute=2.0**-20.5 if size <= 2 * math.pi else 2.0**-14.7 if size <= 100 * math.pi else 2.0)


_APPROXIMATE: dict[str, tuple[Callable[..., Number], Bound]] = {
    "rcp": (lambda x: divide(Real.of(1), x), Bound(ulp=1)),
    "sqrt": (root, Bound(relative=2.0**-23, ulp=1)),
    "rsqrt": (lambda x: divide(Real.of(1), root(x)), Bound(relative=2.0**-22.9)),
    "sin": (_binary64(math.sin), Bound()),
    "cos": (_binary64(math.cos), Bound()),
    "lg2": (_log2, Bound(absolute=2.0**-22, relative=2.0**-22)),
    "ex2": (_exp2, Bound(ulp=2)),
    "tanh": (_binary64(math.tanh), Bound(relative=2.0**-11)),
    "div": (divide, Bound(ulp=2)),
}
_HALF_BOUNDS = {
    ("ex2", "f16"): Bound(relative=2.0**-9.9, ulp=1),  # GPUs truncate subnormal results
    ("ex2", "bf16"): Bound(relative=2.0**-7),
    ("tanh", "f16"): Bound(absolute=2.0**-10.987),
    ("tanh", "bf16"): Bound(absolute=2.0**-7.999),  # 2**-8, says the manual, which an H200 just misses at 0xbf3f
}


def within(bits: int, exact: Number, type_: str, bound: Bound) -> bool:
    """Say whether bits are as near to an exact value as a bound allows; special values must be met."""
    got = decode(bits, type_)
    if not isinstance(exact, Real) or not isinstance(got, Real):
        rounded = decode(encode(exact, type_), type_)
        if isinstance(rounded, Real) or (isinstance(got, Real) and isinstance(exact, Real)):
            return bound.ulp > 0 and abs(bits - encode(exact, type_)) <= bound.ulp  # next to overflow
        return is_nan(rounded) == is_nan(got) and (is_nan(got) or rounded == got)
    if exact.value == 0:
        return got.value == 0 and got.negative == exact.negative
    error = abs(got.value - exact.value)
    form = FORMATS[type_]
    tiny = Fraction(2) ** (form.lowest - form.mantissa)
    ulp = max(Fraction(2) ** (_exponent(exact.value) - form.mantissa), tiny)
    half = ulp / 2 if error <= tiny else 0
    return error <= max(bound.ulp * ulp, Fraction(bound.absolute), Fraction(bound.relative) * abs(exact.value), half)


def _exponent(x: Fraction) -> int:
    return math.frexp(abs(x))[1] - 1 if abs(x) > Fraction(1, 2**1000) else -1001


def approximation(form: Form) -> Judge:
    type_ = form.last
    function, bound = _APPROXIMATE[form.opcode]
    bound = _HALF_BOUNDS.get((form.opcode, type_), bound)
    cut = "ftz" in form.flags

    def judge(*sources: int) -> tuple[Any]:
        x = [decode(flushed(bits, type_) if cut else bits, type_) for bits in sources]
        allowed = _trigonometric_bound(x[0]) if form.opcode in {"sin", "cos"} else bound
        exact = _narrow_divide(*x) if form.opcode == "div" and "approx" in form.flags else function(*x)

        def accept(bits: int) -> bool:
            nearest = encode(exact, type_)
            flush = cut and flushed(nearest, type_) != nearest
            return bits == flushed(nearest, type_) if flush else within(bits, exact, type_, allowed) or bits == nearest

        return (accept,)

    return judge


def _narrow_divide(x: Number, y: Number) -> Number:
    """Divide where divisors above 2**126 have a reciprocal of 0."""
    if isinstance(y, Real) and abs(y.value) > 2**126:
        return multiply(x, Real.of(0, negative=y.negative))
    return divide(x, y)


def upper_half(form: Form) -> Judge:
    function, _ = _APPROXIMATE[form.opcode]

    def judge(a: int) -> tuple[Any]:
        exact = function(decode(flushed(a >> 32 << 32, "f64"), "f64"))
        if is_nan(exact):
            return (0x7FFFFFFF00000000,)
        nearest = flushed(encode(exact, "f64"), "f64")

        def accept(bits: int) -> bool:
            if bits & 0xFFFFFFFF:
                return False
            if nearest & ~(1 << 63) == 0 or not isinstance(exact, Real):
                return bits == nearest
            return within(bits, exact, "f64", Bound(relative=2.0**-20))

        return (accept,)

    return judge


def rsqrt64(_form: Form) -> Judge:
    function, _ = _APPROXIMATE["rsqrt"]

    def judge(a: int) -> tuple[Any]:
        exact = function(decode(a, "f64"))
        return (lambda bits: within(bits, exact, "f64", Bound(relative=2.0**-51)),)

    return judge
