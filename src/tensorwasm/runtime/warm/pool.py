"""Sandboxes that are ready before anybody asks, for functions whose start is expensive.

A fresh sandbox for each invocation stays the rule. Of a function that is kept warm, a thread of its own makes some
ahead of time: instantiated, its start run, and its initialiser if it has one. Each serves one invocation and is
dropped; none is ever rewound. It was made for nobody: without input, folders, standard input or a GPU. What only a
caller has, it cannot have asked for: one whose start did is thrown away. So it may be drawn where a fresh one would
have seen the same: for the tenant, the arguments and the environment that it was made for, without folders and without
a GPU. A GPU session belongs to its sandbox from its first moment on, so guests with one are always fresh.

At the draw everything that is a caller's is set anew (`tensorwasm.guest.sandbox.instance.Instance.renew`). What the
start wrote is then written for the caller; what it read of clocks and random numbers stays its own, and no other
guest's.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from tensorwasm.errors import InternalError

MAX_AGE_S: Final = 60.0
"""Oldest that a sandbox is drawn; then another is made in its place."""
ROOM: Final = 8
"""One in so many slots of the engine's pool stays free of warm sandboxes: with fewer free, they are dropped."""
FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 60.0
_LOOK_S: Final = 1.0
_EXIT_S: Final = 1.0

_log = logging.getLogger(__name__)


class WarmSandbox(Protocol):
    """What is kept: `tensorwasm.guest.sandbox.instance.Instance`."""

    def close(self) -> None:
        """Free it."""


Stop = Callable[[], object]
Make = Callable[[Callable[[Stop], object]], WarmSandbox]
"""Makes one, and tells first what ends that, from any thread. Raises `TensorWasmError` if it cannot be had."""


class RefusingServices(Mapping[str, object]):
    """The services of a sandbox that is made for nobody in particular.

    Attributes:
        asked: it was asked for one.
    """

    def __init__(self) -> None:
        self.asked = False

    def __getitem__(self, name: str) -> object:
        self.asked = True
        raise InternalError(f"a start asked for {name!r}, which only an invocation has")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(slots=True, eq=False)
class PoolSpecification:
    """The warm sandboxes of one function, one tenant and one set of surroundings. A `WarmPool` keeps it.

    Attributes:
        make: makes one.
        free_slots: slots that its engine has free, and has at all.
        count: how many are to be ready.
        ready: those that are, oldest first, with the time at which they were.
        failures: starts that failed since the last that did not.
        again_s: when the next is tried.
    """

    make: Make
    free_slots: Callable[[], tuple[int, int]]
    count: int
    ready: deque[tuple[float, WarmSandbox]] = field(default_factory=deque)
    failures: int = 0
    again_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WarmStatistics:
    """A snapshot of a pool.

    Attributes:
        draws: invocations that might have had a warm sandbox.
        hits: those that got one.
        misses: those that did not.
        drops: sandboxes that were dropped unused: too old, for want of room, or because nobody keeps them any more.
        failures: starts that failed, took too long, or asked for what only an invocation has.
        warm: sandboxes that are ready.
    """

    draws: int = 0
    hits: int = 0
    misses: int = 0
    drops: int = 0
    failures: int = 0
    warm: int = 0


