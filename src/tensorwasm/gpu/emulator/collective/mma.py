"""``mma.sync``: products of matrices in registers.

Source: PTX ISA 9.7.14.5.14.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from tensorwasm.gpu.emulator.collective import fragments
from tensorwasm.gpu.emulator.collective.elements import ELEMENTS, Operand
from tensorwasm.gpu.emulator.collective.products import (
    BIT_RULES,
    INTEGER_RULES,
    ROUNDING_MODES,
    Product,
    Rule,
    multiply_doubles,
    multiply_floats,
)
from tensorwasm.gpu.emulator.ops import WarpOp

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
            a=Operand(fragments.quad_a(alayout), "f16"),
            b=Operand(fragments.quad_b(blayout), "f16"),
            c=Operand(fragments.quad_accumulator(c), c),
            d=Operand(fragments.quad_accumulator(d), d),
            rule=multiply_floats,
        )
        yield f"mma.sync.aligned.m8n8k4.{alayout}.{blayout}.{d}.f16.f16.{c}", (product.op(),)


def _name(shape: Shape, types: str, flag: str = "") -> str:
    m, n, k = shape
    return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{'.' * bool(flag)}{flag}.{types}"


def _op(shape: Shape, a: str, b: str, c: str, rule: Rule) -> WarpOp:
    m, n, k = shape
    product = Product(
        a=Operand(fragments.multiplicand_a(m, k, ELEMENTS[a].per), a),
        b=Operand(fragments.multiplicand_b(k, n, ELEMENTS[b].per), b),
        c=Operand(fragments.accumulator(m, n), c),
        d=Operand(fragments.accumulator(m, n), c),
        rule=rule,
    )
    return product.op()
