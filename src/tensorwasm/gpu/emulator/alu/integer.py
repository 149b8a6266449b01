"""Integer arithmetic.

Division by zero is left open by PTX; it gives all ones, quotient and remainder alike, as NVIDIA's code sequences do.

Source: PTX ISA 9.7.1 (integer arithmetic), 9.7.2 (extended precision).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run, always
from tensorwasm.gpu.emulator.ops import DTYPES

_LOW32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def unsigned(a: Array) -> Array:
    """View as unsigned of the same width."""
    return a.view(f"u{a.dtype.itemsize}")


def widened(a: Array) -> Array:
    """Convert to the integer type twice as wide."""
    return a.astype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")


def high_product(a: Array, b: Array) -> Array:
    """Return the upper half of the double-width product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return ((widened(a) * b) >> bits).astype(a.dtype)
    x, y = unsigned(a), unsigned(b)
    x0, x1, y0, y1 = x & _LOW32, x >> _32, y & _LOW32, y >> _32
    middle = x1 * y0 + ((x0 * y0) >> _32)
    other = (middle & _LOW32) + x0 * y1
    high = x1 * y1 + (middle >> _32) + (other >> _32)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return high.view(a.dtype)


def wide_product(a: Array, b: Array) -> Array:
    """Return the product in twice the width."""
    return widened(a) * b


PRODUCTS: Final[dict[str, Run]] = {"lo": np.multiply, "hi": high_product, "wide": wide_product}


def saturated(exact: Array, low: int, high: int, dtype: Any) -> Array:
    """Clamp int64 values into a narrower type."""
    return np.clip(exact, low, high).astype(dtype)


def clamp32(exact: Array) -> Array:
    """Clamp int64 values to s32."""
    return saturated(exact, -(2**31), 2**31 - 1, np.int32)


def _wide64(run: Callable[..., Array]) -> Run:
    """Saturate a s32 operation computed in int64."""
    return lambda *sources: clamp32(run(*(source.astype(np.int64) for source in sources)))


def _multiply_add(modifiers: Modifiers) -> Run:
    product = PRODUCTS[modifiers[0]]
    if "sat" in modifiers:
        return lambda a, b, c: clamp32(product(a, b).astype(np.int64) + c)
    return lambda a, b, c: product(a, b) + c


def _three_byte(a: Array) -> Array:
    """Extend the low 24 bits to 64."""
    return (a.astype(np.int64) << 40) >> 40 if a.dtype.kind == "i" else (a & 0xFFFFFF).astype(np.uint64)


def _product24(modifiers: Modifiers) -> Run:
    shift = 16 if modifiers[0] == "hi" else 0
    return lambda a, b: ((_three_byte(a) * _three_byte(b)) >> shift).astype(a.dtype)


def _multiply_add24(modifiers: Modifiers) -> Run:
    product = _product24(modifiers)
    if "sat" in modifiers:
        return lambda a, b, c: clamp32(product(a, b).astype(np.int64) + c)
    return lambda a, b, c: product(a, b) + c


def _difference(a: Array, b: Array, c: Array) -> Array:
    return c + np.where(a < b, b - a, a - b)


def magnitude(a: Array) -> Array:
    """Return the absolute value as unsigned, right for the most negative number too."""
    return unsigned(np.absolute(a))


