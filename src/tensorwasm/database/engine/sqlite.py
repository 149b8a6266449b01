"""SQLite in WAL mode: one connection that writes, several that read, and the checks of the database file.

Source: SQLite, "Write-Ahead Logging"; "PRAGMA Statements".
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from tensorwasm.errors import InvalidArgs, UnsafeFile

BUSY_S: Final = 2.0
"""Longest wait for a lock."""

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


def make_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
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
    return _make_engine(place, 1, "BEGIN IMMEDIATE", writes=True), _make_engine(place, readers, "BEGIN", writes=False)


def _make_engine(url: URL, connections: int, begin: str, *, writes: bool) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=BUSY_S,
        hide_parameters=True,
        connect_args={"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _record: Any) -> None:
        for pragma in (*_PRAGMAS, f"query_only={'OFF' if writes else 'ON'}"):
            _execute(connection, f"PRAGMA {pragma}")
        connection.create_function("unix_ms", 0, lambda: time.time_ns() // 1_000_000)

    @event.listens_for(engine, "begin")
    def begin_here(connection: Connection) -> None:
        # The driver would begin late, and without the lock that a writer needs from the start.
        connection.exec_driver_sql(begin)

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
