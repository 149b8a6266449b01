"""Local memory: one frame of bytes per lane, all zero at first.

That a thread reads what it has not written is no fault here: compilers copy structures with the padding in them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Selection, pick
from tensorwasm.gpu.emulator.planes import Plane

STRIDE_BYTES: Final = 32
"""Alignment of each lane's frame: the widest access."""


class Frames:
    """The frames of a batch, lane after lane.

    Attributes:
        size_bytes: bytes of each frame.
        plane: the bytes of all frames.
    """

    def __init__(self, lanes: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._lanes = lanes
        self._stride_bytes = -(-size_bytes // STRIDE_BYTES) * STRIDE_BYTES
        self.plane = Plane(0, np.zeros(self._stride_bytes * lanes, np.uint8), "local memory")
        self._bases: dict[int, NDArray[np.int64]] = {}

    def index(self, offsets: NDArray[np.uint64], size_bytes: int, who: Selection) -> NDArray[np.int64]:
        """Return where accesses are in the plane, in units of their size.

        Args:
            offsets: in the frame of each accessing lane; in bounds and aligned.
            size_bytes: of each access, a power of two up to 32.
            who: the accessing lanes.
        """
        base = self._bases.get(size_bytes)
        if base is None:
            base = self._bases[size_bytes] = np.arange(self._lanes) * (self._stride_bytes // size_bytes)
        index = (offsets >> np.uint64(size_bytes.bit_length() - 1)).view(np.int64)
        index += pick(base, who)
        return index

    def read(self, start: int, size_bytes: int, who: Selection) -> NDArray[np.uint8]:
        """Return bytes of the selected frames, ``(n, size_bytes)``; a view unless ``who`` is an array."""
        matrix = self._matrix()[:, start : start + size_bytes]
        return matrix if who is None else matrix[who]

    def write(self, start: int, values: NDArray[np.uint8], who: Selection) -> None:
        """Write ``(n, size)`` bytes into the selected frames."""
        rows, columns = slice(None) if who is None else who, slice(start, start + values.shape[1])
        self._matrix()[rows, columns] = values

    def clear(self, start: int, size_bytes: int, who: Selection) -> None:
        """Make bytes of the selected frames zero, for a new call."""
        rows = slice(None) if who is None else who
        self._matrix()[rows, start : start + size_bytes] = 0

    def _matrix(self) -> NDArray[np.uint8]:
        return self.plane.data.reshape(self._lanes, self._stride_bytes)