def _quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "u":
        return np.where(b == 0, ~np.zeros_like(b), a // b)
    size = (magnitude(a) // magnitude(b)).view(a.dtype)
    return np.where(b == 0, a.dtype.type(-1), np.where((a ^ b) < 0, -size, size))


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, ~np.zeros_like(b), a - _quotient(a, b) * b)


# ------------------------------------------------------------------------------------------ carry chains


def _carry_in(sources: tuple[Array, ...], chained: bool) -> tuple[tuple[Array, ...], Array | int]:  # noqa: FBT001
    return (sources[:-1], sources[-1].astype(sources[0].dtype)) if chained else (sources, 0)


def _sum(a: Array, b: Array, carry: Array | int) -> tuple[Array, Array]:
    x, y = unsigned(a), unsigned(b)
    partial = x + y
    total = partial + (unsigned(carry) if isinstance(carry, np.ndarray) else x.dtype.type(carry))
    return total.view(a.dtype), (partial < x) | (total < partial)


def _borrowed(a: Array, b: Array, borrow: Array | int) -> tuple[Array, Array]:
    x, y = unsigned(a), unsigned(b)
    partial = x - y
    total = partial - (unsigned(borrow) if isinstance(borrow, np.ndarray) else x.dtype.type(borrow))
    return total.view(a.dtype), (partial > x) | (total > partial)


def _chain(step: Callable[..., tuple[Array, Array]], *, chained: bool) -> Callable[[Modifiers], Run]:
    """Make one link of a carry chain; a leading ``lo`` or ``hi`` multiplies the first two sources first."""

    def make(modifiers: Modifiers) -> Run:
        product = PRODUCTS.get(modifiers[0])

        def run(*sources: Array) -> Any:
            values, carry = _carry_in(sources, chained)
            if product is not None:
                values = (product(values[0], values[1]), values[2])
            total, out = step(*values, carry)
            return (total, out) if "cc" in modifiers else total

        return run

    return make


def _carry_rows() -> tuple[Row, ...]:
    rows = []
    for op, step in (("add", _sum), ("sub", _borrowed), ("mad", _sum)):
        types, half, sources = "{u32,s32,u64,s64}", ("{.lo,.hi}" if op == "mad" else ""), "T T" + " T" * (op == "mad")
        chained = _chain(step, chained=True)
        rows += [
            Row(f"{op}{half}.cc.{types}", f"T pred = {sources}", _chain(step, chained=False), writes_carry=True),
            Row(f"{op}c{half}.{types}", f"T = {sources} pred", chained, reads_carry=True),
            Row(f"{op}c{half}.cc.{types}", f"T pred = {sources} pred", chained, reads_carry=True, writes_carry=True),
        ]
    return tuple(rows)


# --------------------------------------------------------------------------------------------- dot products


def _bytes(a: Array, size: int, count: int) -> list[Array]:
    """Cut 32-bit words into ``count`` fields of ``size`` bits, extended to 64 bits by the sign of their type."""
    wide = a.astype(np.int64)
    return [
        (wide << (64 - size * (i + 1))) >> (64 - size) if a.dtype.kind == "i" else (wide >> size * i) & (2**size - 1)
        for i in range(count)
    ]


def _dot4(_modifiers: Modifiers) -> Run:
    def run(a: Array, b: Array, c: Array) -> Array:
        total = sum((x * y for x, y in zip(_bytes(a, 8, 4), _bytes(b, 8, 4), strict=True)), c.astype(np.int64))
        return total.astype(c.dtype)

    return run


def _dot2(modifiers: Modifiers) -> Run:
    first = 2 if modifiers[0] == "hi" else 0

    def run(a: Array, b: Array, c: Array) -> Array:
        x, y = _bytes(a, 16, 2), _bytes(b, 8, 4)[first : first + 2]
        return (x[0] * y[0] + x[1] * y[1] + c.astype(np.int64)).astype(c.dtype)

    return run


_MIXED: Final = "{u32.s32,s32.u32,s32.s32}"
_ALL: Final = "{u16,u32,u64,s16,s32,s64}"
_WORDS: Final = "{u32,s32}"


def _packed(run: Run) -> Callable[[Modifiers], Run]:
    """Apply to the two 16-bit halves of a word."""

    def make(modifiers: Modifiers) -> Run:
        half = DTYPES[modifiers[-1][:3]]

        def paired(*sources: Array) -> Array:
            result = run(*(np.ascontiguousarray(source).view(half) for source in sources))
            return result.view(np.uint32)

        return paired

    return make


def _rectified(run: Run) -> Run:
    return lambda *sources: np.maximum(run(*sources), 0)


ROWS: Final = (
    Row(f"add.{_ALL}", "T = T T", always(np.add)),
    Row(f"sub.{_ALL}", "T = T T", always(np.subtract)),
    Row("add.sat.s32", "T = T T", always(_wide64(np.add))),
    Row("sub.sat.s32", "T = T T", always(_wide64(np.subtract))),
    Row(f"mul.lo.{_ALL}", "T = T T", always(np.multiply)),
    Row(f"mul.hi.{_ALL}", "T = T T", always(high_product)),
    Row("mul.wide.{u16,u32,s16,s32}", "W = T T", always(wide_product)),
    Row(f"mad{{.lo,.hi}}.{_ALL}", "T = T T T", _multiply_add),
    Row("mad.hi.sat.s32", "T = T T T", _multiply_add),
    Row("mad.wide.{u16,u32,s16,s32}", "W = T T W", _multiply_add),
    Row(f"mul24{{.lo,.hi}}.{_WORDS}", "T = T T", _product24),
    Row(f"mad24{{.lo,.hi}}.{_WORDS}", "T = T T T", _multiply_add24),
    Row("mad24.hi.sat.s32", "T = T T T", _multiply_add24),
    Row(f"sad.{_ALL}", "T = T T T", always(_difference)),
    Row(f"div.{_ALL}", "T = T T", always(_quotient)),
    Row(f"rem.{_ALL}", "T = T T", always(_remainder)),
    Row("abs.{s16,s32,s64}", "T = T", always(np.absolute)),
    Row("neg.{s16,s32,s64}", "T = T", always(np.negative)),
    Row(f"min.{_ALL}", "T = T T", always(np.minimum)),
    Row(f"max.{_ALL}", "T = T T", always(np.maximum)),
    Row("min.relu.s32", "T = T T", always(_rectified(np.minimum))),
    Row("max.relu.s32", "T = T T", always(_rectified(np.maximum))),
    Row("add.{u16x2,s16x2}", "T = T T", _packed(np.add)),
    Row("min.{u16x2,s16x2}", "T = T T", _packed(np.minimum)),
    Row("max.{u16x2,s16x2}", "T = T T", _packed(np.maximum)),
    Row("min.relu.s16x2", "T = T T", _packed(_rectified(np.minimum))),
    Row("max.relu.s16x2", "T = T T", _packed(_rectified(np.maximum))),
    Row("dp4a.u32.u32", "u32 = u32 u32 u32", _dot4),
    Row(f"dp4a.{_MIXED}", "s32 = D T s32", _dot4),
    Row("dp2a.{lo,hi}.u32.u32", "u32 = u32 u32 u32", _dot2),
    Row(f"dp2a.{{lo,hi}}.{_MIXED}", "s32 = D T s32", _dot2),
    *_carry_rows(),
)
"""Rows of integer arithmetic."""
