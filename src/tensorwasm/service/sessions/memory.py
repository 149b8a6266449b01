"""`InstanceMemory`: charges for instances and evicts idle ones; `Activation`: loads and creates sessions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tensorwasm.database import Connection
from tensorwasm.database import sessions as rows
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    Conflict,
    NotCapturable,
    NotFound,
    QuotaExceeded,
    SessionElsewhere,
    TensorWasmError,
)
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.sessions.entries import OperationQueue, SessionEntry
from tensorwasm.service.sessions.instances import GuestThreads, InstanceFactory, require_host_only, session_name
from tensorwasm.service.sessions.persistence import Leases, SessionPersistence
from tensorwasm.tenancy.principal import require_owned
from tensorwasm.tenancy.quotas import QuotaHold
from tensorwasm.values import Deadline

EVICTIONS: Final = 8
"""Sessions that are evicted to load one, before that one is refused."""

MAX_SESSIONS: Final = 10_000
"""Sessions of one tenant, in memory or not."""

GIVEN_BYTES: Final = 1 << 20
"""Maximum length of a session's input and arguments, which are in its row as long as it exists."""

_log = logging.getLogger(__name__)


class Hold(Protocol):
    """Charges a tenant's quotas."""

    def __call__(self, tenant: int, memory_bytes: int, instances: int = 1) -> QuotaHold:
        """Return a charge that lasts until it is released.

        Raises:
            QuotaExceeded: the tenant's quota is used up.
            CapacityExhausted: the capacity for all tenants is used up.
        """


class RunningGuests(Protocol):
    """All guests that hold memory, of sessions and of other calls, which wait for each other's memory."""

    def freed(self, tenant: int, memory_bytes: int, deadline: Deadline) -> AbstractAsyncContextManager[None]:
        """Wait until a tenant may hold so many bytes, which must be charged inside the context before any await.

        Raises:
            LimitError: no running guest will free any, or it took too long.
            InvokeTimeout: the deadline passed.
        """

    def begin(self, tenant: int) -> None:
        """Count a session that is charged for what it may grow to, and will be charged for less."""

    def end(self, tenant: int) -> None:
        """Stop counting it."""


class Resolver(Protocol):
    """Finds functions; `tensorwasm.service.functions.functions.Functions` implements it."""

    async def resolve(self, tenant: int, reference: str) -> Resolved:
        """Return the version that ``ID``, ``ID@VERSION`` or ``ID@ALIAS`` refers to."""


