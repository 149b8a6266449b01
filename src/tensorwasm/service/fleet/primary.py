"""`Fronts`: the primary's side of the links to the processes that accept requests."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import NotReady
from tensorwasm.service.fleet.link import READ_BYTES, Link
from tensorwasm.service.fleet.messages import (
    PROTOCOL,
    AnyMessage,
    AskMetrics,
    Changed,
    Done,
    Evicted,
    EvictIdle,
    Failed,
    FrontReport,
    Hello,
    Leaving,
    Settle,
    TakenMetrics,
)
from tensorwasm.telemetry.metrics import REQUESTS, Samples

LATE_S: Final = 5.0
"""Time in which a front must acknowledge a change. One that does not is killed: it would act on what is revoked."""

METRICS_S: Final = 1.0
"""Time in which a front must give its metrics, or say that it has reported all; a later one is left out."""

ROUND_S: Final = 0.01
"""Seconds between two rounds of asking all fronts whether they have reported all, however many clients wait for one."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Process:
    """A front's process, by a descriptor that stays its own when its number is used again."""

    pid: int
    descriptor: int

    @classmethod
    def open(cls, pid: int) -> _Process | None:
        """Return a process; None if it has ended."""
        try:
            return cls(pid, os.pidfd_open(pid))
        except OSError:
            return None

    @property
    def ended(self) -> bool:
        asked = select.poll()
        asked.register(self.descriptor, select.POLLIN)
        return bool(asked.poll(0))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass(slots=True, eq=False)
class _Front:
    """A front that is connected; `metrics` are its last ones, and `left` says that it calls no function any more."""

    link: Link
    process: _Process
    metrics: Samples = field(default_factory=Samples)
    left: bool = False


