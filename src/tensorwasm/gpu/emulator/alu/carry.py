"""Extended precision: carry chains through the condition code CC.CF.

After a subtraction CC.CF holds the borrow: 1 if the exact difference is negative.

Source: PTX ISA 9.7.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tensorwasm.gpu.emulator.alu.integer import PRODUCTS, unsigned
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run

Step = Callable[[Array, Array, Array], tuple[Array, Array]]

_TYPES: Final = "{u32,s32,u64,s64}"


def _sum(x: Array, y: Array, carry: Array) -> tuple[Array, Array]:
    partial = x + y
    total = partial + carry
    return total, (partial < x) | (total < partial)


def _difference(x: Array, y: Array, borrow: Array) -> tuple[Array, Array]:
    partial = x - y
    total = partial - borrow
    return total, (partial > x) | (total > partial)


def _link(step: Step, *, chained: bool) -> Callable[[Modifiers], Run]:
    """Make one link of a chain; a leading ``lo`` or ``hi`` multiplies the first two sources first."""

    def make(modifiers: Modifiers) -> Run:
        product = PRODUCTS.get(modifiers[0])

        def run(*sources: Array) -> Any:
            x, y = sources[:2] if product is None else (product(*sources[:2]), sources[2])
            total, carry = step(unsigned(x), unsigned(y), sources[-1] if chained else False)
            result = total.view(x.dtype)
            return (result, carry) if "cc" in modifiers else result

        return run

    return make


def _rows(start: str, follow: str, sources: str, step: Step) -> tuple[Row, ...]:
    """Rows of the instruction that starts a chain and of the one that continues it."""
    first, next_ = _link(step, chained=False), _link(step, chained=True)
    return (
        Row(f"{start}.cc.{_TYPES}", f"T pred = {sources}", first, writes_carry=True),
        Row(f"{follow}.{_TYPES}", f"T = {sources} pred", next_, reads_carry=True),
        Row(f"{follow}.cc.{_TYPES}", f"T pred = {sources} pred", next_, reads_carry=True, writes_carry=True),
    )


ROWS: Final = (
    *_rows("add", "addc", "T T", _sum),
    *_rows("sub", "subc", "T T", _difference),
    *_rows("mad{.lo,.hi}", "madc{.lo,.hi}", "T T T", _sum),
)
"""Rows of carry chains."""
