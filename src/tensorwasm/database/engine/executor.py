"""`Database`: an open database. `DatabaseExecutor`: one for event loops; writes that wait together share a commit."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tensorwasm.database.engine.dialects import BEGIN, breaks_transaction, is_deadlock, translate
from tensorwasm.errors import CapacityExhausted, DatabaseUnavailable

P = ParamSpec("P")
T = TypeVar("T")

QUEUE: Final = 4096
"""Reads, and likewise writes, that may wait before more are refused."""

BATCH: Final = 256
"""Most writes in one commit."""

PAUSES_S: Final = (0.02, 0.1)
"""Pauses between attempts of a call that ends in one deadlock after another: the other transaction may be slow."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """The number of commits of an executor since its start, and that of the calls that wait now."""

    commits: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Call:
    """A waiting call, whose future may be completed on the thread of its event loop only."""

    run: Callable[[Connection], Any]
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Result:
    value: Any = None
    error: BaseException | None = None


class _BrokenTransactionError(Exception):
    """A call broke its shared transaction: ``error`` is for the caller unless another attempt succeeds."""

    def __init__(self, error: Exception, *, deadlock: bool) -> None:
        super().__init__(error)
        self.error = error
        self.deadlock = deadlock


class Database:
    """An open database: one thread may write and ``readers`` may read at a time. Thread-safe; all methods block."""

    def __init__(self, writer: Engine, reader: Engine, readers: int) -> None:
        self.dialect = writer.dialect.name
        self.readers = readers
        self._writer, self._reader = writer, reader
        self._begin_writing, self._begin_reading = BEGIN.get(self.dialect, ("", ""))

    def __repr__(self) -> str:
        return f"Database({self.dialect!r})"

    def writing(self) -> AbstractContextManager[Connection]:
        """Give a connection in a transaction, which is rolled back on an error, and else committed and durable.

        Raises:
            DatabaseUnavailable: locked for more than 2 s, full, unreachable or damaged. Nothing was written; only if
                PostgreSQL's connection breaks during the commit, that is unknown.
            Conflict: a row violates a key.
            InternalError: the database refused a statement.
        """
        return _transaction(self._writer, self._begin_writing)

    def reading(self) -> AbstractContextManager[Connection]:
        """Give a connection that sees one consistent state and cannot write; raises as `writing`."""
        return _transaction(self._reader, self._begin_reading)

    def close(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


@contextmanager
def _transaction(engine: Engine, begin: str) -> Iterator[Connection]:
    try:
        with engine.connect() as connection:
            try:
                with connection.begin():
                    if begin:
                        connection.exec_driver_sql(begin)
                    yield connection
            except SQLAlchemyError:
                connection.invalidate()  # a connection whose driver failed is never used again
                raise
    except SQLAlchemyError as error:
        raise translate(error) from None


class DatabaseExecutor:
    """Runs functions on a database for any event loop.

    One thread writes: it takes all waiting calls, runs each in its own savepoint and commits once; callers get their
    results after the commit. Other threads read.

    Each function takes a connection first. It may be called again where a transaction broke before its commit, so it
    must have no effect except on the database, and must not block on anything else.
    """

    def __init__(self, database: Database, *, queue: int = QUEUE, batch: int = BATCH) -> None:
        self._database = database
        self._batch = batch
        self._writes, self._reads = _CallQueue(queue), _CallQueue(queue)
        self._commits = 0
        jobs = [self._write_all, *[self._read_all] * database.readers]
        self._threads = [threading.Thread(target=job, name="database", daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function reads from one consistent state of the database.

        Raises as `write` does, except Conflict.
        """
        return await self._wait(self._reads, partial(_apply, fn, args, kwargs))

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return a function's result once its writes are durable.

        If the function raises, its own writes are undone, and no others. A cancelled caller does not learn whether
        the writes were committed.

        Raises:
            CapacityExhausted: too many calls wait already.
            Exception: what the function raises, or `Database.writing`.
        """
        return await self._wait(self._writes, partial(_apply, fn, args, kwargs))

    def statistics(self) -> DatabaseStatistics:
        """Return the counters."""
        return DatabaseStatistics(self._commits, len(self._writes) + len(self._reads))

    async def close(self) -> None:
        """Finish the waiting calls, refuse new ones, and close the database."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Blocking form of `close`."""
        self._writes.close()
        self._reads.close()
        for thread in self._threads:
            thread.join()
        self._database.close()

    @staticmethod
    async def _wait(calls: _CallQueue, run: Callable[[Connection], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        calls.put(_Call(run, future))
        return await future

    def _read_all(self) -> None:
        while calls := self._reads.take(1):
            _deliver((call, self._read(call)) for call in calls if not call.future.cancelled())

    def _read(self, call: _Call) -> _Result:
        try:
            with self._database.reading() as connection:
                return _Result(call.run(connection))
        except Exception as error:  # noqa: BLE001 - every error goes to the caller
            return _Result(error=error)

    def _write_all(self) -> None:
        while calls := self._writes.take(self._batch):
            if wanted := [call for call in calls if not call.future.cancelled()]:
                _deliver(self._write(wanted))

    def _write(self, calls: list[_Call]) -> list[tuple[_Call, _Result]]:
        try:
            return self._commit(calls)
        except _BrokenTransactionError:
            return [ended for call in calls for ended in self._repeat(call)]

    def _repeat(self, call: _Call) -> list[tuple[_Call, _Result]]:
        """Run a call in a transaction of its own, and again while it ends in deadlocks."""
        for pause_s in (*PAUSES_S, None):
            try:
                return self._commit([call])
            except _BrokenTransactionError as broken:
                error = broken.error
                if not broken.deadlock or pause_s is None:
                    break
            time.sleep(pause_s)
        return _fail([call], error)

    def _commit(self, calls: list[_Call]) -> list[tuple[_Call, _Result]]:
        """Run calls in one transaction, and return their results once it is committed, unless a call broke it."""
        begun = False
        try:
            with self._database.writing() as connection:
                begun = True
                results = [_run(connection, call) for call in calls]
        except _BrokenTransactionError:
            raise
        except Exception as error:  # noqa: BLE001 - the thread must go on, and the callers get the error
            if begun:
                known = error if isinstance(error, DatabaseUnavailable) else None
                return _fail(calls, known or DatabaseUnavailable("the database could not commit"))
            # Calls that came while this one waited for the lock in vain have waited as long: they fail with it,
            # instead of waiting for the whole time again.
            return _fail(calls + self._writes.drain(), error)
        self._commits += 1  # by the one thread that writes
        return list(zip(calls, results, strict=True))


class _CallQueue:
    """A bounded queue of calls. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()  # None marks the end, and stays in
        self._limit = limit
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return self._calls.qsize()

    def put(self, call: _Call) -> None:
        """Add a call without blocking, unless the queue is full or closed."""
        with self._lock:
            if self._closed:
                raise DatabaseUnavailable("the database is closed")
            if self._calls.qsize() >= self._limit:
                raise CapacityExhausted("too many calls wait for the database")
            self._calls.put(call)

    def take(self, most: int) -> list[_Call]:
        """Block until calls wait, and return at most ``most`` of them; none once the queue is closed and empty."""
        first = self._calls.get()
        if first is None:
            self._calls.put(None)
            return []
        return [first, *self.drain(most - 1)]

    def drain(self, most: int | None = None) -> list[_Call]:
        """Return at most ``most`` of the calls that wait now, without blocking."""
        found: list[_Call] = []
        while most is None or len(found) < most:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                break
            if call is None:
                self._calls.put(None)
                break
            found.append(call)
        return found

    def close(self) -> None:
        """Refuse further calls; those that wait can still be taken."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._calls.put(None)


def _apply(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], connection: Connection) -> T:
    return fn(connection, *args, **kwargs)


def _run(connection: Connection, call: _Call) -> _Result:
    """Run one call in a savepoint, which is rolled back if the call raises."""
    connection.exec_driver_sql("SAVEPOINT own")  # SQLAlchemy's own way takes four times as long
    try:
        result = _Result(call.run(connection))
    except Exception as error:  # noqa: BLE001 - every error goes to the caller
        if breaks_transaction(error):
            raise _BrokenTransactionError(translate(error), deadlock=is_deadlock(error)) from None
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT own")
        result = _Result(error=translate(error))
    connection.exec_driver_sql("RELEASE SAVEPOINT own")
    return result


def _fail(calls: list[_Call], error: BaseException) -> list[tuple[_Call, _Result]]:
    return [(call, _Result(error=copy(error))) for call in calls]


def _deliver(ended: Iterable[tuple[_Call, _Result]]) -> None:
    """Complete the callers' futures; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Call, _Result]]] = {}
    for call, result in ended:
        by_loop.setdefault(call.future.get_loop(), []).append((call, result))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, pairs)
        except RuntimeError:  # the loop is closed, and so are the waiting coroutines
            _log.debug("%d calls of a closed event loop have ended", len(pairs))


def _settle(pairs: list[tuple[_Call, _Result]]) -> None:
    for call, result in pairs:
        if call.future.done():  # the caller was cancelled
            continue
        if result.error is None:
            call.future.set_result(result.value)
        else:
            call.future.set_exception(result.error)
