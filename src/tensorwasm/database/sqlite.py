"""SQLite: one connection that writes, several that read, in WAL mode.

Source: SQLite, "Write-Ahead Logging"; "PRAGMA Statements".
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from tensorwasm.database.files import make_file
from tensorwasm.errors import InvalidArgs

BUSY_S: Final = 2.0
"""How long a lock is waited for."""

_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "trusted_schema=OFF",
    "journal_size_limit=67108864",
)
_RETRY_S: Final = 0.01


def make_engines(url: URL, readers: int) -> tuple[Engine, Engine]:
    """Return the engine that writes and the one that reads; the file is made if it is not there.

    Raises:
        InvalidArgs: no file, or options, which a URL of SQLite has none of here.
        UnsafeFile: others could write to the file or its folder.
    """
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        raise InvalidArgs("the URL of an SQLite database has a path and nothing else: sqlite:////folder/service.db")
    path = Path(url.database).absolute()
    make_file(path)
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
    """Execute one that SQLite does not wait for locks in, as two processes that open a new file at once may find."""
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
