"""A front's side of its link to the primary: what it leaves to it to write, and what it must read again."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import astuple
from typing import Any, Final

from tensorwasm.database.usage import UsageAmounts
from tensorwasm.errors import NotReady, TensorWasmError
from tensorwasm.service.fleet.link import READ_BYTES, Link
from tensorwasm.service.fleet.messages import (
    AnyMessage,
    AskMetrics,
    Changed,
    Done,
    Evicted,
    EvictIdle,
    FrontReport,
    Hello,
    Leaving,
    StreamEnded,
    TakenMetrics,
    UsedByTenant,
)
from tensorwasm.service.invocations.streaming import StreamEnding, StreamEndings
from tensorwasm.telemetry.metrics import Samples
from tensorwasm.tenancy.audit import AuditRecord, AuditStatistics, encode
from tensorwasm.tenancy.audit.log import QUEUE_LINES, REFUSED_BURST, REFUSED_QPS
from tensorwasm.tenancy.buckets import Buckets

AUDIT_S: Final = 0.05
"""Seconds between two reports of audit records; what is not reported yet is lost if the process is killed."""

AUDIT_LINES: Final = 256
"""Most records encoded at a time, in which the event loop does nothing else: 2 us each."""

CLOSE_S: Final = 5.0
"""Seconds in which there must be a primary for what it is told, and in which the last records must be given to it."""

AGAIN_S: Final = 0.02
"""Pause between two attempts to reach the primary. While it is replaced, they wait in the queue of its socket."""

NONE_S: Final = 0.04
"""Seconds in which a front does not ask again for an idle session of a tenant who had none: less than `LOOK_S`."""

USAGE_AGAIN_S: Final = 0.25
"""Pause between two attempts to report usage."""

_log = logging.getLogger(__name__)


class PrimaryLink:
    """A front's link to the primary, made again whenever it ends. For one event loop.

    Args:
        path: of the primary's socket.
        refresh: reads again what has changed; None stands for everything.
        metrics: returns this process's.
        reporter: as in `FrontReport`.

    Attributes:
        reported: is told what the primary has counted of a tenant's usage.
    """

    def __init__(
        self,
        path: str,
        refresh: Callable[[Changed | None], Awaitable[None]],
        metrics: Callable[[], Samples],
        reporter: str = "",
    ) -> None:
        self._path, self._refresh, self._metrics, self._reporter = path, refresh, metrics, reporter
        self.reported: Callable[[int, UsageAmounts], object] = lambda _tenant, _used: None
        self._link: Link | None = None
        self._made = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Return once the primary has answered; from then on the link is kept."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        await self._made.wait()

    async def close(self) -> None:
        """Report the last metrics, and end the link. Idempotent."""
        if self._keeping is None:
            return
        with suppress(NotReady, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.ask(Leaving(self._snapshot()))
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        self._keeping = None

    async def ask(self, message: AnyMessage) -> Any:
        """Return the primary's answer; waits 5 s for a primary. Raises as `Link.ask`."""
        try:
            await asyncio.wait_for(self._made.wait(), CLOSE_S)
        except TimeoutError:
            raise NotReady("there is no primary process") from None
        assert self._link is not None  # noqa: S101 - it is made
        return await self._link.ask(message)

    async def require(self) -> None:
        """Raise NotReady if there is no primary now."""
        if not self._made.is_set():
            raise NotReady("the primary process is being replaced")

    async def _keep(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=READ_BYTES)
            except OSError as error:
                _log.info("the primary cannot be reached: %s", error.strerror)
                await asyncio.sleep(AGAIN_S)
                continue
            link = Link(reader, writer, self._answer)
            running = asyncio.get_running_loop().create_task(link.run())
            try:
                await link.ask(Hello(os.getpid()))
                await self._refresh(None)
                self._link = link
                self._made.set()
                await running
            except TensorWasmError as error:  # it has ended, or the database cannot be read: the front tries again
                _log.info("the primary does not answer: %s", error.message)
                await asyncio.sleep(AGAIN_S)
            finally:
                self._made.clear()
                link.close()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _answer(self, message: AnyMessage) -> AnyMessage:
        if isinstance(message, Changed):
            await self._refresh(message)
        elif isinstance(message, AskMetrics):
            return self._snapshot()
        return Done()

    def _snapshot(self) -> TakenMetrics:
        found = self._metrics()
        return TakenMetrics(found.values, found.histograms)

    async def write_usage(self, hour_unix_ms: int, used: Mapping[int, UsageAmounts]) -> None:
        """Report what tenants used in an hour, again and again until it is written: it counts once."""
        amounts = [UsedByTenant(hour_unix_ms, tenant, list(astuple(each))) for tenant, each in used.items()]
        report = FrontReport(usage=amounts, reporter=self._reporter, mark=str(uuid.uuid4()))
        while True:
            try:
                await self.ask(report)
            except NotReady as error:
                _log.info("usage waits for the primary: %s", error.message)
                await asyncio.sleep(USAGE_AGAIN_S)
            else:
                break
        for tenant, each in used.items():
            self.reported(tenant, each)


