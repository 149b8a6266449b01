"""Logic, shifts and moves; counting, finding, extracting, inserting and permuting bits.

Source: PTX ISA 9.7.1.13 to 9.7.1.22, 9.7.8 (logic and shift), 9.7.9.3 and .4 (mov), 9.7.9.7 (prmt).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator.alu.rounding import Array
from tensorwasm.gpu.emulator.alu.rows import Modifiers, OpRow, Run, always
from tensorwasm.gpu.emulator.ops import DTYPES, Op
from tensorwasm.ptx.model import Instruction, Int, Vector

_ONES: Final = np.uint32(0xFFFFFFFF)


def _bit_length(x: Array) -> Array:
    """Return the number of significant bits of unsigned integers."""
    # Without the bit below the top one, the conversion to double cannot round up to the next power of two.
    return np.frexp((x & ~(x >> x.dtype.type(1))).astype(np.float64))[1]


def _count_ones(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


def _count_leading_zeros(a: Array) -> Array:
    return (8 * a.dtype.itemsize - _bit_length(a)).astype(np.uint32)


def _find_top(modifiers: Modifiers) -> Run:
    """Find the highest bit that differs from the sign; all ones if there is none."""

    def run(a: Array) -> Array:
        size = a.dtype.itemsize
        pattern = a if a.dtype.kind == "u" else (a ^ (a >> (8 * size - 1))).view(f"u{size}")
        place = _bit_length(pattern) - 1
        if "shiftamt" in modifiers:
            place = np.where(place < 0, place, 8 * size - 1 - place)
        return place.astype(np.uint32)

    return run


def _find_nth(mask: Array, base: Array, offset: Array) -> Array:
    """Find the ``offset``-th set bit from ``base`` upwards, or downwards if negative; all ones if there is none."""
    place = np.arange(32)
    start, count = base.astype(np.int64)[:, None], offset.astype(np.int64)[:, None]
    bits = (mask[:, None] >> place.astype(np.uint32) & 1).astype(bool)
    upward, downward = bits & (place >= start), bits & (place <= start)
    rank = np.cumsum(upward, axis=1)
    rank_down = np.cumsum(downward[:, ::-1], axis=1)[:, ::-1]
    hit = np.where(count > 0, upward & (rank == count), downward & (rank_down == -count))
    hit = np.where(count == 0, bits & (place == start), hit) & (start < 32)
    found = np.where(hit.any(axis=1), hit.argmax(axis=1), _ONES).astype(np.uint32)
    return np.where(offset == np.iinfo(np.int32).min, np.uint32(0), found)  # what an H200 gives


_SWAPS: Final = ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F))


def _reverse(a: Array) -> Array:
    word = a.dtype.type
    for shift, mask in _SWAPS:
        low = word(mask & (2 ** (8 * a.dtype.itemsize) - 1))
        a = ((a >> word(shift)) & low) | ((a & low) << word(shift))
    return a.byteswap()


def _cut(place: Array, a: Array) -> Array:
    """Cut a position or length to its low byte, which GPUs do not for 64-bit types; PTX leaves more than 255 open."""
    return place & np.uint32(0xFF) if a.dtype.itemsize == 4 else place


def _extract(a: Array, position: Array, length: Array) -> Array:
    """Extract a field, extended by zeros or its own sign; beyond the top lies more of the sign."""
    wide = a.astype(f"{a.dtype.kind}8")
    dtype = wide.dtype.type
    first, count = _cut(position, a), _cut(length, a)
    shift = np.minimum(first, np.uint32(63 if wide.dtype.kind == "i" else 64)).astype(dtype)
    unused = (64 - np.minimum(count, np.uint32(64)).astype(np.int64)).astype(dtype)
    return (((wide >> shift) << unused) >> unused).astype(a.dtype)


def _insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    """Put the low ``length`` bits of ``a`` into ``b`` at ``position``; what does not fit is lost."""
    shift, size = (_cut(x, a).astype(a.dtype) for x in (position, length))
    mask = ~(~np.zeros_like(a) << size) << shift
    return (b & ~mask) | ((a << shift) & mask)


def _mask(modifiers: Modifiers) -> Run:
    """Make ``length`` ones from ``position`` up."""

    def run(position: Array, length: Array) -> Array:
        if "wrap" in modifiers:
            position, length = position & np.uint32(31), length & np.uint32(31)
        end = position.astype(np.uint64) + length
        return (~(_ONES << np.minimum(end, 32)) & (_ONES << position.astype(np.uint64))).astype(np.uint32)

    return run


def _extend(modifiers: Modifiers) -> Run:
    """Extend the low ``length`` bits to 32."""

    def run(a: Array, length: Array) -> Array:
        size = length & np.uint32(31) if "wrap" in modifiers else np.minimum(length, np.uint32(32))
        unused = (32 - size).astype(a.dtype)
        return (a << unused) >> unused

    return run


# ------------------------------------------------------------------------------------------ permute


_NIBBLES: Final = np.arange(0, 16, 4, dtype=np.uint32)


def _eight(a: Array, b: Array) -> Array:
    """Return the bytes of ``b:a``, lowest first, ``(lanes, 8)``."""
    return np.stack([a, b], axis=-1).view(np.uint8)


def _word(four: Array) -> Array:
    return np.ascontiguousarray(four).view(np.uint32).reshape(-1)


def _permute(a: Array, b: Array, selector: Array) -> Array:
    """Pick four of the eight bytes of ``b:a``; bit 3 of a nibble of the selector replicates the byte's sign instead."""
    nibbles = selector[:, None] >> _NIBBLES
    four = np.take_along_axis(_eight(a, b), (nibbles & np.uint32(7)).astype(np.intp), axis=1)
    return _word(np.where(nibbles & np.uint32(8), (four >> np.uint8(7)) * np.uint8(0xFF), four))


