"""`Leases`: which sessions are this server's; `SessionPersistence`: writes their rows and saves.

Where servers share a database, each has one lease, which it renews while it runs, and each session's row has an epoch,
which rises whenever a server acquires the session. Once a lease has expired other servers may acquire its sessions;
every write of a row compares owner and epoch, so a server cannot write a session that another has acquired.

Saving puts the state into the store, then makes the row refer to it, then deletes the save before. So the row refers to
a complete save at every moment. If the process dies between two steps, a save is left that no row refers to;
`SessionPersistence.delete_orphans` finds it later.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.database import sessions as rows
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.errors import NotCapturable, NotFound, SessionElsewhere, TensorWasmError
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.sessions.entries import SessionEntry
from tensorwasm.service.sessions.instances import FOLDER, GuestThreads, InstanceFactory, delete_orphans, session_name

RENEWALS: Final = 5
"""Renewals within the duration of a lease."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a server shares its database with others.

    Attributes:
        server: this one.
        before: UUID of the dead process that this one replaces; empty if there is none.
        lease_s: how long a server that does not renew its lease keeps its sessions.
    """

    server: rows.ServerRecord
    before: str = ""
    lease_s: float = 15.0


class Leases:
    """This server's lease and its sessions' epochs; used on one event loop. Methods raise as the database does.

    A server that has its database alone needs neither, and asks the database for nothing here.

    Args:
        sharing: None where no other server uses the database.
        monotonic_s: clock of the lease.
        on_lost: called when other servers may have acquired all sessions of this one.

    Attributes:
        term: how often this server has lost its lease.
        renew_pause_s: pause between renewals; None where there is no lease.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        sharing: Sharing | None,
        monotonic_s: Callable[[], float],
        on_lost: Callable[[], None],
    ) -> None:
        """Start without a lease; `start` acquires it."""
        self.term = 0
        self.renew_pause_s = None if sharing is None else sharing.lease_s / RENEWALS
        self._database = database
        self._sharing = sharing
        self._monotonic_s = monotonic_s
        self._on_lost = on_lost
        self._until_s = float("-inf")
        self._renewing = asyncio.Lock()
        self._unreleased: list[rows.SessionRecord] = []  # their release failed, and is tried again

    async def start(self) -> None:
        """Rewind sessions without a living server to their last saves, and acquire the lease."""
        if self._sharing is None:
            await self._database.write(rows.rewind_all_sessions)
            return
        if self._sharing.before:
            await self._database.write(rows.remove_server, self._sharing.before)
        await self._join(self._sharing)

    async def require(self) -> None:
        """Return once no other server can have acquired a session until now; at once while the lease lasts."""
        if self._sharing is None or self._monotonic_s() < self._until_s:
            return
        async with self._renewing:
            if self._monotonic_s() >= self._until_s:
                await self._renew(self._sharing)

    async def renew(self) -> None:
        """Renew the lease, repeat failed releases, and free the sessions of dead servers."""
        if self._sharing is None:
            return
        async with self._renewing:
            await self._renew(self._sharing)
        await self._database.write(rows.remove_dead_servers)
        while self._unreleased:
            await self._database.write(rows.release_session, self._unreleased[-1])
            self._unreleased.pop()

    async def acquire(self, entry: SessionEntry, record: rows.SessionRecord) -> rows.SessionRecord | None:
        """Make a session this server's; return its row, or None if it is gone; SessionElsewhere if another has it."""
        entry.term = self.term
        if self._sharing is None:
            return record
        return await self._database.write(rows.take_session, record.id, self._sharing.server.id)

    def own_new(self, entry: SessionEntry, record: rows.SessionRecord) -> rows.SessionRecord:
        """Return the row of a new session with this server as its owner."""
        entry.term = self.term
        return record if self._sharing is None else replace(record, owner=self._sharing.server.id, epoch=1)

    def holds(self, entry: SessionEntry) -> bool:
        """Return whether the entry's row is current, as far as this server knows."""
        return entry.record is None or entry.term == self.term

    async def raise_if_taken(self, entry: SessionEntry) -> None:
        """Find out why a row was not written; SessionElsewhere, and the entry is outdated, if another server has it."""
        if self._sharing is None:
            return
        if (name := await self._database.read(rows.session_holder, entry.id)) is not None:
            entry.term = -1
            raise SessionElsewhere(name)

    async def release(self, entry: SessionEntry) -> None:
        """Let other servers acquire a session that is not in memory; a failed release is repeated later."""
        if self._sharing is None or entry.record is None:
            return
        record, entry.record = entry.record, None
        try:
            await self._database.write(rows.release_session, record)
        except TensorWasmError as error:
            _log.warning("session %s is not released to other servers yet: %s", entry.id, error.kind)
            self._unreleased.append(record)

    async def end(self) -> None:
        """Release the lease and every session at once, rewinding those that are not saved."""
        if self._sharing is not None:
            await self._database.write(rows.remove_server, self._sharing.server.id)

    async def _renew(self, sharing: Sharing) -> None:
        until_s = self._monotonic_s() + sharing.lease_s
        if await self._database.write(rows.renew_server, sharing.server.id, round(sharing.lease_s * 1000)):
            self._until_s = until_s
            return
        _log.error("this server did not renew its lease for %g s, and has lost its sessions", sharing.lease_s)
        self.term += 1
        self._on_lost()
        await self._join(sharing)

    async def _join(self, sharing: Sharing) -> None:
        until_s = self._monotonic_s() + sharing.lease_s
        await self._database.write(rows.join_servers, sharing.server, round(sharing.lease_s * 1000))
        self._until_s = until_s


