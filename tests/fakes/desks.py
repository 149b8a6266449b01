"""A desk without threads: each call is a transaction of its own, made at once, on a database in memory."""

from __future__ import annotations

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from tensorwasm.database.schema import METADATA
from tensorwasm.errors import DatabaseUnavailable


class InlineDesk:
    """What `tensorwasm.database.engine.executor.DatabaseExecutor` is to those who call it.

    Attributes:
        failing: every call is refused.
    """

    def __init__(self):
        self.engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        METADATA.create_all(self.engine)
        self.failing = False

    async def read(self, fn, *args):
        return self.write_now(fn, *args)

    async def write(self, fn, *args):
        return self.write_now(fn, *args)

    def write_now(self, fn, *args):
        if self.failing:
            raise DatabaseUnavailable("it does not answer")
        with self.engine.begin() as connection:
            return fn(connection, *args)

    def close_now(self):
        self.engine.dispose()
