"""Bringing the tables up to date: numbered steps, taken in one transaction by one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from sqlalchemy import Connection, MetaData, insert, inspect, select, text, update

from tensorwasm.database.schema import META, METADATA, SERVERS
from tensorwasm.errors import SchemaTooNew

VERSION_KEY: Final = "schema_version"
_LOCK: Final = 0x7465_6E73
"""Of PostgreSQL's advisory locks, the one that who migrates holds."""


@dataclass(frozen=True, slots=True)
class Step:
    """What leads from one version of the tables to the next.

    Attributes:
        version: that it leads to; the steps are numbered without a gap.
        summary: what it changes.
        apply: changes it, within the transaction that it is given.
    """

    version: int
    summary: str
    apply: Callable[[Connection], None]


def _own_sessions(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE sessions ADD COLUMN owner VARCHAR(36)"))
    connection.execute(text("ALTER TABLE sessions ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0"))
    connection.execute(text("CREATE INDEX sessions_by_owner ON sessions (owner)"))
    SERVERS.create(connection)


STEPS: Final = (Step(2, "a session has an owner, and servers have leases", _own_sessions),)
"""Steps from version 1 on, which is all tables as the first release makes them. A new database is made as `METADATA` is
now, and takes none."""


class Writes(Protocol):
    """What can be written to: a `tensorwasm.database.opening.Database`."""

    def writing(self) -> AbstractContextManager[Connection]:
        """Give a connection in a transaction."""


def migrate(database: Writes, steps: Sequence[Step] = STEPS, metadata: MetaData = METADATA) -> int:
    """Make the tables of a new database, or take the steps that an old one lacks: all, or none.

    Of several processes that do this at once one does, and the others find it done.

    Returns:
        The version that the tables have now.

    Raises:
        SchemaTooNew: a later release has been at it; nothing is changed.
        DatabaseUnavailable: somebody else held it for too long, it has no room or does not answer.
    """
    latest = 1 + len(steps)
    with database.writing() as connection:
        _exclude_others(connection)
        found = _read_version(connection)
        if found is None:
            metadata.create_all(connection)
            connection.execute(insert(META).values(key=VERSION_KEY, value=str(latest)))
        elif found > latest:
            raise SchemaTooNew(f"the database is of version {found}, and this release knows versions up to {latest}")
        elif found < latest:
            for step in steps[found - 1 :]:
                step.apply(connection)
            connection.execute(update(META).where(META.c.key == VERSION_KEY).values(value=str(latest)))
    return latest


def _exclude_others(connection: Connection) -> None:
    """Wait for whoever migrates; SQLite's transaction has excluded them already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _read_version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(META.name):
        return None
    value = connection.execute(select(META.c.value).where(META.c.key == VERSION_KEY)).scalar_one_or_none()
    return None if value is None else int(value)