@dataclass(slots=True, eq=False)
class InstanceMemory:
    """Instances in memory, at most so many. Used on one event loop.

    Memory is charged to the tenant's quotas: for a session that is loaded or called, what its instance may grow to, as
    guests grow without asking; for others, what it uses. Where a limit refuses a charge, the least recently used idle
    session is evicted: the tenant's for a tenant's quota, else any. Where none can be, running guests are waited for.
    """

    persistence: SessionPersistence
    leases: Leases
    hold: Hold
    guests: RunningGuests | None
    most: int
    queue: OperationQueue
    loading: int = 0

    async def load(
        self, entry: SessionEntry, resolved: Resolved, make: Callable[[], Awaitable[LiveInstance]], deadline: Deadline
    ) -> None:
        """Make a session's instance, and charge for what it may grow to; raises as ``make``.

        Raises:
            QuotaExceeded: the tenant's quota is used up, and nothing can be evicted or ended in time.
            CapacityExhausted: likewise the capacity for all tenants.
        """
        load = partial(self._load, entry, resolved, make)
        await self._evict_until_done(entry, load, resolved.limits.memory_bytes, deadline)

    async def reserve_growth(self, entry: SessionEntry, resolved: Resolved, deadline: Deadline) -> None:
        """Charge for what an instance in memory may grow to, before a call; raises as `load`."""
        if entry.quota is None:
            return
        quota = entry.quota

        async def reserve() -> None:
            if (more_bytes := resolved.limits.memory_bytes - quota.memory_bytes) > 0:
                quota.add(self.hold(entry.tenant, more_bytes, 0))
            self._set_reserved(entry, reserved=True)

        await self._evict_until_done(entry, reserve, resolved.limits.memory_bytes - quota.memory_bytes, deadline)

    def release_growth(self, entry: SessionEntry) -> None:
        """Charge an instance that is not called any more for the memory that it uses."""
        if entry.live is not None and entry.quota is not None and (used := entry.live.statistics().memory_bytes):
            entry.quota.keep(used)
        self._set_reserved(entry, reserved=False)

    async def unload(self, entry: SessionEntry) -> None:
        """Save and free an instance; it stays in memory if saving fails. Call with the entry's lock."""
        if entry.require_record().status != "fresh":  # a fresh one is made anew
            await self.persistence.persist(entry)
        await self.free(entry)

    async def free(self, entry: SessionEntry) -> None:
        """Free an instance without saving it; call with the entry's lock."""
        live, entry.live, entry.resolved = entry.live, None, None
        quota, entry.quota = entry.quota, None
        with quota or nullcontext():
            if live is not None:
                await self.persistence.threads.run(live.close)
        self._set_reserved(entry, reserved=False)

    async def end_operation(self, entry: SessionEntry) -> None:
        """Free an outdated instance, release a session that is not in memory, and release reserved memory.

        Call at the end of each operation, with the entry's lock.
        """
        if entry.record is not None and not self.leases.holds(entry):
            # Whether the row refers to one of these saves is unknown: `SessionPersistence.delete_orphans` finds out.
            entry.record = None
            entry.stale_saves.clear()
        if entry.record is None and entry.live is not None:
            await self.free(entry)
        elif entry.live is None:
            await self.leases.release(entry)
        if entry.reserved:
            self.release_growth(entry)

    async def evict(self, entry: SessionEntry) -> bool:
        """Unload an idle session; return whether it left memory. Errors are logged."""
        if not entry.idle or (entry.unsavable and self.leases.holds(entry)):
            return False
        entry.operations += 1
        try:
            async with entry.lock:
                try:
                    await self.unload(entry)
                finally:
                    await self.end_operation(entry)
        except SessionElsewhere:
            _log.info("session %s was taken by another server", entry.id)
        except NotCapturable as error:
            _log.info("session %s stays in memory: %s", entry.id, error.kind)
        except TensorWasmError as error:
            _log.warning("session %s could not be saved, and stays in memory: %s", entry.id, error.kind)
        finally:
            self.queue.release(entry)
        return entry.live is None

    async def evict_one(self, tenant: int | None) -> bool:
        """Evict the least recently used idle session, of one tenant or of any for None; return whether one left.

        Those whose last save failed come last: else a tenant whose quota for saves is used up would keep the memory.
        """
        for each in sorted(self._evictable(tenant), key=lambda each: (bool(each.save_error), each.used_ns))[:EVICTIONS]:
            if await self.evict(each):
                return True
        return False

    def any_idle(self, tenant: int | None) -> bool:
        """Return whether `evict_one` has a candidate."""
        return next(self._evictable(tenant), None) is not None

    def _evictable(self, tenant: int | None) -> Iterator[SessionEntry]:
        for each in self.queue.entries():
            if each.idle and not each.unsavable and (tenant is None or each.tenant == tenant):
                yield each

    def _set_reserved(self, entry: SessionEntry, *, reserved: bool) -> None:
        if entry.reserved != reserved:
            entry.reserved = reserved
            if self.guests is not None:
                count = self.guests.begin if reserved else self.guests.end
                count(entry.tenant)

    async def _evict_until_done(
        self, entry: SessionEntry, work: Callable[[], Awaitable[None]], more_bytes: int, deadline: Deadline
    ) -> None:
        """Do work that charges memory before its first await; while a limit refuses it, evict or wait for guests."""
        for left in reversed(range(EVICTIONS + 1)):
            try:
                return await work()
            except (CapacityExhausted, QuotaExceeded) as refused:
                if left and await self.evict_one(entry.tenant if isinstance(refused, QuotaExceeded) else None):
                    continue
                if self.guests is None or more_bytes <= 0:
                    raise
                freed = self.guests.freed(entry.tenant, more_bytes, deadline)
                break
        async with freed:
            return await work()

    async def _load(self, entry: SessionEntry, resolved: Resolved, make: Callable[[], Awaitable[LiveInstance]]) -> None:
        if self.loading + sum(each.live is not None for each in self.queue.entries()) >= self.most:
            raise CapacityExhausted(f"{self.most} sessions are in memory, and none of them can leave")
        self.loading += 1
        try:
            with ExitStack() as undo:
                undo.callback(self._set_reserved, entry, reserved=False)
                quota = undo.enter_context(self.hold(entry.tenant, resolved.limits.memory_bytes))
                self._set_reserved(entry, reserved=True)
                entry.live = await make()
                entry.resolved, entry.quota = resolved, quota
                undo.pop_all()
        finally:
            self.loading -= 1


