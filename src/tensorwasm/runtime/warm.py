"""Sandboxes that are made before they are called, for functions whose start is expensive.

Of a function that is kept warm, a thread makes some sandboxes ahead of time: instantiated, its start run, and its
initialiser if it has one. Each serves one invocation and is dropped; none is ever reused. It is made without input,
folders and GPU, and dropped if its start asked for what only an invocation has. So it may be drawn where a fresh one
would have seen the same: for the tenant, the arguments and the environment that it was made for, without folders and
GPU.

At the draw everything of the caller's is set anew (`tensorwasm.guest.sandbox.instance.Instance.renew`). What the start
wrote is then written for the caller; clocks and random numbers that it read are in no other sandbox.
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
from functools import partial
from typing import Final

from tensorwasm.errors import InternalError
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import LinkedModule
from tensorwasm.guest.sandbox.state import START_CEILING_S
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.values import Deadline, Limits

MAX_AGE_S: Final = 60.0
"""Age from which a sandbox is replaced."""
START_S: Final = min(10.0, START_CEILING_S)
"""Longest start of a warm sandbox: one thread makes them all."""
ROOM: Final = 8
"""One in so many slots of the engine's pool stays free: with fewer free, warm sandboxes are dropped."""
FIRST_BACKOFF_S: Final = 0.1
LONGEST_BACKOFF_S: Final = 60.0
_LOOK_S: Final = 1.0
_EXIT_S: Final = 1.0

Stop = Callable[[], object]
Make = Callable[[Callable[[Stop], object]], Instance]
"""Makes a sandbox, after passing on what stops that, from any thread. Raises `TensorWasmError`."""

_log = logging.getLogger(__name__)


class UnavailableServices(Mapping[str, object]):
    """The services of a sandbox that is made before its call."""

    def __init__(self) -> None:
        self.asked = False  # one was requested

    def __getitem__(self, name: str) -> object:
        self.asked = True
        raise InternalError(f"a start asked for {name!r}, which only an invocation has")

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(slots=True, eq=False)
class WarmSpecification:
    """The warm sandboxes of one function, one tenant, and one set of arguments, environment and initialisers."""

    make: Make  # makes one
    free_slots: Callable[[], tuple[int, int]]  # slots that its engine has free, and has at all
    count: int  # how many are to be ready
    args: tuple[str, ...] = ()  # WASI arguments that the starts saw
    env: tuple[tuple[str, str], ...] = ()  # WASI environment that they saw
    initialisers: tuple[str, ...] = ()  # exports that were called, in order
    # Sandboxes that are ready, oldest first, with the time at which they were.
    ready: deque[tuple[float, Instance]] = field(default_factory=deque)
    failures: int = 0  # failed starts in a row
    again_s: float = 0.0  # when the next start is tried

    def fits(self, config: WasiConfig, initialisers: tuple[str, ...]) -> bool:
        """Return whether a start in a sandbox made for the caller would have done and seen the same."""
        same = config.args == self.args and config.env == self.env and initialisers == self.initialisers
        return same and not config.directories


def make_specification(
    prepared: LinkedModule, limits: Limits, config: WasiConfig, initialisers: tuple[str, ...], count: int
) -> WarmSpecification:
    """Describe the warm sandboxes of a module."""
    engine = prepared.module.engine
    return WarmSpecification(
        make=partial(_make, prepared, limits, config, initialisers),
        free_slots=lambda: (engine.free_slots, engine.config.slots),
        count=count,
        args=config.args,
        env=config.env,
        initialisers=initialisers,
    )


def _make(
    prepared: LinkedModule,
    limits: Limits,
    config: WasiConfig,
    initialisers: tuple[str, ...],
    announce: Callable[[Stop], object],
) -> Instance:
    services, deadline = UnavailableServices(), Deadline.after(min(limits.wall_s, START_S))
    instance = Instance(
        prepared, limits=limits, services=services, wasi_config=config, deadline=deadline, announce=announce
    )
    instance.initialise(initialisers, deadline)
    if services.asked:
        instance.close()
        raise InternalError("a start asked for what only an invocation has, and went on when it was refused")
    return instance


@dataclass(frozen=True, slots=True)
class WarmStatistics:
    """A snapshot of a pool."""

    draws: int = 0  # invocations that might have had a warm sandbox: `hits` of them got one, `misses` did not
    hits: int = 0
    misses: int = 0
    drops: int = 0  # sandboxes dropped unused: too old, for want of slots, or no longer wanted
    failures: int = 0  # starts that failed, took too long, or asked for what only an invocation has
    warm: int = 0  # sandboxes that are ready


