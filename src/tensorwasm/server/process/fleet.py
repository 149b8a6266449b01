"""`Fleet`: which processes of a server there are, and what happens when one dies, is replaced or is stopped.

It is a state machine: `update` looks at all processes and does what is due. It reads no clock and waits for nothing.

A *slot* is what one process after another does: serving alone, being the primary, being one of its fronts, or having
the GPU workers of all of them, which outlive these.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from tensorwasm.server.process.options import ServeOptions

REFUSED: Final = frozenset({2, 4})
"""Exit codes after which no process is started again: 2 for invalid options or settings, 4 for a database that another
server has, or a device that is not there."""

MAX_VAIN: Final = 5
"""Processes of a slot in a row that die before they serve, after which the server ends."""

FIRST_WAIT_S: Final = 0.05
MAX_WAIT_S: Final = 2.0

SPARE_WAIT_S: Final = 10.0
"""How long a spare process that died, or could not be started, is not replaced."""

END_S: Final = 5.0
"""Seconds that a front may take to end after its requests had theirs; then it is killed."""

Role = Literal["alone", "primary", "front", "broker"]


class SupervisedProcess(Protocol):
    """A process as `ServerProcess` describes it."""

    reports: int | None
    code: int | None
    loaded: bool
    serves: bool
    ready: bool

    @property
    def pid(self) -> int: ...  # noqa: D102 - the protocol's implementation says it

    def look(self) -> None: ...  # noqa: D102 - the protocol's implementation says it
    def send(self, options: ServeOptions) -> None: ...  # noqa: D102
    def signal(self, number: int) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Shared(Protocol):
    """What the processes inherit from the supervisor."""

    def start(self) -> SupervisedProcess | None:
        """Start a process that loads the server; return None if the system lets none be started now."""

    def options(self, role: Role, row: int, fronts: tuple[int, ...], *, announce: bool) -> ServeOptions:
        """Return the options of a process; a primary is told which processes of fronts there are."""

    def clear_row(self, row: int) -> None:
        """Clear the row of the shared table of a process that has ended."""


@dataclass(eq=False, slots=True)
class Member:
    """A process of the fleet.

    Attributes:
        release: the number of the last reload before it was started.
        slot: None for the spare, and for one that leaves a slot that has another.
        begun: it was sent its options.
        announces: it says where it listens.
        row: its row of the shared table; -1 for none.
        leaving: it was told to leave or to stop.
        due_s: when it is killed.
    """

    process: SupervisedProcess
    release: int
    slot: Slot | None = None
    begun: bool = False
    announces: bool = False
    row: int = -1
    leaving: bool = False
    due_s: float | None = None


@dataclass(eq=False, slots=True)
class Slot:
    """What one process after another does.

    Attributes:
        name: for messages.
        current: the process that does it, or will once it has its options.
        successor: the process that replaces it during a reload.
        vain: processes in a row that died before they served.
        wait_s: until a dead one is followed by the next.
        start_s: when the next is started, while there is none.
    """

    name: str
    role: Role
    current: Member | None = None
    successor: Member | None = None
    vain: int = 0
    wait_s: float = FIRST_WAIT_S
    start_s: float = 0.0


class Fleet:
    """The processes of one server, and a spare that replaces the next that dies: loading takes most of a second.

    Args:
        workers: processes that take requests. One serves alone; several are the fronts of a primary.
        shared: what they inherit.
        drain_s: how long running requests may take once a process stops.
        broker: whether the GPU workers of several are the fleet's own.
        at_once: how many processes may load the server and open it at a time, those first that clients wait for.

    Attributes:
        slots: the primary first.
        members: all processes.
        spare: the one that waits for a slot.
        release: the number of reloads that were begun.
        stopping: all processes end.
        reloading: no spare is started, because it would have to be replaced.
        primary_served: the primary has served, so that fronts may begin.
        on_lost: called with a slot whose process, of the release of this reload, died before it served.
    """

    def __init__(
        self, workers: int, shared: Shared, drain_s: float, *, broker: bool = True, at_once: int = 1 << 10
    ) -> None:
        self._shared, self._drain_s, self._at_once = shared, drain_s, at_once
        fronts = [Slot(f"front {number + 1} of {workers}", "front") for number in range(workers)]
        brokers = [Slot("the broker of GPU workers", "broker")] if broker else []
        several = [Slot("the primary", "primary"), *fronts, *brokers]
        self.slots = [Slot("the server", "alone")] if workers == 1 else several
        self.members: list[Member] = []
        self.spare: Member | None = None
        self.release = 0
        self.stopping = self.reloading = self.primary_served = False
        self.on_lost: Callable[[Slot], None] = lambda _slot: None
        self._rows = set(range(1, rows_of(workers)))
        self._announced = False
        self._spare_s = 0.0
        self._failed: int | None = None
        self._code = 0

    @property
    def outcome(self) -> int | None:
        """The exit code of the whole, once all processes have ended."""
        if not self.stopping or self.members:
            return None
        code = self._code if self._failed is None else self._failed
        return code if code >= 0 else 128 - code

    def next_s(self) -> float | None:
        """Return when `update` has something to do even if nothing happens before; None for never."""
        due = [each.due_s for each in self.members if each.due_s is not None]
        if not self.stopping:
            due += [slot.start_s for slot in self.slots if slot.current is None and self._may_load(slot)]
            if self._wants_spare():
                due.append(self._spare_s)
        return min(due, default=None)

    def update(self, now_s: float) -> None:
        """Look at all processes, and do what is due."""
        for member in self.members:
            member.process.look()
            if member.due_s is not None and member.due_s <= now_s:
                member.process.signal(signal.SIGKILL)
                member.due_s = None
        self._note_served()
        for member in [each for each in self.members if each.process.code is not None]:
            self._bury(member, now_s)
        if self.stopping:
            self._stop_owners()
            return
        for slot in self.slots:
            if slot.current is None and slot.start_s <= now_s and self._may_load(slot):
                slot.current = self._take(slot)
                if slot.current is None:
                    self._lose(slot, "cannot be started", now_s)
        for slot in self.slots:
            if slot.current is not None and not self.stopping:
                self.begin(slot.current, slot)
        if self._wants_spare() and self._spare_s <= now_s:
            self.spare = self.start()
            self._spare_s = now_s + SPARE_WAIT_S

    # ------------------------------------------------------------------------------------------------------ signals

    def stop(self, now_s: float) -> None:
        """Let all processes end: fronts first, because they report to the primary. A second call kills them."""
        if self.stopping:
            self._failed = 1
            for member in self.members:
                member.process.signal(signal.SIGKILL)
            return
        self.stopping = True
        self.drop_spare()
        for member in self._fronts():
            if not member.leaving:
                self._end(member, signal.SIGTERM, now_s + self._drain_s + END_S)
        self._stop_owners()

    def reopen(self) -> None:
        """Let all processes open their logs and certificates again."""
        for member in self.members:
            if member.begun:
                member.process.signal(signal.SIGHUP)

    # ------------------------------------------------------------------------------------ what a reload needs, too

    def start(self, slot: Slot | None = None) -> Member | None:
        """Start a process; return None if the system lets none be started now."""
        process = self._shared.start()
        if process is None:
            return None
        member = Member(process, self.release, slot)
        self.members.append(member)
        return member

    def begin(self, member: Member, slot: Slot) -> None:
        """Send a process its options, unless it has them or must wait: a front for the primary, or for a row."""
        if member.begun:
            return
        if slot.role == "front":
            if not self.primary_served or not self._rows:
                return
            member.row = min(self._rows)
            self._rows.discard(member.row)
        elif slot.role == "primary":
            member.row = 0
        member.begun = True
        member.announces = not self._announced and slot.role != "primary" and slot in self.slots[:2]
        fronts = tuple(each.process.pid for each in self._fronts() if each.begun)
        member.process.send(self._shared.options(slot.role, member.row, fronts, announce=member.announces))

    def leave(self, member: Member, due_s: float) -> None:
        """Let a process take no more requests, and end when it has answered those that it has."""
        self._end(member, signal.SIGUSR1, due_s)

    def drop(self, member: Member) -> None:
        """Kill a process that does not serve, or shall be replaced before it does."""
        member.process.close()
        self._forget(member)

    def drop_spare(self) -> None:
        """Kill the spare process, if there is one."""
        if self.spare is not None:
            self.drop(self.spare)
        self._spare_s = 0.0

    # ---------------------------------------------------------------------------------------------------------------

    def _may_load(self, slot: Slot) -> bool:
        """Return whether one more process may load the server, and open its service; all wait for the first slot's."""
        if slot is self.slots[0]:
            return True
        waited = (each.process.loaded if each.slot is None else each.process.serves for each in self.members)
        return sum(not each for each in waited) < self._at_once

    def _wants_spare(self) -> bool:
        """Return whether everything is ready: a spare that loads earlier would slow it down."""
        if self.spare is not None or self.stopping or self.reloading:
            return False
        return all(slot.current is not None and slot.current.process.ready for slot in self.slots)

    def _take(self, slot: Slot) -> Member | None:
        """Return the spare as the process of a slot, or a new one; None if none can be started."""
        member, self.spare = self.spare, None
        if member is None:
            return self.start(slot)
        member.slot = slot
        self._spare_s = 0.0
        return member

    def _note_served(self) -> None:
        for slot in self.slots:
            member = slot.current
            if member is None or not member.process.serves:
                continue
            slot.vain, slot.wait_s = 0, FIRST_WAIT_S
            self.primary_served = self.primary_served or slot.role == "primary"
            self._announced = self._announced or member.announces

    def _bury(self, member: Member, now_s: float) -> None:
        """Do what is due when a process has ended."""
        slot, code = member.slot, member.process.code
        spare = member is self.spare
        member.process.close()
        self._forget(member)
        if spare:
            self._spare_s = now_s + SPARE_WAIT_S
        if slot is None or code is None:
            return
        if self.stopping:
            self._code = code if slot.role in {"alone", "primary"} else self._code
        elif slot.current is None and slot.successor is not None:
            slot.current, slot.successor = slot.successor, None
        elif slot.current is None:
            self._follow(slot, member, code, now_s)
        else:  # it was the successor
            self.on_lost(slot)

    def _follow(self, slot: Slot, member: Member, code: int, now_s: float) -> None:
        """Let a slot whose process has ended have the next one, or end the server."""
        if code in REFUSED or (code == 0 and slot.role == "alone" and not member.leaving):
            self._fail(code, now_s)
        elif member.process.serves or member.leaving:
            say(f"{slot.name} ended with {_describe(code)}; starting it again")
            self._wait(slot, now_s)
        else:
            self._lose(slot, f"ended with {_describe(code)}", now_s)
            if member.release == self.release:
                self.on_lost(slot)

    def _lose(self, slot: Slot, how: str, now_s: float) -> None:
        """Count a process that died before it served."""
        slot.vain += 1
        if slot.vain >= MAX_VAIN:
            say(f"error: {slot.name} died {slot.vain} times in a row before it served; giving up")
            self._fail(1, now_s)
        else:
            say(f"{slot.name} {how}; starting it again")
            self._wait(slot, now_s)

    def _wait(self, slot: Slot, now_s: float) -> None:
        slot.start_s = now_s + slot.wait_s
        slot.wait_s = min(2 * slot.wait_s, MAX_WAIT_S)

    def _fail(self, code: int, now_s: float) -> None:
        if not self.stopping:
            self._failed = code
            self.stop(now_s)

    def _forget(self, member: Member) -> None:
        """Remove a process that has ended, and free its row."""
        self.members.remove(member)
        if member.row >= 0:
            self._shared.clear_row(member.row)
            if member.row:
                self._rows.add(member.row)
        if member is self.spare:
            self.spare = None
        if member.slot is not None and member.slot.current is member:
            member.slot.current = None
        if member.slot is not None and member.slot.successor is member:
            member.slot.successor = None

    def _end(self, member: Member, number: signal.Signals, due_s: float | None) -> None:
        member.leaving, member.due_s = True, due_s
        member.process.signal(number)

    def _stop_owners(self) -> None:
        """Stop the primary, or what serves alone, once there are no fronts, and then the broker."""
        if any(self._fronts()):
            return
        owners = [each for each in self.members if each.slot is not None and each.slot.role != "broker"]
        for member in owners or self.members:
            if not member.leaving:
                self._end(member, signal.SIGTERM, None)

    def _fronts(self) -> Iterator[Member]:
        """Return the fronts that there are, with those that leave."""
        return (each for each in self.members if each.slot is None or each.slot.role == "front")


def rows_of(workers: int) -> int:
    """Return how many rows the shared table has: during a reload a slot has two processes."""
    return 2 * workers + 2


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def say(text: str) -> None:
    """Write a line to standard error; ignore errors such as a full disk."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        return
