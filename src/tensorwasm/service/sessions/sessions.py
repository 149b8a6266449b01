"""`Sessions`: instances that several calls share.

A session that `Sessions.open` returned survives any crash; until its first save it is made anew. The effects of a call
are in memory until the session is saved: when it is idle, on request, before a call that is ``durable`` returns, and
when the service ends. A crash rewinds the session to its last save, never further, and counts that in
`SessionRecord.rewinds`. A session whose state cannot be saved is ``lost`` with its process.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from tensorwasm.database import sessions as rows
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.errors import InvalidRequest, NotFound, SessionElsewhere, TensorWasmError, TooManyArgs
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.service.clock import Clock, run_round
from tensorwasm.service.functions.checks import check_environment, is_id
from tensorwasm.service.invocations.request import MAX_ARGS
from tensorwasm.service.pages import DEFAULT_PAGE, checked_limit, parse_cursor
from tensorwasm.service.sessions.entries import (
    OperationQueue,
    SessionCall,
    SessionEntry,
    SessionInfo,
    SessionOperation,
    Work,
)
from tensorwasm.service.sessions.instances import GuestThreads, InstanceFactory, session_name
from tensorwasm.service.sessions.memory import Activation, Hold, InstanceMemory, Resolver, RunningGuests
from tensorwasm.service.sessions.persistence import Leases, SessionPersistence, Sharing
from tensorwasm.service.usage import UsageMeter
from tensorwasm.telemetry.timeline import waiting
from tensorwasm.values import NEVER, Deadline

_CALL_THREADS: Final = 32
_SAVE_THREADS: Final = 4
_MOST_LIVE: Final = 1024
_SWEEP_S: Final = 5.0
_CANCEL_S: Final = 1.0
"""How long to wait at the end for guests that were cancelled."""

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class Sessions:
    """Sessions of all tenants, for one event loop, which is never blocked. Of several servers one has each session.

    Args:
        guests: all that hold memory, which calls wait for; None where only sessions do.
        idle_s: how long an instance stays in memory without a call.
        most: maximum of instances in memory.
        ledger: records what calls used; None records nothing.
        sharing: None where no other server uses the database.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        functions: Resolver,
        factory: InstanceFactory,
        hold: Hold,
        *,
        guests: RunningGuests | None = None,
        idle_s: float,
        most: int = _MOST_LIVE,
        ledger: UsageMeter | None = None,
        clock: Clock | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """Start nothing; `start` does."""
        self._database = database
        self._idle_s = idle_s
        self._ledger = ledger
        self._clock = clock or Clock()
        self._queue = OperationQueue(self._now_ns)
        self._leases = Leases(database, sharing, self._clock.monotonic_s, self._queue.end_guests)
        self._persistence = SessionPersistence(
            database, factory, self._leases, GuestThreads(_SAVE_THREADS, "tensorwasm-save")
        )
        self.memory = InstanceMemory(self._persistence, self._leases, hold, guests, most, self._queue)
        self._threads = GuestThreads(_CALL_THREADS, "tensorwasm-session")
        self._activation = Activation(
            database, functions, factory, self._persistence, self.memory, self._leases, self._threads
        )
        self._ending = asyncio.Event()
        self._maintenance: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Rewind sessions to their last saves, and start to evict idle ones and to renew the lease."""
        await self._leases.start()
        sweep_pause_s = min(max(self._idle_s / 4, 0.05), _SWEEP_S)
        work = [self._repeat(self.sweep, sweep_pause_s, "idle sessions cannot leave memory")]
        if self._leases.renew_pause_s is not None:
            work.append(self._repeat(self.renew, self._leases.renew_pause_s, "the lease of sessions cannot be renewed"))
        self._maintenance = [asyncio.create_task(each) for each in work]

    async def close(self, within_s: float) -> None:
        """Accept nothing more, wait for calls for half of the time, then save and free every session at once.

        What cannot be saved is lost, and its row says so; a session that the time was too short for goes on from its
        last save.
        """
        ends = Deadline.after(within_s)
        self._queue.close()
        self._ending.set()
        if self._maintenance:
            await asyncio.wait(self._maintenance, timeout=within_s / 2)
        await self._queue.drain(min(within_s / 2, ends.remaining_s()))
        self._queue.stop()
        await self._queue.drain(min(_CANCEL_S, ends.remaining_s()))
        closing = [
            asyncio.create_task(self._close_session(each)) for each in self._queue.entries() if each.live is not None
        ]
        if closing:
            _, late = await asyncio.wait(closing, timeout=ends.remaining_s())
            for task in late:
                task.cancel()
        await run_round(self._leases.end, "other servers wait for this one's sessions", _log)
        self._threads.close()
        self._persistence.threads.close()

    async def sweep(self) -> int:
        """Save and evict sessions that were idle for too long; return their number."""
        now_ns = self._now_ns()
        since_ns = now_ns - round(self._idle_s * 1e9)
        unused = [each for each in self._queue.entries() if each.idle and each.used_ns <= since_ns]
        for each in unused:
            each.used_ns = now_ns  # one that stays is not saved again in every sweep
        return sum(await asyncio.gather(*map(self.memory.evict, unused)))

    async def renew(self) -> None:
        """Renew the lease; evict sessions that other servers acquired."""
        await self._leases.renew()
        await asyncio.gather(
            *(self.memory.evict(each) for each in self._queue.entries() if not self._leases.holds(each))
        )

    async def tidy(self, before_ns: int) -> int:
        """Delete saves that no session refers to; see `SessionPersistence.delete_orphans`."""
        return await self._persistence.delete_orphans(before_ns)

    @property
    def in_memory(self) -> int:
        """Number of sessions with an instance in memory."""
        return sum(entry.live is not None for entry in self._queue.entries())

    # ---------------------------------------------------------------- operations

    async def open(
        self,
        tenant: int,
        reference: str,
        options: rows.SessionOptions | None = None,
        *,
        deadline: Deadline = NEVER,
        snapshot: Snapshot | None = None,
        session_id: str | None = None,
    ) -> SessionInfo:
        """Create a session, which survives any crash from then on; raises as `Activation` and `check_environment`.

        Args:
            tenant: the owner.
            reference: what it runs, in the present version.
            options: its input, arguments and environment.
            deadline: for all of it.
            snapshot: state to restore, which is saved at once; None for a new instance.
            session_id: a UUID that was never used; None makes one.

        Raises:
            InvalidRequest: the ID is no UUID.
        """
        given = options or rows.SessionOptions()
        check_environment(given.env)
        identity = str(uuid.uuid4()) if session_id is None else session_id
        if not is_id(identity):
            raise InvalidRequest("a session's ID is a UUID in small letters")
        resolved = await self._activation.resolve(tenant, reference)
        now = self._clock.unix_ms()
        record = rows.SessionRecord(
            id=identity,
            tenant=tenant,
            function_id=resolved.version.function_id,
            version=resolved.version.number,
            status="fresh" if snapshot is None else "lost",  # so it is never made anew before its first save
            options=given,
            save=None,
            calls=0,
            saved_calls=0,
            rewinds=0,
            created_unix_ms=now,
            used_unix_ms=now,
        )

        async def work(operation: SessionOperation) -> SessionInfo:
            await self._activation.create(operation.entry, record, resolved, snapshot, deadline)
            return operation.entry.info()

        return await self._run(tenant, identity, work, deadline)

    async def call(self, tenant: int, session_id: str, call: SessionCall) -> Invocation:
        """Call an export of a session, loaded first if it is not in memory.

        The state stays as the guest left it, also after a trap or a timeout. If the caller is cancelled the guest is
        ended. Raises as `Activation.ensure_loaded`, `OperationQueue.run` and `LiveInstance.call`; if a durable call's
        save fails, the error is raised although the call's effects are in memory. TooManyArgs for more than 256.
        """
        if len(call.args) > MAX_ARGS:
            raise TooManyArgs(f"{len(call.args)} arguments: at most {MAX_ARGS}")
        return await self._run(tenant, session_id, partial(self._call, call), call.deadline or NEVER)

    async def get(self, tenant: int, session_id: str) -> SessionInfo:
        """Return a session; NotFound if there is none, or it is another tenant's."""
        entry = self._queue.find(tenant, session_id)
        return entry.info() if entry is not None else SessionInfo(await self._activation.read(tenant, session_id))

    async def list(self, tenant: int, after: str | None = None, limit: int = DEFAULT_PAGE) -> tuple[SessionInfo, ...]:
        """Return a tenant's sessions, oldest first; InvalidRequest for no cursor or a limit that is not 1 to 1000."""
        found = await self._database.read(rows.list_sessions, tenant, parse_cursor(after), checked_limit(limit))
        pairs = ((record, self._queue.find(tenant, record.id)) for record in found)
        return tuple(SessionInfo(record) if entry is None else entry.info() for record, entry in pairs)

    async def save(
        self, tenant: int, session_id: str, use: Callable[[rows.SessionRecord, str], _Value], deadline: Deadline = NEVER
    ) -> _Value:
        """Save a session unless it is unchanged; return what ``use`` returns, during which the save is not deleted.

        ``use`` gets the session's row and the save's name in the store, on another thread; of a lost session it gets
        the last save. Raises as `Activation.ensure_loaded`, `SessionPersistence.persist` and ``use``.
        """

        async def work(operation: SessionOperation) -> _Value:
            entry = operation.entry
            if (await self._activation.acquire(entry)).save is None:
                await self._activation.ensure_loaded(entry, deadline)
            await self._persistence.persist(entry)
            record = entry.require_record()
            return await self._persistence.threads.run(use, record, session_name(record.id, record.save or ""))

        return await self._run(tenant, session_id, work, deadline)

    async def end(self, tenant: int, session_id: str) -> None:
        """Delete a session; its running call is ended, and waiting ones are refused. Raises as `get`."""

        async def work(operation: SessionOperation) -> None:
            entry = operation.entry
            record = await self._activation.acquire(entry)
            if not await self._database.write(rows.delete_session, record):
                await self._leases.raise_if_taken(entry)
                raise NotFound("there is no such session")
            entry.record = None
            if record.save is not None:
                entry.stale_saves.add(record.save)
            await self.memory.free(entry)
            await self._persistence.delete_stale(entry)

        await self._run(tenant, session_id, work, NEVER, closes=True)

    # ---------------------------------------------------------------- steps

    async def _run(
        self, tenant: int, session_id: str, work: Work[_Value], deadline: Deadline, *, closes: bool = False
    ) -> _Value:
        """Run an operation; return its result only if the session was this server's until the end."""

        async def owned(operation: SessionOperation) -> _Value:
            entry = operation.entry
            try:
                result = await work(operation)
                await self._leases.require()
            except TensorWasmError as error:
                if self._leases.holds(entry) or isinstance(error, SessionElsewhere):
                    raise
            else:
                if self._leases.holds(entry):
                    return result
            finally:
                await self.memory.end_operation(entry)
            raise SessionElsewhere("")

        return await self._queue.run(tenant, session_id, owned, deadline, closes=closes)

    async def _call(self, call: SessionCall, operation: SessionOperation) -> Invocation:
        entry = operation.entry
        with waiting("sandbox"):
            await self._activation.ensure_loaded(entry, operation.deadline)
        if not entry.dirty:  # before the guest runs the row says that there will be changes to save
            await self._persistence.write(entry, replace(entry.require_record(), status="live"))
        if operation.abandoned:
            raise asyncio.CancelledError
        try:
            return await self._run_guest(operation, call)
        finally:
            if call.durable:
                await self._persistence.persist(entry)

    async def _run_guest(self, operation: SessionOperation, call: SessionCall) -> Invocation:
        entry = operation.entry
        live, resolved = entry.live, entry.resolved
        assert live is not None and resolved is not None  # noqa: S101, PT018 - `Activation` loaded both
        ends = Deadline.after(resolved.default_ns / 1e9) if call.deadline is None else call.deadline
        entry.running = live
        outcome = None
        try:
            outcome = await self._threads.run(live.call, call.export, call.args, input=call.input, deadline=ends)
            return outcome
        finally:
            if self._ledger is not None:
                cpu_us = sent_bytes = 0
                if outcome is not None:
                    cpu_us = int(outcome.elapsed_s * 1e6)
                    sent_bytes = sum(map(len, (outcome.stdout, outcome.stderr, *outcome.chunks)))
                failed = int(outcome is None)
                self._ledger.note(entry.tenant, 1, failed, cpu_us, 0, 0, len(call.input or b""), sent_bytes)
            entry.running = None
            record = entry.require_record()
            entry.record = replace(record, calls=record.calls + 1, used_unix_ms=self._clock.unix_ms())
            entry.unsavable = False
            self.memory.release_growth(entry)
            if operation.abandoned or entry.closing:  # then the instance may refuse calls
                live.resume()

    async def _close_session(self, entry: SessionEntry) -> None:
        """Save and free a session as the service ends, or mark it as lost."""
        try:
            async with entry.lock:
                if entry.record is not None:
                    with suppress(TensorWasmError):
                        await self.memory.unload(entry)
                if entry.live is not None and entry.record is not None and entry.record.status == "volatile":
                    await self._persistence.write(entry, replace(entry.record, status="lost"))
                await self.memory.free(entry)
        except TensorWasmError as error:
            _log.warning("session %s ended, which its row does not say: %s", entry.id, error.kind)

    async def _repeat(self, work: Callable[[], Awaitable[object]], pause_s: float, failed: str) -> None:
        """Do work periodically until the service ends."""
        while not self._ending.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)
                return
            await run_round(work, failed, _log)

    def _now_ns(self) -> int:
        return round(self._clock.monotonic_s() * 1e9)
