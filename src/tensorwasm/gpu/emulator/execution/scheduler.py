"""The scheduler of a batch: which lanes run next, until all have exited.

Lanes at one place of the program form a group. The group deepest in calls and, among those, lowest in the program runs
first, so that diverged lanes wait for each other where their paths meet again. A group that could starve, because
others spin until it has done something, is preferred after a while.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.errors import KernelFault
from tensorwasm.gpu.emulator.execution.barriers import Barriers
from tensorwasm.gpu.emulator.execution.machine import CHECK_STEPS, BasicBlock, SimtMachine
from tensorwasm.gpu.emulator.lanes import Indices, Selection, indices, merge, narrow, select

PATIENCE_STEPS: Final = 20_000
"""How long a group that could run may wait."""
SPIN_STEPS: Final = 2_000
"""What an instruction that may wait for another lane counts for."""

Key = tuple[int, int]
"""Negated call depth and block: the smallest key runs first."""


@dataclass(slots=True, eq=False)
class LaneGroup:
    """Lanes that wait to run, since the scheduler's clock when the first of them began to."""

    lanes: Selection
    since: int


class Scheduler:
    """The groups of one machine: ready, ready after the others (yielded), or waiting for other lanes (gathering)."""

    def __init__(self, machine: SimtMachine) -> None:
        self._machine = machine
        self._ready: dict[Key, LaneGroup] = {}
        self._heap: list[Key] = []
        self._yielded: dict[Key, LaneGroup] = {}
        self._gathering: dict[Key, LaneGroup] = {}
        self._urgent = False
        self._favoured_until = 0

    @property
    def _clock(self) -> int:
        return self._machine.steps + self._machine.spins * SPIN_STEPS

    def park(self, pc: int, depth: int, lanes: Selection) -> None:
        """Let lanes wait for their turn to run at ``pc``."""
        if self._add(self._ready, pc, depth, lanes):
            heapq.heappush(self._heap, (-depth, pc))

    def park_each(self, pcs: Indices, depths: Indices, lanes: Indices) -> None:
        """Let each lane wait to run at its own place."""
        places = pcs | (depths << 40)
        for place in np.unique(places):
            at = lanes[places == place]
            self.park(int(place) & ((1 << 40) - 1), int(place) >> 40, select(at, self._machine.lanes))

    def yield_turn(self, pc: int, depth: int, lanes: Selection) -> None:
        """Let lanes wait until every other lane that can run has run, or is waiting itself."""
        self._add(self._yielded, pc, depth, lanes)

    def gather(self, pc: int, depth: int, lanes: Selection) -> None:
        """Let lanes wait at ``pc`` for other lanes to arrive there."""
        self._add(self._gathering, pc, depth, lanes)

    def _add(self, groups: dict[Key, LaneGroup], pc: int, depth: int, lanes: Selection) -> bool:
        """Add lanes to the group of a place; return whether the group is new."""
        group = groups.get((-depth, pc))
        if group is None:
            groups[-depth, pc] = LaneGroup(lanes, self._clock)
            return True
        group.lanes = merge(group.lanes, lanes, self._machine.lanes)
        return False

    def gathered(self, pc: int, depth: int) -> Selection | bool:
        """Take the lanes that wait at ``pc``; False if there are none."""
        group = self._gathering.pop((-depth, pc), None)
        return False if group is None else group.lanes

    def release_gathering(self) -> None:
        """Let lanes that wait for others check again, because some of those others have exited."""
        for (depth, pc), group in self._gathering.items():
            self.park(pc, -depth, group.lanes)
        self._gathering.clear()

    def split(self, mask: NDArray[np.bool_], taken: int, fallen: int) -> int:
        """Divide the active lanes: those in the mask run at ``taken``, the others at ``fallen``.

        Both kinds must exist. Returns where the lanes that stay active run.
        """
        machine = self._machine
        yes = narrow(machine.active, mask, machine.lanes)
        no = narrow(machine.active, ~mask, machine.lanes)
        if taken < fallen:
            self.park(fallen, machine.depth, no)
            machine.activate(yes)
            return taken
        self.park(taken, machine.depth, yes)
        machine.activate(no)
        return fallen

    # ------------------------------------------------------------------------------------------- choice

    def tick(self) -> None:
        """Check whether a group has waited too long."""
        clock = self._clock
        if clock < self._favoured_until or not (self._ready or self._yielded):
            return
        oldest = min(group.since for groups in (self._ready, self._yielded) for group in groups.values())
        self._urgent = clock - oldest > PATIENCE_STEPS

    def interrupts(self, pc: int) -> bool:
        """Return whether the active lanes, about to run at ``pc``, must let others run first."""
        if self._urgent:
            return True
        if not self._heap:
            return False
        mine, first = (-self._machine.depth, pc), self._heap[0]
        if first == mine:
            return True
        return first < mine and self._clock >= self._favoured_until

    def next(self) -> int:
        """Make the group that runs next the active one and return where it runs; -1 if none can."""
        key = self._choose()
        if key is None:
            return -1
        self._machine.depth = -key[0]
        self._machine.activate(self._ready.pop(key).lanes)
        return key[1]

    def take(self, pc: int, depth: int) -> None:
        """Make the group that is ready at ``pc`` the active one, at once."""
        key = (-depth, pc)
        self._remove(key)
        self._machine.activate(self._ready.pop(key).lanes)

    def _choose(self) -> Key | None:
        if self._urgent:
            self._urgent = False
            self._restore_yielded()
            key = min(self._ready, key=lambda one: self._ready[one].since, default=None)
            if key is not None:
                self._favoured_until = self._clock + PATIENCE_STEPS
                self._remove(key)
            return key
        if not self._heap:
            self._restore_yielded()
        return heapq.heappop(self._heap) if self._heap else None

    def _remove(self, key: Key) -> None:
        self._heap.remove(key)
        heapq.heapify(self._heap)

    def _restore_yielded(self) -> None:
        for (depth, pc), group in self._yielded.items():
            is_new = (depth, pc) not in self._ready
            self.park(pc, -depth, group.lanes)
            if is_new:
                self._ready[depth, pc].since = group.since
        self._yielded.clear()

    def first_gathering(self) -> int | None:
        """Return a lane that waits for others to arrive, or None."""
        waiting = [int(indices(group.lanes, self._machine.lanes)[0]) for group in self._gathering.values()]
        return waiting[-1] if waiting else None


