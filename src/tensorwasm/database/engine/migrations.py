"""Schema migrations: numbered steps, applied in one transaction by one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, MetaData, insert, inspect, select, text, update

from tensorwasm.database.schema import META, METADATA, SERVERS
from tensorwasm.errors import SchemaTooNew

VERSION_KEY: Final = "schema_version"
_LOCK: Final = 0x7465_6E73
"""The number of PostgreSQL's advisory lock that a migrating process holds."""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """Leads to a schema version from the one before: ``apply`` makes the change within the given transaction."""

    version: int
    summary: str
    apply: Callable[[Connection], None]


def _add_session_owners(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE sessions ADD COLUMN owner VARCHAR(36)"))
    connection.execute(text("ALTER TABLE sessions ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0"))
    connection.execute(text("CREATE INDEX sessions_by_owner ON sessions (owner)"))
    SERVERS.create(connection)


STEPS: Final = (MigrationStep(2, "a session has an owner, and servers have leases", _add_session_owners),)
"""Steps from version 1, the schema of the first release. A new database is created from `METADATA`, without steps."""


def migrate(connection: Connection, steps: Sequence[MigrationStep] = STEPS, metadata: MetaData = METADATA) -> int:
    """Create the tables of a new database, or apply the steps that an old one lacks, and return its version now.

    The caller's transaction makes this all or nothing. Of several processes at the same time one does the work.

    Raises:
        SchemaTooNew: a later release has changed the database; nothing is changed.
        DatabaseUnavailable: the lock was not free in time, or the database is full or unreachable.
    """
    if connection.dialect.name == "postgresql":  # a writing transaction of SQLite is exclusive already
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    latest = 1 + len(steps)
    found = _read_version(connection)
    if found is None:
        metadata.create_all(connection)
        connection.execute(insert(META).values(key=VERSION_KEY, value=str(latest)))
    elif found > latest:
        raise SchemaTooNew(f"the database has schema version {found}; this release knows versions up to {latest}")
    elif found < latest:
        for step in steps[found - 1 :]:
            step.apply(connection)
        connection.execute(update(META).where(META.c.key == VERSION_KEY).values(value=str(latest)))
    return latest


def _read_version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(META.name):
        return None
    value = connection.execute(select(META.c.value).where(META.c.key == VERSION_KEY)).scalar_one_or_none()
    return None if value is None else int(value)
