"""Binary64 arithmetic in every rounding mode, and the fused multiply-add that NumPy lacks.

Operands are taken apart into significand and exponent first, so that the error-free transformations never meet
overflow or underflow; only the last step does, and it is corrected by the sign of the exact residual.

Source: PTX ISA 9.7.3.
"""

from __future__ import annotations

import numpy as np

from tensorwasm.gpu.emulator.alu.rounding import Array, Doubles, nudge, to_odd, two_product, two_sum


def add(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Add."""
    total, error = two_sum(a, b)
    result = nudge(total, error, mode)
    if mode == "rm":
        np.copyto(result, -0.0, where=(result == 0) & (np.signbit(a) | np.signbit(b)))
    return result


def subtract(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Subtract."""
    return add(a, -b, mode)


def multiply(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Multiply."""
    nearest = a * b
    (ma, ea), (mb, eb) = np.frexp(a), np.frexp(b)
    high, low = two_product(ma, mb)
    return nudge(nearest, (high - np.ldexp(nearest, -(ea + eb))) + low, mode)


def divide(a: Doubles, b: Doubles, mode: str) -> Doubles:
    """Divide."""
    nearest = a / b
    (ma, ea), (mb, eb) = np.frexp(a), np.frexp(b)
    quotient = np.clip(np.ldexp(nearest, eb - ea), -4.0, 4.0)  # an overflow becomes finite, and still too large
    high, low = two_product(quotient, mb)
    return nudge(nearest, ((ma - high) - low) * np.sign(mb), mode)


def square_root(a: Doubles, mode: str) -> Doubles:
    """Take the square root."""
    nearest = np.sqrt(a)
    significand, exponent = np.frexp(a)
    odd = exponent & 1
    root = np.ldexp(nearest, -((exponent - odd) >> 1))
    high, low = two_product(root, root)
    return nudge(nearest, (np.ldexp(significand, odd) - high) - low, mode)


def fused(a: Doubles, b: Doubles, c: Doubles, mode: str) -> Doubles:
    """Compute ``a * b + c`` with a single rounding."""
    (ma, ea), (mb, eb), (mc, ec) = np.frexp(a), np.frexp(b), np.frexp(c)
    exponent = ea + eb
    distance = np.where(mc == 0, 0, ec - exponent)
    near = np.clip(distance, -200, 200)  # beyond that the smaller term is no more than a sign
    exponent = exponent + np.where(distance > near, distance - near, 0)
    high, low = two_product(ma, mb)
    total, error = two_sum(np.ldexp(mc, near), low)
    value, rest = two_sum(high, total)
    rest = to_odd(*two_sum(error, rest))
    result = nudge(*_scale(value, rest, exponent), mode)
    simple = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0)
    result = np.where(simple, add(a * b, c, mode), result)
    if mode == "rm":
        zero = (value == 0) & (rest == 0) & ~simple
        np.copyto(result, -0.0, where=zero)
    return result


def _scale(value: Doubles, rest: Doubles, exponent: Array) -> tuple[Doubles, Doubles]:
    """Round ``(value + rest) * 2**exponent`` to nearest, once; also return the residual of the result."""
    nearest = np.ldexp(value + rest, exponent)
    # Among subnormals the sum above rounded too early: round the leading term alone, and break its ties by the rest.
    coarse = np.ldexp(value, exponent)
    left = value - np.ldexp(coarse, -exponent)
    tie = (np.abs(left) == np.ldexp(0.5, -1074 - exponent)) & (np.sign(left) == np.sign(rest))
    coarse = np.where(tie, np.nextafter(coarse, np.copysign(np.inf, rest)), coarse)
    nearest = np.where(np.abs(nearest) < np.finfo(np.float64).tiny, coarse, nearest)
    return nearest, (value - np.ldexp(nearest, -exponent)) + rest