@dataclass(frozen=True, slots=True, eq=False)
class Activation:
    """Brings sessions into memory; call with the session's lock. Used on one event loop."""

    database: DatabaseExecutor
    functions: Resolver
    factory: InstanceFactory
    persistence: SessionPersistence
    memory: InstanceMemory
    leases: Leases
    threads: GuestThreads

    async def resolve(self, tenant: int, reference: str) -> Resolved:
        """Return the version that a session is to run; raises as `Resolver.resolve` and `require_host_only`."""
        resolved = await self.functions.resolve(tenant, reference)
        require_host_only(resolved)
        return resolved

    async def read(self, tenant: int, session_id: str) -> rows.SessionRecord:
        """Return a session's row; NotFound if there is none, or it is another tenant's."""
        return require_owned(await self.database.read(rows.find_session, session_id), tenant, "session")

    async def acquire(self, entry: SessionEntry) -> rows.SessionRecord:
        """Return the row of a session, acquired by this server if it was not; raises as `read` and `Leases.acquire`."""
        await self.leases.require()
        if not self.leases.holds(entry):
            await self.memory.end_operation(entry)
        if entry.record is None:
            record = await self.leases.acquire(entry, await self.read(entry.tenant, entry.id))
            if record is None:
                raise NotFound("there is no such session")
            entry.record = record
        return entry.record

    async def ensure_loaded(self, entry: SessionEntry, deadline: Deadline) -> None:
        """Load a session's instance unless it is in memory; raises as `acquire` and `InstanceMemory.load`.

        Raises:
            NotFound: there is no such session, or its function is gone.
            Conflict: it is lost.
        """
        record = await self.acquire(entry)
        if entry.live is not None and entry.resolved is not None:
            await self.memory.reserve_growth(entry, entry.resolved, deadline)
            return
        if record.status == "lost":
            raise Conflict("the session is lost: it could not be saved when the service ended")
        try:
            resolved = await self.resolve(record.tenant, f"{record.function_id}@{record.version}")
        except NotFound:
            raise NotFound("the session's function is gone") from None
        given = (record.tenant, resolved, record.options)
        make = partial(self.threads.run, self.factory.open, *given, deadline)
        if record.save is not None:
            make = partial(self.threads.run, self.factory.load, *given, session_name(record.id, record.save), deadline)
        await self.memory.load(entry, resolved, make, deadline)

    async def create(
        self,
        entry: SessionEntry,
        record: rows.SessionRecord,
        resolved: Resolved,
        snapshot: Snapshot | None,
        deadline: Deadline,
    ) -> None:
        """Create a session: first its instance, then its row, then its save if it is restored from a snapshot.

        If a step fails nothing is left of it. Raises as `InstanceMemory.load` and `SessionPersistence.persist`.

        Raises:
            BodyTooLarge: its input and arguments are longer than 1 MiB.
            Conflict: there is a session with that ID.
            QuotaExceeded: the tenant has `MAX_SESSIONS`.
        """
        if len(record.options.input) + sum(map(len, record.options.argv or ())) > GIVEN_BYTES:
            raise BodyTooLarge(f"what a session is given has at most {GIVEN_BYTES} bytes")
        await self.database.read(_require_new, record)
        given = (record.tenant, resolved, record.options)
        make = partial(self.threads.run, self.factory.open, *given, deadline)
        if snapshot is not None:
            make = partial(self.threads.run, self.factory.restore, *given, snapshot, deadline)
        await self.memory.load(entry, resolved, make, deadline)
        try:
            await self.leases.require()
            record = self.leases.own_new(entry, record)
            await self.database.write(_insert, record)
            entry.record = record
            if snapshot is not None:
                await self.persistence.persist(entry)
        except BaseException:
            await self._undo_create(entry)
            raise
        self.memory.release_growth(entry)

    async def _undo_create(self, entry: SessionEntry) -> None:
        record, entry.record = entry.record, None
        await self.memory.free(entry)
        if record is not None:
            with suppress(TensorWasmError):
                await self.database.write(rows.delete_session, record)
        await self.persistence.delete_stale(entry)


def _require_new(connection: Connection, record: rows.SessionRecord) -> None:
    if rows.find_session(connection, record.id) is not None:
        raise Conflict("there is a session of that ID")
    if rows.count_sessions(connection, record.tenant, MAX_SESSIONS) >= MAX_SESSIONS:
        raise QuotaExceeded(f"the quota of sessions is {MAX_SESSIONS}")


def _insert(connection: Connection, record: rows.SessionRecord) -> None:
    _require_new(connection, record)
    rows.insert_session(connection, record)
