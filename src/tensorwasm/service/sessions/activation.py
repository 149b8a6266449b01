"""How sessions come into memory: opened, brought back, made anew. Whoever does it holds the session's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tensorwasm.database import sessions as rows
from tensorwasm.database.sessions import SessionRecord
from tensorwasm.errors import BodyTooLarge, Conflict, NotFound, QuotaExceeded, TensorWasmError
from tensorwasm.guest.engine.yielding import be_courteous
from tensorwasm.service.database_port import DatabasePort
from tensorwasm.service.sessions.entry import SessionEntry
from tensorwasm.service.sessions.eviction import InstanceRoom
from tensorwasm.service.sessions.instances import InstanceFactory, require_host_only, session_name
from tensorwasm.service.sessions.leases import Leases
from tensorwasm.service.sessions.persistence import SessionKeeper
from tensorwasm.tenancy.principal import require_owned
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.database import Connection
    from tensorwasm.runtime.snapshots.snapshot import Snapshot
    from tensorwasm.service.functions.resolution import Resolved

MAX_SESSIONS: Final = 10_000
"""Sessions of one tenant, in memory or not."""

GIVEN_BYTES: Final = 1 << 20
"""Longest input and arguments that a session is opened with: they are in its row as long as it lives."""

_Value = TypeVar("_Value")


class Resolver(Protocol):
    """Finds functions; `tensorwasm.service.functions.functions.Functions` is one."""

    async def resolve(self, tenant: int, reference: str) -> Resolved:
        """Return what ``ID``, ``ID@VERSION`` or ``ID@ALIAS`` leads to."""


class Activation:
    """Brings sessions into memory, on threads of its own. Used on one event loop.

    Args:
        desk: of the database.
        functions: finds what sessions run.
        workshop: makes and brings back instances.
        keeper: of rows and saves.
        room: lets them in.
        leases: make them this server's.
        threads: how many instances may be made, brought back or called at a time.
    """

    def __init__(
        self,
        desk: DatabasePort,
        functions: Resolver,
        workshop: InstanceFactory,
        keeper: SessionKeeper,
        room: InstanceRoom,
        leases: Leases,
        threads: int,
    ) -> None:
        """Start nothing yet."""
        self._desk = desk
        self._functions = functions
        self._workshop = workshop
        self._keeper = keeper
        self._room = room
        self._leases = leases
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-session", initializer=be_courteous)

    async def run(self, function: Callable[[], _Value]) -> _Value:
        """Call something that blocks, on one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def resolve(self, tenant: int, reference: str) -> Resolved:
        """Return what a session is to run.

        Raises:
            NotSupported: it is granted CUDA.
            TensorWasmError: what `Functions.resolve` raises.
        """
        resolved = await self._functions.resolve(tenant, reference)
        require_host_only(resolved)
        return resolved

    async def read(self, tenant: int, session_id: str) -> SessionRecord:
        """Return a tenant's session as its row has it.

        Raises:
            NotFound: there is none, or it is another tenant's.
        """
        return require_owned(await self._desk.read(rows.find_session, session_id), tenant, "session")

    async def known(self, seat: SessionEntry) -> SessionRecord:
        """Return what is known of a session, which is this server's: taken now if it was not.

        Raises:
            SessionElsewhere: another server has it.
            TensorWasmError: what `read` raises.
        """
        await self._leases.require()
        if not self._leases.holds(seat):
            await self._room.settle(seat)
        if seat.record is None:
            taken = await self._leases.take(seat, await self.read(seat.tenant, seat.id))
            if taken is None:
                raise NotFound("there is no such session")
            seat.record = taken
        return seat.record

    async def wake(self, seat: SessionEntry, deadline: Deadline) -> None:
        """Bring a session's instance back, unless it is there.

        Raises:
            NotFound: there is no such session, or its function is gone.
            Conflict: it is lost.
            SessionElsewhere: another server has it.
            TensorWasmError: what `InstanceRoom.let_in`, `InstanceFactory.wake` and `InstanceFactory.open` raise.
        """
        record = await self.known(seat)
        if seat.live is not None and seat.resolved is not None:
            await self._room.widen(seat, seat.resolved, deadline)
            return
        if record.status == "lost":
            raise Conflict("the session is lost: it could not be saved when the service ended")
        try:
            resolved = await self.resolve(record.tenant, f"{record.function_id}@{record.version}")
        except NotFound:
            raise NotFound("the session's function is gone") from None
        given = (record.tenant, resolved, record.options)
        make = partial(self._workshop.open, *given, deadline)
        if record.save is not None:
            make = partial(self._workshop.wake, *given, session_name(record.id, record.save), deadline)
        await self._room.let_in(seat, resolved, partial(self.run, make), deadline)

    async def open(
        self,
        seat: SessionEntry,
        record: SessionRecord,
        resolved: Resolved,
        snapshot: Snapshot | None,
        deadline: Deadline,
    ) -> None:
        """Make a session: its instance first, then its row, then its first save if it goes on from a snapshot.

        Raises:
            BodyTooLarge: what it is given is longer than 1 MiB.
            Conflict: there is a session of that ID.
            QuotaExceeded: the tenant has as many as it may.
            TensorWasmError: what making it, its row or its save raises; nothing is left of it then.
        """
        if len(record.options.input) + sum(map(len, record.options.argv or ())) > GIVEN_BYTES:
            raise BodyTooLarge(f"what a session is given has at most {GIVEN_BYTES} bytes")
        await self._desk.read(_require_new, record)
        given = (record.tenant, resolved, record.options)
        make = partial(self._workshop.open, *given, deadline)
        if snapshot is not None:
            make = partial(self._workshop.bring, *given, snapshot, deadline)
        await self._room.let_in(seat, resolved, partial(self.run, make), deadline)
        try:
            await self._leases.require()
            record = self._leases.make(seat, record)
            await self._desk.write(_insert, record)
            seat.record = record
            if snapshot is not None:
                await self._keeper.persist(seat)
        except BaseException:
            await self._withdraw(seat)
            raise
        self._room.narrow(seat)

    def close(self) -> None:
        """Take nothing more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _withdraw(self, seat: SessionEntry) -> None:
        """Take back a session that could not be opened as a whole."""
        record, seat.record = seat.record, None
        await self._room.empty(seat)
        if record is not None:
            with suppress(TensorWasmError):
                await self._desk.write(rows.delete_session, record)
        await self._keeper.drop_stale(seat)


def _require_new(connection: Connection, record: SessionRecord) -> None:
    if rows.find_session(connection, record.id) is not None:
        raise Conflict("there is a session of that ID")
    if rows.count_sessions(connection, record.tenant, MAX_SESSIONS) >= MAX_SESSIONS:
        raise QuotaExceeded(f"the quota of sessions is {MAX_SESSIONS}")


def _insert(connection: Connection, record: SessionRecord) -> None:
    _require_new(connection, record)
    rows.insert_session(connection, record)
