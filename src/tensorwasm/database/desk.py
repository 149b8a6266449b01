"""`Desk`: the database from an event loop, through threads of its own; writes of many callers share a commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection

from tensorwasm.database.failures import is_deadlock, spoils, translate
from tensorwasm.database.line import Ask, Line, Outcome, deliver
from tensorwasm.database.opening import Database
from tensorwasm.errors import DatabaseUnavailable

P = ParamSpec("P")
T = TypeVar("T")

QUEUE: Final = 4096
"""Calls that wait, of either kind, before more are refused."""

BATCH: Final = 256
"""Writes of one commit."""

PAUSES_S: Final = (0.02, 0.1)
"""Before further attempts of a call that ends in one deadlock after another: the other side may be slow to go on."""


@dataclass(frozen=True, slots=True)
class DeskStatistics:
    """What a desk has done so far.

    Attributes:
        reads: calls that read.
        writes: calls whose writes are committed, those that undid themselves apart.
        commits: transactions with them.
        largest_batch: most calls in one transaction.
        repeats: transactions that broke before their commit, and whose calls were made again, each by itself.
        failures: calls that ended with the database's failing.
        waiting: calls that wait now.
    """

    reads: int
    writes: int
    commits: int
    largest_batch: int
    repeats: int
    failures: int
    waiting: int


class _SpoiledError(Exception):
    """A call broke the transaction that it shared; nothing of it is there.

    Args:
        error: what the call ends with, unless another attempt does better.
        deadlock: whether the server ended the transaction in favour of another.
    """

    def __init__(self, error: Exception, *, deadlock: bool) -> None:
        super().__init__(error)
        self.error = error
        self.deadlock = deadlock


class Desk:
    """A database from any thread and event loop.

    One thread writes: it takes what waits, makes each call in a savepoint of its own and commits once; who wrote hears
    of it after the commit. Others read.

    The functions that it is given take a connection first. They may be called again where a transaction broke before
    its commit, so they have no effect but on the database, and they never block on anything else.
    """

    def __init__(self, database: Database, *, queue: int = QUEUE, batch: int = BATCH) -> None:
        self._database = database
        self._batch = batch
        self._writes, self._reads = Line(queue), Line(queue)
        self._counts = dict.fromkeys(("reads", "writes", "commits", "largest_batch", "repeats", "failures"), 0)
        self._lock = threading.Lock()
        jobs = [self._write_all, *[self._read_all] * database.readers]
        self._threads = [threading.Thread(target=job, name="database", daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function reads, from one state of the database.

        Raises:
            DatabaseUnavailable: it does not answer, or is closed.
            CapacityExhausted: too many wait already.
            InternalError: the database refused a statement.
            Exception: what the function raises.
        """
        return await self._wait(self._reads, partial(_call, fn, args, kwargs))

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returned, once what it wrote outlasts the process and the machine.

        What a function wrote that raises is undone, and nothing else. A caller that is cancelled does not know whether
        it was written.

        Raises:
            DatabaseUnavailable: locked, no room, no connection, or closed. Nothing was written; where PostgreSQL's
                connection broke during the commit nobody knows.
            CapacityExhausted: too many wait already.
            Conflict: a row contradicts others.
            InternalError: the database refused a statement.
            Exception: what the function raises.
        """
        return await self._wait(self._writes, partial(_call, fn, args, kwargs))

    def read_now(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do as `read` does, and block."""
        return self._block(self._reads, partial(_call, fn, args, kwargs))

    def write_now(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do as `write` does, and block."""
        return self._block(self._writes, partial(_call, fn, args, kwargs))

    def statistics(self) -> DeskStatistics:
        """Return what was done so far."""
        with self._lock:
            return DeskStatistics(**self._counts, waiting=len(self._writes) + len(self._reads))

    async def close(self) -> None:
        """Do what waits, take nothing more, and close the database."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Do as `close` does, and block."""
        self._writes.close()
        self._reads.close()
        for thread in self._threads:
            thread.join()
        self._database.close()

    async def _wait(self, line: Line, run: Callable[[Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        line.put(Ask(run, future, loop))
        return await future

    @staticmethod
    def _block(line: Line, run: Callable[[Connection], T]) -> T:
        future: Future[T] = Future()
        line.put(Ask(run, future))
        return future.result()

    def _read_all(self) -> None:
        while asks := self._reads.take(1):
            self._count(reads=1)
            deliver((ask, self._read(ask)) for ask in asks if not ask.future.cancelled())

    def _read(self, ask: Ask) -> Outcome:
        try:
            with self._database.reading() as connection:
                return Outcome(ask.run(connection))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to see
            self._count(failures=isinstance(error, DatabaseUnavailable))
            return Outcome(error=error)

    def _write_all(self) -> None:
        while asks := self._writes.take(self._batch):
            asks = [ask for ask in asks if not ask.future.cancelled()]
            if asks:
                deliver(self._write(asks))

    def _write(self, asks: list[Ask]) -> list[tuple[Ask, Outcome]]:
        try:
            return self._commit(asks)
        except _SpoiledError:
            self._count(repeats=1)
        return [ended for ask in asks for ended in self._repeat(ask)]

    def _repeat(self, ask: Ask) -> list[tuple[Ask, Outcome]]:
        """Make a call by itself, and again while it ends in deadlocks; return what came of it."""
        for pause_s in (*PAUSES_S, None):
            try:
                return self._commit([ask])
            except _SpoiledError as spoiled:
                error = spoiled.error
                if not spoiled.deadlock or pause_s is None:
                    break
            time.sleep(pause_s)
        return self._fail([ask], error)

    def _commit(self, asks: list[Ask]) -> list[tuple[Ask, Outcome]]:
        """Make calls in one transaction, and return what came of them once it is committed.

        Raises:
            _SpoiledError: a call broke the transaction.
        """
        begun = False
        try:
            with self._database.writing() as connection:
                begun = True
                outcomes = [_run(connection, ask) for ask in asks]
        except _SpoiledError:
            raise
        except Exception as error:  # noqa: BLE001 - the thread goes on, and the callers hear of it
            if begun:
                unavailable = isinstance(error, DatabaseUnavailable)
                return self._fail(asks, error if unavailable else DatabaseUnavailable("the database could not commit"))
            # What came while a lock was waited for in vain has waited as long: nobody waits for another's turn too.
            return self._fail(asks + self._writes.drain(), error)
        done = sum(outcome.error is None for outcome in outcomes)
        self._count(commits=1, writes=done, largest_batch=len(asks))
        return list(zip(asks, outcomes, strict=True))

    def _fail(self, asks: list[Ask], error: BaseException) -> list[tuple[Ask, Outcome]]:
        self._count(failures=len(asks))
        return [(ask, Outcome(error=copy(error))) for ask in asks]

    def _count(self, largest_batch: int = 0, **more: int) -> None:
        with self._lock:
            self._counts["largest_batch"] = max(self._counts["largest_batch"], largest_batch)
            for name, number in more.items():
                self._counts[name] += number


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], connection: Connection) -> T:
    return fn(connection, *args, **kwargs)


def _run(connection: Connection, ask: Ask) -> Outcome:
    """Make one call in a savepoint, which is undone if it raises.

    Raises:
        _SpoiledError: the transaction cannot go on.
    """
    connection.exec_driver_sql("SAVEPOINT own")  # SQLAlchemy's own way takes four times as long
    try:
        value = ask.run(connection)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to see
        if spoils(error):
            raise _SpoiledError(translate(error), deadlock=is_deadlock(error)) from None
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT own")
        outcome = Outcome(error=translate(error))
    else:
        outcome = Outcome(value)
    connection.exec_driver_sql("RELEASE SAVEPOINT own")
    return outcome
