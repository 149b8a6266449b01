"""``cp.async``: copies from global to shared memory that end at a wait.

A copy reads its source when it is issued and makes its destination uninitialised; the data arrives only at a wait or at
the end of an mbarrier's phase, so that a read that does not wait is a fault. Arrivals by
``cp.async.mbarrier.arrive`` happen as late as that, too: at the next wait of any lane.

Hardware may finish a copy at any time, so finishing early is always right; that bounds the queue.

Source: PTX ISA 9.7.9.25.3 (cp.async and its groups), 9.7.13.15.17 (cp.async.mbarrier.arrive).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.collective import mbarrier
from tensorwasm.gpu.emulator.lanes import Indices
from tensorwasm.gpu.emulator.ops import LaneMemory, LaneMemoryOp, Lanes

QUEUE_BYTES: Final = 32 << 20
"""Bound on the memory of unfinished copies of a batch of lanes; beyond it they are finished."""

_ENTRY_BYTES: Final = 1 << 10  # what the arrays of an entry cost beside their data
_KEY: Final = "copies"


@dataclass(frozen=True, slots=True)
class _AsyncCopies:
    """Unfinished copies of one instruction: of each lane, its group, destination in shared memory and data."""

    lanes: Indices
    groups: NDArray[np.int64]
    addresses: NDArray[np.uint64]
    data: NDArray[np.uint32]

    def take(self, mask: NDArray[np.bool_]) -> _AsyncCopies:
        return _AsyncCopies(self.lanes[mask], self.groups[mask], self.addresses[mask], self.data[mask])

    def finish(self, memory: LaneMemory) -> None:
        """Write the data."""
        memory.store("shared", self.lanes, self.addresses, self.data)


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Arrivals of lanes at their barriers, and the copies that they wait for."""

    space: str
    lanes: Indices
    addresses: NDArray[np.uint64]
    copies: list[_AsyncCopies]

    def perform(self, memory: LaneMemory) -> None:
        """Finish the copies, then arrive."""
        for copies in self.copies:
            copies.finish(memory)
        mbarrier.update(memory, self.space, self.lanes, self.addresses, (mbarrier.arrive, 1))


@dataclass(slots=True)
class _Queue:
    """The copies of a batch of lanes, in order of issue.

    Attributes:
        copies: unfinished copies that no barrier waits for.
        group: number of each lane's open group, by lane id.
        size_bytes: estimate of the memory held.
    """

    copies: list[_AsyncCopies] = field(default_factory=list)
    arrivals: list[_Arrivals] = field(default_factory=list)
    group: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    size_bytes: int = 0

    def cover(self, lanes: Indices) -> None:
        """Make room in ``group`` for these lanes."""
        missing = int(lanes.max(initial=-1)) + 1 - len(self.group)
        if missing > 0:
            self.group = np.concatenate([self.group, np.zeros(missing, np.int64)])

    def grow(self, memory: LaneMemory, data_bytes: int) -> None:
        """Count a new entry; finish everything if that is too much."""
        self.size_bytes += _ENTRY_BYTES + data_bytes
        if self.size_bytes > QUEUE_BYTES:
            self.settle(memory)
            for copies in self.copies:
                copies.finish(memory)
            self.copies, self.size_bytes = [], 0

    def extract(self, lanes: Indices, leave_groups: int | None) -> list[_AsyncCopies]:
        """Remove and return copies of lanes; a number spares the open group and that many committed ones."""
        self.cover(lanes)
        chosen = np.zeros(len(self.group), np.bool_)
        chosen[lanes] = True
        taken, kept = [], []
        for copies in self.copies:
            mask = chosen[copies.lanes]
            if leave_groups is not None:
                mask &= copies.groups < self.group[copies.lanes] - leave_groups
            taken.append(copies.take(mask))
            kept.append(copies.take(~mask))
        self.copies = [copies for copies in kept if len(copies.lanes)]
        return [copies for copies in taken if len(copies.lanes)]

    def settle(self, memory: LaneMemory) -> None:
        """Perform every arrival that waits for copies."""
        arrivals, self.arrivals = self.arrivals, []
        for arrival in arrivals:
            arrival.perform(memory)
        if not self.copies:
            self.size_bytes = 0


def _queue(memory: LaneMemory) -> _Queue:
    queue: _Queue = memory.queue.setdefault(_KEY, _Queue())
    return queue


def settle(memory: LaneMemory) -> None:
    """Perform the arrivals that wait for copies, so that a barrier can be asked for its phase."""
    if _KEY in memory.queue:
        _queue(memory).settle(memory)


# -------------------------------------------------------------------------------------------------- the instructions

