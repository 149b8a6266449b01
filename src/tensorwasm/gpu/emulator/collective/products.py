"""What a tensor core computes: ``D = A * B + C``.

Hardware leaves the order and the intermediate precision of floating-point sums open (at least single precision, PTX ISA
9.7.14.5.14); here products are exact, sums are carried in binary64 in order of k, and the result is rounded once to
the accumulator's type. f64 is a chain of fused multiply-adds in order of k. Integers are exact and wrap or saturate
once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.doubles import fused
from tensorwasm.gpu.emulator.collective.elements import Operand, Values
from tensorwasm.gpu.emulator.ops import Lanes, WarpMemory, WarpOp

Rule = Callable[[Values, Values, Values], Values]
"""Multiplies ``(warps, tiles, m, k)`` by ``(warps, tiles, k, n)`` and adds ``(warps, tiles, m, n)``."""


def multiply_floats(a: Values, b: Values, c: Values) -> Values:
    """Sum exact products in binary64 in order of k, C first."""
    total = c
    for k in range(a.shape[-1]):
        total = total + a[..., k, None] * b[..., k, None, :]
    return total


def multiply_doubles(mode: str) -> Rule:
    """Chain fused multiply-adds in order of k; ``mode`` is ``rn``, ``rz``, ``rm`` or ``rp``."""

    def multiply(a: Values, b: Values, c: Values) -> Values:
        for k in range(a.shape[-1]):
            left, right, addend = np.broadcast_arrays(a[..., k, None], b[..., k, None, :], c)
            c = fused(left, right, addend, mode)
        return c

    return multiply


def multiply_integers(a: Values, b: Values, c: Values) -> Values:
    """Sum exactly."""
    return _dot(a, b) + c


def multiply_saturating(a: Values, b: Values, c: Values) -> Values:
    """Sum exactly, then clamp to the range of s32 (``.satfinite``)."""
    return np.clip(_dot(a, b) + c, -(2.0**31), 2.0**31 - 1)


def count_and(a: Values, b: Values, c: Values) -> Values:
    """Count the bits set in both (``.and.popc``)."""
    return _dot(a, b) + c


def count_xor(a: Values, b: Values, c: Values) -> Values:
    """Count the bits that differ (``.xor.popc``)."""
    return _dot(a, 1 - b) + _dot(1 - a, b) + c


def _dot(a: Values, b: Values) -> Values:
    """Multiply matrices of small integers: binary64 holds every intermediate value, in any order."""
    product: Values = np.matmul(a, b)
    return product


INTEGER_RULES: Final[dict[str, Rule]] = {"": multiply_integers, "satfinite": multiply_saturating}
BIT_RULES: Final[dict[str, Rule]] = {"and": count_and, "xor": count_xor}
ROUNDING_MODES: Final = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True, slots=True)
class Product:
    """One tensor-core product.

    Attributes:
        a: left multiplicand.
        b: right multiplicand.
        c: addend.
        d: result.
        rule: how values are multiplied and added.
    """

    a: Operand
    b: Operand
    c: Operand
    d: Operand
    rule: Rule

    def op(self) -> WarpOp:
        """Return the instruction."""
        return WarpOp(self.d.registers, self.a.sources + self.b.sources + self.c.sources, self._run)

    def _run(self, _memory: WarpMemory, *registers: Lanes) -> tuple[Lanes, ...]:
        first, second = len(self.a.registers), len(self.a.registers) + len(self.b.registers)
        with np.errstate(all="ignore"):
            values = self.rule(
                self.a.read(registers[:first]),
                self.b.read(registers[first:second]),
                self.c.read(registers[second:]),
            )
            return self.d.write(values)
