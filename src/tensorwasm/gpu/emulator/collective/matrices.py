"""Matrices in the registers of a warp: which lane holds which element, and elements packed into registers.

A fragment is the part of a matrix that one lane holds. All layouts but one follow a single pattern: lane ``l`` is in
group ``l >> 2``, which owns a row of each block of 8 rows, and is member ``l & 3`` of it, which owns one register of
consecutive columns of each block of ``4 * per`` columns, ``per`` being the elements in a register. The exception is
``mma.m8n8k4`` on f16, where the quads ``q`` and ``q + 4`` compute a product of their own.

``wmma`` leaves its layouts open; here they are the ``mma`` layouts of the same shape, side by side where larger.

Source: PTX ISA 9.7.14.5.1 to 9.7.14.5.13 (mma), 9.7.14.5.15 and 9.7.14.5.16 (ldmatrix, stmatrix), 9.7.14.4.1 (wmma).
Elements: PTX ISA 5.2.3 (alternate floating-point formats), 9.7.14.2 (matrix data types).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.alu.rounding import narrow
from tensorwasm.gpu.emulator.lanes import WARP_LANES
from tensorwasm.gpu.emulator.ops import Lanes

Places = NDArray[np.intp]

_LANE: Final = np.arange(WARP_LANES)[:, None]
_GROUP: Final = _LANE >> 2
_MEMBER: Final = _LANE & 3


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """The layout of one matrix over a warp.

    Attributes:
        row, col: place of each element, ``(32, elements)``; elements in the order of the registers, low bits first.
        shape: rows and columns of the matrix.
        tile, tiles: matrix that a lane's elements belong to, ``(32, 1)``; how many the warp holds.
    """

    row: Places
    col: Places
    shape: tuple[int, int]
    tile: Places
    tiles: int = 1

    @property
    def elements(self) -> int:
        """Elements per lane."""
        return int(self.row.shape[1])

    def assemble(self, elements: Lanes) -> NDArray[Any]:
        """Put ``(warps, 32, elements)`` together to matrices, ``(warps, tiles, rows, columns)``."""
        matrix = np.empty((len(elements), self.tiles, *self.shape), elements.dtype)
        matrix[:, self.tile, self.row, self.col] = elements
        return matrix

    def distribute(self, matrix: NDArray[Any]) -> Lanes:
        """Undo `assemble`."""
        return matrix[:, self.tile, self.row, self.col]


def _fragment(row: Places, col: Places, shape: tuple[int, int]) -> Fragment:
    row, col = np.broadcast_arrays(row, col)
    return Fragment(row, col, shape, np.zeros_like(_LANE))


@cache
def multiplicand_a(m: int, k: int, per: int) -> Fragment:
    """Lay out an ``m`` by ``k`` matrix A, ``per`` elements to a register; ``m`` is 8, 16 or a multiple of 16."""
    tall = min(m, 16)
    stack, place = np.divmod(np.arange(m * k // WARP_LANES), tall * k // WARP_LANES)
    register, element = np.divmod(place, per)
    right, down = np.divmod(register, tall // 8)
    return _fragment(_GROUP + 8 * down + tall * stack, _MEMBER * per + element + 4 * per * right, (m, k))


@cache
def multiplicand_b(k: int, n: int, per: int) -> Fragment:
    """Lay out a ``k`` by ``n`` matrix B: blocks of 8 columns, each the mirror image of an A of 8 rows."""
    block, place = np.divmod(np.arange(k * n // WARP_LANES), k // 4)
    register, element = np.divmod(place, per)
    return _fragment(_MEMBER * per + element + 4 * per * register, _GROUP + 8 * block, (k, n))


@cache
def accumulator(m: int, n: int) -> Fragment:
    """Lay out an ``m`` by ``n`` matrix C or D, whatever its type."""
    tall = min(m, 16)
    block, place = np.divmod(np.arange(m * n // WARP_LANES), tall // 4)
    down, element = np.divmod(place, 2)
    across, stack = block % (n // 8), block // (n // 8)
    return _fragment(_GROUP + 8 * down + tall * stack, 2 * _MEMBER + element + 8 * across, (m, n))


# ------------------------------------------------------------------------------------------- mma.m8n8k4 on f16

_QUAD: Final = (_LANE & 15) >> 2
_LOWER_HALF: Final = 4 * (_LANE >> 4)


def _quad_fragment(row: Places, col: Places, shape: tuple[int, int]) -> Fragment:
    row, col = np.broadcast_arrays(row, col)
    return Fragment(row, col, shape, _QUAD, 4)


@cache
def quad_a(layout: str) -> Fragment:
    """Lay out the four 8 by 4 matrices A of ``mma.m8n8k4`` on f16. Source: PTX ISA 9.7.14.5.1."""
    i = np.arange(4)
    if layout == "row":
        return _quad_fragment(_MEMBER + _LOWER_HALF, i, (8, 4))
    return _quad_fragment(i + _LOWER_HALF, _MEMBER, (8, 4))


@cache
def quad_b(layout: str) -> Fragment:
    """Lay out the four 4 by 8 matrices B of ``mma.m8n8k4`` on f16. Source: PTX ISA 9.7.14.5.1."""
    i = np.arange(4)
    if layout == "row":
        return _quad_fragment(_MEMBER, i + _LOWER_HALF, (4, 8))
    return _quad_fragment(i, _MEMBER + _LOWER_HALF, (4, 8))


@cache
def quad_accumulator(type_: str) -> Fragment:
    """Lay out the four 8 by 8 accumulators of ``mma.m8n8k4`` on f16. Source: PTX ISA 9.7.14.5.1."""
    i = np.arange(8)
    if type_ == "f16":
        return _quad_fragment(_MEMBER + _LOWER_HALF, i, (8, 8))
    return _quad_fragment((_LANE & 1) + (i & 2) + _LOWER_HALF, (i & 4) + (_LANE & 2) + (i & 1), (8, 8))


# -------------------------------------------------------------------------------------- elements in registers

Bits = NDArray[Any]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MatrixElement:
    """A matrix element type: its width, and from unsigned integers of the register's width to exact values."""

    bits: int
    decode: Callable[[Bits], Values]

    @property
    def register(self) -> str:
        """PTX type of the registers that hold it."""
        return "b64" if self.bits == 64 else "b32"

    @property
    def per(self) -> int:
        """Elements in a register."""
        return max(32 // self.bits, 1)


def _view(dtype: Any) -> Callable[[Bits], Values]:
    width = np.dtype(f"uint{8 * np.dtype(dtype).itemsize}")
    return lambda bits: bits.astype(width).view(dtype).astype(np.float64)


def _decode_s4(bits: Bits) -> Values:
    return ((bits.astype(np.int64) ^ 8) - 8).astype(np.float64)


def _decode_tf32(bits: Bits) -> Values:
    """Ignore the low 13 bits, which tf32 does not have."""
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


ELEMENTS: Final[dict[str, MatrixElement]] = {
    "f64": MatrixElement(64, _view(np.float64)),
    "f32": MatrixElement(32, _view(np.float32)),
    "s32": MatrixElement(32, _view(np.int32)),
    "tf32": MatrixElement(32, _decode_tf32),
    "f16": MatrixElement(16, _view(np.float16)),
    "bf16": MatrixElement(16, _view(ml_dtypes.bfloat16)),
    "e4m3": MatrixElement(8, _view(ml_dtypes.float8_e4m3fn)),
    "e5m2": MatrixElement(8, _view(ml_dtypes.float8_e5m2)),
    "s8": MatrixElement(8, _view(np.int8)),
    "u8": MatrixElement(8, _view(np.uint8)),
    "s4": MatrixElement(4, _decode_s4),
    "u4": MatrixElement(4, _view(np.uint8)),
    "b1": MatrixElement(1, _view(np.uint8)),
}
"""Element types of tensor-core instructions."""

FLOAT_REGISTERS: Final = frozenset({"f32", "f64"})
"""Element types whose registers are floating-point registers."""

_NARROW: Final[dict[str, Callable[[Values], Bits]]] = {
    "f64": lambda x: np.where(np.isnan(x), np.nan, x).view(np.uint64),
    "f32": lambda x: narrow(x, "f32").view(np.uint32),
    "f16": lambda x: narrow(x, "f16").view(np.uint16),
    "s32": lambda x: x.astype(np.int64).astype(np.int32).view(np.uint32),
}
"""Rounds exact values to the bits of an accumulator type; every NaN becomes the canonical one."""


def unpack(words: Lanes, element: MatrixElement) -> Bits:
    """Take registers ``(..., registers)`` apart to elements ``(..., registers * per)``, low bits first."""
    if element.per == 1:
        return words
    shifts = np.arange(element.per, dtype=np.uint32) * np.uint32(element.bits)
    parts: Bits = (words[..., None] >> shifts) & np.uint32((1 << element.bits) - 1)
    return parts.reshape(*words.shape[:-1], -1)


def pack(bits: Bits, element: MatrixElement) -> Lanes:
    """Put elements ``(..., registers * per)`` together to registers ``(..., registers)``."""
    if element.per == 1:
        return bits
    shifts = np.arange(element.per, dtype=np.uint32) * np.uint32(element.bits)
    parts = bits.astype(np.uint32).reshape(*bits.shape[:-1], -1, element.per)
    words: Lanes = np.bitwise_or.reduce(parts << shifts, axis=-1)
    return words


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """A matrix in the registers of a warp, which repeat the fragment ``copies`` times; the first counts."""

    fragment: Fragment
    type: str
    copies: int = 1

    @property
    def element(self) -> MatrixElement:
        """The element type."""
        return ELEMENTS[self.type]

    @property
    def registers(self) -> tuple[str, ...]:
        """PTX types of the registers as results: raw bits."""
        return (self.element.register,) * (self.fragment.elements // self.element.per * self.copies)

    @property
    def sources(self) -> tuple[str, ...]:
        """PTX types of the registers as sources: f32 and f64 have constants of their own (PTX ISA 4.5.2)."""
        return tuple(self.type if self.type in FLOAT_REGISTERS else register for register in self.registers)

    def read(self, registers: Sequence[Lanes]) -> Values:
        """Return the values of the matrix, ``(warps, tiles, rows, columns)``, from ``(warps, 32)`` registers."""
        bits = self.join(registers[: len(registers) // self.copies])
        return self.fragment.assemble(self.element.decode(bits))

    def write(self, values: Values) -> tuple[Lanes, ...]:
        """Round a matrix to the element type and distribute it over registers."""
        return self.split(_NARROW[self.type](self.fragment.distribute(values)))

    def join(self, registers: Sequence[Lanes]) -> Bits:
        """Return the element bits ``(warps, 32, elements)`` in registers."""
        words = np.stack(registers, axis=-1)
        return unpack(words.view(f"uint{8 * words.dtype.itemsize}"), self.element)

    def split(self, elements: Bits) -> tuple[Lanes, ...]:
        """Make registers of element bits ``(warps, 32, elements)``."""
        words = pack(elements, self.element)
        return tuple(np.ascontiguousarray(words[..., index]) for index in range(words.shape[-1])) * self.copies