@dataclass(frozen=True, slots=True, eq=False)
class SessionPersistence:
    """Writes sessions' rows and saves. Used on one event loop."""

    database: DatabaseExecutor
    factory: InstanceFactory
    leases: Leases
    threads: GuestThreads

    async def write(self, entry: SessionEntry, changed: rows.SessionRecord) -> None:
        """Write a session's row; NotFound if it is gone; raises as `Leases.raise_if_taken` and the database."""
        if not await self.database.write(rows.write_session, changed):
            await self.leases.raise_if_taken(entry)
            raise NotFound("there is no such session")
        entry.record = changed

    async def persist(self, entry: SessionEntry) -> None:
        """Save an instance in memory unless it is unchanged; raises as `write` and `InstanceFactory.save`.

        NotCapturable if it holds what cannot be saved; its row says so from now on.
        """
        if not self.leases.holds(entry):
            raise SessionElsewhere("")
        if (
            entry.live is None
            or entry.resolved is None
            or (not entry.dirty and entry.require_record().save is not None)
        ):
            return
        try:
            await self._save(entry, entry.resolved, entry.live)
            entry.save_error = ""
        except TensorWasmError as error:
            entry.save_error = error.kind
            if isinstance(error, NotCapturable):
                entry.unsavable = True
                if entry.dirty and entry.require_record().status != "volatile":
                    await self.write(entry, replace(entry.require_record(), status="volatile"))
            raise

    async def delete_stale(self, entry: SessionEntry) -> None:
        """Delete a session's stale saves; a failure is logged, and tried again later."""
        if not (stale := frozenset(entry.stale_saves)):
            return
        try:
            await self.threads.run(self.factory.drop, entry.tenant, [session_name(entry.id, save) for save in stale])
            entry.stale_saves -= stale
        except TensorWasmError as error:
            _log.warning("old saves of session %s cannot be deleted yet: %s", entry.id, error.kind)

    async def delete_orphans(self, before_ns: int) -> int:
        """Delete saves that no session refers to, stored before a time in nanoseconds since 1970; return how many."""

        async def find_orphans(names: Sequence[str]) -> list[str]:
            wanted = await self.database.read(rows.list_saves, tuple({name.split("/")[1] for name in names}))
            return [name for name in names if tuple(name.split("/")[1:]) not in wanted]

        return await delete_orphans(self.threads, self.factory, FOLDER, before_ns, find_orphans)

    async def _save(self, entry: SessionEntry, resolved: Resolved, live: LiveInstance) -> None:
        record, save = entry.require_record(), str(uuid.uuid4())
        await self.threads.run(self.factory.save, entry.tenant, resolved, live, session_name(entry.id, save))
        # A commit whose outcome is unknown may have made the row refer to this save. So if the write fails, the save
        # is deleted only after the next successful one.
        entry.stale_saves.add(save)
        await self.write(entry, replace(record, status="saved", save=save, saved_calls=record.calls))
        entry.stale_saves.discard(save)
        if record.save is not None:
            entry.stale_saves.add(record.save)
        await self.delete_stale(entry)
