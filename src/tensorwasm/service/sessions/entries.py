"""Sessions in use or in memory: their entries, and the queue that runs one operation of each at a time, in order.

Each operation is a task of its own. When a caller is cancelled, an operation that has not started is dropped, and a
guest that runs for it is ended; saving and loading are finished in any case, since the next caller needs the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from tensorwasm.database.sessions import SessionRecord
from tensorwasm.errors import Conflict, Draining, InvokeTimeout, RateLimited
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.tenancy.quotas import QuotaHold
from tensorwasm.values import Deadline

MAX_WAITING: Final = 16
"""Maximum of operations of one session, including the running one."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as clients see it.

    Attributes:
        record: its row; of a session in memory, with changes that are not written yet.
        in_memory: whether its instance is in memory; else the next call loads it first.
        save_error: kind of the error that ended its last save; empty if there was none.
    """

    record: SessionRecord
    in_memory: bool = False
    save_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCall:
    """A call of a session.

    Attributes:
        export: None takes ``_start``, or ``main`` if there is none.
        args: of the export.
        input: replaces what the guest reads with ``read-input``; None leaves it unchanged.
        deadline: of waiting and running together; None takes the function's usual time, for running only.
        durable: return only after the resulting state is saved.
    """

    export: str | None = None
    args: tuple[object, ...] = ()
    input: bytes | None = field(default=None, repr=False)
    deadline: Deadline | None = None
    durable: bool = False


@dataclass(slots=True, eq=False)
class SessionEntry:
    """A session as requested by one tenant. Used on the event loop; changed only by the holder of its lock.

    Attributes:
        tenant: the requesting tenant, which need not be the owner.
        lock: held by one operation at a time, first come, first served.
        operations: number of operations that hold the lock or wait for it.
        record: its row with unwritten changes; None until it is read.
        live: the instance; like ``resolved`` and ``quota`` None if it is not in memory.
        quota: charge for the instance.
        reserved: the charge covers the memory that the instance may grow to, and will be reduced to what it uses.
        running: the instance while its guest runs.
        used_ns: time of the last use, on the monotonic clock.
        closing: number of operations that close the session; others are refused.
        unsavable: the last save failed for good; the session is not evicted before its next call.
        stale_saves: saves that the row does not refer to, to be deleted.
        term: `Leases.term` in which this server acquired the row.
    """

    tenant: int
    id: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    operations: int = 0
    record: SessionRecord | None = None
    live: LiveInstance | None = None
    resolved: Resolved | None = None
    quota: QuotaHold | None = None
    reserved: bool = False
    running: LiveInstance | None = None
    used_ns: int = 0
    closing: int = 0
    unsavable: bool = False
    save_error: str = ""
    stale_saves: set[str] = field(default_factory=set)
    term: int = 0

    @property
    def idle(self) -> bool:
        """Whether the instance is in memory and has no operations."""
        return self.live is not None and self.operations == 0

    @property
    def dirty(self) -> bool:
        """Whether there are changes to save."""
        return self.record is not None and self.record.status in {"live", "volatile"}

    def require_record(self) -> SessionRecord:
        """Return the row, which was read at the start of the operation."""
        assert self.record is not None  # noqa: S101 - `Activation.acquire` sets it
        return self.record

    def info(self) -> SessionInfo:
        """Return the session as clients see it."""
        return SessionInfo(self.require_record(), self.live is not None, self.save_error)


@dataclass(slots=True, eq=False)
class SessionOperation:
    """One operation on a session.

    Attributes:
        deadline: for getting the session's lock.
        closes: it closes the session, and is not refused while another one does.
        started: it has got the lock.
        abandoned: its caller was cancelled.
    """

    entry: SessionEntry
    deadline: Deadline
    closes: bool = False
    started: bool = False
    abandoned: bool = False
    task: asyncio.Task[Any] | None = None

    def abandon(self) -> None:
        """Drop the operation if it has not started; else end the guest that runs for it."""
        self.abandoned = True
        if not self.started and self.task is not None:
            self.task.cancel()
        elif self.entry.running is not None and (self.task is None or not self.task.done()):  # else another's guest
            self.entry.running.cancel()


Work = Callable[[SessionOperation], Coroutine[Any, Any, _Value]]


class OperationQueue:
    """Entries of all sessions in use or in memory. Used on one event loop."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Start empty."""
        self._now_ns = now_ns
        self._entries: dict[tuple[int, str], SessionEntry] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = self._stopped = False

    def entries(self) -> tuple[SessionEntry, ...]:
        """Return all entries."""
        return tuple(self._entries.values())

    def find(self, tenant: int, session_id: str) -> SessionEntry | None:
        """Return a tenant's session if its row was read."""
        entry = self._entries.get((tenant, session_id))
        return entry if entry is not None and entry.record is not None else None

    async def run(
        self, tenant: int, session_id: str, work: Work[_Value], deadline: Deadline, *, closes: bool = False
    ) -> _Value:
        """Run an operation in its turn and return its result; each tenant has a queue of its own for a session.

        Args:
            tenant: who requests it, owner or not.
            session_id: of the session.
            work: the operation.
            deadline: for getting the session's lock.
            closes: it closes the session: the running guest is ended, and waiting operations are refused.

        Raises:
            Draining: the queue is closed.
            RateLimited: too many operations wait.
            Conflict: the session is being closed.
            InvokeTimeout: the deadline passed before the operation's turn.
        """
        if self._closed:
            raise Draining("the service is ending")
        key = tenant, session_id
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = SessionEntry(tenant, session_id)
        if entry.operations >= MAX_WAITING and not closes:
            raise RateLimited(f"{MAX_WAITING} calls of this session are waiting")
        if closes:
            entry.closing += 1
            if entry.running is not None:
                entry.running.cancel()
        operation = SessionOperation(entry, deadline, closes)
        entry.operations += 1
        task = operation.task = asyncio.create_task(self._run(operation, work))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, operation))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            operation.abandon()
            raise

    def close(self) -> None:
        """Accept no more operations."""
        self._closed = True

    def stop(self) -> None:
        """End every running guest, and refuse waiting operations."""
        self._closed = self._stopped = True
        self.end_guests()

    def end_guests(self) -> None:
        """End every running guest; sessions stay open."""
        for entry in self._entries.values():
            if entry.running is not None:
                entry.running.cancel()

    async def drain(self, within_s: float) -> None:
        """Wait for the present operations, up to a time."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=within_s)

    async def _run(self, operation: SessionOperation, work: Work[_Value]) -> _Value:
        entry, deadline = operation.entry, operation.deadline
        try:
            async with asyncio.timeout(None if deadline.at_ns is None else deadline.remaining_s()):
                await entry.lock.acquire()
        except TimeoutError:
            raise InvokeTimeout("the deadline passed while other calls of the session were made") from None
        operation.started = True
        try:
            if self._stopped:
                raise Draining("the service is ending")
            if entry.closing and not operation.closes:
                raise Conflict("the session is being closed")
            return await work(operation)
        finally:
            entry.lock.release()

    def _done(self, operation: SessionOperation, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        operation.entry.closing -= operation.closes
        self.release(operation.entry)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: an abandoned operation's error is of no interest

    def release(self, entry: SessionEntry) -> None:
        """Count an operation of a session as ended, and forget the session if it is not in memory."""
        entry.operations -= 1
        entry.used_ns = self._now_ns()
        if not entry.operations and entry.live is None:
            self._entries.pop((entry.tenant, entry.id), None)
