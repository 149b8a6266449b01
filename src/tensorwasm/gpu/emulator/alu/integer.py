"""Integer arithmetic, and carry chains through the condition code CC.CF.

PTX leaves division by zero open; it gives all ones, quotient and remainder alike, as NVIDIA's code sequences do.
The most negative number divided by -1 wraps around to itself.

In a carry chain, a subtraction adds the complement and one, or CC.CF where it continues a chain, and CC.CF is the carry
of that addition: 1 if nothing was borrowed. So links of all kinds can follow each other, as they do on NVIDIA's
hardware. CC.CF is 0 before anything wrote it.

Source: PTX ISA 9.7.1; 9.7.2, which names the flag a borrow and leaves open which of its values that is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run, always

_LOW32: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)


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
    high = x1 * y1 + (middle >> _32) + (((middle & _LOW32) + x0 * y1) >> _32)
    if a.dtype.kind == "i":  # the unsigned product is too large by 2**64 * b where a is negative, and vice versa
        high = high - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return high.view(a.dtype)


def wide_product(a: Array, b: Array) -> Array:
    """Return the product in twice the width."""
    return widened(a) * b


PRODUCTS: Final[dict[str, Run]] = {"lo": np.multiply, "hi": high_product, "wide": wide_product}
"""Products by the modifier that names the part of it."""


def clamp32(exact: Array) -> Array:
    """Clamp int64 values to s32."""
    return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)


def _saturated(run: Callable[..., Array]) -> Run:
    """Saturate a s32 operation, computed in int64."""
    return lambda a, b: clamp32(run(a.astype(np.int64), b))


def _add_to(product: Run, modifiers: Modifiers) -> Run:
    if "sat" in modifiers:
        return lambda a, b, c: clamp32(product(a, b).astype(np.int64) + c)
    return lambda a, b, c: product(a, b) + c


def _multiply_add(modifiers: Modifiers) -> Run:
    return _add_to(PRODUCTS[modifiers[0]], modifiers)


def _three_bytes(a: Array) -> Array:
    """Extend the low 24 bits to 64."""
    return (a.astype(np.int64) << 40) >> 40 if a.dtype.kind == "i" else (a & 0xFFFFFF).astype(np.uint64)


def _product24(modifiers: Modifiers) -> Run:
    shift = 16 if modifiers[0] == "hi" else 0
    return lambda a, b: ((_three_bytes(a) * _three_bytes(b)) >> shift).astype(a.dtype)


def _multiply_add24(modifiers: Modifiers) -> Run:
    return _add_to(_product24(modifiers), modifiers)


def _sum_of_difference(a: Array, b: Array, c: Array) -> Array:
    return c + np.where(a < b, b - a, a - b)


def _magnitude(a: Array) -> Array:
    """Return the absolute value as unsigned, right for the most negative number too."""
    return unsigned(np.absolute(a))


def _quotient(a: Array, b: Array) -> Array:
    if a.dtype.kind == "u":
        return np.where(b == 0, ~np.zeros_like(b), a // b)
    size = (_magnitude(a) // _magnitude(b)).view(a.dtype)
    return np.where(b == 0, ~np.zeros_like(b), np.where((a ^ b) < 0, -size, size))


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, ~np.zeros_like(b), a - _quotient(a, b) * b)


def rectified(run: Run) -> Run:
    """Clamp negative results to 0."""
    return lambda *sources: np.maximum(run(*sources), 0)


# ------------------------------------------------------------------------------------------ carry chains


def _sum(x: Array, y: Array, carry: Array) -> tuple[Array, Array]:
    partial = x + y
    total = partial + carry
    return total, (partial < x) | (total < partial)


def _link(modifiers: Modifiers, *, chained: bool, minus: bool) -> Run:
    """Make one link of a chain; a leading ``lo`` or ``hi`` multiplies the first two sources first."""
    product = PRODUCTS.get(modifiers[0])

    def run(*sources: Array) -> Any:
        x, y = sources[:2] if product is None else (product(*sources[:2]), sources[2])
        term = np.invert(unsigned(y)) if minus else unsigned(y)
        total, carry = _sum(unsigned(x), term, sources[-1] if chained else np.bool_(minus))
        result = total.view(x.dtype)
        return (result, carry) if "cc" in modifiers else result

    return run


def _chain(start: str, follow: str, sources: str, *, minus: bool = False) -> tuple[OpRow, ...]:
    """Rows of the instruction that starts a chain and of the one that continues it."""
    first, next_ = (partial(_link, chained=chained, minus=minus) for chained in (False, True))
    return (
        OpRow(f"{start}.cc.{_CHAINED}", f"T pred = {sources}", first, writes_carry=True),
        OpRow(f"{follow}.{_CHAINED}", f"T = {sources} pred", next_, reads_carry=True),
        OpRow(f"{follow}.cc.{_CHAINED}", f"T pred = {sources} pred", next_, reads_carry=True, writes_carry=True),
    )


_CHAINED: Final = "{u32,s32,u64,s64}"
_ALL: Final = "{u16,u32,u64,s16,s32,s64}"
_NARROW: Final = "{u16,u32,s16,s32}"
_WORDS: Final = "{u32,s32}"

ROWS: Final = (
    OpRow(f"add.{_ALL}", "T = T T", always(np.add)),
    OpRow(f"sub.{_ALL}", "T = T T", always(np.subtract)),
    OpRow("add.sat.s32", "T = T T", always(_saturated(np.add))),
    OpRow("sub.sat.s32", "T = T T", always(_saturated(np.subtract))),
    OpRow(f"mul{{.lo,.hi}}.{_ALL}", "T = T T", lambda m: PRODUCTS[m[0]]),
    OpRow(f"mul.wide.{_NARROW}", "W = T T", always(wide_product)),
    OpRow(f"mad{{.lo,.hi}}.{_ALL}", "T = T T T", _multiply_add),
    OpRow("mad.hi.sat.s32", "T = T T T", _multiply_add),
    OpRow(f"mad.wide.{_NARROW}", "W = T T W", _multiply_add),
    OpRow(f"mul24{{.lo,.hi}}.{_WORDS}", "T = T T", _product24),
    OpRow(f"mad24{{.lo,.hi}}.{_WORDS}", "T = T T T", _multiply_add24),
    OpRow("mad24.hi.sat.s32", "T = T T T", _multiply_add24),
    OpRow(f"sad.{_ALL}", "T = T T T", always(_sum_of_difference)),
    OpRow(f"div.{_ALL}", "T = T T", always(_quotient)),
    OpRow(f"rem.{_ALL}", "T = T T", always(_remainder)),
    OpRow("abs.{s16,s32,s64}", "T = T", always(np.absolute)),
    OpRow("neg.{s16,s32,s64}", "T = T", always(np.negative)),
    OpRow(f"min.{_ALL}", "T = T T", always(np.minimum)),
    OpRow(f"max.{_ALL}", "T = T T", always(np.maximum)),
    OpRow("min.relu.s32", "T = T T", always(rectified(np.minimum))),
    OpRow("max.relu.s32", "T = T T", always(rectified(np.maximum))),
    *_chain("add", "addc", "T T"),
    *_chain("sub", "subc", "T T", minus=True),
    *_chain("mad{.lo,.hi}", "madc{.lo,.hi}", "T T T"),
)
"""Rows of integer arithmetic."""