class WarmPool:
    """Keeps warm sandboxes, at most `limit` of all specifications together. Thread-safe.

    Its own thread, started when needed, makes and drops them, unless the caller does with `tend`.
    """

    def __init__(self, limit: int, *, now_s: Callable[[], float] = time.monotonic, threaded: bool = True) -> None:
        self._limit = limit
        self._now_s = now_s
        self._threaded = threaded
        self._lock = threading.Lock()
        self._specifications: list[WarmSpecification] = []
        self._dropped: list[Instance] = []
        self._counts = dict.fromkeys(("draws", "hits", "misses", "drops", "failures"), 0)
        self._wake = threading.Event()
        self._start: tuple[WarmSpecification, Stop] | None = None
        self._making: WarmSpecification | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, specification: WarmSpecification) -> None:
        """Keep the sandboxes of a specification ready from now on. Returns at once."""
        with self._lock:
            if self._closed:
                raise InternalError("the runtime is closed")
            self._specifications.append(specification)
            if self._threaded and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="tensorwasm-warm", daemon=True)
                self._thread.start()
                atexit.register(self._leave)  # a thread that runs a guest must not be ended by the interpreter's end
        self._wake.set()

    def remove(self, specification: WarmSpecification) -> None:
        """Drop a specification and, soon, its sandboxes. Returns at once. Idempotent."""
        with self._lock:
            if specification in self._specifications:
                self._specifications.remove(specification)
            self._drop(specification, len(specification.ready))
            start = self._start
        if start is not None and start[0] is specification:
            start[1]()
        self._wake.set()

    def draw(self, specification: WarmSpecification) -> Instance | None:
        """Return a sandbox that is the caller's from now on, None if there is none. Never waits for one."""
        with self._lock:
            self._drop_old(specification)
            found = specification.ready.popleft()[1] if specification.ready else None
            self._counts["draws"] += 1
            self._counts["misses" if found is None else "hits"] += 1
        self._wake.set()
        return found

    def drop_ready(self) -> bool:
        """Drop all that is ready, now, to free slots; return whether there was any."""
        with self._lock:
            for specification in self._specifications:
                self._drop(specification, len(specification.ready))
                specification.again_s = self._now_s() + _LOOK_S
        return self._close_dropped()

    def maintain(self) -> bool:
        """Drop what is due and make one sandbox, if one is wanted; return whether there may be more to do."""
        with self._lock:
            for specification in self._specifications:
                self._drop_old(specification)
                if _is_full(specification):
                    self._drop(specification, len(specification.ready))
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
        """Drop everything. A start that runs is stopped, and not waited for. Idempotent."""
        with self._lock:
            self._closed, start = True, self._start
            for specification in self._specifications:
                self._drop(specification, len(specification.ready))
            self._specifications.clear()
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
            if not self.maintain():
                self._wake.wait(_LOOK_S if self._specifications or self._dropped else None)

    def _choose(self) -> WarmSpecification | None:
        """Return the specification that lacks the largest part of its sandboxes."""
        if self._closed or self._warm() >= self._limit:
            return None
        now_s = self._now_s()
        lacking = [s for s in self._specifications if len(s.ready) < s.count and s.again_s <= now_s and not _is_full(s)]
        return min(lacking, key=lambda specification: len(specification.ready) / specification.count, default=None)

    def _fill(self, specification: WarmSpecification) -> None:
        """Make one sandbox; it is dropped if its specification was removed meanwhile."""
        self._making = specification
        try:
            made = specification.make(self._announce)
        except Exception as error:  # noqa: BLE001 - a caller makes a fresh one, and sees its error
            with self._lock:
                self._start = None
                self._counts["failures"] += 1
                specification.failures += 1
                specification.again_s = self._now_s() + min(
                    LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(specification.failures - 1, 16)
                )
            _log.info("no sandbox could be kept warm: %s", error)
            return
        with self._lock:
            self._start = None
            specification.failures = 0
            specification.ready.append((self._now_s(), made))
            if specification not in self._specifications:
                self._drop(specification, 1)
        self._close_dropped()

    def _announce(self, stop: Stop) -> None:
        with self._lock:
            if self._making is None:
                raise InternalError("a start was announced that is not under way")
            self._start = self._making, stop
            unwanted = self._making not in self._specifications
        if unwanted:
            stop()

    def _drop_old(self, specification: WarmSpecification) -> None:
        oldest_s = self._now_s() - MAX_AGE_S
        self._drop(specification, sum(made_s < oldest_s for made_s, _ in specification.ready))

    def _drop(self, specification: WarmSpecification, count: int) -> None:
        """Take the oldest away, to be closed by a caller that holds no lock."""
        self._dropped += (specification.ready.popleft()[1] for _ in range(count))
        self._counts["drops"] += count

    def _close_dropped(self) -> bool:
        closed = False
        with suppress(IndexError):
            while True:
                self._dropped.pop().close()
                closed = True
        return closed

    def _warm(self) -> int:
        return sum(len(specification.ready) for specification in self._specifications)


def _is_full(specification: WarmSpecification) -> bool:
    """Return whether the engine has too few free slots for sandboxes that no call has asked for."""
    free, slots = specification.free_slots()
    return free * ROOM <= slots
