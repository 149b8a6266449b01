"""`Snapshots`: what sessions and fresh instances were, kept by name or handed out, and brought back as sessions.

A snapshot is good for one tenant (its signature says so) and for functions of that tenant's with the same module. What
it was granted counts for nothing: what is restored has what its function has.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, ParamSpec, TypeVar

from tensorwasm.database import snapshots as rows
from tensorwasm.database.sessions import SessionOptions, SessionRecord
from tensorwasm.database.snapshots import SnapshotRecord
from tensorwasm.errors import NotFound, TensorWasmError, WrongModule
from tensorwasm.guest.engine.yielding import be_courteous
from tensorwasm.service.clock import Clock
from tensorwasm.service.database_port import DatabasePort
from tensorwasm.service.functions.resolution import Resolved
from tensorwasm.service.pages import USUAL_PAGE, checked_limit, parse_cursor
from tensorwasm.service.sessions import Session, Sessions
from tensorwasm.service.sessions.activation import Resolver
from tensorwasm.service.sessions.eviction import Hold
from tensorwasm.service.sessions.instances import InstanceFactory, require_host_only
from tensorwasm.service.snapshots.files import Files, OpenedSnapshot
from tensorwasm.tenancy.principal import require_owned
from tensorwasm.values import NEVER, Deadline

FOLDER: Final = "snapshot/"

_THREADS: Final = 4
_TIDIED: Final = 256
_NOTHING: Final = SessionOptions()

_log = logging.getLogger(__name__)
_Params = ParamSpec("_Params")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Captured:
    """An instance as a file.

    Attributes:
        function_id: what it runs.
        data: the file, which stays until nobody has the view.
    """

    function_id: str
    data: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Restored:
    """A session that was made from a file.

    Attributes:
        session: goes on where the saved one was.
        content_bytes: what the file came to uncompressed.
        version: of its format.
    """

    session: Session
    content_bytes: int
    version: int


def snapshot_name(snapshot_id: str) -> str:
    """Return the name that keeps a snapshot."""
    return f"{FOLDER}{snapshot_id}"


class Snapshots:
    """Snapshots of all tenants. For one event loop; nothing here holds it.

    Args:
        desk: of the database.
        functions: finds what snapshots are of.
        sessions: what is saved, and made.
        workshop: makes instances, and keeps saves.
        files: seals and opens them.
        hold: of the tenants' quotas.
        clock: what time it is.
    """

    def __init__(
        self,
        desk: DatabasePort,
        functions: Resolver,
        sessions: Sessions,
        workshop: InstanceFactory,
        files: Files,
        hold: Hold,
        clock: Clock | None = None,
    ) -> None:
        """Start nothing yet."""
        self._desk = desk
        self._functions = functions
        self._sessions = sessions
        self._workshop = workshop
        self._files = files
        self._hold = hold
        self._clock = clock or Clock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tensorwasm-snapshot", initializer=be_courteous)

    # ---------------------------------------------------------------- kept

    async def save(self, tenant: int, session_id: str, deadline: Deadline = NEVER) -> SnapshotRecord:
        """Save a session now, and keep what was saved.

        Args:
            tenant: whose it is.
            session_id: which; of one that is lost it is what was saved last.
            deadline: when its turn must have come.

        Raises:
            NotFound: there is no such session, or it is another tenant's.
            NotCapturable: it holds what cannot be saved.
            QuotaExceeded: the tenant has no room for it.
            TensorWasmError: what else `Sessions.save` raises.
        """
        snapshot_id = str(uuid.uuid4())

        def copy(record: SessionRecord, name: str) -> SnapshotRecord:
            saved = self._workshop.copy(tenant, name, snapshot_name(snapshot_id))
            return SnapshotRecord(
                id=snapshot_id,
                tenant=tenant,
                function_id=record.function_id,
                version=record.version,
                session_id=record.id,
                content_hash=saved.content_hash,
                size_bytes=saved.size_bytes,
                created_unix_ms=self._clock.unix_ms(),
            )

        kept = await self._sessions.save(tenant, session_id, copy, deadline)
        await self._desk.write(rows.insert_snapshot, kept)
        return kept

    async def get(self, tenant: int, snapshot_id: str) -> SnapshotRecord:
        """Return a snapshot.

        Raises:
            NotFound: there is none, or it is another tenant's.
        """
        return require_owned(await self._desk.read(rows.find_snapshot, snapshot_id), tenant, "snapshot")

    async def list(self, tenant: int, after: str | None = None, limit: int = USUAL_PAGE) -> tuple[SnapshotRecord, ...]:
        """Return a tenant's snapshots, oldest first.

        Raises:
            InvalidRequest: ``after`` is no cursor, or the limit is not 1 to 1000.
        """
        return await self._desk.read(rows.list_snapshots, tenant, parse_cursor(after), checked_limit(limit))

    async def delete(self, tenant: int, snapshot_id: str) -> None:
        """Take a snapshot away; sessions that were made from it stay.

        Raises:
            NotFound: there is none, or it is another tenant's.
            DatabaseUnavailable: it is still there.
        """
        await self.get(tenant, snapshot_id)
        if not await self._desk.write(rows.delete_snapshot, snapshot_id):
            raise NotFound("there is no such snapshot")
        try:
            await self._run(self._workshop.drop, tenant, [snapshot_name(snapshot_id)])
        except TensorWasmError as error:
            _log.warning("the file of snapshot %s stays for now: %s", snapshot_id, error.kind)

    async def content(self, tenant: int, snapshot_id: str) -> memoryview:
        """Return a snapshot's file, which stays until nobody has the view.

        Raises:
            NotFound: there is no such snapshot, or it is another tenant's.
            ArtifactCorrupt: its file is damaged.
        """
        await self.get(tenant, snapshot_id)
        return await self._run(self._files.fetch, tenant, snapshot_name(snapshot_id))

    async def restore(self, tenant: int, snapshot_id: str, *, deadline: Deadline = NEVER) -> Restored:
        """Make a session that goes on where a snapshot was, in the same version of its function.

        Raises:
            NotFound: there is no such snapshot, or its function is gone, or it is another tenant's.
            SnapshotKeyMissing: its file is under a key that is not here.
            ArtifactCorrupt: its file is damaged.
            TensorWasmError: what `Sessions.open` raises.
        """
        record = await self.get(tenant, snapshot_id)
        data = await self._run(self._files.fetch, tenant, snapshot_name(snapshot_id))
        opened = await self._run(self._files.reopen, tenant, data)
        return await self._bring(tenant, f"{record.function_id}@{record.version}", opened, None, deadline)

    # ---------------------------------------------------------------- handed out, and brought

    async def capture_session(
        self, tenant: int, session_id: str, *, client_key: bytes = b"", deadline: Deadline = NEVER
    ) -> Captured:
        """Save a session now, and return what was saved as a file.

        Args:
            tenant: whose it is.
            session_id: which.
            client_key: without which nobody restores it, 32 bytes; empty for none.
            deadline: when its turn must have come.

        Raises:
            TensorWasmError: what `save` raises.
        """

        def fetch(record: SessionRecord, name: str) -> Captured:
            return Captured(record.function_id, self._files.fetch(tenant, name, client_key))

        return await self._sessions.save(tenant, session_id, fetch, deadline)

    async def capture_fresh(
        self, tenant: int, reference: str, *, client_key: bytes = b"", deadline: Deadline = NEVER
    ) -> Captured:
        """Return a new instance of a function as a file, once its start function has run; nothing of it stays.

        Raises:
            NotFound: there is no such function, or it is another tenant's.
            NotSupported: it is granted CUDA.
            NotCapturable: its instances cannot be saved.
            TensorWasmError: what starting it raises.
        """
        resolved = await self._functions.resolve(tenant, reference)
        require_host_only(resolved)
        with self._hold(tenant, resolved.limits.memory_bytes):
            return await self._run(self._capture_fresh, tenant, resolved, client_key, deadline)

    async def bring(
        self,
        tenant: int,
        data: memoryview,
        *,
        reference: str | None = None,
        client_key: bytes = b"",
        session_id: str | None = None,
        deadline: Deadline = NEVER,
    ) -> Restored:
        """Make a session that goes on where a file that somebody brought was saved.

        Args:
            tenant: for whom.
            data: the file.
            reference: the function that it is of; None takes the tenant's newest version with its module.
            client_key: with which it was saved, 32 bytes; empty for none.
            session_id: a UUID that was never used, None for one that is made now.
            deadline: when it must be ready.

        Raises:
            SignatureInvalid: this service did not sign it for this tenant, with this key, or it is damaged.
            TooLarge: it has more content than may be brought.
            NotFound: the tenant has no function with its module.
            WrongModule: that function has another one.
            TensorWasmError: what `Sessions.open` raises.
        """
        opened = await self._run(self._files.open, tenant, data, client_key)
        return await self._bring(tenant, reference, opened, session_id, deadline)

    async def tidy(self, before_ns: int) -> int:
        """Take away files that no snapshot's row leads to, and return how many.

        Args:
            before_ns: only those put before this time, in nanoseconds since 1970: others may be about to get a row.

        Raises:
            TensorWasmError: the store or the database does not answer.
        """
        count = 0
        for tenant in await self._run(self._workshop.tenants):
            names = await self._run(self._workshop.names, tenant, FOLDER, before_ns)
            for start in range(0, len(names), _TIDIED):
                ids = tuple(name.removeprefix(FOLDER) for name in names[start : start + _TIDIED])
                gone = set(ids) - await self._desk.read(rows.existing_snapshots, ids)
                await self._run(self._workshop.drop, int(tenant), [snapshot_name(each) for each in gone])
                count += len(gone)
        return count

    def close(self) -> None:
        """Take nothing more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---------------------------------------------------------------- the rest

    async def _bring(
        self, tenant: int, reference: str | None, opened: OpenedSnapshot, session_id: str | None, deadline: Deadline
    ) -> Restored:
        with opened.snapshot as snapshot:
            found = reference or await self._find_running(tenant, opened.module_hash)
            resolved = await self._functions.resolve(tenant, found)
            if resolved.version.module != opened.module_hash:
                raise WrongModule("the function has another module than the snapshot")
            exact = f"{resolved.version.function_id}@{resolved.version.number}"
            session = await self._sessions.open(
                tenant, exact, _NOTHING, deadline=deadline, snapshot=snapshot, session_id=session_id
            )
        return Restored(session, opened.content_bytes, opened.version)

    async def _find_running(self, tenant: int, module_hash: bytes) -> str:
        found = await self._desk.read(rows.find_version_of_module, tenant, module_hash)
        if found is None:
            raise NotFound("no function of this tenant has the snapshot's module")
        return f"{found[0]}@{found[1]}"

    def _capture_fresh(self, tenant: int, resolved: Resolved, client_key: bytes, deadline: Deadline) -> Captured:
        live = self._workshop.open(tenant, resolved, _NOTHING, deadline)
        try:
            return Captured(resolved.version.function_id, self._files.seal(tenant, live, client_key))
        finally:
            live.close()

    async def _run(self, function: Callable[_Params, _Value], *args: _Params.args, **kwargs: _Params.kwargs) -> _Value:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))
