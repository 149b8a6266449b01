"""What is particular to SQLite and PostgreSQL: how their engines are made, and what the codes of their errors mean.

SQLite is in WAL mode, with one connection that writes and several that read. Of a failed statement the text is logged,
its values never.

Source: SQLite, "Write-Ahead Logging"; "PRAGMA Statements"; libpq, "Parameter Key Words"; PostgreSQL, "Client Connection
Defaults".
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event, exc
from sqlalchemy.pool import QueuePool

from tensorwasm.errors import Conflict, DatabaseUnavailable, InternalError, InvalidArgs, UnsafeFile

_log = logging.getLogger(__name__)

BUSY_S: Final = 2.0
"""Longest wait for a lock of SQLite."""

CONNECT_S: Final = 5
STATEMENT_MS: Final = 30_000

BEGIN: Final[Mapping[str, tuple[str, str]]] = {"sqlite": ("BEGIN IMMEDIATE", "BEGIN")}
"""How transactions that write and that read begin, by dialect: SQLite's driver would begin late, and without the lock
that a writer needs from the start. Other drivers begin them themselves."""

_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "trusted_schema=OFF",
    "journal_size_limit=67108864",
)
_RETRY_S: Final = 0.01
_POSIX: Final = hasattr(os, "geteuid")
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)

_OPTIONS: Final = {
    "application_name", "channel_binding", "gssencmode", "host", "port", "sslcert",
    "sslkey", "sslmode", "sslrootcert", "target_session_attrs",
}  # fmt: skip
"""Options that the URL of a PostgreSQL database may have."""

_SETTINGS: Final = {
    "statement_timeout": STATEMENT_MS,
    "lock_timeout": 2000,  # ms
    "idle_in_transaction_session_timeout": STATEMENT_MS,
    "synchronous_commit": "on",
}


def _make_engine(url: URL, connections: int, wait_s: float, connect: dict[str, Any], *, probe: bool = False) -> Engine:
    """Return an engine of so many connections, for one of which callers wait ``wait_s``."""
    return create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=wait_s,
        pool_pre_ping=probe,
        hide_parameters=True,
        connect_args=connect,
    )


def make_sqlite_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
    """Return the writing and the reading engine; the file is created if it does not exist.

    Raises:
        InvalidArgs: the URL names no file, or has options.
        UnsafeFile: other users could write to the file or its folder.
    """
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        raise InvalidArgs("the URL of an SQLite database has a path and nothing else: sqlite:////folder/service.db")
    path = Path(url.database).absolute()
    _make_file(path)
    place = URL.create("sqlite", database=str(path))
    return _open_sqlite(place, 1, writes=True), _open_sqlite(place, readers, writes=False)


def _open_sqlite(url: URL, connections: int, *, writes: bool) -> Engine:
    engine = _make_engine(
        url, connections, BUSY_S, {"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None}
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: Any) -> None:
        for pragma in (*_PRAGMAS, f"query_only={'OFF' if writes else 'ON'}"):
            _execute(connection, f"PRAGMA {pragma}")
        connection.create_function("unix_ms", 0, lambda: time.time_ns() // 1_000_000)

    return engine


def _execute(connection: sqlite3.Connection, statement: str) -> None:
    """Execute a PRAGMA, for which SQLite does not wait for locks: two processes may open a new file at once."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def _make_file(path: Path) -> None:
    """Create the file with mode 0600 and its folder with mode 0700, or check the existing ones.

    An existing file is never opened: closing it would release the locks that SQLite holds on it in this process.
    Messages contain no path.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(path.parent.stat(), "the folder of the database", "chmod 700")
        with suppress(FileExistsError):
            os.close(os.open(path, _CREATE, 0o600))
            _sync_folder(path.parent)
        found = path.lstat()
    except OSError as error:
        raise UnsafeFile(f"the database file cannot be made or read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile("the database file is a link or not a plain file")
    _require_own(found, "the database file", "chmod 600")


def _require_own(found: os.stat_result, what: str, remedy: str) -> None:
    if not _POSIX:
        return
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"{what} belongs to user {found.st_uid}, this process to {os.geteuid()}: chown it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeFile(f"others can write to {what} (mode {stat.S_IMODE(found.st_mode):o}): {remedy}")


def _sync_folder(folder: Path) -> None:
    """Make the new file's name survive a crash of the machine; Windows does that itself."""
    if not _POSIX:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_postgresql_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
    """Return the writing and the reading engine; neither is connected yet.

    InvalidArgs if the URL has an option that is not supported, or psycopg is not installed.
    """
    if unknown := sorted(set(url.query) - _OPTIONS):
        raise InvalidArgs(f"the URL of the database has unsupported options: {', '.join(unknown)[:200]}")
    try:
        import psycopg  # noqa: F401, PLC0415 - an extra: a message says how to install it
    except ImportError:
        raise InvalidArgs("PostgreSQL needs psycopg: pip install 'tensor-wasm[postgres]'") from None
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    connect = {"connect_timeout": CONNECT_S, "keepalives_idle": 30, "options": options}
    place = url.set(drivername="postgresql+psycopg")
    writer, reader = (_make_engine(place, count, CONNECT_S, connect, probe=True) for count in (1, readers))
    return writer, reader.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