class SessionsInPrimary:
    """Idle sessions, all of which are in the primary, for calls that wait for memory here. For one event loop.

    Where the primary had none of a tenant, it is not asked again for `NONE_S`.

    Args:
        link: to the primary.
        held_elsewhere: returns the bytes that a tenant, or for None all tenants, hold in other processes.
    """

    def __init__(self, link: PrimaryLink, held_elsewhere: Callable[[int | None], int]) -> None:
        self._link, self._held_elsewhere = link, held_elsewhere
        self._had_none: dict[int | None, float] = {}  # when that was

    def any_idle(self, tenant: int | None) -> bool:
        """Return whether there may be one to evict."""
        since_s = self._had_none.get(tenant)
        if since_s is not None and time.monotonic() - since_s < NONE_S:
            return False
        return self._held_elsewhere(tenant) > 0

    async def evict_one(self, tenant: int | None) -> bool:
        """Have the primary evict one; return whether it has."""
        if not self.any_idle(tenant):  # another call has asked meanwhile
            return False
        try:
            await self._link.require()
            found: Evicted = await self._link.ask(EvictIdle(tenant))
        except NotReady:
            return False
        if not found.found:
            self._had_none.pop(tenant, None)
            self._had_none[tenant] = now_s = time.monotonic()
            while now_s - self._had_none[oldest := next(iter(self._had_none))] > NONE_S:
                del self._had_none[oldest]
        return found.found


class ReportedAudit:
    """The audit log of a front: records are encoded here, and chained and written by the primary.

    They are kept until the primary has them on the disk, and reported again to the next one if it has died: a line may
    be there twice then. At most as many are kept as an `AuditLog` keeps. For one event loop.
    """

    def __init__(self, link: PrimaryLink) -> None:
        self._link = link
        self._queue: deque[AuditRecord | bytes] = deque()
        self._refusals = Buckets(1)
        self._kept = 0
        self._dropped = self._suppressed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reports: set[asyncio.Task[None]] = set()

    def append(self, record: AuditRecord | bytes) -> None:
        """Append a record, encoded or not, without waiting."""
        anonymous = not isinstance(record, bytes) and record.actor is None
        if anonymous and self._refusals.take(None, REFUSED_QPS, REFUSED_BURST, time.monotonic_ns()):
            self._suppressed += 1
        elif self._kept >= QUEUE_LINES:
            self._dropped += 1
        else:
            self._kept += 1
            self._queue.append(record)
            if len(self._queue) == AUDIT_LINES:
                self._report()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AUDIT_S, self._report_late)

    def reopen(self) -> None:
        """Do nothing: the file is the primary's."""

    def statistics(self) -> AuditStatistics:
        """Return the counters; the primary counts what it writes."""
        return AuditStatistics(0, self._kept, 0, 0, failing=False)

    async def close(self) -> None:
        """Report what is left, within 5 s at most."""
        self._report(hurry=True)
        if self._reports:
            await asyncio.wait(self._reports, timeout=CLOSE_S)
        for report in list(self._reports):
            report.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._kept:
            _log.error("%d audit records could not be given to the primary", self._kept)

    def _report_late(self) -> None:
        self._timer = None
        self._report()

    def _report(self, *, hurry: bool = False) -> None:
        """Report the records that wait, and how many do not come."""
        encoded = [encode(record) for record in self._queue]
        self._queue.clear()
        dropped, suppressed, self._dropped, self._suppressed = self._dropped, self._suppressed, 0, 0
        if encoded or dropped or suppressed or hurry:
            report = FrontReport(audit=encoded, dropped=dropped, suppressed=suppressed, hurry=hurry)
            task = asyncio.get_running_loop().create_task(self._give(report))
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)

    async def _give(self, report: FrontReport) -> None:
        while True:
            try:
                await self._link.ask(report)
            except NotReady as error:
                _log.info("audit records wait for the primary: %s", error.message)
                await asyncio.sleep(AGAIN_S)
            else:
                self._kept -= len(report.audit)
                return


class ReportedEndings(StreamEndings):
    """Ends of a front's streams, which the primary is told."""

    def __init__(self, link: PrimaryLink) -> None:
        super().__init__()
        self._link = link
        self._telling: set[asyncio.Task[None]] = set()

    def put(self, tenant: int, outcome: StreamEnding) -> None:
        """Tell the primary; it knows before the client of the stream can ask."""
        ended = StreamEnded(
            tenant, outcome.request_id, outcome.reference, outcome.status, outcome.reason, outcome.message
        )
        task = asyncio.get_running_loop().create_task(self._tell(ended))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, ended: StreamEnded) -> None:
        with suppress(NotReady):  # it has ended, and what it knew with it
            await self._link.ask(FrontReport(ended=[ended]))
