"""`Snapshots`: states of sessions and of new instances, stored or handed out as files, and restored as sessions.

A snapshot belongs to one tenant, by its signature, and fits that tenant's functions with the same module. The grants of
a restored session are those of its function, whatever the snapshot's instance had.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.private_files import map_scratch, scratch
from tensorwasm.artifacts.sealed.header import HEADER_BYTES, VERSION, read_header
from tensorwasm.artifacts.sealed.writer import DEFAULT
from tensorwasm.artifacts.snapshot.file import renew_snapshot
from tensorwasm.artifacts.store import ContentStore, TenantView
from tensorwasm.database import snapshots as rows
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.sessions import SessionOptions, SessionRecord
from tensorwasm.errors import (
    InvalidSnapshot,
    NotFound,
    SealRefused,
    SignatureInvalid,
    TensorWasmError,
    TooLarge,
    WrongModule,
)
from tensorwasm.runtime.snapshots import archive, stored
from tensorwasm.runtime.snapshots.live import LiveInstance
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.pages import DEFAULT_PAGE, checked_limit, parse_cursor
from tensorwasm.service.sessions.entries import SessionInfo
from tensorwasm.service.sessions.instances import (
    GuestThreads,
    InstanceFactory,
    delete_orphans,
    reading_saved_state,
    require_host_only,
)
from tensorwasm.service.sessions.memory import Hold, Resolver
from tensorwasm.service.sessions.sessions import Sessions
from tensorwasm.service.snapshot_keys import SnapshotKeys
from tensorwasm.tenancy.principal import require_owned
from tensorwasm.values import MIB, NEVER, Deadline

FOLDER: Final = "snapshot/"

MAX_CONTENT_BYTES: Final = 256 * MIB
"""Maximum length of a file's uncompressed content."""

_THREADS: Final = 4
_NO_OPTIONS: Final = SessionOptions()

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Captured:
    """An instance as a file, which is freed with the view."""

    function_id: str
    data: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Restored:
    """A session that was restored from a file of a format version, with the length of its uncompressed content."""

    session: SessionInfo
    content_bytes: int
    version: int


def snapshot_name(snapshot_id: str) -> str:
    """Return the artifact name of a snapshot."""
    return f"{FOLDER}{snapshot_id}"


@dataclass(frozen=True, slots=True)
class OpenedSnapshot:
    """A verified file that was read into memory; close the snapshot when done. ``module_hash`` has 32 bytes."""

    snapshot: Snapshot = field(repr=False)
    module_hash: bytes
    content_bytes: int
    version: int = VERSION


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotFiles:
    """Seals and opens files. Thread-safe; every method blocks."""

    store: ContentStore
    keys: SnapshotKeys
    max_content_bytes: int = MAX_CONTENT_BYTES

    def fetch(self, tenant: int, name: str, client_key: bytes = b"") -> memoryview:
        """Return a stored file, signed with the client's key too if there is one; raises as `reading_saved_state`."""
        with reading_saved_state():
            data = stored.fetch_snapshot(TenantView(self.store, str(tenant)), name).files[0]
            if not client_key:
                return data
            own, both = self.keys.ring(tenant), self.keys.ring(tenant, client_key)
            ring = KeyRing.of(both.require_signer(), own.require_signer(), ciphers=own.ciphers.values())
            renewed = renew_snapshot(data, ring)
            return data if renewed is None else renewed

    def open_stored(self, tenant: int, data: memoryview) -> OpenedSnapshot:
        """Verify and read what `fetch` returned; raises as `reading_saved_state`, and `TooLarge`."""
        with reading_saved_state():
            return self._open(data, self.keys.ring(tenant))

    def seal(self, tenant: int, live: LiveInstance, client_key: bytes = b"") -> memoryview:
        """Return an instance as a file, which is freed with the view.

        Raises:
            NotCapturable: it holds what cannot be saved.
            StoreUnavailable: there is no room for a file.
        """
        ring = self.keys.ring(tenant, client_key)
        with scratch() as file:
            archive.write_live(live, file, ring, (), DEFAULT, None)
            return map_scratch(file)

    def open_upload(self, tenant: int, data: memoryview, client_key: bytes = b"") -> OpenedSnapshot:
        """Verify and read an uploaded file. The client gets one error for everything wrong with it; the log says more.

        Raises:
            SignatureInvalid: it was not signed here, for this tenant and with this key, or it is damaged.
            TooLarge: it is signed, and its content is longer than the maximum.
            CapacityExhausted: the system has no memory for it.
        """
        try:
            return self._open(data, self.keys.ring(tenant, client_key))
        except (SealRefused, InvalidSnapshot) as error:
            _log.warning("a snapshot that tenant %d brought is refused: %s: %s", tenant, error.kind, error.message)
            raise SignatureInvalid("this is no snapshot that was signed here for this tenant, or not whole") from None

    def _open(self, data: memoryview, ring: KeyRing) -> OpenedSnapshot:
        header = read_header(bytes(data[:HEADER_BYTES]), ring)
        if header.content_bytes > self.max_content_bytes:
            raise TooLarge(header.content_bytes, self.max_content_bytes)
        with archive.open_file(data, ring, (), header.module_hash) as file:
            if file.instance.parent is not None:
                raise InvalidSnapshot("it adds to another one")
        return OpenedSnapshot(archive.read_file(data, ring), header.module_hash, header.content_bytes)