Form = tuple[str, tuple[LaneMemoryOp, ...]]


def _copy(
    limit: str, memory: LaneMemory, lanes: Indices, targets: Lanes, sources: Lanes, size: Lanes, *rest: Lanes
) -> None:
    """Run ``cp.async``; ``limit`` is the meaning of the operand after the size: ``size``, ``ignore`` or none."""
    size_bytes = int(size[0])
    sizes = np.full(lanes.shape, size_bytes, np.int64)
    if limit == "size":
        sizes = rest[0].astype(np.int64)
    elif limit == "ignore":
        sizes[rest[0]] = 0
    memory.unset("shared", lanes, targets, size_bytes)
    data = _fetch(memory, lanes, sources, sizes, size_bytes)
    queue = _queue(memory)
    queue.cover(lanes)
    queue.copies.append(_AsyncCopies(lanes.copy(), queue.group[lanes], targets.copy(), data))
    queue.grow(memory, data.nbytes + 24 * len(lanes))


def _fetch(memory: LaneMemory, lanes: Indices, sources: Lanes, sizes: Lanes, size: int) -> NDArray[np.uint32]:
    """Read the first ``sizes`` bytes of each source; the rest of ``size`` bytes is zero."""
    data = np.zeros((len(lanes), size), np.uint8)
    full = sizes == size
    if full.any():
        words = memory.load("global", lanes[full], sources[full], np.dtype(np.uint32), size // 4)
        data[full] = np.ascontiguousarray(words).view(np.uint8)
    if not full.all():
        wrong = (sizes > size) | (~full & (sizes > 0) & (sources % np.uint64(size) != 0))
        mbarrier.refuse(memory, lanes, wrong, f"a source misaligned or larger than the {size} bytes to copy")
        row, byte = np.nonzero(~full[:, None] & (np.arange(size) < sizes[:, None]))
        if len(row):
            addresses = sources[row] + byte.astype(np.uint64)
            data[row, byte] = memory.load("global", lanes[row], addresses, np.dtype(np.uint8))[:, 0]
    return data.view(np.uint32)


def _commit(memory: LaneMemory, lanes: Indices) -> None:
    queue = _queue(memory)
    queue.cover(lanes)
    queue.group[lanes] += 1


def _wait(memory: LaneMemory, lanes: Indices, *counts: Lanes) -> None:
    """Finish the copies of some lanes; a count spares the open group and that many committed ones."""
    queue = _queue(memory)
    queue.settle(memory)
    for copies in queue.extract(lanes, int(counts[0][0]) if counts else None):
        copies.finish(memory)
    if not queue.copies:
        queue.size_bytes = 0


def _arrive(space: str, memory: LaneMemory, lanes: Indices, addresses: Lanes, *, increment: bool) -> None:
    if increment:
        mbarrier.update(memory, space, lanes, addresses, (mbarrier.raise_pending, 1))
    else:
        mbarrier.read_phases(memory, space, lanes, addresses)
    queue = _queue(memory)
    queue.arrivals.append(_Arrivals(space, lanes.copy(), addresses.copy(), queue.extract(lanes, None)))
    queue.grow(memory, 16 * len(lanes))


_PREFETCHES: Final = ("", ".L2::64B", ".L2::128B", ".L2::256B")
_LIMITS: Final[dict[str, tuple[str, ...]]] = {"": (), "size": ("u32",), "ignore": ("pred",)}


def forms() -> Iterator[Form]:
    """Yield every supported mnemonic with its ops. Sizes and group counts are constants, the same in every lane."""
    for cache, space, hint, prefetch in itertools.product(
        ("ca", "cg"), ("shared", "shared::cta"), ("", ".L2::cache_hint"), _PREFETCHES
    ):
        tail = ("b64",) if hint else ()
        ops = (
            LaneMemoryOp((), ("u64", "u64", "u32", *operand, *tail), partial(_copy, limit))
            for limit, operand in _LIMITS.items()
        )
        yield f"cp.async.{cache}.{space}.global{hint}{prefetch}", tuple(ops)
    yield "cp.async.commit_group", (LaneMemoryOp((), (), _commit),)
    yield "cp.async.wait_group", (LaneMemoryOp((), ("u32",), _wait),)
    yield "cp.async.wait_all", (LaneMemoryOp((), (), _wait),)
    for (suffix, space), noinc in itertools.product(mbarrier.SPACES.items(), (False, True)):
        name = f"cp.async.mbarrier.arrive{'.noinc' * noinc}{'.' * bool(suffix)}{suffix}.b64"
        yield name, (LaneMemoryOp((), ("u64",), partial(_arrive, space, increment=not noinc)),)
