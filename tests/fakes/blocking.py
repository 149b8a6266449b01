"""A database executor that plain functions call too, and that keeps what it was asked to do."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.errors import DatabaseUnavailable


class BlockingExecutor(DatabaseExecutor):
    """The executor, with forms of `read` and `write` that block: each call has a thread and an event loop of its own.

    Attributes:
        reads: calls that were read.
        batches: of each group of writes, the error of each, None for success.
        repeated: writes that were repeated alone, because the transaction that they shared broke.
    """

    def __init__(self, *args, **kwargs):
        self.reads, self.batches, self.repeated = [], [], []
        super().__init__(*args, **kwargs)

    def read_now(self, fn, *args, **kwargs):
        return _wait(self.read(fn, *args, **kwargs))

    def write_now(self, fn, *args, **kwargs):
        return _wait(self.write(fn, *args, **kwargs))

    def failures(self):
        """Return how many writes the database failed."""
        return sum(isinstance(error, DatabaseUnavailable) for errors in self.batches for error in errors)

    def _read(self, call):
        self.reads.append(call)
        return super()._read(call)

    def _write(self, calls):
        ended = super()._write(calls)
        self.batches.append([result.error for _, result in ended])
        return ended

    def _repeat(self, call):
        self.repeated.append(call)
        return super()._repeat(call)


def _wait(call):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, call).result()
