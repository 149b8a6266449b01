"""What the emulator remembers of every granule of shared memory: who wrote and read it last, and when.

Time is a counter of the batch that advances with every barrier. An access is stamped with time and thread; two accesses
race when at least one writes, their threads differ, and the block (or, for one warp, the warp) has not synchronised
since the earlier one. A stamp of 0 is memory that nobody has written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Selection, pick

_THREAD_BITS: Final = 11
_THREADS: Final = (1 << _THREAD_BITS) - 1

Stamps = NDArray[np.int64]


class Shadow:
    """Stamps of the shared memory of a batch of blocks.

    Attributes:
        granule_bytes: bytes per stamp; no access is narrower.
    """

    def __init__(self, size_bytes: int, granule_bytes: int, block: Stamps, thread: Stamps, warp: Stamps) -> None:
        """Start with everything unwritten.

        Args:
            size_bytes: shared memory of all blocks together.
            granule_bytes: a power of two up to 8.
            block: block of each lane in the batch, ``(lanes,)``.
            thread: index in the block of each lane.
            warp: index in the batch of each lane's warp.
        """
        self.granule_bytes = granule_bytes
        granules = -(-size_bytes // granule_bytes)
        self._written, self._read_first, self._read_last = (np.zeros(granules, np.int64) for _ in range(3))
        self._block, self._thread, self._warp = block, thread, warp
        self._time = 1
        self._block_time = np.ones(int(block[-1]) + 1, np.int64)
        self._warp_time = np.zeros(int(warp[-1]) + 1, np.int64)
        self._refresh()

    def _refresh(self) -> None:
        self._oldest = int(self._block_time.min()) << _THREAD_BITS
        self._floor = (self._block_time << _THREAD_BITS).take(self._block)
        self._stamp = self._thread | (self._time << _THREAD_BITS)

    def synchronize_blocks(self, blocks: NDArray[np.int64] | slice) -> None:
        """Order everything so far before everything later in these blocks."""
        self._time += 1
        self._block_time[blocks] = self._time
        self._refresh()

    def synchronize_warps(self, warps: NDArray[np.int64] | slice) -> None:
        """Order everything so far before everything later within each of these warps."""
        self._time += 1
        self._warp_time[warps] = self._time
        self._stamp = self._thread | (self._time << _THREAD_BITS)

    def load(self, index: Stamps, size_bytes: int, who: Selection, *, atomic: bool) -> tuple[int, str] | None:
        """Note a load and return the position and nature of its first mistake, or None.

        Args:
            index: per access, its byte offset in the batch's shared memory divided by ``size_bytes``.
            size_bytes: bytes of each access, a power of two.
            who: the accessing lanes, parallel to ``index``; a lane may occur more than once.
            atomic: never races with another atomic access.
        """
        written = self._at(self._written, index, size_bytes)
        if int(written.min(initial=1)) == 0:
            blank = (written == 0).reshape(index.size, -1).all(axis=1)
            if blank.any():
                return int(blank.argmax()), "reads uninitialised shared memory"
        fault = self._conflict(written, who, "reads what thread {} wrote")
        if fault is None and not atomic:
            self._note_read(index, size_bytes, who)
        return fault

    def store(self, index: Stamps, size_bytes: int, who: Selection, *, atomic: bool) -> tuple[int, str] | None:
        """Note a store and return the position and nature of its first mistake, or None. Arguments as for `load`."""
        fault = self._conflict(self._at(self._written, index, size_bytes), who, "writes what thread {} wrote")
        if fault is None and not atomic:
            fault = self._conflict(
                self._at(self._read_first, index, size_bytes), who, "writes what thread {} read"
            ) or self._conflict(self._at(self._read_last, index, size_bytes), who, "writes what thread {} read")
        if fault is None:
            granules = self._granules(index, size_bytes)
            if atomic:
                # An atomic write initialises, and leaves no stamp that others could race with.
                self._written[granules] = np.maximum(self._written[granules], 1)
            else:
                self._written[granules] = self._spread(self._mine(self._stamp, who), granules)
        return fault

    def overlaps(self, index: Stamps, size_bytes: int, who: Selection) -> NDArray[np.bool_]:
        """Return which of the accesses just stored were overwritten by another lane of the same instruction."""
        mine = self._mine(self._stamp, who)
        written = self._at(self._written, index, size_bytes)
        if size_bytes <= self.granule_bytes:
            return np.not_equal(written, mine)
        lost: NDArray[np.bool_] = (written.reshape(index.size, -1) != mine[:, None]).any(axis=1)
        return lost

    def unset(self, index: Stamps, size_bytes: int) -> None:
        """Make bytes uninitialised again; a size below the granule covers the whole granule."""
        self._written[self._granules(index, size_bytes)] = 0

    def _granules(self, index: Stamps, size_bytes: int) -> Stamps:
        if size_bytes == self.granule_bytes:
            return index
        if size_bytes < self.granule_bytes:
            return index // (self.granule_bytes // size_bytes)
        each = size_bytes // self.granule_bytes
        return index[:, None] * each + np.arange(each)

    def _at(self, stamps: Stamps, index: Stamps, size_bytes: int) -> Stamps:
        return stamps.take(self._granules(index, size_bytes))

    @staticmethod
    def _mine(values: Stamps, who: Selection) -> Stamps:
        return pick(values, who)

    @staticmethod
    def _spread(values: Stamps, like: Stamps) -> Stamps:
        return values if like.ndim == 1 else values[:, None]

    def _note_read(self, index: Stamps, size_bytes: int, who: Selection) -> None:
        granules = self._granules(index, size_bytes)
        mine = np.broadcast_to(self._spread(pick(self._stamp, who), granules), granules.shape)
        first = self._read_first.take(granules)
        if int(first.min(initial=self._oldest)) < self._oldest or self._oldest != int(self._floor.max()):
            stale = first < self._spread(pick(self._floor, who), granules)
            self._read_first[granules[stale]] = mine[stale]
        self._read_last[granules] = mine

    def _conflict(self, stamps: Stamps, who: Selection, reason: str) -> tuple[int, str] | None:
        if int(stamps.max(initial=0)) < self._oldest:
            return None
        flat = stamps.reshape(stamps.shape[0], -1)
        thread = pick(self._thread, who)[:, None]
        other = (flat >= pick(self._floor, who)[:, None]) & ((flat & _THREADS) != thread)
        if not other.any():
            return None
        return self._unordered(flat, other, who, reason)

    def _unordered(self, flat: Stamps, other: NDArray[np.bool_], who: Selection, reason: str) -> tuple[int, str] | None:
        rows, columns = np.nonzero(other)
        stamps = flat[rows, columns]
        lane_thread, lane_warp = pick(self._thread, who)[rows], pick(self._warp, who)[rows]
        same_warp = (stamps & _THREADS) >> 5 == lane_thread >> 5
        ordered = same_warp & ((stamps >> _THREAD_BITS) < self._warp_time[lane_warp])
        if ordered.all():
            return None
        at = int(np.flatnonzero(~ordered)[0])
        text = "races: " + reason.format(int(stamps[at]) & _THREADS) + " with no barrier between"
        return int(rows[at]), text
