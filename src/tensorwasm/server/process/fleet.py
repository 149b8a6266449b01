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

END_S: Final = 5.0
"""Seconds that a front may take to end after its requests had theirs; then it is killed."""

Role = Literal["alone", "primary", "front", "broker"]


class SupervisedProcess(Protocol):
    """A process as `ServerProcess` describes it."""

    reports: int | None
    pid: int | None
    code: int | None
    serves: bool
    ready: bool

    def look(self) -> None: ...  # noqa: D102 - the protocol's implementation says it
    def signal(self, number: int) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Shared(Protocol):
    """What the processes inherit from the supervisor."""

    def options(self, role: Role, row: int, fronts: tuple[int, ...], *, announce: bool) -> ServeOptions:
        """Return the options of a process; a primary is told which processes of fronts there are."""

    def clear_row(self, row: int) -> None:
        """Clear the row of the shared table of a process that has ended."""


class Starter(Protocol):
    """What starts processes, as `Templates` describes it."""

    loaded: bool | None

    def look(self, now_s: float) -> None: ...  # noqa: D102 - the protocol's implementation says it
    def start(self, options: ServeOptions) -> SupervisedProcess | None: ...  # noqa: D102
    def complete(self) -> None: ...  # noqa: D102
    def renew(self) -> bool: ...  # noqa: D102
    def keep(self, *, renewed: bool) -> None: ...  # noqa: D102


@dataclass(eq=False, slots=True)
class Member:
    """A process of the fleet.

    Attributes:
        role: what it does, also once it leaves its slot.
        release: the number of the last reload before it was started.
        slot: None for one that leaves a slot that has another.
        announces: it says where it listens.
        row: its row of the shared table; -1 for none.
        leaving: it was told to leave or to stop.
        due_s: when it is killed.
    """

    process: SupervisedProcess
    role: Role
    release: int
    slot: Slot | None = None
    announces: bool = False
    row: int = -1
    leaving: bool = False
    due_s: float | None = None


@dataclass(eq=False, slots=True)
class Slot:
    """What one process after another does.

    Attributes:
        name: for messages.
        current: the process that does it.
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
    """The processes of one server.

    Args:
        workers: processes that take requests. One serves alone; several are the fronts of a primary.
        shared: what they inherit.
        starter: what they are started by.
        drain_s: how long running requests may take once a process stops.
        broker: whether the GPU workers of several are the fleet's own.

    Attributes:
        slots: the primary first.
        members: all processes.
        release: the number of reloads that were begun.
        stopping: all processes end.
        on_lost: called with a slot whose process, of the release of this reload, died before it served.
    """

    def __init__(self, workers: int, shared: Shared, starter: Starter, drain_s: float, *, broker: bool = True) -> None:
        self._shared, self.starter, self._drain_s = shared, starter, drain_s
        fronts = [Slot(f"front {number + 1} of {workers}", "front") for number in range(workers)]
        brokers = [Slot("the broker of GPU workers", "broker")] if broker else []
        several = [Slot("the primary", "primary"), *fronts, *brokers]
        self.slots = [Slot("the server", "alone")] if workers == 1 else several
        self.members: list[Member] = []
        self.release = 0
        self.stopping = False
        self.on_lost: Callable[[Slot], None] = lambda _slot: None
        self._rows = set(range(1, rows_of(workers)))
        self._primary_served = self._announced = self._completed = False
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
            due += [slot.start_s for slot in self.slots if slot.current is None and self.may_start(slot)]
        return min(due, default=None)

    def update(self, now_s: float) -> None:
        """Look at all processes, and do what is due."""
        self.starter.look(now_s)
        for member in self.members:
            member.process.look()
            if member.due_s is not None and member.due_s <= now_s:
                member.process.signal(signal.SIGKILL)
                member.due_s = None
        self._note_served(now_s)
        for member in [each for each in self.members if each.process.code is not None]:
            self._bury(member, now_s)
        if self.stopping:
            self._stop_owners()
            return
        for slot in self.slots:
            self._fill(slot, now_s)

    # ------------------------------------------------------------------------------------------------------ signals

    def stop(self, now_s: float) -> None:
        """Let all processes end: fronts first, because they report to the primary. A second call kills them."""
        if self.stopping:
            self._failed = 1
            for member in self.members:
                member.process.signal(signal.SIGKILL)
            return
        self.stopping = True
        for member in self._fronts():
            if not member.leaving:
                self._end(member, signal.SIGTERM, now_s + self._drain_s + END_S)
        self._stop_owners()

    def reopen(self) -> None:
        """Let all processes open their logs and certificates again."""
        for member in self.members:
            member.process.signal(signal.SIGHUP)

    # ------------------------------------------------------------------------------------ what a reload needs, too

    def may_start(self, slot: Slot) -> bool:
        """Return whether a slot may have a process: those that clients wait for come first, and a front needs a row."""
        if slot is self.slots[0]:
            return True
        if slot.role == "front" and not self._rows:
            return False
        return self._primary_served and (self._announced or slot is self.slots[1])

    def start(self, slot: Slot) -> Member | None:
        """Start a process; return None if the system lets none be started now."""
        announces = not self._announced and slot.role != "primary" and slot in self.slots[:2]
        row = {"primary": 0, "front": min(self._rows, default=-1)}.get(slot.role, -1)
        fronts = tuple(pid for each in self._fronts() if (pid := each.process.pid) is not None)
        process = self.starter.start(self._shared.options(slot.role, row, fronts, announce=announces))
        if process is None:
            return None
        self._rows.discard(row)
        member = Member(process, slot.role, self.release, slot, announces, row)
        self.members.append(member)
        return member

    def leave(self, member: Member, due_s: float | None) -> None:
        """Let a process take no more requests, and end when it has answered those that it has, or at that time."""
        self._end(member, signal.SIGUSR1, due_s)

    def drop(self, member: Member) -> None:
        """Kill a process that does not serve, or shall be replaced before it does."""
        member.process.close()
        self._forget(member)

    # ---------------------------------------------------------------------------------------------------------------

    def _fill(self, slot: Slot, now_s: float) -> None:
        """Start a process in a slot that has none, if that is due."""
        if slot.current is None and slot.start_s <= now_s and self.may_start(slot):
            slot.current = self.start(slot)
            if slot.current is None:
                self._lose(slot, "cannot be started", now_s)

    def _note_served(self, now_s: float) -> None:
        for slot in self.slots:
            member = slot.current
            if member is None or not member.process.serves:
                continue
            slot.vain, slot.wait_s = 0, FIRST_WAIT_S
            self._primary_served = self._primary_served or slot.role == "primary"
            if member.announces and not self._announced:
                self._announced = True
                for each in self.slots:
                    if each.role == "broker":  # which needs no compiled code: it would only wait for that
                        self._fill(each, now_s)
                self.starter.complete()
            if member.process.ready and self._announced and not self._completed:
                self._completed = True
                self.starter.complete()  # what it had to compile can be loaded now

    def _bury(self, member: Member, now_s: float) -> None:
        """Do what is due when a process has ended."""
        slot, code = member.slot, member.process.code
        member.process.close()
        self._forget(member)
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
        elif member.leaving and member.release != self.release:
            slot.start_s = now_s  # its successor, of the next release
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
        owners = [each for each in self.members if each.role != "broker"]
        for member in owners or self.members:
            if not member.leaving:
                self._end(member, signal.SIGTERM, None)

    def _fronts(self) -> Iterator[Member]:
        """Return the fronts that there are, with those that leave."""
        return (each for each in self.members if each.role == "front")


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
