"""Matrix products: what a tensor core computes, and ``mma.sync``, the products of matrices in registers.

For ``D = A * B + C``, hardware leaves the order and the intermediate precision of floating-point sums open (at least
single precision, PTX ISA 9.7.14.5.14); here products are exact, sums are carried in binary64 in order of k, and the
result is rounded once to the accumulator's type. f64 is a chain of fused multiply-adds in order of k. Integers are
exact and wrap or saturate once at the end.

Source: PTX ISA 9.7.14.5.14.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.rounding import fma64
from tensorwasm.gpu.emulator.collective import matrices
from tensorwasm.gpu.emulator.collective.matrices import ELEMENTS, MatrixOperand, Values
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
            c = fma64(left, right, addend, mode)
        return c

    return multiply


def multiply_integers(a: Values, b: Values, c: Values) -> Values:
    """Multiply small integers or count the bits set in both: binary64 holds every intermediate value, in any order."""
    product: Values = np.matmul(a, b) + c
    return product


def multiply_saturating(a: Values, b: Values, c: Values) -> Values:
    """Multiply, then clamp to the range of s32 (``.satfinite``)."""
    return np.clip(multiply_integers(a, b, c), -(2.0**31), 2.0**31 - 1)


def count_xor(a: Values, b: Values, c: Values) -> Values:
    """Count the bits that differ (``.xor.popc``)."""
    return multiply_integers(a, 1 - b, multiply_integers(1 - a, b, c))


INTEGER_RULES: Final[dict[str, Rule]] = {"": multiply_integers, "satfinite": multiply_saturating}
BIT_RULES: Final[dict[str, Rule]] = {"and": multiply_integers, "xor": count_xor}
ROUNDING_MODES: Final = ("rn", "rz", "rm", "rp")


@dataclass(frozen=True, slots=True)
class Product:
    """One tensor-core product ``D = A * B + C``."""

    a: MatrixOperand
    b: MatrixOperand
    c: MatrixOperand
    d: MatrixOperand
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


# ------------------------------------------------------------------------------------------------ instructions

Shape = tuple[int, int, int]
_MIXED_BYTES: Final = (("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8"))
_MIXED_NIBBLES: Final = (("s4", "s4"), ("s4", "u4"), ("u4", "s4"), ("u4", "u4"))
_MIXED_FP8: Final = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2"))

_FLOATS: Final[tuple[tuple[Shape, tuple[tuple[str, str], ...], tuple[str, ...]], ...]] = (
    ((16, 8, 8), (("f16", "f16"),), ("f16", "f32")),
    ((16, 8, 16), (("f16", "f16"),), ("f16", "f32")),
    ((16, 8, 8), (("bf16", "bf16"),), ("f32",)),
    ((16, 8, 16), (("bf16", "bf16"),), ("f32",)),
    ((16, 8, 4), (("tf32", "tf32"),), ("f32",)),
    ((16, 8, 8), (("tf32", "tf32"),), ("f32",)),
    ((16, 8, 16), _MIXED_FP8, ("f16", "f32")),
    ((16, 8, 32), _MIXED_FP8, ("f16", "f32")),
)
"""Shape, multiplicand types, accumulator types; C and D have the same type."""

_INTEGERS: Final = (
    ((8, 8, 16), _MIXED_BYTES),
    ((16, 8, 16), _MIXED_BYTES),
    ((16, 8, 32), _MIXED_BYTES),
    ((8, 8, 32), _MIXED_NIBBLES),
    ((16, 8, 32), _MIXED_NIBBLES),
    ((16, 8, 64), _MIXED_NIBBLES),
)
_BITS: Final = ((8, 8, 128), (16, 8, 128), (16, 8, 256))
_DOUBLES: Final = ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))


def forms() -> Iterator[tuple[str, tuple[WarpOp, ...]]]:
    """Yield every supported mnemonic with its instruction."""
    yield from _quad_forms()
    for shape, types, accumulators in _FLOATS:
        for (a, b), c in itertools.product(types, accumulators):
            yield _name(shape, f"{c}.{a}.{b}.{c}"), (_op(shape, a, b, c, multiply_floats),)
    for shape, types in _INTEGERS:
        for (a, b), (flag, rule) in itertools.product(types, INTEGER_RULES.items()):
            yield _name(shape, f"s32.{a}.{b}.s32", flag), (_op(shape, a, b, "s32", rule),)
    for shape, (name, rule) in itertools.product(_BITS, BIT_RULES.items()):
        yield f"{_name(shape, 's32.b1.b1.s32')}.{name}.popc", (_op(shape, "b1", "b1", "s32", rule),)
    for shape, mode in itertools.product(_DOUBLES, ("", *ROUNDING_MODES)):
        rule = multiply_doubles(mode or "rn")
        yield _name(shape, "f64.f64.f64.f64", mode), (_op(shape, "f64", "f64", "f64", rule),)


def _quad_forms() -> Iterator[tuple[str, tuple[WarpOp, ...]]]:
    """Yield ``mma.m8n8k4`` on f16, which computes four products."""
    layouts = ("row", "col")
    for alayout, blayout, (d, c) in itertools.product(
        layouts, layouts, (("f16", "f16"), ("f32", "f16"), ("f32", "f32"))
    ):
        product = Product(
            a=MatrixOperand(matrices.quad_a(alayout), "f16"),
            b=MatrixOperand(matrices.quad_b(blayout), "f16"),
            c=MatrixOperand(matrices.quad_accumulator(c), c),
            d=MatrixOperand(matrices.quad_accumulator(d), d),
            rule=multiply_floats,
        )
        yield f"mma.sync.aligned.m8n8k4.{alayout}.{blayout}.{d}.f16.f16.{c}", (product.op(),)


def _name(shape: Shape, types: str, flag: str = "") -> str:
    m, n, k = shape
    return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{'.' * bool(flag)}{flag}.{types}"


def _op(shape: Shape, a: str, b: str, c: str, rule: Rule) -> WarpOp:
    m, n, k = shape
    product = Product(
        a=MatrixOperand(matrices.multiplicand_a(m, k, ELEMENTS[a].per), a),
        b=MatrixOperand(matrices.multiplicand_b(k, n, ELEMENTS[b].per), b),
        c=MatrixOperand(matrices.accumulator(m, n), c),
        d=MatrixOperand(matrices.accumulator(m, n), c),
        rule=rule,
    )
    return product.op()
