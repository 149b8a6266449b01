"""`Jobs`: what tenants have asked to be run later, and what came of it."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tensorwasm.database import Connection
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.jobs import (
    ENDED,
    JobFilter,
    JobRecord,
    JobStatus,
    NewJob,
    cancel_job,
    count_pending,
    get_job,
    insert_job,
    list_jobs,
)
from tensorwasm.errors import Conflict, Draining, InvalidRequest, NotFound, QuotaExceeded
from tensorwasm.service.clock import SYSTEM, Clock
from tensorwasm.service.functions.resolution import Resolved
from tensorwasm.service.idempotency import IdempotencyKey, Repeated, use_key
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.options import MAX_ATTEMPTS, MAX_DELAY_S, MAX_PENDING, JobOptions
from tensorwasm.service.jobs.outcomes import Judge
from tensorwasm.service.jobs.requests import check_ask, encode_ask
from tensorwasm.service.jobs.runner import Invoke, Runner
from tensorwasm.service.jobs.sweeper import Sweeper
from tensorwasm.service.jobs.waiters import JobWaiters
from tensorwasm.service.maintenance import do
from tensorwasm.service.pages import checked_limit
from tensorwasm.tenancy.principal import require_owned

_log = logging.getLogger(__name__)

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Terms:
    """How a job is run.

    Attributes:
        max_attempts: how often it is tried, 1 to 100; None takes the setting.
        delay_s: how long it waits first, 0 to 30 days.
        expires_s: after how long it is given up if it does not run yet, up to 30 days; None for never.
        timeout_s: seconds that each attempt has; None for as long as the function usually has.
        trace_id: of the request that brings it, 32 hex digits or empty.
    """

    max_attempts: int | None = None
    delay_s: float = 0.0
    expires_s: float | None = None
    timeout_s: float | None = None
    trace_id: str = ""


class Jobs:
    """Jobs of all tenants, for one event loop.

    Args:
        desk: of the database.
        invoke: makes an attempt; cancelling it ends the guest.
        options: how jobs are run.
        alone: no other process runs jobs of this database: whatever runs when this one begins is lost.
        clock: what time it is.
        on_active: told how many jobs have not ended, whenever that changes.
    """

    def __init__(
        self,
        desk: DatabaseExecutor,
        invoke: Invoke,
        options: JobOptions,
        *,
        alone: bool,
        clock: Clock = SYSTEM,
        on_active: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Run nothing yet: see `open`."""
        self._desk = desk
        self._options = options
        self._alone = alone
        self._clock = clock
        self._on_active = on_active
        self._active = 0
        self._closing = False
        self._judge = Judge(options, random.random)
        self._runner = Runner(desk, invoke, self._judge, options, clock, self._change)
        self._sweeper = Sweeper(desk, self._judge, clock, lambda: self._runner.running, self._change)
        self._waiters = JobWaiters(desk, options.poll_s)
        self._claims: asyncio.Task[None] | None = None
        self._chores: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Take over what a process that went down has left, and begin to run what is due.

        Raises:
            DatabaseUnavailable: the database does not answer.
        """
        await self._take_over()
        self._claims = asyncio.ensure_future(self._runner.run())
        chores = ((self._options.renew_s, self._runner.renew), (self._options.sweep_s, self._sweep))
        self._chores = [asyncio.ensure_future(_repeat(pause_s, chore)) for pause_s, chore in chores]

    async def close(self, grace_s: float = 0.0) -> None:
        """Take and run nothing more. What still runs after a time is stopped, and goes on after the next start.

        Idempotent.
        """
        self._closing = True
        self._waiters.close()
        await self._runner.close(grace_s)
        if self._claims is not None:
            await self._claims
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    async def submit(
        self,
        tenant: int,
        resolved: Resolved,
        ask: InvocationRequest,
        terms: Terms = Terms(),
        *,
        idempotency_key: IdempotencyKey | None = None,
    ) -> str:
        """Accept a job: when this returns it outlasts the process and the machine.

        Args:
            tenant: whose it is; it may call the function.
            resolved: what it calls, in the version that this is now.
            ask: with what; its deadline does not count.
            terms: when, and how often.
            idempotency_key: of the request; one made before under it gives the same job.

        Returns:
            The job's id.

        Raises:
            TooManyArgs: more than 256 arguments.
            MissingExport: the function has no such export.
            InvalidArgs: the arguments do not fit it.
            InvalidRequest: the terms are out of range.
            BodyTooLarge: the call is too long to be kept.
            QuotaExceeded: too many jobs of the tenant wait.
            IdempotencyMismatch: the key was used with another request.
            Draining: this process is going down.
            DatabaseUnavailable: the job was not accepted.
            CapacityExhausted: too many wait for the database.
        """
        if self._closing:
            raise Draining("no job is accepted any more")
        check_ask(resolved.function, ask)
        now = self._clock.unix_ms()
        attempts, due, expires = self._checked(terms, now)
        job = NewJob(
            str(uuid.uuid4()),
            tenant,
            resolved.record.id,
            resolved.version.number,
            encode_ask(ask, terms.timeout_s),
            attempts,
            due,
            now,
            expires,
            terms.trace_id,
        )
        try:
            await self._desk.write(_accept, job, idempotency_key)
        except Repeated as repeated:
            return repeated.subject
        self._count(1)
        self._runner.wake()
        return job.id

    def _checked(self, terms: Terms, now: int) -> tuple[int, int, int | None]:
        """Return how often a job is tried, when it is due and when it is given up."""
        attempts = self._options.attempts if terms.max_attempts is None else terms.max_attempts
        if not 1 <= attempts <= MAX_ATTEMPTS:
            raise InvalidRequest(f"max_attempts is 1 to {MAX_ATTEMPTS}")
        if not 0 <= terms.delay_s <= MAX_DELAY_S:
            raise InvalidRequest(f"delay_s is 0 to {MAX_DELAY_S:g}")
        if terms.expires_s is not None and not terms.delay_s < terms.expires_s <= MAX_DELAY_S:
            raise InvalidRequest(f"expires_s is more than delay_s, and at most {MAX_DELAY_S:g}")
        expires = None if terms.expires_s is None else now + round(terms.expires_s * 1000)
        return attempts, now + round(terms.delay_s * 1000), expires

    async def get(self, tenant: int, job_id: str) -> JobRecord:
        """Return a job.

        Raises:
            NotFound: there is none, or it is another tenant's.
            DatabaseUnavailable: the database does not answer.
            CapacityExhausted: too many wait for it.
        """
        if not _ID.fullmatch(job_id):
            raise NotFound("there is no such job")
        return require_owned(await self._desk.read(get_job, job_id), tenant, "job")

    async def list(self, tenant: int, wanted: JobFilter) -> list[JobRecord]:
        """Return a tenant's jobs, newest first, without their results.

        Raises:
            InvalidRequest: the limit is not 1 to 1000.
            DatabaseUnavailable: the database does not answer.
            CapacityExhausted: too many wait for it.
        """
        checked_limit(wanted.limit)
        return await self._desk.read(list_jobs, tenant, wanted)

    async def cancel(self, tenant: int, job_id: str) -> JobRecord:
        """End a job. One that waits has ended when this returns; one that runs will never be anything but cancelled.

        Raises:
            NotFound: there is none, or it is another tenant's.
            Conflict: it has ended.
            DatabaseUnavailable: the database does not answer.
            CapacityExhausted: too many wait for it.
        """
        await self.get(tenant, job_id)
        found, active = await self._desk.write(cancel_job, job_id, self._judge.cancel(self._clock.unix_ms()))
        job = require_owned(found, tenant, "job")
        if not active:
            raise Conflict(f"the job has ended: {job.status}")
        if job.status == "running":
            self._runner.stop(job_id, "cancelled")
        else:
            self._change(job_id, job.status)
        return job

    async def wait(self, tenant: int, job_id: str, timeout_s: float) -> JobRecord:
        """Return a job once it has ended, or after a time.

        Raises:
            NotFound: there is none, it was removed meanwhile, or it is another tenant's.
            DatabaseUnavailable: the database does not answer.
            CapacityExhausted: too many wait for it.
        """
        with self._waiters.waiting(job_id) as ended:
            job = await self.get(tenant, job_id)
            if job.status in ENDED or self._closing:
                return job
            await asyncio.wait([ended], timeout=max(0.0, timeout_s))
            return await self.get(tenant, job_id)

    @property
    def active(self) -> int:
        """How many jobs have not ended; where several processes share a database, as of the last sweep."""
        return self._active

    async def _take_over(self) -> None:
        self._count(await self._sweeper.sweep(alone=self._alone) - self._active)

    async def _sweep(self) -> None:
        active = await self._sweeper.sweep()
        if not self._alone:
            self._count(active - self._active)

    def _change(self, job_id: str, status: JobStatus) -> None:
        """Hear of a job's new status."""
        if status == "pending":
            self._runner.wake()
            return
        self._count(-1)
        self._waiters.announce(job_id)

    def _count(self, more: int) -> None:
        self._active += more
        self._on_active(self._active)


def _accept(connection: Connection, job: NewJob, key: IdempotencyKey | None) -> None:
    """Write a job and its key.

    Raises:
        Repeated: the same request was made before.
        IdempotencyMismatch: the key was used with another request.
        QuotaExceeded: too many jobs of the tenant wait.
    """
    if key is not None:
        use_key(connection, job.tenant, key, job.id, job.created_unix_ms)
    if count_pending(connection, job.tenant, MAX_PENDING) >= MAX_PENDING:
        raise QuotaExceeded(f"the quota of jobs that wait is {MAX_PENDING}")
    insert_job(connection, job)


async def _repeat(pause_s: float, chore: Callable[[], Awaitable[None]]) -> None:
    """Do something again and again."""
    while True:
        await asyncio.sleep(pause_s)
        await do(chore, "jobs could not be looked after", _log)
