"""Correct rounding: exact results to any binary format in any mode, and the arithmetic of binary64 in every mode.

A double that was *rounded to odd* can be rounded once more, to a format at least two bits narrower, as if it were the
exact value. Where the target is binary64 itself, the nearest double and the sign of the exact residual decide every
directed mode.

Source: Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd"
(2008); PTX ISA 5.2.3 for the formats, 9.7.3 for the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Array: TypeAlias = Any
"""An array of some `DTYPES` type. NumPy's stubs lose the type on views and mixed arithmetic; the tests keep it."""

MODES: Final = frozenset({"rn", "rz", "rm", "rp", "rna"})
"""Floating-point rounding modes; ``rna`` is to nearest, ties away from zero."""

INTEGRAL: Final[dict[str, np.ufunc]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
"""Rounding to an integral value, by modifier."""


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format narrower than binary64.

    Attributes:
        precision: significand bits, the hidden one included.
        smallest, largest: smallest normal and largest finite number.
        dtype: NumPy type that holds its values exactly.
        nan: the NaN that NVIDIA GPUs return, a scalar of ``dtype``.
    """

    precision: int
    smallest: float
    largest: float
    dtype: np.dtype[Any]
    nan: Any


def _format(precision: int, minimum: int, largest: float, dtype: Any, nan_bits: int) -> Format:
    type_ = np.dtype(dtype)
    nan = np.array([nan_bits], f"u{type_.itemsize}").view(type_)[0]
    return Format(precision, 2.0**minimum, largest, type_, nan)


FORMATS: Final[dict[str, Format]] = {
    "f32": _format(24, -126, (2 - 2.0**-23) * 2.0**127, np.float32, 0x7FFFFFFF),
    "tf32": _format(11, -126, (2 - 2.0**-10) * 2.0**127, np.float32, 0x7FFFE000),
    "bf16": _format(8, -126, (2 - 2.0**-7) * 2.0**127, ml_dtypes.bfloat16, 0x7FFF),
    "f16": _format(11, -14, 65504.0, np.float16, 0x7FFF),
    "e4m3": _format(4, -6, 448.0, ml_dtypes.float8_e4m3fn, 0x7F),
    "e5m2": _format(3, -14, 57344.0, ml_dtypes.float8_e5m2, 0x7F),
}

_EXPONENT = np.uint64(0x7FF0000000000000)


def two_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return the nearest sum and the exact error (Knuth), NaN where an input is not finite; far from overflow."""
    total = a + b
    virtual = total - a
    return total, (a - (total - virtual)) + (b - virtual)


def split(a: Doubles) -> tuple[Doubles, Doubles]:
    """Split into two 26-bit halves (Veltkamp); ``abs(a) < 2**996``."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def two_product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return the nearest product and the exact error (Dekker); operands far from overflow and underflow."""
    product = a * b
    (ah, al), (bh, bl) = split(a), split(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def to_odd(value: Doubles, error: Doubles) -> Doubles:
    """Round ``value + error`` to odd, ``value`` being its nearest double and ``error`` exact (NaN counts as 0)."""
    bits = value.view(np.int64)
    inexact = (error < 0) | (error > 0)
    step = np.where(inexact & ((bits & 1) == 0), np.where((error > 0) == (value > 0), 1, -1), 0)
    return (bits + step).view(np.float64)


def add_odd(mode: str, a: Doubles, b: Doubles) -> Doubles:
    """Add and round to odd. An exact zero from unlike signs is -0 in mode ``rm``, else +0."""
    total = to_odd(*two_sum(a, b))
    if mode == "rm":
        np.copyto(total, -0.0, where=(total == 0) & (np.signbit(a) | np.signbit(b)))
    return total


def _nearest_away(x: Doubles) -> Doubles:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


_STEPS: Final[dict[str, Any]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": _nearest_away,
}


def narrow(x: Doubles, name: str, mode: str = "rn", *, finite: bool = False) -> Array:
    """Round doubles, exact or rounded to odd, to a format, subnormals and overflow included.

    With ``finite``, saturate to the largest finite number instead of infinity. Returns values in the dtype of the
    format; every NaN is the canonical one.
    """
    form = FORMATS[name]
    if finite:
        x = np.clip(x, -form.largest, form.largest)
    if mode == "rn" and name in {"f32", "f16"}:  # NumPy rounds these itself
        return canonical(x.astype(form.dtype), name)
    exponent = (x.view(np.uint64) & _EXPONENT).view(np.float64)
    quantum = np.clip(exponent, form.smallest, 2.0**1000) * 2.0 ** (1 - form.precision)
    rounded = _STEPS[mode](x / quantum) * quantum
    if mode not in {"rn", "rna"}:  # those leave overflow to the cast below
        low = -np.inf if mode == "rm" else -form.largest
        high = np.inf if mode == "rp" else form.largest
        np.copyto(rounded, low, where=(rounded < -form.largest) & (x > -np.inf))
        np.copyto(rounded, high, where=(rounded > form.largest) & (x < np.inf))
    exact = rounded if form.dtype.kind == "f" else rounded.astype(np.float32)  # the types of ml_dtypes know float32
    return canonical(exact.astype(form.dtype), name)


def flush_tiny(x: Doubles, name: str, mode: str) -> Doubles:
    """Turn doubles, exact or rounded to odd, into zeros of their sign where their rounding would be subnormal.

    The rounding has no bound to exponents, and a mode other than ``rna``. This is when NVIDIA GPUs (an H200 was
    measured) call a result subnormal; what is left rounds to no subnormal number.
    """
    form = FORMATS[name]
    last = form.smallest * 2.0**-form.precision  # the distance from the smallest normal number to the one below
    size = np.abs(x)
    if mode == "rn":
        tiny = size < form.smallest - last / 2
    else:
        away = (x < 0) & (mode == "rm") | (x > 0) & (mode == "rp")
        tiny = (size < form.smallest) & ~(away & (size > form.smallest - last))
    return np.where(tiny, np.copysign(0.0, x), x)


def canonical(values: Array, name: str) -> Array:
    """Replace every NaN, in place, by the one NVIDIA GPUs give; return the array."""
    np.copyto(values, FORMATS[name].nan, where=values != values)  # noqa: PLR0124 - the NaN test
    return values


def nudge(nearest: Doubles, residual: Doubles, mode: str) -> Doubles:
    """Turn a double next to the exact result into the directed rounding of it; ``rn`` returns ``nearest``.

    ``nearest`` is one of the two doubles that enclose the exact result, infinity included; ``residual`` has the sign of
    ``exact - nearest``, NaN counting as 0.
    """
    if mode == "rn":
        return nearest
    up, down = residual > 0, residual < 0
    if mode == "rp":
        return np.where(up, np.nextafter(nearest, np.inf), nearest)
    if mode == "rm":
        return np.where(down, np.nextafter(nearest, -np.inf), nearest)
    return np.where(np.where(np.signbit(nearest), up, down), np.nextafter(nearest, 0.0), nearest)


# ------------------------------------------------------------------------------------------ binary64

# Operands are taken apart into significand and exponent first, so that the error-free transformations never meet
# overflow or underflow; only the last step does, and it is corrected by the sign of the exact residual.


def add64(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Add."""
    total = a + b
    swap = np.abs(a) < np.abs(b)  # Dekker's error: Knuth's may overflow where the sum does not
    large, small = np.where(swap, b, a), np.where(swap, a, b)
    result = nudge(total, small - (total - large), mode)
    if mode == "rm":
        np.copyto(result, -0.0, where=(result == 0) & (np.signbit(a) | np.signbit(b)))
    return result


def subtract64(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Subtract."""
    return add64(a, -b, mode)


def multiply64(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Multiply."""
    nearest = a * b
    (ma, ea), (mb, eb) = np.frexp(a), np.frexp(b)
    high, low = two_product(ma, mb)
    return nudge(nearest, (high - np.ldexp(nearest, -(ea + eb))) + low, mode)


def divide64(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Divide."""
    nearest = a / b
    (ma, ea), (mb, eb) = np.frexp(a), np.frexp(b)
    quotient = np.clip(np.ldexp(nearest, eb - ea), -4.0, 4.0)  # an overflow becomes finite, and still too large
    high, low = two_product(quotient, mb)
    return nudge(nearest, ((ma - high) - low) * np.sign(mb), mode)


def root64(a: Doubles, mode: str) -> Doubles:
    """Take the square root."""
    nearest = np.sqrt(a)
    significand, exponent = np.frexp(a)
    odd = exponent & 1
    root = np.ldexp(nearest, -((exponent - odd) >> 1))
    high, low = two_product(root, root)
    return nudge(nearest, (np.ldexp(significand, odd) - high) - low, mode)


def fma64(a: Doubles, b: Doubles, c: Doubles, mode: str) -> Doubles:
    """Compute ``a * b + c`` with a single rounding."""
    if mode == "rn" and _are_moderate(a, b, c):
        value, _ = _exact(a, b, c)
        return np.where(value == 0, a * b + c, value)  # the sign of an exact zero
    (ma, ea), (mb, eb), (mc, ec) = np.frexp(a), np.frexp(b), np.frexp(c)
    exponent = ea + eb
    distance = np.where(mc == 0, 0, ec - exponent)
    near = np.clip(distance, -200, 200)  # beyond that the smaller term is no more than a sign
    exponent = exponent + np.where(distance > near, distance - near, 0)
    value, rest = _exact(ma, mb, np.ldexp(mc, near))
    result = nudge(*_scale(value, rest, exponent), mode)
    simple = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0)
    result = np.where(simple, add64(ma * mb, c, mode), result)
    if mode == "rm":
        np.copyto(result, -0.0, where=(value == 0) & ~simple)
    return result


def _are_moderate(*operands: Doubles) -> bool:
    """Return whether all operands are zeros or far enough from the ends of the range for `_exact`."""
    values = np.concatenate(operands)
    exponents = (values.view(np.uint64) >> np.uint64(52)) & np.uint64(0x7FF)
    return bool(((exponents - np.uint64(723) < np.uint64(600)) | (values == 0)).all())


def _exact(a: Doubles, b: Doubles, c: Doubles) -> tuple[Doubles, Doubles]:
    """Return ``a * b + c`` to nearest, and the rest of it rounded to odd."""
    high, low = two_product(a, b)
    total, error = two_sum(c, low)
    value, rest = two_sum(high, total)
    return two_sum(value, to_odd(*two_sum(error, rest)))  # once more, for the leading terms may have cancelled


def _scale(value: Doubles, rest: Doubles, exponent: Array) -> tuple[Doubles, Doubles]:
    """Round ``(value + rest) * 2**exponent``, its nearest double being ``value``; return also the residual."""
    nearest = np.ldexp(value, exponent)
    left = value - np.ldexp(nearest, -exponent)
    residual = left + rest
    # Among subnormals that rounded twice. It is wrong where the first rounding made a tie for the second.
    tie = (left != 0) & (np.abs(left) == np.ldexp(0.5, -1074 - exponent)) & (np.sign(left) == np.sign(rest))
    result = np.where(tie, np.nextafter(nearest, np.copysign(np.inf, rest)), nearest)
    return result, np.where(tie, -residual, residual)
