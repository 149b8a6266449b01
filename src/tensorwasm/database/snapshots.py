"""Snapshots that tenants keep; their bytes are in the artifact store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, tuple_

from tensorwasm.database.schema import FUNCTIONS, SNAPSHOTS, VERSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """A snapshot that a tenant keeps. It never changes.

    Attributes:
        id: UUID.
        tenant: whose it is.
        function_id: what was saved.
        version: of the function.
        session_id: which session was saved, gone or not; None for an instance that was none.
        content_hash: of what is in the file, 32 bytes: the same for the same state, whatever it is signed with.
        size_bytes: length of the file.
        created_unix_ms: when it was saved.
    """

    id: str
    tenant: int
    function_id: str
    version: int
    session_id: str | None
    content_hash: bytes
    size_bytes: int
    created_unix_ms: int

    @property
    def cursor(self) -> tuple[int, str]:
        """What `list_snapshots` goes on after."""
        return self.created_unix_ms, self.id


def insert_snapshot(connection: Connection, record: SnapshotRecord) -> None:
    """Add a snapshot."""
    connection.execute(
        insert(SNAPSHOTS).values(
            id=record.id,
            tenant=str(record.tenant),
            function_id=record.function_id,
            version=record.version,
            session_id=record.session_id,
            content_hash=record.content_hash,
            size_bytes=record.size_bytes,
            created_unix_ms=record.created_unix_ms,
        )
    )


def find_snapshot(connection: Connection, snapshot_id: str) -> SnapshotRecord | None:
    """Return a snapshot, whoever's it is; None if there is none."""
    found = connection.execute(select(SNAPSHOTS).where(SNAPSHOTS.c.id == snapshot_id)).first()
    return None if found is None else _snapshot(found)


def list_snapshots(
    connection: Connection, tenant: int, after: tuple[int, str] | None, limit: int
) -> tuple[SnapshotRecord, ...]:
    """Return a tenant's snapshots, oldest first.

    Args:
        connection: to the database.
        tenant: whose.
        after: time and ID of the last one that was seen; None begins.
        limit: most of them.
    """
    place = tuple_(SNAPSHOTS.c.created_unix_ms, SNAPSHOTS.c.id)
    query = select(SNAPSHOTS).where(SNAPSHOTS.c.tenant == str(tenant)).order_by(*place).limit(limit)
    if after is not None:
        query = query.where(place > tuple_(*after))
    return tuple(_snapshot(row) for row in connection.execute(query))


def delete_snapshot(connection: Connection, snapshot_id: str) -> bool:
    """Take a snapshot away; return whether it was there."""
    return connection.execute(delete(SNAPSHOTS).where(SNAPSHOTS.c.id == snapshot_id)).rowcount > 0


def which_snapshots(connection: Connection, snapshot_ids: tuple[str, ...]) -> frozenset[str]:
    """Return those of some snapshots that are there."""
    query = select(SNAPSHOTS.c.id).where(SNAPSHOTS.c.id.in_(snapshot_ids))
    return frozenset(connection.execute(query).scalars())


def find_running(connection: Connection, tenant: int, module: bytes) -> tuple[str, int] | None:
    """Return a tenant's function and version that run a module, the newest of them; None if none does."""
    query = (
        select(VERSIONS.c.function_id, VERSIONS.c.number)
        .join(FUNCTIONS, FUNCTIONS.c.id == VERSIONS.c.function_id)
        .where(FUNCTIONS.c.tenant == str(tenant), VERSIONS.c.module == module)
        .order_by(VERSIONS.c.created_unix_ms.desc(), VERSIONS.c.function_id, VERSIONS.c.number.desc())
        .limit(1)
    )
    found = connection.execute(query).first()
    return None if found is None else (found.function_id, found.number)


def _snapshot(row: Row[Any]) -> SnapshotRecord:
    return SnapshotRecord(
        id=row.id,
        tenant=int(row.tenant),
        function_id=row.function_id,
        version=row.version,
        session_id=row.session_id,
        content_hash=bytes(row.content_hash),
        size_bytes=row.size_bytes,
        created_unix_ms=row.created_unix_ms,
    )