def _bind_selector(instruction: Instruction, op: Op) -> Op:
    """Turn a constant selector without signs into constant positions."""
    selector = instruction.operands[-1]
    if not isinstance(selector, Int) or selector.value & 0x8888:
        return op
    places = [selector.value >> shift & 7 for shift in (0, 4, 8, 12)]
    return replace(op, run=lambda a, b, _selector: _word(_eight(a, b)[:, places]))


_SELECTORS: Final[dict[str, tuple[int, int, int, int]]] = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _permute_mode(modifiers: Modifiers) -> Run:
    table = np.array(_SELECTORS[modifiers[0]], np.uint32)
    return lambda a, b, c: _permute(a, b, table[c & np.uint32(3)])


# ------------------------------------------------------------------------------------------ any function of three bits

# Functions of two bits by their truth table; bit 2 * b + c of it is the result.
_TWO: Final[tuple[Callable[[Array, Array], Array], ...]] = (
    lambda b, _: np.zeros_like(b),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, _: ~b,
    lambda b, c: b & ~c,
    lambda _, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda _, c: c,
    lambda b, c: ~b | c,
    lambda b, _: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, _: ~np.zeros_like(b),
)


def _three(lut: int) -> Run:
    """Make the function of a truth table of 8 bits: ``a`` chooses whether its upper half flips its lower half."""
    low, flip = lut & 15, (lut & 15) ^ (lut >> 4)
    base, change = _TWO[low], _TWO[flip]
    if flip in {0, 15}:
        return (lambda a, b, c: base(b, c) ^ a) if flip else lambda _, b, c: base(b, c)
    return lambda a, b, c: base(b, c) ^ (a & change(b, c))


def _lookup(a: Array, b: Array, c: Array, lut: Array) -> Array:
    """Apply a truth table of each lane's own."""
    terms = [
        np.where(lut >> np.uint32(4 * i + j) & 1, (a if i else ~a) & _TWO[1 << j](b, c), 0)
        for i in (0, 1)
        for j in range(4)
    ]
    return functools.reduce(operator.or_, terms).astype(np.uint32)


_COMBINE: Final[dict[str, np.ufunc]] = {"or": np.bitwise_or, "and": np.bitwise_and}


def _with_predicate(modifiers: Modifiers, function: Run = _lookup) -> Run:
    combine = _COMBINE.get(modifiers[0])
    if combine is None:
        return function

    def run(*sources: Array) -> tuple[Array, Array]:
        result = function(*sources[:-1])
        return result, combine(result != 0, sources[-1])

    return run


