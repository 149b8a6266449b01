"""Several small integers in one 32-bit register: halves side by side, dot products, packing with saturation.

Source: PTX ISA 9.7.1.23 (dp4a), 9.7.1.24 (dp2a), 9.7.9.22 (cvt.pack); .u16x2 and .s16x2 in 9.7.1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from tensorwasm.gpu.emulator.alu.integer import rectified
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run
from tensorwasm.gpu.emulator.ops import DTYPES


def side_by_side(run: Run, dtype: np.dtype[np.generic]) -> Run:
    """Apply a function to the parts of 32-bit words, each part in ``dtype``; the results are words again."""

    def words(*sources: Array) -> Array:
        return run(*(np.ascontiguousarray(source).view(dtype) for source in sources)).view(np.uint32)

    return words


def _halves(run: Run, modifiers: Modifiers) -> Run:
    return side_by_side(run, DTYPES[modifiers[-1].removesuffix("x2")])


def _parts(a: Array, bits: int) -> list[Array]:
    """Cut words into parts of ``bits`` bits, lowest first, extended to 64 bits by the sign of their type."""
    wide = a.astype(np.int64)
    if a.dtype.kind == "u":
        return [(wide >> low) & (2**bits - 1) for low in range(0, 32, bits)]
    return [(wide << (64 - bits - low)) >> (64 - bits) for low in range(0, 32, bits)]


def _dot(modifiers: Modifiers) -> Run:
    """Multiply bytes by bytes (dp4a), or halves by the lower or upper two bytes (dp2a), and add up."""
    bits = 16 if modifiers[0] in {"lo", "hi"} else 8
    first = 2 if modifiers[0] == "hi" else 0

    def run(a: Array, b: Array, c: Array) -> Array:
        products = (x * y for x, y in zip(_parts(a, bits), _parts(b, 8)[first:], strict=False))
        return sum(products, c.astype(np.int64)).astype(c.dtype)

    return run


def _pack(modifiers: Modifiers) -> Run:
    """Saturate two integers, ``b`` into the lowest bits and ``a`` above it; ``c``, if any, moves up."""
    kind, bits = modifiers[2][0], int(modifiers[2][1:])
    low, high = (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def pair(a: Array, b: Array) -> Array:
        upper, lower = (np.clip(x, low, high).view(np.uint32) & np.uint32(2**bits - 1) for x in (a, b))
        return (upper << np.uint32(bits)) | lower

    return pair if bits == 16 else lambda a, b, c: (c << np.uint32(2 * bits)) | pair(a, b)


_MIXED: Final = "{u32.s32,s32.u32,s32.s32}"

ROWS: Final = (
    OpRow("add.{u16x2,s16x2}", "T = T T", partial(_halves, np.add)),
    OpRow("min.{u16x2,s16x2}", "T = T T", partial(_halves, np.minimum)),
    OpRow("max.{u16x2,s16x2}", "T = T T", partial(_halves, np.maximum)),
    OpRow("min.relu.s16x2", "T = T T", partial(_halves, rectified(np.minimum))),
    OpRow("max.relu.s16x2", "T = T T", partial(_halves, rectified(np.maximum))),
    OpRow("dp4a.u32.u32", "u32 = u32 u32 u32", _dot),
    OpRow(f"dp4a.{_MIXED}", "s32 = D T s32", _dot),
    OpRow("dp2a.{lo,hi}.u32.u32", "u32 = u32 u32 u32", _dot),
    OpRow(f"dp2a.{{lo,hi}}.{_MIXED}", "s32 = D T s32", _dot),
    OpRow("cvt.pack.sat.{u16,s16}.s32", "b32 = s32 s32", _pack),
    OpRow("cvt.pack.sat.{u8,s8,u4,s4,u2,s2}.s32.b32", "b32 = s32 s32 b32", _pack),
)
"""Rows of packed integers."""