_SQLITE: Final[Mapping[int, str]] = {
    5: "the database is locked by another process",
    6: "the database is locked by another process",
    7: "the database has no memory",
    8: "the database cannot be written",
    10: "the disk of the database fails",
    11: "the database file is damaged: restore it from a backup",
    13: "the disk of the database is full",
    14: "the database file cannot be opened",
    15: "the database is locked by another process",
    26: "the database file is damaged, or is not a database: restore it from a backup",
}
"""By primary result code. Source: SQLite, "Result and Error Codes"."""

_POSTGRESQL: Final[Mapping[str, str]] = {
    "08": "the database does not answer",
    "25006": "the database cannot be written",
    "28": "the database refuses the credentials",
    "3D": "there is no such database on the server",
    "40": "the database is held up by another transaction",
    "53": "the database has no room, or no connection left",
    "55P03": "the database is locked by another process",
    "57": "the database went down, or took too long",
    "58": "the disk of the database fails",
    "XX001": "the database is damaged: restore it from a backup",
    "XX002": "the database is damaged: restore it from a backup",
}
"""By SQLSTATE, or its class. Source: PostgreSQL, "Error Codes"."""

_CONFLICTS: Final = frozenset({787, 1555, 2067, 2579, "23503", "23505"})
"""Violated foreign and unique keys, which callers can cause; a missing value or failed check is a bug here."""


def translate(error: Exception) -> Exception:
    """Return the error of this package, with a fixed message, for one of SQLAlchemy; the details are logged.

    Returns:
        `DatabaseUnavailable`, `Conflict` for a violated key, `InternalError` for other errors of SQLAlchemy; an error
        from elsewhere unchanged.
    """
    if not isinstance(error, exc.SQLAlchemyError):
        return error
    if isinstance(error, exc.IntegrityError) and _code(error) in _CONFLICTS:
        return Conflict("this conflicts with an existing row")
    reason = _unavailable_reason(error)
    _log.log(logging.WARNING if reason else logging.ERROR, "%s: %s", reason or "a statement failed", _describe(error))
    return DatabaseUnavailable(reason) if reason else InternalError("the database refused a statement")


def breaks_transaction(error: Exception) -> bool:
    """Return whether nothing of the transaction in which an error occurred can be relied on."""
    own = exc.IntegrityError | exc.DataError | exc.ProgrammingError | exc.NotSupportedError
    return isinstance(error, exc.DBAPIError) and not isinstance(error, own)


def is_deadlock(error: Exception) -> bool:
    """Return whether the server rolled a transaction back so that another can go on: SQLSTATE class 40."""
    return isinstance(error, exc.DBAPIError) and str(_code(error)).startswith("40")


def _unavailable_reason(error: exc.SQLAlchemyError) -> str | None:
    """Return why the database cannot be used; None if the statement is to blame."""
    if isinstance(error, exc.TimeoutError):
        return "the database is busy"
    if not isinstance(error, exc.DBAPIError):
        return None
    code = _code(error)
    if isinstance(code, int):
        return _SQLITE.get(code & 0xFF)
    if code is not None:
        return _POSTGRESQL.get(code) or _POSTGRESQL.get(code[:2])
    return "the database does not answer" if breaks_transaction(error) else None


def _code(error: exc.DBAPIError) -> int | str | None:
    """Return SQLite's extended result code, or PostgreSQL's SQLSTATE."""
    return getattr(error.orig, "sqlite_errorcode", None) or getattr(error.orig, "sqlstate", None)


def _describe(error: exc.SQLAlchemyError) -> str:
    """Return what may be logged: class names, codes and the statement with its placeholders."""
    parts = [type(error).__name__]
    if isinstance(error, exc.StatementError):
        origin = error.orig
        codes = (str(getattr(origin, name, "") or "") for name in ("sqlite_errorname", "sqlstate"))
        parts += [type(origin).__name__, *codes, " ".join((error.statement or "").split())[:500]]
    return " ".join(filter(None, parts))
