"""Logic, shifts and moves.

Source: PTX ISA 9.7.8 (logic and shift), 9.7.9.5 (mov).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, Row, Run, always
from tensorwasm.gpu.emulator.ops import DTYPES, Op
from tensorwasm.ptx.model import Instruction, Vector

_WORDS: Final = "b16,b32,b64"
_SHARES: Final = frozenset({("b16", 2), ("b32", 2), ("b32", 4), ("b64", 2), ("b64", 4)})


def _amount(b: Array, dtype: np.dtype[Any]) -> Array:
    """Put a u32 shift amount into the type of the shifted value; NumPy shifts by the width or more to nothing."""
    if dtype.itemsize == 4:
        return b.view(dtype)  # negative amounts count as huge
    return np.minimum(b, np.uint32(64)).astype(dtype)


def _left(a: Array, b: Array) -> Array:
    return np.left_shift(a, _amount(b, a.dtype))


def _right(a: Array, b: Array) -> Array:
    return np.right_shift(a, _amount(b, a.dtype))


def _funnel(modifiers: Modifiers) -> Run:
    """Shift the 64 bits ``b:a``; a left shift returns the upper word, a right shift the lower one."""
    wrap, left = "wrap" in modifiers, "l" in modifiers

    def run(a: Array, b: Array, c: Array) -> Array:
        amount = (c & np.uint32(31) if wrap else np.minimum(c, np.uint32(32))).astype(np.uint64)
        pair = (b.astype(np.uint64) << np.uint64(32)) | a
        return ((pair << amount) >> np.uint64(32) if left else pair >> amount).astype(np.uint32)

    return run


def _move(instruction: Instruction, op: Op) -> Op:
    """Turn a move between a vector of narrow registers and one wide register into splitting or joining."""
    vectors = [index for index, operand in enumerate(instruction.operands) if isinstance(operand, Vector)]
    if not vectors:
        return op
    wide = op.sources[0]
    vector = instruction.operands[vectors[0]]
    count = len(vector.elements) if isinstance(vector, Vector) else 0
    if len(vectors) > 1 or (wide, count) not in _SHARES:
        at = instruction.position
        raise UnsupportedPtx(f"{instruction.mnemonic} with a vector of {count}", at.line, at.column)
    narrow = f"b{int(wide[1:]) // count}"
    if vectors == [0]:
        return replace(op, results=(narrow,) * count, run=_splitting(DTYPES[narrow], count))
    return replace(op, sources=(narrow,) * count, run=_joining(DTYPES[wide]))


def _splitting(dtype: np.dtype[Any], count: int) -> Run:
    return lambda a: tuple(np.ascontiguousarray(a).view(dtype).reshape(-1, count).T)


def _joining(dtype: np.dtype[Any]) -> Run:
    return lambda *parts: np.stack(parts, axis=-1).view(dtype).reshape(-1)


ROWS: Final = (
    Row(f"and.{{pred,{_WORDS}}}", "T = T T", always(np.bitwise_and)),
    Row(f"or.{{pred,{_WORDS}}}", "T = T T", always(np.bitwise_or)),
    Row(f"xor.{{pred,{_WORDS}}}", "T = T T", always(np.bitwise_xor)),
    Row(f"not.{{pred,{_WORDS}}}", "T = T", always(np.invert)),
    Row(f"cnot.{{{_WORDS}}}", "T = T", always(lambda a: (a == 0).astype(a.dtype))),
    Row(f"shl.{{{_WORDS}}}", "T = T u32", always(_left)),
    Row(f"shr.{{{_WORDS},u16,u32,u64,s16,s32,s64}}", "T = T u32", always(_right)),
    Row("shf.{l,r}.{clamp,wrap}.b32", "b32 = b32 b32 u32", _funnel),
    Row(f"mov.{{pred,{_WORDS},u16,u32,u64,s16,s32,s64,f32,f64}}", "T = T", always(np.asarray), bind=_move),
)
"""Rows of logic, shifts and moves."""
