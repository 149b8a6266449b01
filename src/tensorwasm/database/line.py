"""Where calls wait for a thread of the desk, and how their outcomes come back."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from tensorwasm.errors import CapacityExhausted, DatabaseUnavailable

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Ask:
    """One call that waits.

    Attributes:
        run: what to do with a connection.
        future: of the caller; a loop's own belongs to that loop's thread.
        loop: None for a caller that blocks.
    """

    run: Callable[[Connection], Any]
    future: asyncio.Future[Any] | Future[Any]
    loop: asyncio.AbstractEventLoop | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: a value, or an error."""

    value: Any = None
    error: BaseException | None = None


class Line:
    """A bounded queue of calls. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._asks: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        self._limit = limit
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return self._asks.qsize()

    def put(self, ask: Ask) -> None:
        """Let a call wait; never blocks.

        Raises:
            CapacityExhausted: too many wait already.
            DatabaseUnavailable: closed.
        """
        with self._lock:
            if self._closed:
                raise DatabaseUnavailable("the database is closed")
            if self._asks.qsize() >= self._limit:
                raise CapacityExhausted("too many calls wait for the database")
            self._asks.put(ask)

    def take(self, most: int) -> list[Ask]:
        """Block until calls wait and return them, at most so many; none once it is closed and empty."""
        first = self._asks.get()
        return self._end() if first is None else [first, *self.drain(most - 1)]

    def drain(self, most: int | None = None) -> list[Ask]:
        """Return what waits now, at most so many; never blocks."""
        found: list[Ask] = []
        while most is None or len(found) < most:
            try:
                ask = self._asks.get_nowait()
            except queue.Empty:
                break
            if ask is None:
                self._end()
                break
            found.append(ask)
        return found

    def close(self) -> None:
        """Take nothing more; what waits is still taken out."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._asks.put(None)

    def _end(self) -> list[Ask]:
        """Leave the end where other threads find it too."""
        self._asks.put(None)
        return []


def deliver(ended: Iterable[tuple[Ask, Outcome]]) -> None:
    """Tell callers what came of their calls; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ask, Outcome]]] = {}
    for ask, outcome in ended:
        if ask.loop is None:
            _settle([(ask, outcome)])
        else:
            by_loop.setdefault(ask.loop, []).append((ask, outcome))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, pairs)
        except RuntimeError:  # the loop is closed, and with it all who waited
            _log.debug("%d calls of a closed event loop have ended", len(pairs))


def _settle(pairs: list[tuple[Ask, Outcome]]) -> None:
    for ask, outcome in pairs:
        if ask.future.done():  # the caller left
            continue
        if outcome.error is None:
            ask.future.set_result(outcome.value)
        else:
            ask.future.set_exception(outcome.error)