class Fronts:
    """All fronts of this primary. For one event loop.

    Args:
        take: is given what a front reports.
        evict: evicts an idle session of a tenant, or of any for None; returns whether one left memory.
        alive: processes of fronts that an earlier primary had: they are waited for before a change is acknowledged,
            since they act on what they have read from it.
    """

    def __init__(
        self,
        take: Callable[[FrontReport], Awaitable[None]],
        evict: Callable[[int | None], Awaitable[bool]],
        alive: Iterable[int] = (),
    ) -> None:
        self._take, self._evict = take, evict
        self._fronts: set[_Front] = set()
        self._missing = {process.pid: process for pid in alive if (process := _Process.open(pid)) is not None}
        self._joined, self._left = asyncio.Event(), asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._ended = Samples()
        self._round: asyncio.Task[None] | None = None  # that begins next
        self._last_round: asyncio.Task[None] | None = None
        self._round_s = 0.0  # when that has ended

    def __len__(self) -> int:
        """Return the number of connected fronts."""
        return len(self._fronts)

    async def listen(self, listening: socket.socket) -> None:
        """Take links on a socket that listens; it is closed with this."""
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=READ_BYTES)

    async def close(self) -> None:
        """End all links once what they have reported is answered. Fronts keep the rest for the next primary."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(front.link.finish() for front in self._fronts))
        rounds = [each for each in (self._last_round, self._round) if each is not None]
        await asyncio.gather(*self._links, *rounds, return_exceptions=True)
        for process in self._missing.values():
            process.close()

    async def tell(self, changed: Changed) -> None:
        """Return once every front has read again what has changed, or has ended."""
        told = False
        while not told:
            await self._wait_for_missing()
            told = all(await asyncio.gather(*(self._tell(front, changed) for front in self._fronts)))

    async def wait_left(self, limit_s: float) -> None:
        """Wait until all fronts have ended, at most for a time: they report until then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._fronts:
                    self._left.clear()
                    await self._left.wait()

    async def settle(self) -> None:
        """Return once everything is known that fronts had reported before.

        A round of asking that has begun may come too early for who comes now: all of those wait for the next one.
        """
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._settle(self._last_round))
        await asyncio.shield(self._round)

    async def _settle(self, before: asyncio.Task[None] | None) -> None:
        loop = asyncio.get_running_loop()
        if before is not None:
            await before
            await asyncio.sleep(self._round_s + ROUND_S - loop.time())
        self._last_round, self._round = self._round, None
        await asyncio.gather(*(self._ask_settled(front) for front in self._fronts))
        self._round_s = loop.time()

    async def _ask_settled(self, front: _Front) -> None:
        with suppress(NotReady, TimeoutError):
            async with asyncio.timeout(METRICS_S):
                await front.link.ask(Settle())

    async def metrics(self) -> Samples:
        """Return the sum of the metrics of all fronts, with the counters of those that have ended."""
        await asyncio.gather(*(self._ask_metrics(front) for front in self._fronts))
        return sum((front.metrics for front in self._fronts), self._ended)

    def requests(self) -> dict[tuple[str, ...], float]:
        """Return how many requests each front had answered when its metrics were asked for last, by process number."""
        return {
            (str(front.process.pid),): sum(value for _, value in front.metrics.values.get(REQUESTS, ()))
            for front in self._fronts
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one link to its end."""
        task = asyncio.current_task()
        if task is not None:
            self._links.add(task)
            task.add_done_callback(self._links.discard)
        joined: list[_Front] = []

        async def answer(message: AnyMessage) -> AnyMessage:
            if isinstance(message, Hello):
                return self._join(message, link, joined)
            if isinstance(message, EvictIdle):
                return Evicted(await self._evict(message.tenant))
            if isinstance(message, FrontReport):
                await self._take(message)
            elif isinstance(message, Leaving) and joined:
                joined[0].metrics = Samples(message.metrics.values, message.metrics.histograms)
                joined[0].left = True
            return Done()

        link = Link(reader, writer, answer)
        await link.run()
        for front in joined:
            self._leave(front)

    def _join(self, hello: Hello, link: Link, joined: list[_Front]) -> AnyMessage:
        if hello.protocol != PROTOCOL:
            return Failed(f"messages of release {hello.protocol} are not those of {PROTOCOL}")
        known = self._missing.pop(hello.pid, None)
        process = known or _Process.open(hello.pid)
        if process is None or joined:
            return Failed("there is no such process, or it is known already")
        joined.append(_Front(link, process))
        self._fronts.add(joined[0])
        self._joined.set()
        return Done()

    def _leave(self, front: _Front) -> None:
        """Forget a front whose link has ended; one whose process goes on is waited for."""
        self._fronts.discard(front)
        self._left.set()
        self._ended = self._ended + front.metrics.lasting()
        if front.left or front.process.ended:
            front.process.close()
        else:
            self._missing[front.process.pid] = front.process

    async def _wait_for_missing(self) -> None:
        """Wait until all fronts are connected; kill those that are not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                while self._still_missing():
                    self._joined.clear()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._joined.wait(), 0.05)  # it may have ended meanwhile
        for process in self._still_missing():
            self._kill(process)

    def _still_missing(self) -> list[_Process]:
        for process in [each for each in self._missing.values() if each.ended]:
            del self._missing[process.pid]
            process.close()
        return list(self._missing.values())

    async def _tell(self, front: _Front, changed: Changed) -> bool:
        """Tell a front; return false if its link has ended, over which nothing more is known of its process."""
        try:
            async with asyncio.timeout(LATE_S):
                await front.link.ask(changed)
        except (NotReady, TimeoutError):
            if front not in self._fronts:  # its process is closed, or missing
                return front.left
            if not front.left:
                self._kill(front.process)
        return True

    def _kill(self, process: _Process) -> None:
        _log.error("the front %d does not acknowledge a change, and is killed", process.pid)
        process.kill()

    async def _ask_metrics(self, front: _Front) -> None:
        try:
            async with asyncio.timeout(METRICS_S):
                found: TakenMetrics = await front.link.ask(AskMetrics())
        except (NotReady, TimeoutError):
            return
        front.metrics = Samples(found.values, found.histograms)