def run(machine: SimtMachine, blocks: list[BasicBlock], pc: int) -> None:
    """Run all lanes of a machine from block ``pc`` on; `KernelFault` if they wait for each other for ever."""
    scheduler = machine.scheduler = Scheduler(machine)
    machine.barriers = Barriers(machine)
    try:
        _run(machine, blocks, pc, scheduler)
        if machine.live_lanes:
            text, lane = machine.barriers.describe(), scheduler.first_gathering()
            if not text and lane is not None:
                text = f"{machine.geometry.describe(lane)} waits for lanes of its warp that never come"
            raise KernelFault(f"deadlock: {text}")
    finally:
        # They refer to the machine: without the cycle its memory is released at once.
        machine.scheduler = machine.barriers = None


def _run(machine: SimtMachine, blocks: list[BasicBlock], pc: int, scheduler: Scheduler) -> None:
    while True:
        while pc >= 0:
            block = blocks[pc]
            for step in block.steps:
                step(machine)
            machine.steps += block.cost
            pc = block.end(machine, pc)
            if machine.steps >= machine.next_check:
                machine.next_check = machine.steps + CHECK_STEPS
                machine.launch.check()
                machine.memory.drop_released()
                scheduler.tick()
            if pc >= 0 and scheduler.interrupts(pc):
                scheduler.park(pc, machine.depth, machine.active)
                break
        pc = scheduler.next()
        if pc < 0:
            return
