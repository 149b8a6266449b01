"""Barriers: of a thread block (``bar``) and of a warp (``bar.warp.sync``).

Source: PTX ISA 9.7.13.1 (bar, barrier), 9.7.13.2 (bar.warp.sync).
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.faults import Site, fault
from tensorwasm.gpu.emulator.geometry import WARP_LANES
from tensorwasm.gpu.emulator.lanes import Array
from tensorwasm.gpu.emulator.machine import Machine

BARRIERS: Final = 16
EVERYONE: Final = 0
_FREE: Final = -1


class Barriers:
    """The barriers of one batch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._block = machine.geometry.block
        self._sites: dict[int, Site] = {}
        self._pending = 0
        self._warp_pending = 0

    # Most kernels never leave the fast paths below, so nothing is allocated before one does.

    @cached_property
    def _arrived(self) -> NDArray[np.int64]:
        return np.zeros(self._machine.geometry.blocks * BARRIERS, np.int64)

    @cached_property
    def _awaited(self) -> NDArray[np.int64]:
        return np.full(self._machine.geometry.blocks * BARRIERS, _FREE, np.int64)

    @cached_property
    def _waits(self) -> NDArray[np.int64]:
        """Slot that each lane waits at, or -1."""
        return np.full(self._machine.lanes, _FREE, np.int64)

    @cached_property
    def _pc(self) -> NDArray[np.int64]:
        return np.zeros(self._machine.lanes, np.int64)

    @cached_property
    def _depth(self) -> NDArray[np.int64]:
        return np.zeros(self._machine.lanes, np.int64)

    @cached_property
    def _votes(self) -> NDArray[np.bool_]:
        return np.zeros(self._machine.lanes, np.bool_)

    @cached_property
    def _warp_masks(self) -> NDArray[np.uint32]:
        return np.zeros(self._machine.lanes, np.uint32)

    @cached_property
    def results(self) -> NDArray[np.uint32]:
        """What each lane's last reduction found: popc, and, or."""
        return np.zeros((3, self._machine.lanes), np.uint32)

    # -------------------------------------------------------------------------------------------- block

    def arrive(self, site: Site, pc: int, ids: Array, threads: Array | None, votes: Array | None, *, wait: bool) -> int:
        """Let the active lanes arrive at a barrier of their blocks.

        Args:
            site: the instruction.
            pc: where lanes run on.
            ids: barrier of each lane.
            threads: how many threads each lane expects, or None for its whole block.
            votes: predicate of each lane for a reduction, or None.
            wait: False for ``arrive``.

        Returns:
            Where the lanes that stay active run, or -1 if none does.

        Raises:
            KernelFault: an operand is out of range, or lanes disagree.
        """
        machine = self._machine
        if machine.who is None and threads is None and wait and not self._pending and not ids.any():
            return self._pass_all(pc, votes)
        lanes = machine.indices()
        slots = self._slots(site, lanes, ids, threads)
        self._arrived += np.bincount(slots, minlength=self._arrived.size)
        if wait:
            self._waits[lanes] = slots
            self._pc[lanes], self._depth[lanes] = pc, machine.depth
            self._sites[pc] = site
            if votes is not None:
                self._votes[lanes] = votes
            self._pending += lanes.size
        else:
            machine.scheduler.park(pc, machine.depth, machine.who)
        self._complete(site, lanes)
        return -1

    def _pass_all(self, pc: int, votes: Array | None) -> int:
        self._machine.memory.shadow.synchronize_blocks(slice(None))
        if votes is not None:
            by_block = votes.reshape(self._machine.geometry.blocks, -1)
            for row, found in enumerate((by_block.sum(axis=1), by_block.all(axis=1), by_block.any(axis=1))):
                self.results[row] = found.astype(np.uint32).take(self._block)
        return pc

    def _slots(self, site: Site, lanes: NDArray[np.int64], ids: Array, threads: Array | None) -> NDArray[np.int64]:
        machine = self._machine
        wide = ids.astype(np.int64)
        if (wide >= BARRIERS).any():
            fault(machine.geometry, site, int(lanes[(wide >= BARRIERS).argmax()]), "names a barrier above 15")
        slots = self._block.take(lanes) * BARRIERS + wide
        if threads is None:
            expected = np.full(lanes.size, EVERYONE)
        else:
            expected = threads.astype(np.int64)
            bad = (expected % WARP_LANES != 0) | (expected == 0)
            if bad.any():
                reason = f"expects {int(expected[bad.argmax()])} threads, not a multiple of the warp size"
                fault(machine.geometry, site, int(lanes[bad.argmax()]), reason)
        before = self._awaited[slots]
        fresh = before == _FREE
        self._awaited[slots[fresh]] = expected[fresh]
        differs = self._awaited[slots] != expected
        if differs.any():
            reason = "expects another number of threads than others at this barrier"
            fault(machine.geometry, site, int(lanes[differs.argmax()]), reason)
        return slots

    def _need(self) -> NDArray[np.int64]:
        machine = self._machine
        living = np.bincount(self._block[machine.live], minlength=machine.geometry.blocks)
        return np.where(self._awaited == EVERYONE, np.repeat(living, BARRIERS), self._awaited)

    def _complete(self, site: Site | None, lanes: NDArray[np.int64]) -> None:
        """Release the lanes of barriers at which everybody has arrived."""
        machine = self._machine
        need = self._need()
        used = self._awaited != _FREE
        over = used & (self._arrived > need)
        if site is not None and over.any():
            slot = int(over.argmax())
            reason = f"is one arrival too many at barrier {slot % BARRIERS}, which expects {int(need[slot])} threads"
            fault(machine.geometry, site, int(lanes[0]), reason)
        done = used & (self._arrived >= need)
        if not done.any():
            return
        waiting = np.flatnonzero(self._waits >= 0)
        freed = waiting[done[self._waits[waiting]]]
        self._reduce(freed)
        self._arrived[done] = 0
        self._awaited[done] = _FREE
        self._waits[freed] = _FREE
        self._pending -= freed.size
        machine.memory.shadow.synchronize_blocks(np.flatnonzero(done) // BARRIERS)
        if freed.size:
            machine.scheduler.park_each(self._pc[freed], self._depth[freed], freed)

    def _reduce(self, freed: NDArray[np.int64]) -> None:
        slots, votes = self._waits[freed], self._votes[freed]
        size = self._arrived.size
        for_ = np.bincount(slots[votes], minlength=size)
        total = np.bincount(slots, minlength=size)
        for row, found in enumerate((for_, for_ == total, for_ > 0)):
            self.results[row, freed] = found[slots]

    # --------------------------------------------------------------------------------------------- warp

    def meet(self, site: Site, pc: int, masks: Array) -> int:
        """Let the active lanes arrive at a barrier of the lanes that their masks name.

        Returns:
            Where the lanes that stay active run, or -1 if none does.

        Raises:
            KernelFault: a lane's mask leaves out the lane itself.
        """
        machine = self._machine
        shadow = machine.memory.shadow
        if machine.who is None and not self._warp_pending and bool((masks == np.uint32(0xFFFFFFFF)).all()):
            shadow.synchronize_warps(slice(None))
            return pc
        lanes = machine.indices()
        check_membership(machine, site, lanes, masks)
        self._warp_masks[lanes] = masks
        self._pc[lanes], self._depth[lanes] = pc, machine.depth
        self._sites[pc] = site
        self._warp_pending += lanes.size
        self._release_warps(np.unique(machine.geometry.warp[lanes]))
        return -1

    def _release_warps(self, warps: NDArray[np.int64]) -> None:
        machine = self._machine
        table = machine.geometry.table[warps]
        waiting = np.unique(table[table >= 0])
        waiting = waiting[self._warp_masks[waiting] != 0]
        if not waiting.size:
            return
        freed = waiting[met(machine, waiting, self._warp_masks[waiting])]
        if freed.size:
            self._warp_masks[freed] = 0
            self._warp_pending -= freed.size
            machine.memory.shadow.synchronize_warps(np.unique(machine.geometry.warp[freed]))
            machine.scheduler.park_each(self._pc[freed], self._depth[freed], freed)

    # -------------------------------------------------------------------------------------------- exits

    def retire(self, lanes: NDArray[np.int64]) -> None:
        """Take note that lanes have exited: nobody waits for them any more."""
        if self._pending:
            self._complete(None, lanes)
        if self._warp_pending:
            self._release_warps(np.unique(self._machine.geometry.warp[lanes]))

    def describe(self) -> str:
        """Return who waits where, for a deadlock."""
        machine = self._machine
        for waits, what in ((self._waits >= 0, "barrier {}"), (self._warp_masks != 0, "its warp")):
            lanes = np.flatnonzero(waits)
            if lanes.size:
                lane = int(lanes[0])
                where = what.format(int(self._waits[lane]) % BARRIERS)
                return (
                    f"{machine.geometry.describe(lane)}, {self._sites[int(self._pc[lane])]} "
                    f"waits at {where} for ever, with {lanes.size - 1} others: the rest have gone elsewhere"
                )
        return ""


def check_membership(machine: Machine, site: Site, lanes: NDArray[np.int64], masks: Array) -> None:
    """Check that every lane is in its own member mask.

    Raises:
        KernelFault: one is not.
    """
    outside = (masks >> machine.geometry.place[lanes].astype(np.uint32)) & np.uint32(1) == 0
    if outside.any():
        at = int(outside.argmax())
        fault(machine.geometry, site, int(lanes[at]), f"is not in its own member mask {int(masks[at]):#010x}")


def met(machine: Machine, lanes: NDArray[np.int64], masks: Array) -> NDArray[np.bool_]:
    """Return for which lanes every living lane that their mask names is present, with the same mask.

    Args:
        machine: the batch.
        lanes: the lanes that are present, ascending.
        masks: their member masks, uint32.
    """
    warp = machine.geometry.warp[lanes]
    named = masks & machine.live_bits()[warp]
    present = np.zeros(machine.geometry.table.shape, np.uint64)
    present[warp, machine.geometry.place[lanes]] = masks.astype(np.uint64) + np.uint64(1)
    same = np.zeros(lanes.size, np.uint32)
    mine = masks.astype(np.uint64) + np.uint64(1)
    for place in range(WARP_LANES):
        same |= (present[warp, place] == mine).astype(np.uint32) << np.uint32(place)
    complete: NDArray[np.bool_] = (same & named) == named
    return complete
