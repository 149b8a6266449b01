"""Which lane holds which element of a matrix, in which place.

A fragment is what one lane holds of a matrix. All layouts but one follow a single pattern: lane ``l`` belongs to group
``l >> 2``, which owns a row of each block of 8 rows, and is member ``l & 3`` of it, which owns one register's worth of
consecutive columns of each block of ``4 * per`` columns, ``per`` being the elements in a register. The exception is
``mma.m8n8k4`` on f16, where the quads ``q`` and ``q + 4`` compute a product of their own.

``wmma`` leaves its layouts open; here they are the ``mma`` layouts of the same shape, side by side where larger.

Source: PTX ISA 9.7.14.5.1 to 9.7.14.5.13 (mma), 9.7.14.5.15 and 9.7.14.5.16 (ldmatrix, stmatrix), 9.7.14.4.1 (wmma).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.ops import Lanes

Indices = NDArray[np.intp]

WARP_LANES: Final = 32
_LANE: Final = np.arange(WARP_LANES)[:, None]
_GROUP: Final = _LANE >> 2
_MEMBER: Final = _LANE & 3


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """The layout of one matrix over a warp.

    Attributes:
        row: row of each element, ``(32, elements)``; elements in the order of the registers, low bits first.
        col: column of each element, ``(32, elements)``.
        shape: rows and columns of the matrix.
        tile: which of the matrices a lane's elements belong to, ``(32, 1)``; all 0 for a single matrix.
        tiles: how many matrices of that shape the warp holds.
    """

    row: Indices
    col: Indices
    shape: tuple[int, int]
    tile: Indices
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


def _fragment(row: Indices, col: Indices, shape: tuple[int, int]) -> Fragment:
    row, col = np.broadcast_arrays(row, col)
    return Fragment(row, col, shape, np.zeros_like(_LANE))


@cache
def multiplicand_a(m: int, k: int, per: int) -> Fragment:
    """Lay out an ``m`` by ``k`` matrix A, ``per`` elements to a register; ``m`` is 8, 16 or a multiple of 16.

    Source: PTX ISA 9.7.14.5.2 to 9.7.14.5.13, multiplicand A.
    """
    tall = min(m, 16)
    stack, place = np.divmod(np.arange(m * k // WARP_LANES), tall * k // WARP_LANES)
    register, element = np.divmod(place, per)
    right, down = np.divmod(register, tall // 8)
    row = _GROUP + 8 * down + tall * stack
    col = _MEMBER * per + element + 4 * per * right
    return _fragment(row, col, (m, k))


@cache
def multiplicand_b(k: int, n: int, per: int) -> Fragment:
    """Lay out a ``k`` by ``n`` matrix B: blocks of 8 columns, each the mirror image of an A of 8 rows.

    Source: PTX ISA 9.7.14.5.2 to 9.7.14.5.13, multiplicand B.
    """
    block, place = np.divmod(np.arange(k * n // WARP_LANES), k // 4)
    register, element = np.divmod(place, per)
    row = _MEMBER * per + element + 4 * per * register
    col = _GROUP + 8 * block
    return _fragment(row, col, (k, n))


@cache
def accumulator(m: int, n: int) -> Fragment:
    """Lay out an ``m`` by ``n`` matrix C or D, whatever its type.

    Source: PTX ISA 9.7.14.5.2 to 9.7.14.5.13, accumulators.
    """
    tall = min(m, 16)
    block, place = np.divmod(np.arange(m * n // WARP_LANES), tall // 4)
    down, element = np.divmod(place, 2)
    across, stack = block % (n // 8), block // (n // 8)
    row = _GROUP + 8 * down + tall * stack
    col = 2 * _MEMBER + element + 8 * across
    return _fragment(row, col, (m, n))


# ------------------------------------------------------------------------------------------- mma.m8n8k4 on f16

_QUAD: Final = (_LANE & 15) >> 2
_LOWER_HALF: Final = 4 * (_LANE >> 4)


def _quad_fragment(row: Indices, col: Indices, shape: tuple[int, int]) -> Fragment:
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
