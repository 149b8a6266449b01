"""Errands: what is wanted of a session is done one thing after the other, in the order in which it was asked for.

Each errand is a task of its own. A caller that leaves takes back what has not begun and ends a guest that runs for it;
what is being saved or brought back is finished in any case, for the session's next caller needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tensorwasm.errors import Conflict, Draining, InvokeTimeout, RateLimited
from tensorwasm.service.sessions.entry import SessionEntry
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_WAITING: Final = 16
"""Errands of one session at a time, the one that is done among them."""

_Value = TypeVar("_Value")


@dataclass(slots=True, eq=False)
class Operation:
    """One thing that somebody wants of a session.

    Attributes:
        seat: the session.
        deadline: when its turn must have come.
        last: it closes the session, and is done whatever else is going on.
        begun: its turn has come.
        left: whoever wanted it has gone.
        task: does it.
    """

    seat: SessionEntry
    deadline: Deadline
    last: bool = False
    begun: bool = False
    left: bool = False
    task: asyncio.Task[Any] | None = None

    def leave(self) -> None:
        """Take it back: it no longer waits for its turn, and a guest that runs for it is ended."""
        self.left = True
        if not self.begun and self.task is not None:
            self.task.cancel()
        elif self.seat.guest is not None and (self.task is None or not self.task.done()):  # else it is another's guest
            self.seat.guest.cancel()


Work = Callable[[Operation], Coroutine[Any, Any, _Value]]


class OperationQueue:
    """All sessions that somebody wants something of, or that are in memory. Used on one event loop.

    Args:
        now_ns: the clock that says when a session was used.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Begin empty."""
        self._now_ns = now_ns
        self._seats: dict[tuple[int, str], SessionEntry] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = self._stopped = False

    def seats(self) -> tuple[SessionEntry, ...]:
        """Return the sessions."""
        return tuple(self._seats.values())

    def find(self, tenant: int, session_id: str) -> SessionEntry | None:
        """Return a session if its row was read, and it is the tenant's."""
        seat = self._seats.get((tenant, session_id))
        return seat if seat is not None and seat.record is not None else None

    def seat(self, tenant: int, session_id: str) -> SessionEntry:
        """Return the seat of a session, whoever asks for it: a stranger waits in a line of its own."""
        key = tenant, session_id
        seat = self._seats.get(key)
        if seat is None:
            seat = self._seats[key] = SessionEntry(tenant, session_id)
        return seat

    @contextmanager
    def busy(self, seat: SessionEntry) -> Iterator[None]:
        """Let a session count as wanted."""
        seat.errands += 1
        try:
            yield
        finally:
            self._release(seat)

    async def send(self, seat: SessionEntry, work: Work[_Value], deadline: Deadline, *, last: bool = False) -> _Value:
        """Have something done when its turn comes, and return what came of it.

        Args:
            seat: the session.
            work: does it.
            deadline: when its turn must have come.
            last: it closes the session: the guest that runs is ended, and what waits is refused.

        Raises:
            Draining: the line is closed.
            RateLimited: too many wait.
            Conflict: the session is being closed.
            InvokeTimeout: the deadline passed before its turn came.
            Exception: what the work raises.
        """
        if self._closed:
            raise Draining("the service is ending")
        if seat.errands >= MAX_WAITING and not last:
            raise RateLimited(f"{MAX_WAITING} calls of this session are waiting")
        if last:
            seat.closing += 1
            if seat.guest is not None:
                seat.guest.cancel()
        errand = Operation(seat, deadline, last)
        seat.errands += 1
        task = errand.task = asyncio.create_task(self._do(errand, work))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, errand))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            errand.leave()
            raise

    def close(self) -> None:
        """Take no more errands."""
        self._closed = True

    def stop(self) -> None:
        """End every guest that runs, and refuse what still waits."""
        self._closed = self._stopped = True
        self.interrupt()

    def interrupt(self) -> None:
        """End every guest that runs; sessions go on."""
        for seat in self._seats.values():
            if seat.guest is not None:
                seat.guest.cancel()

    async def settle(self, within_s: float) -> None:
        """Wait for the errands that there are, for so long at most."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=within_s)

    async def _do(self, errand: Operation, work: Work[_Value]) -> _Value:
        async with _turn(errand):
            if self._stopped:
                raise Draining("the service is ending")
            if errand.seat.closing and not errand.last:
                raise Conflict("the session is being closed")
            return await work(errand)

    def _done(self, errand: Operation, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        errand.seat.closing -= errand.last
        self._release(errand.seat)
        if not task.cancelled():
            task.exception()  # whoever has left does not ask

    def _release(self, seat: SessionEntry) -> None:
        seat.errands -= 1
        seat.used_ns = self._now_ns()
        if not seat.errands and seat.live is None:
            self._seats.pop((seat.tenant, seat.id), None)


@asynccontextmanager
async def _turn(errand: Operation) -> AsyncIterator[None]:
    """Wait for the session's turn, within the errand's deadline."""
    left_s = None if errand.deadline.at_ns is None else errand.deadline.remaining_s()
    try:
        async with asyncio.timeout(left_s):
            await errand.seat.turn.acquire()
    except TimeoutError:
        raise InvokeTimeout("the deadline passed while other calls of the session were made") from None
    errand.begun = True
    try:
        yield
    finally:
        errand.seat.turn.release()
