"""The lanes of a batch: which threads they are, which of them an instruction runs for, and how a fault names one.

Lane ``b * threads + t`` is thread t (x fastest) of block b of the batch. A warp is 32 consecutive threads of a block;
the last warp of a block may be short.

A selection of lanes is None (every lane), a slice (a contiguous run) or an ascending ``(n,) int64`` index array. With
the first two, registers are used without copying them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import KernelFault
from tensorwasm.ptx.model import Instruction
from tensorwasm.ptx.printer import render_instruction
from tensorwasm.values import LaunchConfig

WARP_LANES: Final = 32

Array = NDArray[Any]
Indices = NDArray[np.int64]
Selection = slice | Indices | None


def pick(values: Array, selection: Selection) -> Array:
    """Return the selected lanes of a one-dimensional array; a view where possible."""
    if selection is None:
        return values
    if type(selection) is slice:
        return values[selection]
    return values.take(selection)


def rows(selection: Selection) -> slice | Indices:
    """Return a selection as an index into an array."""
    return slice(None) if selection is None else selection


def indices(selection: Selection, lanes: int) -> Indices:
    """Return a selection of ``lanes`` lanes as an index array."""
    if selection is None:
        return np.arange(lanes)
    if isinstance(selection, slice):
        return np.arange(selection.start, selection.stop)
    return selection


def select(index: Indices, lanes: int) -> Selection:
    """Return the tightest selection for a non-empty ascending index array."""
    if index.size == lanes:
        return None
    first, last = int(index[0]), int(index[-1])
    if last - first + 1 == index.size:
        return slice(first, last + 1)
    return index


def narrow(selection: Selection, mask: NDArray[np.bool_], lanes: int) -> Selection:
    """Return the part of a selection where ``mask`` is set; at least one lane must be."""
    if selection is None:
        return select(np.flatnonzero(mask), lanes)
    if type(selection) is slice:
        return select(np.flatnonzero(mask) + selection.start, lanes)
    return select(selection[mask], lanes)


def merge(first: Selection, second: Selection, lanes: int) -> Selection:
    """Return the union of two disjoint selections."""
    mask = np.zeros(lanes, np.bool_)
    mask[first] = mask[second] = True
    return select(np.flatnonzero(mask), lanes)


class BatchGeometry:
    """The threads of one batch of blocks.

    Attributes:
        kernel: name of the entry, for messages.
        first_block: linear index in the grid of the batch's first block.
        blocks, lanes: in the batch.
        threads: of a block.
    """

    def __init__(self, kernel: str, config: LaunchConfig, first_block: int, blocks: int) -> None:
        self.kernel, self.config, self.first_block, self.blocks = kernel, config, first_block, blocks
        x, y, z = config.block
        self.threads = x * y * z
        self.lanes = blocks * self.threads
        self._warps_per_block = -(-self.threads // WARP_LANES)

    @cached_property
    def block(self) -> Indices:
        """Index in the batch of each lane's block."""
        return np.repeat(np.arange(self.blocks), self.threads)

    @cached_property
    def thread(self) -> Indices:
        """Linear index in the block of each lane."""
        return np.tile(np.arange(self.threads), self.blocks)

    @cached_property
    def warp(self) -> Indices:
        """Index in the batch of each lane's warp."""
        return self.block * self._warps_per_block + self.thread // WARP_LANES

    @cached_property
    def laneid(self) -> Indices:
        """Index in its warp of each lane, 0 to 31."""
        return self.thread % WARP_LANES

    @cached_property
    def warps(self) -> Indices:
        """Lane by warp and index in the warp, ``(warps, 32)``; -1 where a short warp has none."""
        table = np.full((self.blocks * self._warps_per_block, WARP_LANES), -1)
        table[self.warp, self.laneid] = np.arange(self.lanes)
        return table

    def describe(self, lane: int) -> str:
        """Return kernel, block and thread of a lane, for messages."""
        block, thread = divmod(lane, self.threads)
        ctaid = coordinates(self.first_block + block, self.config.grid)
        return f"kernel {self.kernel}, block {ctaid} thread {coordinates(thread, self.config.block)}"

    def fault(self, site: Instruction, lane: int, reason: str) -> NoReturn:
        """Raise `KernelFault` for one lane at an instruction."""
        raise KernelFault(f"{self.describe(lane)}, {describe_site(site)} {reason}")


def describe_site(site: Instruction) -> str:
    """Return line and text of an instruction, for messages."""
    return f"line {site.position.line}: `{render_instruction(site)}`"


def coordinates(index: Any, extent: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """Return x, y and z of a linear index, or of an array of them."""
    rest, x = divmod(index, extent[0])
    z, y = divmod(rest, extent[1])
    return x, y, z
