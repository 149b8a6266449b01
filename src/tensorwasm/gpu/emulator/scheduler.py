"""Which lanes run next.

Lanes at one place of the program form a group. The group deepest in calls and, among those, lowest in the program runs
first, so that diverged lanes wait for each other where their paths meet again. Lanes that could starve (because others
spin until they have done something) are preferred after a while.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorwasm.gpu.emulator.lanes import Selection, indices, merge, narrow, select
from tensorwasm.gpu.emulator.machine import Machine

PATIENCE_STEPS: Final = 20_000
"""How long a group that could run may wait."""
SPIN_STEPS: Final = 2_000
"""What an instruction that may wait for another lane counts for."""

Key = tuple[int, int]


@dataclass(slots=True, eq=False)
class Group:
    """Lanes that wait to run.

    Attributes:
        who: the lanes.
        since: the scheduler's clock when the first of them began to wait.
    """

    who: Selection
    since: int


class Scheduler:
    """The groups of one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ready: dict[Key, Group] = {}
        self._heap: list[Key] = []
        self._yielded: dict[Key, Group] = {}
        self._gathering: dict[Key, Group] = {}
        self._urgent = False
        self._favoured_until = 0

    @property
    def _clock(self) -> int:
        return self._machine.steps + self._machine.spins * SPIN_STEPS

    def park(self, pc: int, depth: int, who: Selection) -> None:
        """Let lanes wait for their turn to run at ``pc``."""
        key = (-depth, pc)
        group = self._ready.get(key)
        if group is not None:
            group.who = merge(group.who, who, self._machine.lanes)
            return
        self._ready[key] = Group(who, self._clock)
        heapq.heappush(self._heap, key)

    def park_each(self, pcs: NDArray[np.int64], depths: NDArray[np.int64], lanes: NDArray[np.int64]) -> None:
        """Let each lane wait to run at its own place."""
        places = pcs | (depths << 40)
        for place in np.unique(places):
            at = lanes[places == place]
            self.park(int(place) & ((1 << 40) - 1), int(place) >> 40, select(at, self._machine.lanes))

    def pass_turn(self, pc: int, depth: int, who: Selection) -> None:
        """Let lanes wait until every other lane that can run has run, or is waiting itself."""
        self._add(self._yielded, pc, depth, who)

    def gather(self, pc: int, depth: int, who: Selection) -> None:
        """Let lanes wait at ``pc`` for other lanes to arrive there."""
        self._add(self._gathering, pc, depth, who)

    def gathered(self, pc: int, depth: int) -> Selection | bool:
        """Take the lanes that wait at ``pc``; False if there are none."""
        group = self._gathering.pop((-depth, pc), None)
        return False if group is None else group.who

    def release_gathering(self) -> None:
        """Let lanes that wait for others look again, because some of those others have exited."""
        for (depth, pc), group in self._gathering.items():
            self.park(pc, -depth, group.who)
        self._gathering.clear()

    def _add(self, groups: dict[Key, Group], pc: int, depth: int, who: Selection) -> None:
        group = groups.get((-depth, pc))
        if group is None:
            groups[-depth, pc] = Group(who, self._clock)
        else:
            group.who = merge(group.who, who, self._machine.lanes)

    # ------------------------------------------------------------------------------------------- choice

    def tick(self) -> None:
        """Look whether somebody has waited too long."""
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
        group = self._ready.pop(key)
        self._machine.depth = -key[0]
        self._machine.activate(group.who)
        return key[1]

    def take(self, pc: int, depth: int) -> None:
        """Make the group that is ready at ``pc`` the active one, at once."""
        key = (-depth, pc)
        self._heap.remove(key)
        heapq.heapify(self._heap)
        self._machine.activate(self._ready.pop(key).who)

    def _choose(self) -> Key | None:
        if self._urgent:
            self._urgent = False
            self._restore_yielded()
            key = min(self._ready, key=lambda one: self._ready[one].since, default=None)
            if key is not None:
                self._favoured_until = self._clock + PATIENCE_STEPS
                self._heap.remove(key)
                heapq.heapify(self._heap)
            return key
        if not self._heap:
            self._restore_yielded()
        return heapq.heappop(self._heap) if self._heap else None

    def _restore_yielded(self) -> None:
        for (depth, pc), group in self._yielded.items():
            before = self._ready.get((depth, pc))
            self.park(pc, -depth, group.who)
            if before is None:
                self._ready[depth, pc].since = group.since
        self._yielded.clear()

    def split(self, mask: NDArray[np.bool_], taken: int, fallen: int) -> int:
        """Divide the active lanes: those in the mask run at ``taken``, the others at ``fallen``.

        Both kinds must exist. Returns where the lanes that stay active run.
        """
        machine = self._machine
        yes = narrow(machine.who, mask, machine.lanes)
        no = narrow(machine.who, ~mask, machine.lanes)
        if taken < fallen:
            self.park(fallen, machine.depth, no)
            machine.activate(yes)
            return taken
        self.park(taken, machine.depth, yes)
        machine.activate(no)
        return fallen

    def waiting(self) -> list[tuple[int, int]]:
        """Return (pc, first lane) of every group that waits for others to arrive."""
        lanes = self._machine.lanes
        return [(pc, int(indices(group.who, lanes)[0])) for (_, pc), group in self._gathering.items()]
