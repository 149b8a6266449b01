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
    total = a + b
    swap = np.abs(a) < np.abs(b)  # Dekker's error: Knuth's may overflow where the sum does not
    large, small = np.where(swap, b, a), np.where(swap, a, b)
    result = nudge(total, small - (total - large), mode)
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
    result = np.where(simple, add(ma * mb, c, mode), result)
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