def _bind_table(instruction: Instruction, op: Op) -> Op:
    """Work out the truth table, an immediate, once."""
    lut = instruction.operands[4 if len(instruction.operands) > 4 else -1]
    if not isinstance(lut, Int):
        raise UnsupportedPtx(f"{instruction.mnemonic}: the truth table must be a constant", *instruction.position)
    function = _three(lut.value & 0xFF)
    return replace(op, run=_with_predicate(instruction.modifiers, lambda a, b, c, _lut: function(a, b, c)))


# ------------------------------------------------------------------------------------------ logic, shifts, moves


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


def _bind_move(instruction: Instruction, op: Op) -> Op:
    """Turn a move between a vector of narrow registers and one wide register into splitting or joining."""
    vectors = [operand for operand in instruction.operands if isinstance(operand, Vector)]
    if not vectors:
        return op
    wide, count = op.sources[0], len(vectors[0].elements)
    if len(vectors) > 1 or (wide, count) not in _SHARES:
        raise UnsupportedPtx(f"{instruction.mnemonic} with a vector of {count}", *instruction.position)
    narrow = f"b{int(wide[1:]) // count}"
    if vectors[0] is instruction.operands[0]:
        part = DTYPES[narrow]
        return replace(
            op,
            results=(narrow,) * count,
            run=lambda a: tuple(np.ascontiguousarray(a).view(part).reshape(-1, count).T),
        )
    whole = DTYPES[wide]
    return replace(op, sources=(narrow,) * count, run=lambda *parts: np.stack(parts, axis=-1).view(whole).reshape(-1))


ROWS: Final = (
    OpRow(f"and.{{pred,{_WORDS}}}", "T = T T", always(np.bitwise_and)),
    OpRow(f"or.{{pred,{_WORDS}}}", "T = T T", always(np.bitwise_or)),
    OpRow(f"xor.{{pred,{_WORDS}}}", "T = T T", always(np.bitwise_xor)),
    OpRow(f"not.{{pred,{_WORDS}}}", "T = T", always(np.invert)),
    OpRow(f"cnot.{{{_WORDS}}}", "T = T", always(lambda a: (a == 0).astype(a.dtype))),
    OpRow(f"shl.{{{_WORDS}}}", "T = T u32", always(_left)),
    OpRow(f"shr.{{{_WORDS},u16,u32,u64,s16,s32,s64}}", "T = T u32", always(_right)),
    OpRow("shf.{l,r}.{clamp,wrap}.b32", "b32 = b32 b32 u32", _funnel),
    OpRow(f"mov.{{pred,{_WORDS},u16,u32,u64,s16,s32,s64,f32,f64}}", "T = T", always(np.asarray), bind=_bind_move),
    OpRow("popc.{b32,b64}", "u32 = T", always(_count_ones)),
    OpRow("clz.{b32,b64}", "u32 = T", always(_count_leading_zeros)),
    OpRow("bfind{,.shiftamt}.{u32,u64,s32,s64}", "u32 = T", _find_top),
    OpRow("fns.b32", "b32 = b32 b32 s32", always(_find_nth)),
    OpRow("brev.{b32,b64}", "T = T", always(_reverse)),
    OpRow("bfe.{u32,u64,s32,s64}", "T = T u32 u32", always(_extract)),
    OpRow("bfi.{b32,b64}", "T = T T u32 u32", always(_insert)),
    OpRow("bmsk.{clamp,wrap}.b32", "b32 = u32 u32", _mask),
    OpRow("szext.{clamp,wrap}.{u32,s32}", "T = T u32", _extend),
    OpRow("prmt.b32", "b32 = b32 b32 b32", always(_permute), bind=_bind_selector),
    OpRow("prmt.b32{.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "b32 = b32 b32 b32", lambda m: _permute_mode(m[1:])),
    OpRow("lop3.b32", "b32 = b32 b32 b32 u32", _with_predicate, bind=_bind_table),
    OpRow("lop3.{or,and}.b32", "b32 pred = b32 b32 b32 u32 pred", _with_predicate, bind=_bind_table),
)
"""Rows of bit manipulation."""
