"""Exact numbers and correct rounding, in plain integers and fractions.

A number is a `Fraction` with the sign of a zero beside it, or one of `NAN`, `+inf`, `-inf` as floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """Field widths of a binary format; ``shift`` is how far left its bits stand in their container."""

    exponent: int
    mantissa: int
    width: int
    nan: int
    shift: int = 0
    infinite: bool = True

    @property
    def lowest(self) -> int:
        return 2 - 2 ** (self.exponent - 1)


FORMATS = {
    "f16": Format(5, 10, 16, 0x7FFF),
    "bf16": Format(8, 7, 16, 0x7FFF),
    "f32": Format(8, 23, 32, 0x7FFFFFFF),
    "f64": Format(11, 52, 64, 0x7FF8000000000000),
    "tf32": Format(8, 10, 32, 0x7FFFE000, shift=13),
    "e4m3": Format(4, 3, 8, 0x7F, infinite=False),
    "e5m2": Format(5, 2, 8, 0x7F),
}


@dataclass(frozen=True)
class Real:
    """A finite number; ``negative`` tells -0 from +0."""

    value: Fraction
    negative: bool

    @staticmethod
    def of(value: Fraction | int, *, negative: bool = False) -> Real:
        """Return an exact number; ``negative`` is the sign of a zero."""
        exact = Fraction(value)
        return Real(exact, exact < 0 if exact else negative)


Number = Real | float
NAN = math.nan


def is_nan(x: Number) -> bool:
    return isinstance(x, float) and math.isnan(x)


def is_negative(x: Number) -> bool:
    return x.negative if isinstance(x, Real) else x < 0


def negated(x: Number) -> Number:
    return Real(-x.value, not x.negative) if isinstance(x, Real) else -x


def decode(bits: int, name: str) -> Number:
    form = FORMATS[name]
    bits >>= form.shift
    size = form.exponent + form.mantissa
    negative = bool(bits >> size & 1)
    exponent = bits >> form.mantissa & (2**form.exponent - 1)
    mantissa = bits & (2**form.mantissa - 1)
    top = exponent == 2**form.exponent - 1
    if top and form.infinite:
        return NAN if mantissa else (-math.inf if negative else math.inf)
    if top and mantissa == 2**form.mantissa - 1:
        return NAN
    if exponent:
        mantissa += 2**form.mantissa
    mantissa = -mantissa if negative else mantissa
    place = max(exponent, 1) - 1 + form.lowest - form.mantissa
    return Real(Fraction(mantissa << place) if place >= 0 else Fraction(mantissa, 1 << -place), negative)


def _divided(n: int, d: int, mode: str, *, negative: bool) -> int:
    """Round a magnitude ``n / d`` to an integer."""
    whole, rest = divmod(n, d)
    up = {
        "rn": 2 * rest > d or (2 * rest == d and whole % 2 == 1),
        "rna": 2 * rest >= d,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    return whole + up


def log2_floor(x: Fraction) -> int:
    """Return the exponent of the highest bit of a positive fraction."""
    n, d = x.numerator, x.denominator
    guess = n.bit_length() - d.bit_length()
    return guess if (n >= d << guess if guess >= 0 else n << -guess >= d) else guess - 1


def encode(x: Number, name: str, mode: str = "rn", *, finite: bool = False) -> int:
    """Round a number to a format, bits in the width of its container."""
    form = FORMATS[name]
    if is_nan(x):
        return form.nan
    negative = is_negative(x)
    sign = negative << (form.exponent + form.mantissa)
    infinity = (2**form.exponent - 1) << form.mantissa
    highest = infinity - 1 if form.infinite else 2 ** (form.exponent + form.mantissa) - 2
    if not isinstance(x, Real):
        return (sign | (highest if finite else infinity)) << form.shift
    if x.value == 0:
        return sign << form.shift
    n, d = abs(x.value.numerator), x.value.denominator
    exponent = max(log2_floor(abs(x.value)), form.lowest)
    place = exponent - form.mantissa  # of the last bit
    significand = _divided(n << max(-place, 0), d << max(place, 0), mode, negative=negative)
    # A significand that rounding carried to the next power of two carries into the exponent field by itself.
    bits = ((exponent - form.lowest) << form.mantissa) + significand
    if bits > highest:
        outside = mode in {"rn", "rna"} or mode == ("rm" if negative else "rp")
        bits = infinity if outside and not finite else highest
    return (sign | bits) << form.shift


def integral(x: Number, mode: str) -> Number:
    """Round to an integral value; ``mode`` without its last letter: ``rni`` is ``rn``."""
    if not isinstance(x, Real):
        return x
    whole = _divided(abs(x.value.numerator), x.value.denominator, mode, negative=x.negative)
    return Real.of(-whole if x.negative else whole, negative=x.negative)


def is_tiny(x: Real, name: str, mode: str) -> bool:
    """Say whether a number other than zero, rounded with no bound to exponents, is below the smallest normal number."""
    form = FORMATS[name]
    size = abs(x.value)
    place = log2_floor(size) - form.mantissa
    n, d = size.numerator << max(-place, 0), size.denominator << max(place, 0)
    return _divided(n, d, mode, negative=x.negative) * Fraction(2) ** place < Fraction(2) ** form.lowest


# ------------------------------------------------------------------------------------------ arithmetic


def add(x: Number, y: Number, mode: str) -> Number:
    if isinstance(x, Real) and isinstance(y, Real):
        total = x.value + y.value
        both = x.negative if x.negative == y.negative else mode == "rm"
        return Real.of(total, negative=both)
    if isinstance(x, Real):
        return y
    return x if isinstance(y, Real) else x + y


def multiply(x: Number, y: Number) -> Number:
    negative = is_negative(x) != is_negative(y)
    if isinstance(x, Real) and isinstance(y, Real):
        return Real.of(x.value * y.value, negative=negative)
    if is_nan(x) or is_nan(y) or any(isinstance(z, Real) and z.value == 0 for z in (x, y)):
        return NAN
    return -math.inf if negative else math.inf


def divide(x: Number, y: Number) -> Number:
    negative = is_negative(x) != is_negative(y)
    infinity = -math.inf if negative else math.inf
    if is_nan(x) or is_nan(y):
        return NAN
    if not isinstance(x, Real):
        return infinity if isinstance(y, Real) else NAN
    if not isinstance(y, Real):
        return Real.of(0, negative=negative)
    if y.value == 0:
        return infinity if x.value else NAN
    return Real.of(x.value / y.value, negative=negative)


def root(x: Number) -> Number:
    """Return the square root, or something between it and the nearest 200-bit numbers that rounds as it does."""
    if not isinstance(x, Real):
        return x if x == math.inf else NAN
    if x.value == 0:
        return x
    if x.negative:
        return NAN
    scale = 400 - log2_floor(x.value) // 2 * 2
    scaled = x.value * Fraction(2) ** scale
    whole = math.isqrt(int(scaled))
    inexact = whole * whole != scaled
    return Real.of(Fraction(2 * whole + inexact, 2) / Fraction(2) ** (scale // 2))
