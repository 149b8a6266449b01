"""Local memory: one frame of bytes per lane, and which of them have been written."""

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
        self._marks = Plane(0, np.zeros(self.plane.data.size, np.uint8), "local memory")
        self._bases: dict[int, NDArray[np.int64]] = {}

    def access(
        self, offsets: NDArray[np.uint64], size_bytes: int, who: Selection, *, store: bool
    ) -> tuple[NDArray[np.int64], int | None]:
        """Find accesses in the plane and note stores.

        Args:
            offsets: in the frame of each accessing lane; in bounds and aligned.
            size_bytes: of each access, a power of two up to 32.
            who: the accessing lanes.
            store: whether they write.

        Returns:
            Index of each access in units of its size, and the first load of bytes none of which was ever written.
            (A structure may be copied with the padding in it.)
        """
        base = self._bases.get(size_bytes)
        if base is None:
            base = self._bases[size_bytes] = np.arange(self._lanes) * (self._stride_bytes // size_bytes)
        index = (offsets >> np.uint64(size_bytes.bit_length() - 1)).view(np.int64)
        index += pick(base, who)
        marks = self._marks.view(np.dtype(f"uint{8 * min(size_bytes, 8)}"), max(size_bytes // 8, 1))
        if store:
            marks[index] = np.iinfo(marks.dtype).max
            return index, None
        found = marks.take(index, axis=0)
        blank = found == 0 if found.ndim == 1 else ~found.any(axis=1)
        return index, int(blank.argmax()) if blank.any() else None

    def read(self, start: int, size_bytes: int, who: Selection) -> NDArray[np.uint8]:
        """Return bytes of the selected frames, ``(n, size_bytes)``; a view unless ``who`` is an array."""
        matrix = self._matrix(self.plane)[:, start : start + size_bytes]
        return matrix if who is None else matrix[who]

    def write(self, start: int, values: NDArray[np.uint8], who: Selection) -> None:
        """Write ``(n, size)`` bytes into the selected frames."""
        rows, columns = slice(None) if who is None else who, slice(start, start + values.shape[1])
        self._matrix(self.plane)[rows, columns] = values
        self._matrix(self._marks)[rows, columns] = 1

    def unset(self, start: int, size_bytes: int, who: Selection) -> None:
        """Make bytes of the selected frames uninitialised, for a new call."""
        rows = slice(None) if who is None else who
        self._matrix(self._marks)[rows, start : start + size_bytes] = 0

    def _matrix(self, plane: Plane) -> NDArray[np.uint8]:
        return plane.data.reshape(self._lanes, self._stride_bytes)
