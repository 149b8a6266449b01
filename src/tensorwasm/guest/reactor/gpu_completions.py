"""Guests of a reactor that wait until a device notifies them, and how many a process asks devices to notify at a time.

A driver waits in the call that asks for one notification more than it queues, until one of them has been given. So
those who come later stand in line, first come, first served, and nobody asks for them before.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tensorwasm.errors import InternalError
from tensorwasm.guest.imports.suspension import Signal
from tensorwasm.guest.reactor.task import Sandbox, Task
from tensorwasm.guest.reactor.timers import Timers

MOST_ASKED: Final = 48
"""Notifications that a process asks for at a time, of all its devices and by all its reactors. A driver was seen to
hold 56 for each of its hardware queues on an H200, and all in one where streams wait for one event; the call that asks
for one more waits, and every launch of the process with it. The rest is for who else may ask it for some."""
PULSE_S: Final = 0.5
"""How often the guests that wait for a device look whether it has failed, for then it notifies nobody, and those in
line whether their work has ended."""


class _Ticket:
    """One wait of a guest's, and who is told that it may be asked for."""

    __slots__ = ("signal", "task", "tell")

    def __init__(self, task: Task, signal: Signal) -> None:
        self.task = task
        self.signal = signal
        self.tell: Callable[[], None] = lambda: None


class Room:
    """Room for notifications that were asked for and have yet to come. Safe from any thread; nothing here waits.

    Args:
        most: at a time.
    """

    def __init__(self, most: int = MOST_ASKED) -> None:
        self._most = most
        self._inside: set[_Ticket] = set()
        self._line: dict[_Ticket, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._inside)

    def enter(self, ticket: _Ticket) -> bool:
        """Take room, or stand in line for it, to be told; return whether there was room."""
        with self._lock:
            if self._line or len(self._inside) >= self._most:
                self._line[ticket] = None
                return False
            self._inside.add(ticket)
            return True

    def leave(self, ticket: _Ticket) -> None:
        """Give room back, or leave the line."""
        told: list[_Ticket] = []
        with self._lock:
            self._line.pop(ticket, None)
            self._inside.discard(ticket)
            while self._line and len(self._inside) < self._most:
                first = next(iter(self._line))
                del self._line[first]
                self._inside.add(first)
                told.append(first)
        for first in told:
            first.tell()


PROCESS_ROOM: Final = Room()


class GpuCompletions:
    """Has devices notify guests. For the reactor's thread only.

    Args:
        call: has a function called on the reactor's thread; for any thread.
        timers: of the reactor.
        step: lets a guest's steps go on with a value or an error.
        complete: address of the C function that a device calls with a guest's address.

    Attributes:
        taken: notifications that came.
    """

    __slots__ = ("_asked", "_call", "_complete", "_line", "_pulse", "_room", "_step", "_timers", "taken")

    def __init__(
        self,
        call: Callable[[Callable[[], None]], None],
        timers: Timers,
        step: Callable[[Task, Any, Any], None],
        complete: int,
    ) -> None:
        self._call = call
        self._timers = timers
        self._step = step
        self._complete = complete
        self._room = PROCESS_ROOM
        self._asked: dict[int, _Ticket] = {}
        self._line: dict[Task, _Ticket] = {}
        self._pulse = 0
        self.taken = 0

    @property
    def asked(self) -> list[Task]:
        """The guests that a device will notify, those that have ended included."""
        return [ticket.task for ticket in list(self._asked.values())]

    @property
    def in_line(self) -> int:
        """Guests for whom a device will be asked when there is room."""
        return len(self._line)

    def start(self, task: Task, wait: Signal) -> bool:
        """Have a guest notified, now or when there is room; return whether it has to wait. Raises what asking does."""
        if task.fiber is None or task.notified_at or task in self._line:
            raise InternalError("a guest waits for a second notification before the first")
        ticket = _Ticket(task, wait)
        ticket.tell = partial(self._call, partial(self._arrive, ticket))
        task.signal = wait
        if self._room.enter(ticket):
            return self._ask(ticket, task.fiber)
        self._line[task] = ticket
        self._await_pulse()
        return True

    def take(self, address: int) -> Task:
        """Return the guest whose notification has come; it waits for none any more."""
        ticket = self._asked.pop(address)
        self._room.leave(ticket)
        self.taken += 1
        ticket.task.notified_at = 0
        return ticket.task

    def feel_pulse(self) -> None:
        """Have all look: those whose device has failed are told, and those in line whose work has ended."""
        tickets = [*self._asked.values(), *self._line.values()]
        waiting = [one for one in tickets if one.task.signal is one.signal and not one.task.over]
        self._pulse = self._timers.add_in(PULSE_S, None) if waiting else 0
        for ticket in waiting:
            ended, error = _look(ticket)
            if error is not None or (ended and self._line.get(ticket.task) is ticket):
                self._line.pop(ticket.task, None)
                self._room.leave(ticket)  # of who was asked for, nobody will call
                ticket.task.signal = None
                self._step(ticket.task, None if error else False, error)

    def end(self, task: Task) -> None:
        """Have a guest that has ended leave the line; what a device was asked for still comes."""
        task.signal = None
        ticket = self._line.pop(task, None)
        if ticket is not None:
            self._room.leave(ticket)

    def close(self) -> int:
        """Leave all that has yet to come to itself; return how many."""
        for ticket in self._asked.values():
            self._room.leave(ticket)
        return len(self._asked)

    def _arrive(self, ticket: _Ticket) -> None:
        task = ticket.task
        if self._line.get(task) is not ticket or task.fiber is None:  # it has left the line since
            return
        del self._line[task]
        started, error = False, None
        try:
            started = self._ask(ticket, task.fiber)
        except Exception as raised:  # noqa: BLE001 - the steps decide what it means
            error = raised
        if not started:
            self._step(task, None if error else False, error)

    def _ask(self, ticket: _Ticket, fiber: Sandbox) -> bool:
        task, address = ticket.task, ctypes.addressof(fiber.wait)
        self._asked[address], task.notified_at = ticket, address
        started = False
        try:
            started = ticket.signal.start(self._complete, address)
        finally:
            if started:
                self._await_pulse()
            else:
                del self._asked[address]
                task.notified_at, task.signal = 0, None
                self._room.leave(ticket)
        return started

    def _await_pulse(self) -> None:
        if not self._pulse:
            self._pulse = self._timers.add_in(PULSE_S, None)


def _look(ticket: _Ticket) -> tuple[bool, Exception | None]:
    """Return whether what a guest still waits for has ended, and how its device has failed."""
    if ticket.task.signal is ticket.signal:
        try:
            return ticket.signal.ended(), None
        except Exception as error:  # noqa: BLE001 - the steps decide what it means
            return False, error
    return False, None
