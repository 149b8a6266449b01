"""`Reloader`: replaces all processes of a fleet, one after the other, by new ones, which may be of another release.

A front is replaced once the new process is ready; the old one then finishes what it has. What serves alone, or is the
primary, owns the database: it ends once the next template has loaded the server, before the new process begins. The
broker is the first: those that are replaced after it find their GPU workers at the new one, and the old one, which has
the calls of all others, ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from tensorwasm.server.process.fleet import END_S, Fleet, Slot, say

STEP_S: Final = 300.0
"""Seconds in which a new process must be ready, compilation of host functions included."""

REST_S: Final = 5.0
"""How long connections of a front that leaves may still send a request: longer than those of a process that another
one waits for (`tensorwasm.server.serving`), because fewer clients then find their connection closed as they use it."""

OWNER_S: Final = 30.0
"""Seconds that an owner of the database has beyond twice its requests' time, to save what it holds."""


@dataclass(frozen=True, slots=True)
class ReloadState:
    """What is known of reloads.

    Attributes:
        begun: how many were begun.
        ended: how many of them ended.
        failed: why the last that ended was given up; empty if it was not.
        progress: what the running one did last.
    """

    begun: int = 0
    ended: int = 0
    failed: str = ""
    progress: str = ""


@dataclass(slots=True)
class _Steps:
    """A reload that runs: the slots to go, and when the first of them must be done."""

    slots: list[Slot] = field(default_factory=list)
    due_s: float = 0.0


class Reloader:
    """Reloads a fleet. `update` belongs behind each of the fleet's.

    Args:
        fleet: what is reloaded.
        drain_s: as the fleet's.
        record: called with each new state.
    """

    def __init__(self, fleet: Fleet, drain_s: float, record: Callable[[ReloadState], None]) -> None:
        self._fleet, self._drain_s, self._record = fleet, drain_s, record
        self._step_s = STEP_S + 2 * drain_s
        self._steps: _Steps | None = None
        self._again = False
        self._state = ReloadState()
        fleet.on_lost = self._lost

    def request(self, now_s: float) -> None:
        """Begin a reload, or note that another shall follow the one that runs."""
        if self._steps is not None:
            self._again = True
        elif not self._fleet.stopping:
            self._begin(now_s)

    def next_s(self) -> float | None:
        """Return when `update` has something to do even if nothing happens before; None for never."""
        return None if self._steps is None else self._steps.due_s

    def update(self, now_s: float) -> None:
        """Do what is due."""
        if self._fleet.stopping:
            self._again = False
            self._give_up("the server is stopped")
        while self._steps is not None or self._again:
            if self._steps is None:
                self._begin(now_s)
            elif not self._steps.slots:
                self._end("")
            elif not self._step(self._steps, now_s):
                return

    def _step(self, steps: _Steps, now_s: float) -> bool:
        """Go on with the first slot; return whether there may be more to do now."""
        slot = steps.slots[0]
        if self._is_replaced(slot, now_s):
            del steps.slots[0]
            steps.due_s = now_s + self._step_s
            self._tell(f"{slot.name} is replaced")
        elif now_s >= steps.due_s:
            self._give_up(f"the new process of {slot.name} was not ready within {self._step_s:.0f} s")
        else:
            return self._steps is None
        return True

    def _begin(self, now_s: float) -> None:
        self._again = False
        fleet = self._fleet
        fleet.release += 1
        fronts = [slot for slot in fleet.slots if slot.role == "front"]
        brokers = [slot for slot in fleet.slots if slot.role == "broker"]
        self._steps = _Steps([*brokers, *fronts, fleet.slots[0]], now_s + self._step_s)
        self._save(replace(self._state, begun=fleet.release, progress=""))
        if not fleet.starter.renew():
            self._give_up("no process can be started")

    def _is_replaced(self, slot: Slot, now_s: float) -> bool:
        """Take the next step of a slot's replacement; return whether it is done."""
        fleet, old, new = self._fleet, slot.current, slot.successor
        if old is None or (old.release == fleet.release and new is None):
            return old is not None and old.process.ready
        if fleet.starter.loaded is None:
            self._give_up("the new release cannot be loaded")
        elif slot.role in {"alone", "primary"}:
            if fleet.starter.loaded and not old.leaving:
                fleet.leave(old, now_s + 2 * self._drain_s + OWNER_S)
        elif new is None:
            if fleet.may_start(slot):
                slot.successor = fleet.start(slot)
                if slot.successor is None:
                    self._give_up("no process can be started")
        elif new.process.ready or (
            new.process.serves and slot.role == "broker"
        ):  # which waits for the old one's socket
            slot.current, slot.successor, old.slot = new, None, None
            fleet.leave(old, now_s + self._drain_s + REST_S + END_S if slot.role == "front" else None)
            return new.process.ready
        return False

    def _lost(self, slot: Slot) -> None:
        self._give_up(f"the new process of {slot.name} died before it served")

    def _give_up(self, why: str) -> None:
        if self._steps is None:
            return
        for slot in self._fleet.slots:
            if slot.successor is not None:
                self._fleet.drop(slot.successor)
        say(f"error: the reload is given up: {why}; processes that were not replaced go on")
        self._end(why)

    def _end(self, failed: str) -> None:
        self._steps = None
        self._fleet.starter.keep(renewed=not failed)
        self._save(replace(self._state, ended=self._fleet.release, failed=failed))

    def _tell(self, progress: str) -> None:
        say(f"reload: {progress}")
        self._save(replace(self._state, progress=progress))

    def _save(self, state: ReloadState) -> None:
        self._state = state
        self._record(state)
