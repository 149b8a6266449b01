"""`open_database`: opens the database that a URL names, with all its tables, at the schema of this release.

File locks say whether a server owns an SQLite file or a data folder. The owner of an SQLite file knows that all state
of earlier processes is abandoned. Where several servers share a database, each learns from its data folder which
process it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, MetaData, insert, inspect, make_url, select, text, update
from sqlalchemy.exc import ArgumentError

from tensorwasm.database.engine.dialects import make_postgresql_engines, make_sqlite_engines
from tensorwasm.database.engine.executor import Database
from tensorwasm.database.schema import META, METADATA, SERVERS
from tensorwasm.errors import DatabaseOwned, DatabaseUnavailable, InvalidArgs, SchemaTooNew, UnsafeFile

VERSION_KEY: Final = "schema_version"
_LOCK: Final = 0x7465_6E73
"""The number of PostgreSQL's advisory lock that a migrating process holds."""

READERS: Final = 2
"""Connections that read at the same time, by default."""

_DIALECTS: Final[Mapping[str, Callable[[URL, int], tuple[Engine, Engine]]]] = {
    "sqlite": make_sqlite_engines,
    "postgresql": make_postgresql_engines,
    "postgresql+psycopg": make_postgresql_engines,
}


def open_database(url: str, *, readers: int = READERS) -> Database:
    """Open the database of a URL, and migrate its tables; SQLite's file is created if it does not exist.

    The URL is ``sqlite:////absolute/path`` or ``postgresql://user:password@host/name``, and is never shown.

    Raises:
        InvalidArgs: the URL is not valid, or has unsupported options.
        UnsafeFile: other users could write to SQLite's file or its folder.
        DatabaseUnavailable: it does not answer, is locked or is damaged.
        SchemaTooNew: a later release has changed it.
    """
    parsed, make_engines = _parse(url)
    database = Database(*make_engines(parsed, readers), readers)
    try:
        with database.writing() as connection:
            migrate(connection)
    except BaseException:
        database.close()
        raise
    return database


def read_database(url: str, *, readers: int = 1) -> Database:
    """Open an existing database for reading, without migrating its tables.

    Raises as `open_database` does, and DatabaseUnavailable if SQLite's file does not exist.
    """
    parsed, make_engines = _parse(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise DatabaseUnavailable("the file of the database is not there")
    return Database(*make_engines(parsed, readers), readers)


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite database file."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string(hide_password=False)


def _parse(url: str) -> tuple[URL, Callable[[URL, int], tuple[Engine, Engine]]]:
    try:
        parsed = make_url(url)
        return parsed, _DIALECTS[parsed.drivername]
    except (ArgumentError, KeyError, ValueError):
        raise InvalidArgs("TENSOR_WASM_DATABASE is no URL that begins with sqlite:/// or postgresql://") from None


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


_OPEN: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def own_database(url: str) -> Iterator[bool]:
    """Own an SQLite database within the context, and yield whether this process is the only server. Blocks.

    It yields False for a database that several may use, or without file locks. The lock ends with the process.

    Raises:
        DatabaseOwned: another process does.
        UnsafeFile: the lock file cannot be created.
    """
    path = _file_of(url)
    if path is None or os.name != "posix":
        yield False
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path.with_name(f"{path.name}.lock"), _OPEN, 0o600)
    except OSError as error:
        raise UnsafeFile(f"the lock file of the database cannot be made: {error.strerror}") from None
    try:
        try:
            alone = _lock(handle)
        except BlockingIOError:
            raise DatabaseOwned("another server has the file of the database") from None
        yield alone
    finally:
        os.close(handle)


@contextmanager
def claim_data_folder(folder: Path, process: str) -> Iterator[str]:
    """Own a data folder within the context, and record this process's UUID in it. Blocks.

    It yields the UUID of the last owner, which has ended; empty if there was none or it is unknown.
    """
    try:
        handle = os.open(folder / "server", _OPEN, 0o600)
    except OSError:
        yield ""
        return
    try:
        yield _replace_owner(handle, process.encode("ascii")).decode("ascii", "replace")
    finally:
        os.close(handle)


def _replace_owner(handle: int, text: bytes) -> bytes:
    try:
        if not _lock(handle):
            return b""
        before = os.pread(handle, len(text), 0)
        os.pwrite(handle, text, 0)
    except OSError:  # another process owns it, or the disk is full: the old owner's lease expires instead
        return b""
    return before


def _file_of(url: str) -> Path | None:
    """Return the file of an SQLite database; None for others, and for an invalid URL, which is reported elsewhere."""
    try:
        parsed = make_url(url)
        return Path(parsed.database).absolute() if parsed.get_backend_name() == "sqlite" and parsed.database else None
    except (ArgumentError, ValueError):
        return None


def _lock(handle: int) -> bool:
    """Lock a file, and return False on a file system without locks; a BlockingIOError says that it is locked."""
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
