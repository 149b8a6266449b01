"""Race detection in shared memory: the last write and reads of every granule, with their threads and times.

Time is a counter of the batch that advances with every barrier. An access is stamped with time and thread. Two accesses
race when at least one writes, their threads differ, and the block (or, for one warp, the warp) has not synchronised
since the earlier one. A stamp of 0 is memory that no thread has written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Indices, Selection, pick

_THREAD_BITS: Final = 11
_THREADS: Final = (1 << _THREAD_BITS) - 1

Stamps = NDArray[np.int64]
Mistake = tuple[int, str]
"""Position of an access in its instruction, and what is wrong with it."""


class RaceDetector:
    """Stamps of the shared memory of a batch of blocks.

    In all methods, ``index`` is per access its byte offset in the batch's shared memory divided by ``size_bytes``, the
    bytes of each access, a power of two. A granule is the bytes of one stamp; no access is narrower.
    """

    def __init__(self, size_bytes: int, granule_bytes: int, block: Indices, thread: Indices, warp: Indices) -> None:
        """Begin with everything unwritten.

        ``size_bytes`` is the shared memory of all blocks together, ``granule_bytes`` a power of two up to 8; the others
        are each lane's block and warp in the batch and its thread in the block, ``(lanes,)``.
        """
        self.granule_bytes = granule_bytes
        granules = -(-size_bytes // granule_bytes)
        self._written, self._read_first, self._read_last = (np.zeros(granules, np.int64) for _ in range(3))
        self._block, self._thread, self._warp = block, thread, warp
        self._time = 0
        self._block_time = np.zeros(int(block[-1]) + 1, np.int64)
        self._warp_time = np.zeros(int(warp[-1]) + 1, np.int64)
        self.synchronize_blocks(slice(None))

    def synchronize_blocks(self, blocks: Indices | slice) -> None:
        """Order all accesses so far before all later ones in these blocks."""
        self._time += 1
        self._block_time[blocks] = self._time
        self._oldest = int(self._block_time.min()) << _THREAD_BITS
        self._floor = (self._block_time << _THREAD_BITS).take(self._block)
        self._stamp = self._thread | (self._time << _THREAD_BITS)

    def synchronize_warps(self, warps: Indices | slice) -> None:
        """Order all accesses so far before all later ones within each of these warps."""
        self._time += 1
        self._warp_time[warps] = self._time
        self._stamp = self._thread | (self._time << _THREAD_BITS)

    def load(self, index: Indices, size_bytes: int, active: Selection, *, atomic: bool) -> Mistake | None:
        """Note a load and return its first mistake, or None. Two atomic accesses never race.

        The accessing lanes are parallel to ``index``; a lane may occur more than once.
        """
        granules = self._granules(index, size_bytes)
        written = self._written.take(granules)
        if int(written.min(initial=1)) == 0:
            blank = (written == 0).reshape(index.size, -1).all(axis=1)
            if blank.any():
                return int(blank.argmax()), "reads uninitialised shared memory"
        mistake = self._conflict(written, active, "reads what thread {} wrote")
        if mistake is None and not atomic:
            self._note_read(granules, active)
        return mistake

    def store(self, index: Indices, size_bytes: int, active: Selection, *, atomic: bool) -> Mistake | None:
        """Note a store and return its first mistake, or None."""
        granules = self._granules(index, size_bytes)
        mistake = self._conflict(self._written.take(granules), active, "writes what thread {} wrote")
        if mistake is None and not atomic:
            mistake = self._conflict(
                self._read_first.take(granules), active, "writes what thread {} read"
            ) or self._conflict(self._read_last.take(granules), active, "writes what thread {} read")
        if mistake is None:
            if atomic:
                # An atomic write initialises, and leaves no stamp that others could race with.
                self._written[granules] = np.maximum(self._written[granules], 1)
            else:
                self._written[granules] = _spread(pick(self._stamp, active), granules)
        return mistake

    def overlaps(self, index: Indices, size_bytes: int, active: Selection) -> NDArray[np.bool_]:
        """Return which of the accesses just stored were overwritten by another lane of the same instruction."""
        mine = pick(self._stamp, active)
        written = self._written.take(self._granules(index, size_bytes))
        if size_bytes <= self.granule_bytes:
            return np.not_equal(written, mine)
        lost: NDArray[np.bool_] = (written.reshape(index.size, -1) != mine[:, None]).any(axis=1)
        return lost

    def unset(self, index: Indices, size_bytes: int) -> None:
        """Make bytes uninitialised again; a size below the granule covers the whole granule."""
        self._written[self._granules(index, size_bytes)] = 0

    def _granules(self, index: Indices, size_bytes: int) -> Indices:
        if size_bytes == self.granule_bytes:
            return index
        if size_bytes < self.granule_bytes:
            return index // (self.granule_bytes // size_bytes)
        each = size_bytes // self.granule_bytes
        return index[:, None] * each + np.arange(each)

    def _note_read(self, granules: Indices, active: Selection) -> None:
        mine = np.broadcast_to(_spread(pick(self._stamp, active), granules), granules.shape)
        first = self._read_first.take(granules)
        if int(first.min(initial=self._oldest)) < self._oldest or self._oldest != int(self._floor.max()):
            stale = first < _spread(pick(self._floor, active), granules)
            self._read_first[granules[stale]] = mine[stale]
        self._read_last[granules] = mine

    def _conflict(self, stamps: Stamps, active: Selection, reason: str) -> Mistake | None:
        if int(stamps.max(initial=0)) < self._oldest:
            return None
        flat = stamps.reshape(stamps.shape[0], -1)
        thread = pick(self._thread, active)[:, None]
        other = (flat >= pick(self._floor, active)[:, None]) & ((flat & _THREADS) != thread)
        if not other.any():
            return None
        rows, columns = np.nonzero(other)
        found = flat[rows, columns]
        lane_thread, lane_warp = pick(self._thread, active)[rows], pick(self._warp, active)[rows]
        same_warp = (found & _THREADS) >> 5 == lane_thread >> 5
        ordered = same_warp & ((found >> _THREAD_BITS) < self._warp_time[lane_warp])
        if ordered.all():
            return None
        at = int(np.flatnonzero(~ordered)[0])
        return int(rows[at]), f"races: {reason.format(int(found[at]) & _THREADS)} with no barrier between"


def _spread(values: Stamps, like: Indices) -> Stamps:
    """Return one value per access in the shape of the granules of the accesses."""
    return values if like.ndim == 1 else values[:, None]
