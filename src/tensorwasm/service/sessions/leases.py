"""`Leases`: this server's right to its sessions, where other servers share the database.

The right is one lease of the whole server, renewed while it lives, and an epoch in the row of each session that it
took. The lease says when others may take its sessions; that they did shows in the epoch, which every write of a row
compares. A server that is the only one of its database needs neither, and asks the database for nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tensorwasm.database import servers as rows
from tensorwasm.database import sessions as records
from tensorwasm.database.servers import ServerRecord
from tensorwasm.database.sessions import SessionRecord
from tensorwasm.errors import SessionElsewhere, TensorWasmError
from tensorwasm.service.sessions.entry import SessionEntry

if TYPE_CHECKING:
    from tensorwasm.service.database_port import DatabasePort

RENEWALS: Final = 5
"""Times that a lease is renewed while it would last."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a server shares its database with others.

    Attributes:
        server: this one.
        before: UUID of the process whose place this one takes, which is known to have ended; empty if there is none.
        lease_s: how long a server that is not heard of keeps its sessions.
    """

    server: ServerRecord
    before: str = ""
    lease_s: float = 15.0


class Leases:
    """See the module. Used on one event loop.

    Args:
        desk: of the database.
        sharing: None where no other server can have the database.
        monotonic_s: the clock that tells how long a lease still lasts.
        lost: called when it is found that others may have taken every session of this server.
    """

    def __init__(
        self, desk: DatabasePort, sharing: Sharing | None, monotonic_s: Callable[[], float], lost: Callable[[], None]
    ) -> None:
        """Ask nothing yet."""
        self._desk = desk
        self._sharing = sharing
        self._monotonic_s = monotonic_s
        self._lost = lost
        self._until_s = float("-inf")
        self._turn = asyncio.Lock()
        self._kept: list[SessionRecord] = []  # to be released, which could not be done at once
        self.term = 0
        """How many times this server has lost all its sessions."""

    @property
    def pause_s(self) -> float | None:
        """Seconds between two renewals; None where nothing is to be renewed."""
        return None if self._sharing is None else self._sharing.lease_s / RENEWALS

    async def begin(self) -> None:
        """Take sessions back to their last saves that no living server has, and begin to hold some.

        Raises:
            DatabaseUnavailable: it does not answer.
        """
        if self._sharing is None:
            await self._desk.write(records.rewind_all_sessions)
            return
        if self._sharing.before:
            await self._desk.write(rows.remove_server, self._sharing.before)
        await self._join()

    async def require(self) -> None:
        """Return once it is sure that no other server could take a session until now: at once, as a rule.

        Raises:
            DatabaseUnavailable: that cannot be known.
        """
        if self._sharing is None or self._monotonic_s() < self._until_s:
            return
        async with self._turn:
            if self._monotonic_s() >= self._until_s:
                await self._renew(self._sharing)

    async def renew(self) -> None:
        """Renew the lease, release what could not be released, and have the sessions of dead servers go on elsewhere.

        Raises:
            DatabaseUnavailable: it does not answer.
        """
        if self._sharing is None:
            return
        async with self._turn:
            await self._renew(self._sharing)
        await self._desk.write(rows.remove_dead_servers)
        while self._kept:
            await self._desk.write(rows.release_session, self._kept[-1])
            self._kept.pop()

    async def take(self, seat: SessionEntry, record: SessionRecord) -> SessionRecord | None:
        """Return a session's row, which is this server's to write from now on; None if there is none any more.

        Args:
            seat: the session.
            record: its row as it was read.

        Raises:
            SessionElsewhere: another server has it.
            DatabaseUnavailable: it does not answer.
        """
        seat.term = self.term
        if self._sharing is None:
            return record
        return await self._desk.write(rows.take_session, record.id, self._sharing.server.id)

    def make(self, seat: SessionEntry, record: SessionRecord) -> SessionRecord:
        """Return the row of a session that is made here, and this server's."""
        seat.term = self.term
        return record if self._sharing is None else replace(record, owner=self._sharing.server.id, epoch=1)

    def holds(self, seat: SessionEntry) -> bool:
        """Return whether what is known of a session still counts, as far as this server has heard."""
        return seat.record is None or seat.term == self.term

    async def refuse(self, seat: SessionEntry) -> None:
        """Find out why a session's row was not written.

        Raises:
            SessionElsewhere: another server took it; what is known of it here no longer counts.
            DatabaseUnavailable: the database does not answer.
        """
        if self._sharing is None:
            return
        name = await self._desk.read(rows.session_holder, seat.id)
        if name is not None:
            seat.term = -1
            raise SessionElsewhere(name)

    async def release(self, seat: SessionEntry) -> None:
        """Let others have a session that is not in memory; what fails is done later."""
        if self._sharing is None or seat.record is None:
            return
        record, seat.record = seat.record, None
        try:
            await self._desk.write(rows.release_session, record)
        except TensorWasmError as error:
            _log.warning("session %s is kept from other servers for now: %s", seat.id, error.kind)
            self._kept.append(record)

    async def end(self) -> None:
        """Let others have every session of this server at once; what is not saved of them is taken back.

        Raises:
            DatabaseUnavailable: it does not answer: others have them when the lease runs out.
        """
        if self._sharing is not None:
            await self._desk.write(rows.remove_server, self._sharing.server.id)

    async def _renew(self, sharing: Sharing) -> None:
        until_s = self._monotonic_s() + sharing.lease_s
        if await self._desk.write(rows.renew_server, sharing.server.id, round(sharing.lease_s * 1000)):
            self._until_s = until_s
            return
        _log.error("this server was not heard of for %g s, and has lost its sessions", sharing.lease_s)
        self.term += 1
        self._lost()
        await self._join()

    async def _join(self) -> None:
        assert self._sharing is not None  # noqa: S101 - its callers know
        until_s = self._monotonic_s() + self._sharing.lease_s
        lease_ms = round(self._sharing.lease_s * 1000)
        await self._desk.write(rows.join_servers, self._sharing.server, lease_ms)
        self._until_s = until_s
