"""Notifications of ended work on a device: where they arrive, from any thread, and the guests that wait for them.

A device calls the compiled `complete` with the address of a session layout's `Wait`: it puts that on a lock-free list,
and writes to an eventfd if the list was empty, so that one wake serves many.

A driver has room for a number of queued notifications; a call that asks for one more blocks until one has been given.
So later guests queue here, first come, first served, and the driver is not asked for theirs before.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tensorwasm.errors import InternalError
from tensorwasm.gpu.native.layout import Wait
from tensorwasm.guest.imports.suspension import CompletionList, DeviceWait, SuspensionCode
from tensorwasm.guest.native.structures import address_of
from tensorwasm.guest.reactor.task import Sandbox, Task, Timers

MOST_ASKED: Final = 48
"""Notifications in flight in a process. On an H200 a driver was seen to hold 56 for each of its hardware queues, all in
one queue where streams wait for one event; one more blocks that call and every launch. The rest is for other users."""
PULSE_S: Final = 0.5
"""How often guests check whether their device has failed, for then it never notifies, or their work has ended."""
_idle: Final[list[CompletionQueue]] = []
"""Unused queues. Descriptors are never closed: a notifier may write after its entry was taken."""
_LONGEST_S: Final = 86_400.0
"""epoll counts milliseconds in an int, 24 days of them."""
_owed: Final[list[CompletionQueue]] = []
"""Closed queues to which notifications are still to come."""


class CompletionQueue:
    """A `CompletionList` at ``address``, and the thread that waits at it; `wake` is for any thread."""

    def __init__(self, code: SuspensionCode) -> None:
        """Open the descriptors; raise `InternalError` if the system has none left."""
        try:
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll = select.epoll()
        except OSError as error:
            raise InternalError(f"no completion queue: {error.strerror}") from error
        self._epoll.register(self._descriptor, select.EPOLLIN)
        self._list = CompletionList(write=address_of(ctypes.CDLL(None).write), descriptor=self._descriptor, one=1)
        self._take: Callable[[int], int] = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(code.take)
        self.address = ctypes.addressof(self._list)
        self.wakes = 0

    @classmethod
    def open(cls, code: SuspensionCode) -> CompletionQueue:
        """Return a new or unused queue; a wake that was meant for the previous owner may still come."""
        try:
            queue = _idle.pop()
        except IndexError:
            return cls(code)
        queue.wakes = 0
        return queue

    def wake(self) -> None:
        """Make `wait` return, now or when it is called next."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, seconds: float | None) -> None:
        """Wait until something arrives: at most so long and at most a day, without a limit if None."""
        if self._epoll.poll(seconds if seconds is None else min(seconds, _LONGEST_S)):
            os.eventfd_read(self._descriptor)
            self.wakes += 1

    def take(self) -> Iterator[int]:
        """Return the addresses that arrived since the last call, in order."""
        found = []
        address = self._take(self.address)
        while address:
            found.append(address)
            address = Wait.from_address(address).next
        return reversed(found)

    def close(self, outstanding: int) -> None:
        """Keep the queue for reuse, unless so many notifications are still to come."""
        (_owed if outstanding else _idle).append(self)


@dataclass(slots=True, eq=False)
class _Ticket:
    """One wait of a guest, and what is called with it when its notification may be asked for."""

    task: Task
    signal: DeviceWait
    tell: Callable[[_Ticket], None]


class NotificationLimit:
    """Limits the notifications in flight. Safe from any thread; no method blocks."""

    def __init__(self, most: int = MOST_ASKED) -> None:
        self._most = most
        self._inside: set[_Ticket] = set()
        self._line: dict[_Ticket, None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many are in flight."""
        return len(self._inside)

    def enter(self, ticket: _Ticket) -> bool:
        """Count a notification if there is room; otherwise queue for it, and call ``tell`` later. Return which."""
        with self._lock:
            if self._line or len(self._inside) >= self._most:
                self._line[ticket] = None
                return False
            self._inside.add(ticket)
            return True

    def leave(self, ticket: _Ticket) -> None:
        """Give room back, or leave the queue."""
        admitted: list[_Ticket] = []
        with self._lock:
            self._line.pop(ticket, None)
            self._inside.discard(ticket)
            while self._line and len(self._inside) < self._most:
                first = next(iter(self._line))
                del self._line[first]
                self._inside.add(first)
                admitted.append(first)
        for first in admitted:
            first.tell(first)


PROCESS_LIMIT: Final = NotificationLimit()


class GpuCompletions:
    """Has devices notify guests. For the reactor's thread only.

    ``call`` runs a function on that thread and is for any thread; ``step`` resumes a guest's steps with a value or an
    error; ``complete`` is the address of the C function that a device calls with a guest's address.
    """

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
        self._limit = PROCESS_LIMIT
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
        """Number of guests for whom a device will be asked when there is room."""
        return len(self._line)

    def start(self, task: Task, wait: DeviceWait) -> bool:
        """Ask for a guest's notification, now or when there is room; return whether it has to wait."""
        if task.fiber is None or task.notified_at or task in self._line:
            raise InternalError("a guest waits for a second notification before the first")
        ticket = _Ticket(task, wait, self._tell)
        task.signal = wait
        if self._limit.enter(ticket):
            return self._ask(ticket, task.fiber)
        self._line[task] = ticket
        self._start_pulse()
        return True

    def take(self, address: int) -> Task:
        """Return the guest whose notification has come."""
        ticket = self._asked.pop(address)
        self._limit.leave(ticket)
        self.taken += 1
        ticket.task.notified_at = 0
        return ticket.task

    def check_devices(self) -> None:
        """Resume guests whose device has failed, and queued ones whose work has ended."""
        tickets = [*self._asked.values(), *self._line.values()]
        waiting = [one for one in tickets if one.task.signal is one.signal and not one.task.over]
        self._pulse = self._timers.add_in(PULSE_S, None) if waiting else 0
        for ticket in waiting:
            ended, error = _check(ticket)
            if error is not None or (ended and self._line.get(ticket.task) is ticket):
                self._line.pop(ticket.task, None)
                self._limit.leave(ticket)  # a failed device will not notify
                ticket.task.signal = None
                self._step(ticket.task, None if error else False, error)

    def end(self, task: Task) -> None:
        """Remove a guest that has ended from the queue; a notification that was asked for still comes."""
        task.signal = None
        ticket = self._line.pop(task, None)
        if ticket is not None:
            self._limit.leave(ticket)

    def close(self) -> int:
        """Abandon the notifications that have yet to come; return how many."""
        for ticket in self._asked.values():
            self._limit.leave(ticket)
        return len(self._asked)

    def _tell(self, ticket: _Ticket) -> None:
        self._call(partial(self._admit, ticket))

    def _admit(self, ticket: _Ticket) -> None:
        task = ticket.task
        if self._line.get(task) is not ticket or task.fiber is None:  # it has left the queue since
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
                self._start_pulse()
            else:
                del self._asked[address]
                task.notified_at, task.signal = 0, None
                self._limit.leave(ticket)
        return started

    def _start_pulse(self) -> None:
        if not self._pulse:
            self._pulse = self._timers.add_in(PULSE_S, None)


def _check(ticket: _Ticket) -> tuple[bool, Exception | None]:
    """Return whether a guest's work has ended, and how its device has failed."""
    if ticket.task.signal is ticket.signal:
        try:
            return ticket.signal.ended(), None
        except Exception as error:  # noqa: BLE001 - the steps decide what it means
            return False, error
    return False, None
