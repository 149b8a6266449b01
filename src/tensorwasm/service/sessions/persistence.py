"""Saving: the store gets the state first, then the row says so, then the save before goes.

A row leads to a save that is whole at every moment: whoever dies between two steps leaves a name that no row leads to,
which is found later.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from tensorwasm.database import sessions as rows
from tensorwasm.database.sessions import SessionRecord
from tensorwasm.errors import NotCapturable, NotFound, SessionElsewhere, TensorWasmError
from tensorwasm.guest.engine.yielding import be_courteous
from tensorwasm.service.database_port import DatabasePort
from tensorwasm.service.sessions.entry import SessionEntry
from tensorwasm.service.sessions.instances import FOLDER, InstanceFactory, Live, session_name
from tensorwasm.service.sessions.leases import Leases

if TYPE_CHECKING:
    from tensorwasm.service.functions.resolution import Resolved

_Params = ParamSpec("_Params")
_Value = TypeVar("_Value")

_log = logging.getLogger(__name__)
_TIDIED: Final = 256
"""Names that are looked up in the database at a time."""


class SessionKeeper:
    """Keeps sessions' rows and saves. Used on one event loop.

    Args:
        desk: the database.
        workshop: saves.
        leases: say whether a row is this server's to write.
        threads: how many saves may be made at a time.
    """

    def __init__(self, desk: DatabasePort, workshop: InstanceFactory, leases: Leases, threads: int) -> None:
        """Start nothing yet."""
        self.desk = desk
        self._leases = leases
        self._workshop = workshop
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tensorwasm-save", initializer=be_courteous)

    async def run(self, function: Callable[_Params, _Value], *args: _Params.args, **kwargs: _Params.kwargs) -> _Value:
        """Call something that blocks, on one of the threads that save."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))

    async def mark(self, seat: SessionEntry) -> None:
        """Let the row say that there will be something to save, before a guest is called.

        Raises:
            NotFound: the row is gone.
            SessionElsewhere: another server took it.
            DatabaseUnavailable: it cannot be written.
        """
        if not seat.dirty:
            await self._write(seat, replace(seat.known(), status="live"))

    async def persist(self, seat: SessionEntry) -> None:
        """Save an instance, unless all that it is is saved. It stays as it is, whatever comes of it.

        Raises:
            NotCapturable: it holds what cannot be saved; its row says so from now on.
            NotFound: the row is gone.
            SessionElsewhere: another server took it.
            TensorWasmError: what `InstanceFactory.save` raises, or the database.
        """
        if not self._leases.holds(seat):
            raise SessionElsewhere("")
        if seat.live is None or seat.resolved is None or (not seat.dirty and seat.known().save is not None):
            return
        try:
            await self._save(seat, seat.resolved, seat.live)
            seat.save_error = ""
        except TensorWasmError as error:
            seat.save_error = error.kind
            if isinstance(error, NotCapturable):
                seat.stuck = True
                if seat.dirty and seat.known().status != "volatile":
                    await self._write(seat, replace(seat.known(), status="volatile"))
            raise

    async def drop_stale(self, seat: SessionEntry) -> None:
        """Take away the saves that no row leads to. What fails is logged, and done later."""
        names = {save: session_name(seat.id, save) for save in seat.stale}
        if not names:
            return
        try:
            await self.run(self._workshop.drop, seat.tenant, list(names.values()))
            seat.stale -= names.keys()
        except TensorWasmError as error:
            _log.warning("saves of session %s stay for now: %s", seat.id, error.kind)

    async def lose(self, seat: SessionEntry) -> None:
        """Let the row say that what was not saved is lost for good."""
        await self._write(seat, replace(seat.known(), status="lost"))

    async def tidy(self, before_ns: int) -> int:
        """Take away saves that no session leads to, and return how many.

        Args:
            before_ns: only those put before this time, in nanoseconds since 1970: others may be about to get a row.

        Raises:
            TensorWasmError: the store or the database does not answer.
        """
        count = 0
        for tenant in await self.run(self._workshop.tenants):
            names = await self.run(self._workshop.names, tenant, FOLDER, before_ns)
            for start in range(0, len(names), _TIDIED):
                part = {tuple(name.split("/")[1:]): name for name in names[start : start + _TIDIED]}
                wanted = await self.desk.read(rows.list_saves, tuple({key[0] for key in part}))
                gone = [name for key, name in part.items() if key not in wanted]
                await self.run(self._workshop.drop, int(tenant), gone)
                count += len(gone)
        return count

    def close(self) -> None:
        """Take nothing more; what is being saved ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _save(self, seat: SessionEntry, resolved: Resolved, live: Live) -> None:
        record, save = seat.known(), str(uuid.uuid4())
        await self.run(self._workshop.save, seat.tenant, resolved, live, session_name(seat.id, save))
        # Until the row is known to lead there, nobody knows whether it does: where a database broke off a commit,
        # this save may be the one that counts. So it is dropped with the next one's success, not here.
        seat.stale.add(save)
        await self._write(seat, replace(record, status="saved", save=save, saved_calls=record.calls))
        seat.stale.discard(save)
        if record.save is not None:
            seat.stale.add(record.save)
        await self.drop_stale(seat)

    async def _write(self, seat: SessionEntry, changed: SessionRecord) -> None:
        if not await self.desk.write(rows.write_session, changed):
            await self._leases.refuse(seat)
            raise NotFound("there is no such session")
        seat.record = changed
