"""Snapshots that tenants keep: the records; their bytes are in the artifact store."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from tensorwasm.database.schema import FUNCTIONS, SNAPSHOTS, VERSIONS, decode, encode, find, page


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """A snapshot; immutable.

    Attributes:
        session_id: the saved session, which may be gone; None for an instance outside a session.
        content_hash: of the content, 32 bytes: equal for equal states, whatever key signs them.
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
        """The position after which `list_snapshots` continues."""
        return self.created_unix_ms, self.id


def insert_snapshot(connection: Connection, record: SnapshotRecord) -> None:
    """Add a snapshot."""
    connection.execute(insert(SNAPSHOTS).values(encode(record)))


_snapshot: Final = partial(decode, SnapshotRecord)


def find_snapshot(connection: Connection, snapshot_id: str) -> SnapshotRecord | None:
    """Return a snapshot of any tenant; None if there is none."""
    return find(connection, select(SNAPSHOTS).where(SNAPSHOTS.c.id == snapshot_id), _snapshot)


def list_snapshots(
    connection: Connection, tenant: int, after: tuple[int, str] | None, limit: int
) -> tuple[SnapshotRecord, ...]:
    """Return a tenant's snapshots, oldest first; arguments as for `page`."""
    return tuple(map(_snapshot, connection.execute(page(SNAPSHOTS, tenant, after, limit))))


def delete_snapshot(connection: Connection, snapshot_id: str) -> bool:
    """Delete a snapshot, and return whether it existed."""
    return connection.execute(delete(SNAPSHOTS).where(SNAPSHOTS.c.id == snapshot_id)).rowcount > 0


def existing_snapshots(connection: Connection, snapshot_ids: tuple[str, ...]) -> frozenset[str]:
    """Return those of some snapshots that exist."""
    return frozenset(connection.execute(select(SNAPSHOTS.c.id).where(SNAPSHOTS.c.id.in_(snapshot_ids))).scalars())


def find_version_of_module(connection: Connection, tenant: int, module: bytes) -> tuple[str, int] | None:
    """Return a tenant's newest function and version that run a module; None if there is none."""
    query = (
        select(VERSIONS.c.function_id, VERSIONS.c.number)
        .join(FUNCTIONS, FUNCTIONS.c.id == VERSIONS.c.function_id)
        .where(FUNCTIONS.c.tenant == str(tenant), VERSIONS.c.module == module)
        .order_by(VERSIONS.c.created_unix_ms.desc(), VERSIONS.c.function_id, VERSIONS.c.number.desc())
        .limit(1)
    )
    return find(connection, query, lambda row: (row.function_id, row.number))
