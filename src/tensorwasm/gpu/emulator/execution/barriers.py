"""Barriers: of a thread block (``bar``) and of a warp (``bar.warp.sync``).

Source: PTX ISA 9.7.13.1 (bar, barrier), 9.7.13.2 (bar.warp.sync).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.execution.machine import SimtMachine
from tensorwasm.gpu.emulator.lanes import WARP_LANES, Array, Indices, describe_site
from tensorwasm.ptx.model import Instruction

BARRIERS: Final = 16
WHOLE_BLOCK: Final = 0
_FREE: Final = -1


@dataclass(slots=True)
class _Waiting:
    """Lanes that wait at barriers.

    Attributes:
        arrived, expected: threads that have arrived at each slot, and how many it expects, or -1.
        slot: slot that each lane waits at, or -1.
        pc, depth, votes: where each lane runs on, its call depth and its predicate for a reduction.
        warp_masks: member mask with which each lane waits at its warp's barrier, or 0.
    """

    arrived: Indices
    expected: Indices
    slot: Indices
    pc: Indices
    depth: Indices
    votes: NDArray[np.bool_]
    warp_masks: NDArray[np.uint32]


class Barriers:
    """The barriers of one batch. A slot is one of the 16 barriers of one block."""

    def __init__(self, machine: SimtMachine) -> None:
        self._machine = machine
        self._block = machine.geometry.block
        self._slots = machine.geometry.blocks * BARRIERS
        self._sites: dict[int, Instruction] = {}
        self._pending = 0
        self._warp_pending = 0

    @cached_property
    def _waiting(self) -> _Waiting:
        """The lanes that wait; allocated when a kernel leaves the fast paths below, which most never do."""
        lanes = self._machine.lanes
        return _Waiting(
            arrived=np.zeros(self._slots, np.int64),
            expected=np.full(self._slots, _FREE, np.int64),
            slot=np.full(lanes, _FREE, np.int64),
            pc=np.zeros(lanes, np.int64),
            depth=np.zeros(lanes, np.int64),
            votes=np.zeros(lanes, np.bool_),
            warp_masks=np.zeros(lanes, np.uint32),
        )

    @cached_property
    def results(self) -> NDArray[np.uint32]:
        """Result of each lane's last reduction: rows popc, and, or."""
        return np.zeros((3, self._machine.lanes), np.uint32)

    # -------------------------------------------------------------------------------------------- block

    def arrive(
        self, site: Instruction, pc: int, ids: Array, threads: Array | None, votes: Array | None, *, wait: bool
    ) -> int:
        """Let the active lanes arrive at a barrier of their blocks.

        Args:
            site: the instruction.
            pc: where lanes run on.
            ids: barrier of each lane.
            threads: how many threads each lane expects, or None for its whole block.
            votes: predicate of each lane for a reduction, or None.
            wait: False for ``arrive``.

        Returns where the lanes that stay active run, or -1 if none does.
        """
        machine = self._machine
        if machine.active is None and threads is None and wait and not self._pending and not ids.any():
            return self._pass_all(pc, votes)
        lanes = machine.indices()
        slots = self._find_slots(site, lanes, ids, threads)
        self._waiting.arrived += np.bincount(slots, minlength=self._slots)
        if wait:
            self._waiting.slot[lanes] = slots
            self._waiting.pc[lanes], self._waiting.depth[lanes] = pc, machine.depth
            self._sites[pc] = site
            if votes is not None:
                self._waiting.votes[lanes] = votes
            self._pending += lanes.size
        else:
            machine.scheduler.park(pc, machine.depth, machine.active)
        self._complete(site, lanes)
        return -1

    def _pass_all(self, pc: int, votes: Array | None) -> int:
        self._machine.memory.races.synchronize_blocks(slice(None))
        if votes is not None:
            by_block = votes.reshape(self._machine.geometry.blocks, -1)
            for row, found in enumerate((by_block.sum(axis=1), by_block.all(axis=1), by_block.any(axis=1))):
                self.results[row] = found.astype(np.uint32).take(self._block)
        return pc

    def _find_slots(self, site: Instruction, lanes: Indices, ids: Array, threads: Array | None) -> Indices:
        """Return the slot of each lane, and note how many threads it expects."""
        machine = self._machine
        wide = ids.astype(np.int64)
        machine.fault_where(site, wide >= BARRIERS, "names a barrier above 15")
        slots = self._block.take(lanes) * BARRIERS + wide
        if threads is None:
            expected = np.full(lanes.size, WHOLE_BLOCK)
        else:
            expected = threads.astype(np.int64)
            wrong = (expected % WARP_LANES != 0) | (expected == 0)
            machine.fault_where(site, wrong, "expects {} threads, not a multiple of the warp size", expected)
        fresh = self._waiting.expected[slots] == _FREE
        self._waiting.expected[slots[fresh]] = expected[fresh]
        differs = self._waiting.expected[slots] != expected
        machine.fault_where(site, differs, "expects another number of threads than others at this barrier")
        return slots

    def _complete(self, site: Instruction | None, lanes: Indices) -> None:
        """Release the lanes of barriers at which all expected threads have arrived."""
        machine = self._machine
        living = np.bincount(self._block[machine.live], minlength=machine.geometry.blocks)
        need = np.where(self._waiting.expected == WHOLE_BLOCK, np.repeat(living, BARRIERS), self._waiting.expected)
        used = self._waiting.expected != _FREE
        over = used & (self._waiting.arrived > need)
        if site is not None and over.any():
            slot = int(over.argmax())
            reason = f"is one arrival too many at barrier {slot % BARRIERS}, which expects {int(need[slot])} threads"
            machine.geometry.fault(site, int(lanes[0]), reason)
        done = used & (self._waiting.arrived >= need)
        if not done.any():
            return
        waiting = np.flatnonzero(self._waiting.slot >= 0)
        freed = waiting[done[self._waiting.slot[waiting]]]
        self._reduce(freed)
        self._waiting.arrived[done] = 0
        self._waiting.expected[done] = _FREE
        self._waiting.slot[freed] = _FREE
        self._pending -= freed.size
        machine.memory.races.synchronize_blocks(np.flatnonzero(done) // BARRIERS)
        if freed.size:
            machine.scheduler.park_each(self._waiting.pc[freed], self._waiting.depth[freed], freed)

    def _reduce(self, freed: Indices) -> None:
        slots = self._waiting.slot[freed]
        set_ = np.bincount(slots[self._waiting.votes[freed]], minlength=self._slots)
        total = np.bincount(slots, minlength=self._slots)
        for row, found in enumerate((set_, set_ == total, set_ > 0)):
            self.results[row, freed] = found[slots]

    # --------------------------------------------------------------------------------------------- warp

    def arrive_warp(self, site: Instruction, pc: int, masks: Array) -> int:
        """Let the active lanes arrive at a barrier of the lanes that their masks name; returns as `arrive`."""
        machine = self._machine
        if machine.active is None and not self._warp_pending and bool((masks == np.uint32(0xFFFFFFFF)).all()):
            machine.memory.races.synchronize_warps(slice(None))
            return pc
        lanes = machine.indices()
        check_membership(machine, site, lanes, masks)
        self._waiting.warp_masks[lanes] = masks
        self._waiting.pc[lanes], self._waiting.depth[lanes] = pc, machine.depth
        self._sites[pc] = site
        self._warp_pending += lanes.size
        self._release_warps(np.unique(machine.geometry.warp[lanes]))
        return -1

    def _release_warps(self, warps: Indices) -> None:
        machine = self._machine
        table = machine.geometry.warps[warps]
        waiting = np.unique(table[table >= 0])
        waiting = waiting[self._waiting.warp_masks[waiting] != 0]
        if not waiting.size:
            return
        freed = waiting[are_together(machine, waiting, self._waiting.warp_masks[waiting])]
        if freed.size:
            self._waiting.warp_masks[freed] = 0
            self._warp_pending -= freed.size
            machine.memory.races.synchronize_warps(np.unique(machine.geometry.warp[freed]))
            machine.scheduler.park_each(self._waiting.pc[freed], self._waiting.depth[freed], freed)

    # -------------------------------------------------------------------------------------------- exits

    def retire(self, lanes: Indices) -> None:
        """Note that lanes have exited, so that no barrier waits for them any more."""
        if self._pending:
            self._complete(None, lanes)
        if self._warp_pending:
            self._release_warps(np.unique(self._machine.geometry.warp[lanes]))

    def describe(self) -> str:
        """Return which lane waits at which barrier, for the message of a deadlock; empty if none does."""
        machine = self._machine
        for waits, what in ((self._waiting.slot >= 0, "barrier {}"), (self._waiting.warp_masks != 0, "its warp")):
            lanes = np.flatnonzero(waits)
            if lanes.size:
                lane = int(lanes[0])
                where = what.format(int(self._waiting.slot[lane]) % BARRIERS)
                return (
                    f"{machine.geometry.describe(lane)}, {describe_site(self._sites[int(self._waiting.pc[lane])])} "
                    f"waits at {where} for ever, with {lanes.size - 1} others: the rest have gone elsewhere"
                )
        return ""


def check_membership(machine: SimtMachine, site: Instruction, lanes: Indices, masks: Array) -> None:
    """Check that every lane is in its own member mask."""
    outside = (masks >> machine.geometry.laneid[lanes].astype(np.uint32)) & np.uint32(1) == 0
    machine.fault_where(site, outside, "is not in its own member mask {:#010x}", masks)


def are_together(machine: SimtMachine, lanes: Indices, masks: Array) -> NDArray[np.bool_]:
    """Return for which lanes, ascending, every living lane that their mask names is among them with that mask."""
    warp = machine.geometry.warp[lanes]
    named = masks & machine.live_bits()[warp]
    present = np.zeros(machine.geometry.warps.shape, np.uint64)
    mine = masks.astype(np.uint64) + np.uint64(1)
    present[warp, machine.geometry.laneid[lanes]] = mine
    same = np.zeros(lanes.size, np.uint32)
    for laneid in range(WARP_LANES):
        same |= (present[warp, laneid] == mine).astype(np.uint32) << np.uint32(laneid)
    complete: NDArray[np.bool_] = (same & named) == named
    return complete
