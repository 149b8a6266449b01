"""A desk without threads: each call is a transaction of its own, made at once, on a database in memory."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from tensorwasm.database.schema import METADATA
from tensorwasm.errors import DatabaseUnavailable

# One for all: statements are compiled once, and with this pool every connection has a database of its own.
_ENGINE: Final = create_engine("sqlite://", poolclass=NullPool, connect_args={"check_same_thread": False})


def connect_empty() -> tuple[Connection, sqlite3.Connection]:
    """Return a connection to a new database in memory that has all tables, and the driver's below it."""
    connection = _ENGINE.connect()
    driver = connection.connection.driver_connection
    driver.deserialize(_empty_database())
    return connection, driver


@functools.cache
def _empty_database() -> bytes:
    with _ENGINE.begin() as connection:
        METADATA.create_all(connection)
        return connection.connection.driver_connection.serialize()


class InlineDesk:
    """What `tensorwasm.database.engine.executor.DatabaseExecutor` is to those who call it.

    Attributes:
        failing: every call is refused.
    """

    def __init__(self):
        self._connection, _ = connect_empty()
        self.failing = False

    async def read(self, fn, *args):
        return self.write_now(fn, *args)

    async def write(self, fn, *args):
        return self.write_now(fn, *args)

    def write_now(self, fn, *args):
        if self.failing:
            raise DatabaseUnavailable("it does not answer")
        with self.begin() as connection:
            return fn(connection, *args)

    @contextmanager
    def begin(self):
        """A transaction, failing or not."""
        with self._connection.begin():
            yield self._connection

    def close_now(self):
        self._connection.close()
