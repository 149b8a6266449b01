"""`open_database`: a URL becomes a `Database` that has all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tensorwasm.database import postgresql, sqlite
from tensorwasm.database.failures import translate
from tensorwasm.database.migrations import migrate
from tensorwasm.errors import DatabaseUnavailable, InvalidArgs

READERS: Final = 2
"""Connections that read at a time."""

_DIALECTS: Final[Mapping[str, Callable[[URL, int], tuple[Engine, Engine]]]] = {
    "sqlite": sqlite.make_engines,
    "postgresql": postgresql.make_engines,
    "postgresql+psycopg": postgresql.make_engines,
}


class Database:
    """A database with all tables. Thread-safe; everything blocks.

    Attributes:
        dialect: ``sqlite`` or ``postgresql``.
        readers: how many threads may read at a time; one may write.
    """

    def __init__(self, writer: Engine, reader: Engine, readers: int) -> None:
        self.dialect = writer.dialect.name
        self.readers = readers
        self._writer = writer
        self._reader = reader

    def __repr__(self) -> str:
        return f"Database({self.dialect!r})"

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction, which is committed at the end and undone if anything is raised.

        When this returns, what was written outlasts the process and the machine.

        Raises:
            DatabaseUnavailable: locked for longer than 2 s, no room, no connection, or damaged. Nothing was written;
                only where PostgreSQL's connection breaks during the commit itself nobody knows.
            Conflict: a row contradicts others, and nobody caught that.
            InternalError: the database refused a statement.
        """
        with _transaction(self._writer) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the database, and cannot write.

        Raises:
            DatabaseUnavailable: as in `writing`.
            InternalError: the database refused a statement, such as one that writes.
        """
        with _transaction(self._reader) as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def open_database(url: str, *, readers: int = READERS) -> Database:
    """Open a database, and bring its tables up to date.

    Args:
        url: ``sqlite:////absolute/path`` or ``postgresql://user:password@host/name``; SQLite's file is made if it is
            not there. It may have secrets, which are nowhere shown.
        readers: connections that may read at a time.

    Raises:
        InvalidArgs: no URL of a database of these kinds, or with options that are not taken.
        UnsafeFile: others could write to SQLite's file or its folder.
        DatabaseUnavailable: it does not answer, is locked or is damaged.
        SchemaTooNew: a later release has been at it.
    """
    parsed, make_engines = _parse(url)
    writer, reader = make_engines(parsed, readers)
    database = Database(writer, reader, readers)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    return database


def read_database(url: str) -> Database:
    """Open a database to read what is in it, and change nothing: its tables are those of the release that was last.

    Raises:
        InvalidArgs: no URL of a database of these kinds, or with options that are not taken.
        UnsafeFile: others could write to SQLite's file or its folder.
        DatabaseUnavailable: SQLite's file is not there.
    """
    parsed, make_engines = _parse(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise DatabaseUnavailable("the file of the database is not there")
    return Database(*make_engines(parsed, 1), 1)


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite database in a file."""
    return URL.create("sqlite", database=str(path.absolute())).render_as_string(hide_password=False)


def _parse(url: str) -> tuple[URL, Callable[[URL, int], tuple[Engine, Engine]]]:
    try:
        parsed = make_url(url)
        return parsed, _DIALECTS[parsed.drivername]
    except (ArgumentError, KeyError, ValueError):
        raise InvalidArgs("TENSOR_WASM_DATABASE is no URL that begins with sqlite:/// or postgresql://") from None


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """Give a connection in a transaction; one that failed in the driver's hands is never used again."""
    try:
        with engine.connect() as connection:
            try:
                with connection.begin():
                    yield connection
            except SQLAlchemyError:
                connection.invalidate()
                raise
    except SQLAlchemyError as error:
        raise translate(error) from None
