"""Who the lanes of a batch are: dense, block after block, thread after thread.

Lane ``b * threads + t`` is thread t (x fastest) of the batch's block b. Warps are 32 consecutive threads of a block;
the last warp of a block may be short.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensorwasm.values import LaunchConfig

WARP_LANES = 32

Indices = NDArray[np.int64]


class Geometry:
    """The lanes of one batch of blocks.

    Attributes:
        kernel: name of the entry, for messages.
        config: the launch.
        first_block: linear index in the grid of the batch's first block.
        blocks: blocks in the batch.
        threads: threads of a block.
        lanes: both multiplied.
    """

    def __init__(self, kernel: str, config: LaunchConfig, first_block: int, blocks: int) -> None:
        self.kernel, self.config, self.first_block, self.blocks = kernel, config, first_block, blocks
        x, y, z = config.block
        self.threads = x * y * z
        self.lanes = blocks * self.threads
        self.warps_per_block = -(-self.threads // WARP_LANES)

    @cached_property
    def block(self) -> Indices:
        """Block in the batch of each lane."""
        return np.repeat(np.arange(self.blocks), self.threads)

    @cached_property
    def thread(self) -> Indices:
        """Linear index in the block of each lane."""
        return np.tile(np.arange(self.threads), self.blocks)

    @cached_property
    def warp(self) -> Indices:
        """Warp in the batch of each lane."""
        return self.block * self.warps_per_block + self.thread // WARP_LANES

    @cached_property
    def place(self) -> Indices:
        """Index in its warp of each lane, 0 to 31."""
        return self.thread % WARP_LANES

    @cached_property
    def table(self) -> Indices:
        """Lane at each place of each warp, ``(warps, 32)``; -1 where a short warp has none."""
        table = np.full((self.blocks * self.warps_per_block, WARP_LANES), -1)
        table[self.warp, self.place] = np.arange(self.lanes)
        return table

    def block_at(self, block: int) -> tuple[int, int, int]:
        """Return ``%ctaid`` of a block of the batch."""
        grid_x, grid_y, _ = self.config.grid
        rest, x = divmod(self.first_block + block, grid_x)
        z, y = divmod(rest, grid_y)
        return x, y, z

    def thread_at(self, thread: int) -> tuple[int, int, int]:
        """Return ``%tid`` of a thread of a block."""
        size_x, size_y, _ = self.config.block
        rest, x = divmod(thread, size_x)
        z, y = divmod(rest, size_y)
        return x, y, z

    def describe(self, lane: int) -> str:
        """Return kernel, block and thread of a lane."""
        block, thread = divmod(lane, self.threads)
        return f"kernel {self.kernel}, block {self.block_at(block)} thread {self.thread_at(thread)}"
