"""`UsageMeter`: what tenants use, counted in memory and written to the database by the hour.

A process that is killed loses what it counted since its last flush: `FLUSH_S` at most, longer only while the database
does not answer. A service that is closed loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Final

from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.usage import AMOUNTS, HOUR_MS, UsageAmounts, add_usage, list_device_usage, list_usage
from tensorwasm.errors import InvalidRequest
from tensorwasm.service.clock import SYSTEM, Clock, run_round
from tensorwasm.tenancy.quotas import Quotas

_log = logging.getLogger(__name__)

FLUSH_S: Final = 5.0
"""Seconds between flushes: the most that is lost when the process is killed."""

MAX_HOURS: Final = 24 * 366


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What a tenant used; `hours` has the start and usage of each hour with any, in order, and `total` their sum."""

    tenant: int
    since_unix_ms: int
    until_unix_ms: int
    hours: tuple[tuple[int, UsageAmounts], ...]
    total: UsageAmounts


WriteUsage = Callable[[int, Mapping[int, UsageAmounts]], Awaitable[None]]
"""Keeps what tenants used in an hour, given by its start."""


class UsageMeter:
    """What all tenants use, flushed every `flush_s`. For one event loop.

    Args:
        database: where usage is.
        clock: of hours.
        flush_s: seconds between flushes.
        write: keeps what was used; None adds it to the database.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        clock: Clock = SYSTEM,
        flush_s: float = FLUSH_S,
        write: WriteUsage | None = None,
    ) -> None:
        self._database = database
        self._keep: WriteUsage = write or self._add_to_database
        self._clock = clock
        self._flush_s = flush_s
        self._counts: dict[int, list[int]] = {}
        self._hour = self._this_hour()
        self._unwritten: dict[int, dict[int, list[int]]] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to flush every few seconds, on the running event loop."""
        self._timer = asyncio.ensure_future(self._run())

    async def recall(self, quotas: Quotas) -> None:
        """Restore the hourly device quotas from the database, so that a restart does not reset them."""
        for hour, tenant, gpu_us, launches in await self._database.read(list_device_usage, self._hour - HOUR_MS):
            quotas.restore(tenant, hour, gpu_us=gpu_us, launches=launches)

    async def close(self) -> None:
        """Stop the timer and flush. Idempotent. Raises as `flush` does."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
            self._timer = None
        await self.flush()

    def note(
        self,
        tenant: int,
        requests: int = 0,
        errors: int = 0,
        cpu_us: int = 0,
        gpu_us: int = 0,
        launches: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
    ) -> None:
        """Count what a tenant used, in less than a microsecond. Amounts as in `UsageAmounts`."""
        counts = self._counts.get(tenant)
        if counts is None:
            if not self._counts:
                self._hour = self._this_hour()
            self._counts[tenant] = [requests, errors, cpu_us, gpu_us, launches, bytes_in, bytes_out]
            return
        counts[0] += requests
        counts[1] += errors
        counts[2] += cpu_us
        counts[3] += gpu_us
        counts[4] += launches
        counts[5] += bytes_in
        counts[6] += bytes_out

    def add(self, hour_unix_ms: int, tenant: int, used: UsageAmounts) -> None:
        """Count what another process counted for a tenant in an hour."""
        waiting = self._unwritten.setdefault(hour_unix_ms, {})
        before = waiting.get(tenant, [0] * len(AMOUNTS))
        waiting[tenant] = [a + b for a, b in zip(before, astuple(used), strict=True)]

    async def flush(self) -> None:
        """Write what was counted; if the database raises, it stays counted for the next flush."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._flushing = asyncio.ensure_future(self._write())
        await asyncio.shield(self._flushing)  # a cancelled caller must not stop a write in progress

    async def _write(self) -> None:
        try:
            self._close_period()
            for hour in sorted(self._unwritten):
                counted = self._unwritten.pop(hour)
                used = {tenant: UsageAmounts(*counts) for tenant, counts in counted.items()}
                try:
                    await self._keep(hour, used)
                except BaseException:
                    for tenant, amounts in used.items():  # others may have been added meanwhile
                        self.add(hour, tenant, amounts)
                    raise
        finally:
            self._flushing = None

    async def _add_to_database(self, hour_unix_ms: int, used: Mapping[int, UsageAmounts]) -> None:
        await self._database.write(add_usage, hour_unix_ms, used)

    def _close_period(self) -> None:
        """Move the counts to those that wait to be written under their hour."""
        if not self._counts:
            return
        waiting = self._unwritten.setdefault(self._hour, {})
        for tenant, counts in self._counts.items():
            before = waiting.get(tenant)
            waiting[tenant] = counts if before is None else [a + b for a, b in zip(before, counts, strict=True)]
        self._counts = {}

    async def report(self, tenant: int, since_unix_ms: int, until_unix_ms: int) -> UsageReport:
        """Return what a tenant used in a range of hours, including what is counted but not yet written.

        The start is rounded down and the end up to an hour. Raise InvalidRequest if the range ends before it begins, or
        is longer than 366 days.
        """
        since, until = since_unix_ms // HOUR_MS * HOUR_MS, -(-until_unix_ms // HOUR_MS) * HOUR_MS
        if not 0 <= since_unix_ms <= until_unix_ms or until - since > MAX_HOURS * HOUR_MS:
            raise InvalidRequest("since comes before until, by a year and a day at most")
        if self._counts or self._unwritten or self._flushing is not None:
            await self.flush()
        hours = await self._database.read(list_usage, tenant, since, until)
        total = UsageAmounts(*(sum(getattr(each, name) for _, each in hours) for name in AMOUNTS))
        return UsageReport(tenant, since, until, tuple(hours), total)

    def _this_hour(self) -> int:
        return self._clock.unix_ms() // HOUR_MS * HOUR_MS

    async def _run(self) -> None:
        """Flush every few seconds, and at the end of each hour, so that all counts belong to one hour."""
        while True:
            await asyncio.sleep(min(self._flush_s, (HOUR_MS - self._clock.unix_ms() % HOUR_MS) / 1000))
            await run_round(self.flush, "usage could not be written", _log)