class WarmPool:
    """Keeps stocks. Any thread may draw; making and dropping are done on a thread of its own, started when needed."""

    def __init__(self, limit: int, *, now_s: Callable[[], float] = time.monotonic, threaded: bool = True) -> None:
        """Start nothing yet.

        Args:
            limit: most sandboxes that are ready at a time, of all stocks together.
            now_s: the clock.
            threaded: False has the caller do `tend`.
        """
        self._limit = limit
        self._now_s = now_s
        self._threaded = threaded
        self._lock = threading.Lock()
        self._stocks: list[PoolSpecification] = []
        self._dropped: list[WarmSandbox] = []
        self._counts = dict.fromkeys(("draws", "hits", "misses", "drops", "failures"), 0)
        self._wake = threading.Event()
        self._orphans: deque[PoolSpecification] = deque()
        self._start: tuple[PoolSpecification, Stop] | None = None
        self._making: PoolSpecification | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, stock: PoolSpecification) -> None:
        """Keep a stock from now on. Returns at once."""
        with self._lock:
            if self._closed:
                raise InternalError("the runtime is closed")
            self._stocks.append(stock)
            if self._threaded and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tensorwasm-warm", daemon=True)
                self._thread.start()
                atexit.register(self._leave)  # a thread that runs a guest must not be ended by the interpreter's end
        self._wake.set()

    def remove(self, stock: PoolSpecification) -> None:
        """Keep a stock no longer. Returns at once; its sandboxes are dropped soon.

        Waits for no lock: this is called when a function is collected too, by a thread that may hold any.
        """
        stock.count = 0
        self._orphans.append(stock)
        start = self._start
        if start is not None and start[0] is stock:
            start[1]()
        if self._lock.acquire(blocking=False):
            try:
                self._drop_orphans()
            finally:
                self._lock.release()

    def draw(self, stock: PoolSpecification) -> WarmSandbox | None:
        """Return a sandbox that is the caller's alone from now on, None if there is none. Never waits for one."""
        with self._lock:
            self._drop_old(stock)
            found = stock.ready.popleft()[1] if stock.ready else None
            self._counts["draws"] += 1
            self._counts["misses" if found is None else "hits"] += 1
        self._wake.set()
        return found

    def shed(self) -> bool:
        """Drop all that is ready, now, because somebody needs the room; return whether there was anything."""
        with self._lock:
            for stock in self._stocks:
                self._drop(stock, len(stock.ready))
                stock.again_s = self._now_s() + _LOOK_S
        return self._close_dropped()

    def tend(self) -> bool:
        """Drop what is to go and make one sandbox, if one is wanted; return whether more may be to do."""
        with self._lock:
            self._drop_orphans()
            for stock in self._stocks:
                self._drop_old(stock)
                if _is_full(stock):
                    self._drop(stock, len(stock.ready))
            wanted = self._choose()
        self._close_dropped()
        if wanted is None:
            return False
        self._fill(wanted)
        return True

    def statistics(self) -> WarmStatistics:
        """Return a snapshot."""
        with self._lock:
            return WarmStatistics(**self._counts, warm=self._warm())

    def close(self) -> None:
        """Drop everything. A start that runs is told to end, and not waited for. A second call does nothing."""
        with self._lock:
            self._closed, start = True, self._start
            for stock in self._stocks:
                self._drop(stock, len(stock.ready))
            self._stocks.clear()
        self._wake.set()
        if start is not None:
            start[1]()
        self._close_dropped()
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        self.close()
        if self._thread is not None:
            self._thread.join(_EXIT_S)

    def _serve(self) -> None:
        while not self._closed:
            self._wake.clear()
            if not self.tend():
                self._wake.wait(_LOOK_S if self._stocks or self._orphans or self._dropped else None)

    def _choose(self) -> PoolSpecification | None:
        """Return the stock that lacks most of what it is to have."""
        if self._closed or self._warm() >= self._limit:
            return None
        now_s = self._now_s()
        lacking = [s for s in self._stocks if len(s.ready) < s.count and s.again_s <= now_s and not _is_full(s)]
        return min(lacking, key=lambda stock: len(stock.ready) / stock.count, default=None)

    def _fill(self, stock: PoolSpecification) -> None:
        """Make one sandbox. It is thrown away if it came too late."""
        self._making = stock
        try:
            made = stock.make(self._tell_stop)
        except Exception as error:  # noqa: BLE001 - the caller who draws makes a fresh one, and sees for himself
            with self._lock:
                self._start = None
                self._counts["failures"] += 1
                stock.failures += 1
                stock.again_s = self._now_s() + min(
                    LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(stock.failures - 1, 16)
                )
            _log.info("no sandbox could be kept warm: %s", error)
            return
        with self._lock:
            self._start = None
            stock.failures = 0
            stock.ready.append((self._now_s(), made))
            if stock not in self._stocks:
                self._drop(stock, 1)
            self._drop_orphans()
        self._close_dropped()

    def _tell_stop(self, stop: Stop) -> None:
        with self._lock:
            if self._making is None:
                raise InternalError("a start is told of that nobody wanted")
            self._start = self._making, stop
            unwanted = self._making not in self._stocks or not self._making.count
        if unwanted:
            stop()

    def _drop_orphans(self) -> None:
        while self._orphans:
            stock = self._orphans.popleft()
            if stock in self._stocks:
                self._stocks.remove(stock)
            self._drop(stock, len(stock.ready))

    def _drop_old(self, stock: PoolSpecification) -> None:
        oldest_s = self._now_s() - MAX_AGE_S
        self._drop(stock, sum(made_s < oldest_s for made_s, _ in stock.ready))

    def _drop(self, stock: PoolSpecification, count: int) -> None:
        """Take the oldest away; whoever holds no lock closes them."""
        self._dropped += (stock.ready.popleft()[1] for _ in range(count))
        self._counts["drops"] += count

    def _close_dropped(self) -> bool:
        closed = False
        with suppress(IndexError):
            while True:
                self._dropped.pop().close()
                closed = True
        return closed

    def _warm(self) -> int:
        return sum(len(stock.ready) for stock in self._stocks)


def _is_full(stock: PoolSpecification) -> bool:
    """Return whether the pool of the stock's engine has too few free slots for sandboxes that nobody asked for."""
    free, slots = stock.free_slots()
    return free * ROOM <= slots
