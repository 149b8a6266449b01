"""Extended precision: carry chains through the condition code CC.CF.

A subtraction adds the complement and one, or CC.CF where it continues a chain, and CC.CF is the carry of that addition:
1 if nothing was borrowed. So links of all kinds can follow each other, as they do on NVIDIA's hardware. CC.CF is 0
before anything wrote it.

Source: PTX ISA 9.7.2, which names the flag a borrow and leaves open which of its values that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorwasm.gpu.emulator.alu.integer import PRODUCTS, unsigned
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run

_TYPES: Final = "{u32,s32,u64,s64}"


def _sum(x: Array, y: Array, carry: Array) -> tuple[Array, Array]:
    partial = x + y
    total = partial + carry
    return total, (partial < x) | (total < partial)


def _link(*, chained: bool, minus: bool) -> Callable[[Modifiers], Run]:
    """Make one link of a chain; a leading ``lo`` or ``hi`` multiplies the first two sources first."""

    def make(modifiers: Modifiers) -> Run:
        product = PRODUCTS.get(modifiers[0])

        def run(*sources: Array) -> Any:
            x, y = sources[:2] if product is None else (product(*sources[:2]), sources[2])
            term = np.invert(unsigned(y)) if minus else unsigned(y)
            total, carry = _sum(unsigned(x), term, sources[-1] if chained else np.bool_(minus))
            result = total.view(x.dtype)
            return (result, carry) if "cc" in modifiers else result

        return run

    return make


def _rows(start: str, follow: str, sources: str, *, minus: bool = False) -> tuple[Row, ...]:
    """Rows of the instruction that starts a chain and of the one that continues it."""
    first, next_ = _link(chained=False, minus=minus), _link(chained=True, minus=minus)
    return (
        Row(f"{start}.cc.{_TYPES}", f"T pred = {sources}", first, writes_carry=True),
        Row(f"{follow}.{_TYPES}", f"T = {sources} pred", next_, reads_carry=True),
        Row(f"{follow}.cc.{_TYPES}", f"T pred = {sources} pred", next_, reads_carry=True, writes_carry=True),
    )


ROWS: Final = (
    *_rows("add", "addc", "T T"),
    *_rows("sub", "subc", "T T", minus=True),
    *_rows("mad{.lo,.hi}", "madc{.lo,.hi}", "T T T"),
)
"""Rows of carry chains."""
