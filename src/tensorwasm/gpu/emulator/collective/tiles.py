"""``ldmatrix``, ``stmatrix`` and ``movmatrix``: 8 by 8 matrices of 16-bit elements.

Lane ``8 * i + r`` has the address of row ``r`` of matrix ``i``; register ``i`` of every lane holds two elements of it.

Source: PTX ISA 9.7.14.5.15 (ldmatrix), 9.7.14.5.16 (stmatrix), 9.7.14.5.17 (movmatrix).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.collective.elements import ELEMENTS, pack, unpack
from tensorwasm.gpu.emulator.collective.fragments import Fragment, multiplicand_a, multiplicand_b
from tensorwasm.gpu.emulator.ops import Lanes, WarpMemory, WarpOp

_SPACES: Final = {"": "generic", "shared": "shared", "shared::cta": "shared"}
_ROW_BYTES: Final = 16
_B16: Final = ELEMENTS["f16"]
_PLAIN: Final = multiplicand_a(8, 8, _B16.per)
_TRANSPOSED: Final = multiplicand_b(8, 8, _B16.per)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """One, two or four matrices between shared memory and registers.

    Attributes:
        count: how many.
        fragment: the layout of each in its register.
        space: as `WarpMemory` names it.
    """

    count: int
    fragment: Fragment
    space: str

    def _rows(self, memory: WarpMemory, pointers: Lanes) -> NDArray[np.uint64]:
        """Return the address of every element, ``(warps, rows, 8)``, from the lanes that give a row."""
        bases = pointers[:, : 8 * self.count]
        crooked = bases % np.uint64(_ROW_BYTES) != 0
        if crooked.any():
            warp, lane = np.argwhere(crooked)[0]
            memory.fault(int(warp), int(lane), f"a matrix row is not aligned to {_ROW_BYTES} bytes")
        return bases[..., None] + np.arange(0, _ROW_BYTES, 2, dtype=np.uint64)

    def load(self, memory: WarpMemory, pointers: Lanes) -> tuple[Lanes, ...]:
        """Run ``ldmatrix``."""
        rows = memory.load(self.space, self._rows(memory, pointers), np.dtype(np.uint16))
        matrices = rows.reshape(len(pointers), self.count, 1, 8, 8)
        return tuple(_pack(self.fragment.distribute(matrices[:, index])) for index in range(self.count))

    def store(self, memory: WarpMemory, pointers: Lanes, *registers: Lanes) -> tuple[Lanes, ...]:
        """Run ``stmatrix``."""
        matrices = [self.fragment.assemble(_unpack(register)) for register in registers]
        rows = np.concatenate(matrices, axis=1).reshape(len(pointers), 8 * self.count, 8)
        memory.store(self.space, self._rows(memory, pointers), rows)
        return ()


def transpose(_memory: WarpMemory, register: Lanes) -> tuple[Lanes, ...]:
    """Run ``movmatrix``."""
    return (_pack(_TRANSPOSED.distribute(_PLAIN.assemble(_unpack(register)))),)


def forms() -> Iterator[tuple[str, tuple[WarpOp, ...]]]:
    """Yield every supported mnemonic with its instruction."""
    for count, transposed, space in itertools.product((1, 2, 4), (False, True), _SPACES):
        tiles = _Tiles(count, _TRANSPOSED if transposed else _PLAIN, _SPACES[space])
        tail = f"sync.aligned.m8n8.x{count}{'.trans' * transposed}{'.' * bool(space)}{space}.b16"
        yield f"ldmatrix.{tail}", (WarpOp(("b32",) * count, ("u64",), tiles.load),)
        yield f"stmatrix.{tail}", (WarpOp((), ("u64", *("b32",) * count), tiles.store),)
    yield "movmatrix.sync.aligned.m8n8.trans.b16", (WarpOp(("b32",), ("b32",), transpose),)


def _pack(elements: Lanes) -> Lanes:
    return pack(elements, _B16)[..., 0]


def _unpack(register: Lanes) -> Lanes:
    return unpack(register[..., None], _B16).astype(np.uint16)
