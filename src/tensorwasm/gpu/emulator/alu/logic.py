"""Bits: logic, shifts, fields, permutations, moves.

Source: PTX ISA 9.7.1.13 to 9.7.1.22 (bit fields), 9.7.8 (logic and shift), 9.7.9 (movement).
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

_WORDS: Final = "{b16,b32,b64}"


def _logical(ufunc: np.ufunc, name: str) -> Row:
    return Row(f"{name}.{{pred,b16,b32,b64}}", "T = T T", always(ufunc))


def _amount(b: Array, dtype: np.dtype[Any]) -> Array:
    """Clamp a u32 shift amount to 64 in the type of the shifted value; NumPy shifts wider amounts out completely."""
    return np.minimum(b, np.uint32(64)).astype(dtype)


def _left(a: Array, b: Array) -> Array:
    return np.left_shift(a, _amount(b, a.dtype))


def _right(a: Array, b: Array) -> Array:
    return np.right_shift(a, _amount(b, a.dtype))


def _funnel(modifiers: Modifiers) -> Run:
    left = modifiers[0] == "l"

    def run(a: Array, b: Array, c: Array) -> Array:
        amount = (c & 31) if modifiers[1] == "wrap" else np.minimum(c, np.uint32(32))
        pair = (b.astype(np.uint64) << np.uint64(32)) | a
        if left:
            # A shift by 32 more at the end, in two steps: one shift by 64 would be out of range.
            return (pair << amount >> np.uint64(32)).astype(np.uint32)
        return (pair >> amount).astype(np.uint32)

    return run


def _unpack(instruction: Instruction, op: Op) -> Op:
    """Turn a move between a vector of narrow registers and one wide register into splitting or joining."""
    vectors = [operand for operand in instruction.operands[:2] if isinstance(operand, Vector)]
    if not vectors:
        return op
    wide = op.sources[0]
    count = len(vectors[0].elements)
    bits = int(wide[1:]) // count if wide != "pred" else 0
    if bits not in {8, 16, 32} or count not in {2, 4} or len(vectors) == 2:
        position = instruction.position
        raise UnsupportedPtx(f"{instruction.mnemonic} with a vector of {count}", position.line, position.column)
    narrow = f"b{bits}"
    parts = (narrow,) * count
    if isinstance(instruction.operands[0], Vector):
        return replace(op, results=parts, sources=(f"b{wide[1:]}",), run=_splitting(narrow, count))
    return replace(op, results=(f"b{wide[1:]}",), sources=parts, run=_joining(wide, count))


def _splitting(narrow: str, count: int) -> Run:
    def run(a: Array) -> tuple[Array, ...]:
        fields = np.ascontiguousarray(a).view(DTYPES[narrow]).reshape(-1, count)
        return tuple(fields[:, i] for i in range(count))

    return run


def _joining(wide: str, count: int) -> Run:
    return lambda *parts: np.stack(parts[:count], axis=-1).view(f"u{int(wide[1:]) // 8}").reshape(-1)


ROWS: Final = (
    _logical(np.bitwise_and, "and"),
    _logical(np.bitwise_or, "or"),
    _logical(np.bitwise_xor, "xor"),
    Row("not.{pred,b16,b32,b64}", "T = T", always(np.invert)),
    Row(f"cnot.{_WORDS}", "T = T", always(lambda a: (a == 0).astype(a.dtype))),
    Row(f"shl.{_WORDS}", "T = T u32", always(_left)),
    Row("shr.{b16,b32,b64,u16,u32,u64,s16,s32,s64}", "T = T u32", always(_right)),
    Row("shf.{l,r}.{clamp,wrap}.b32", "T = T T u32", _funnel),
    Row("mov.{pred,b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}", "T = T", always(lambda a: a), bind=_unpack),
)
"""Rows of logic, shifts, bit fields and moves."""