@dataclass(slots=True, eq=False)
class Snapshots:
    """Snapshots of all tenants, for one event loop, which is never blocked."""

    database: DatabaseExecutor
    functions: Resolver
    sessions: Sessions
    factory: InstanceFactory
    files: SnapshotFiles
    hold: Hold
    clock: Clock = SYSTEM
    threads: GuestThreads = field(default_factory=lambda: GuestThreads(_THREADS, "tensorwasm-snapshot"), init=False)

    # ---------------------------------------------------------------- stored snapshots

    async def save(self, tenant: int, session_id: str, deadline: Deadline = NEVER) -> rows.SnapshotRecord:
        """Save a session now, and keep the save as a snapshot; raises as `Sessions.save` and `InstanceFactory.copy`."""
        snapshot_id = str(uuid.uuid4())

        def copy(record: SessionRecord, name: str) -> rows.SnapshotRecord:
            content_hash, size_bytes = self.factory.copy(tenant, name, snapshot_name(snapshot_id))
            return rows.SnapshotRecord(
                id=snapshot_id,
                tenant=tenant,
                function_id=record.function_id,
                version=record.version,
                session_id=record.id,
                content_hash=content_hash,
                size_bytes=size_bytes,
                created_unix_ms=self.clock.unix_ms(),
            )

        snapshot = await self.sessions.save(tenant, session_id, copy, deadline)
        await self.database.write(rows.insert_snapshot, snapshot)
        return snapshot

    async def get(self, tenant: int, snapshot_id: str) -> rows.SnapshotRecord:
        """Return a snapshot; NotFound if there is none, or it is another tenant's."""
        return require_owned(await self.database.read(rows.find_snapshot, snapshot_id), tenant, "snapshot")

    async def list(
        self, tenant: int, after: str | None = None, limit: int = DEFAULT_PAGE
    ) -> tuple[rows.SnapshotRecord, ...]:
        """Return a tenant's snapshots, oldest first; raises as `Sessions.list`."""
        return await self.database.read(rows.list_snapshots, tenant, parse_cursor(after), checked_limit(limit))

    async def delete(self, tenant: int, snapshot_id: str) -> None:
        """Delete a snapshot, but not the sessions restored from it; raises as `get`.

        After `DatabaseUnavailable` it is still there.
        """
        await self.get(tenant, snapshot_id)
        if not await self.database.write(rows.delete_snapshot, snapshot_id):
            raise NotFound("there is no such snapshot")
        try:
            await self.threads.run(self.factory.drop, tenant, [snapshot_name(snapshot_id)])
        except TensorWasmError as error:
            _log.warning("the file of snapshot %s cannot be deleted yet: %s", snapshot_id, error.kind)

    async def content(self, tenant: int, snapshot_id: str) -> memoryview:
        """Return a snapshot's file, which is freed with the view; raises as `get` and `SnapshotFiles.fetch`."""
        await self.get(tenant, snapshot_id)
        return await self.threads.run(self.files.fetch, tenant, snapshot_name(snapshot_id))

    async def restore(self, tenant: int, snapshot_id: str, *, deadline: Deadline = NEVER) -> Restored:
        """Create a session with a snapshot's state and its function's version.

        Raises as `get`, `SnapshotFiles.fetch` and `Sessions.open`.
        """
        record = await self.get(tenant, snapshot_id)
        data = await self.threads.run(self.files.fetch, tenant, snapshot_name(snapshot_id))
        opened = await self.threads.run(self.files.open_stored, tenant, data)
        return await self._restore(tenant, f"{record.function_id}@{record.version}", opened, None, deadline)

    # ---------------------------------------------------------------- files of clients

    async def capture_session(
        self, tenant: int, session_id: str, *, client_key: bytes = b"", deadline: Deadline = NEVER
    ) -> Captured:
        """Save a session now, and return the save as a file; raises as `Sessions.save` and `SnapshotFiles.fetch`.

        Restoring the file takes the client's key, 32 bytes, empty for none.
        """

        def fetch(record: SessionRecord, name: str) -> Captured:
            return Captured(record.function_id, self.files.fetch(tenant, name, client_key))

        return await self.sessions.save(tenant, session_id, fetch, deadline)

    async def capture_fresh(
        self, tenant: int, reference: str, *, client_key: bytes = b"", deadline: Deadline = NEVER
    ) -> Captured:
        """Return a new instance whose start function has run as a file; the instance is freed.

        Raises as `InstanceFactory.open`, `require_host_only`, and `SnapshotFiles.seal`.
        """
        resolved = await self.functions.resolve(tenant, reference)
        require_host_only(resolved)
        with self.hold(tenant, resolved.limits.memory_bytes):
            return await self.threads.run(self._capture_fresh, tenant, resolved, client_key, deadline)

    async def restore_file(
        self,
        tenant: int,
        data: memoryview,
        *,
        reference: str | None = None,
        client_key: bytes = b"",
        session_id: str | None = None,
        deadline: Deadline = NEVER,
    ) -> Restored:
        """Create a session with an uploaded file's state; raises as `SnapshotFiles.open_upload` and `Sessions.open`.

        Args:
            tenant: the owner.
            data: the file.
            reference: its function; None takes the tenant's newest version with the file's module.
            client_key: that the file was captured with; empty for none.
            session_id: as for `Sessions.open`.
            deadline: likewise.

        Raises:
            NotFound: the tenant has no function with its module.
            WrongModule: that function has another module.
        """
        opened = await self.threads.run(self.files.open_upload, tenant, data, client_key)
        return await self._restore(tenant, reference, opened, session_id, deadline)

    async def tidy(self, before_ns: int) -> int:
        """Delete files that no snapshot refers to, stored before a time in nanoseconds since 1970; return how many."""

        async def find_orphans(names: Sequence[str]) -> set[str]:
            ids = tuple(name.removeprefix(FOLDER) for name in names)
            return {snapshot_name(each) for each in set(ids) - await self.database.read(rows.existing_snapshots, ids)}

        return await delete_orphans(self.threads, self.factory, FOLDER, before_ns, find_orphans)

    def close(self) -> None:
        """Accept nothing more; running work ends by itself."""
        self.threads.close()

    async def _restore(
        self, tenant: int, reference: str | None, opened: OpenedSnapshot, session_id: str | None, deadline: Deadline
    ) -> Restored:
        with opened.snapshot as snapshot:
            if not reference:
                found = await self.database.read(rows.find_version_of_module, tenant, opened.module_hash)
                if found is None:
                    raise NotFound("no function of this tenant has the snapshot's module")
                reference = f"{found[0]}@{found[1]}"
            resolved = await self.functions.resolve(tenant, reference)
            if resolved.version.module != opened.module_hash:
                raise WrongModule("the function has another module than the snapshot")
            exact = f"{resolved.version.function_id}@{resolved.version.number}"
            session = await self.sessions.open(
                tenant, exact, _NO_OPTIONS, deadline=deadline, snapshot=snapshot, session_id=session_id
            )
        return Restored(session, opened.content_bytes, opened.version)

    def _capture_fresh(self, tenant: int, resolved: Resolved, client_key: bytes, deadline: Deadline) -> Captured:
        with self.factory.open(tenant, resolved, _NO_OPTIONS, deadline) as live:
            return Captured(resolved.version.function_id, self.files.seal(tenant, live, client_key))
