"""`Jobs`: accepts, lists, cancels and sweeps the jobs of all tenants; `open_jobs` opens those of the service."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Final

from tensorwasm.database import Connection
from tensorwasm.database import jobs as rows
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.leases import reclaim_jobs
from tensorwasm.errors import Conflict, Draining, NotFound, QuotaExceeded, TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.admission.admission import Admission
from tensorwasm.service.clock import SYSTEM, Clock, run_round
from tensorwasm.service.functions.loading import Resolved
from tensorwasm.service.idempotency import IdempotencyKey, Repeated, forget_keys, use_key
from tensorwasm.service.invocations.invocations import Invocations
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.attempts import (
    DEFAULT_TERMS,
    EXPIRED,
    INTERRUPTED,
    JobOptions,
    RetryPolicy,
    Terms,
    check_request,
    encode_request,
)
from tensorwasm.service.jobs.runner import Invoke, Runner
from tensorwasm.service.pages import checked_limit
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.principal import require_owned
from tensorwasm.values import MIB

MAX_PENDING: Final = 10_000
"""Maximum of pending jobs of one tenant."""

ENDED_JOBS: Final = 10_000
"""Maximum of ended jobs that are kept of one tenant; the first to end go first."""

ENDED_BYTES: Final = 256 * MIB
"""Maximum of their results' bytes."""

BATCH: Final = 200
"""Rows of each kind that one transaction of a sweep changes."""

_GRACE: Final = 0.25
"""Fraction of the drain time in which running jobs may end; the others run again after the next start."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_log = logging.getLogger(__name__)


class JobWaiters:
    """Callers that wait for jobs; looks for jobs that ended in other processes every `poll_s` seconds."""

    def __init__(self, database: DatabaseExecutor, poll_s: float) -> None:
        """Start without callers."""
        self._database = database
        self._poll_s = poll_s
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._poller: asyncio.Task[None] | None = None

    @contextmanager
    def waiting(self, job_id: str) -> Iterator[asyncio.Future[None]]:
        """Provide a future that is done once the job has ended. Enter before reading the job's status."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job_id].add(future)
        if self._poller is None:
            self._poller = asyncio.ensure_future(self._poll())
        try:
            yield future
        finally:
            future.cancel()
            self._waiting[job_id].discard(future)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def notify(self, job_id: str) -> None:
        """Wake the callers that wait for a job."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Wake all callers."""
        for job_id in tuple(self._waiting):
            self.notify(job_id)
        if self._poller is not None:
            self._poller.cancel()

    async def _poll(self) -> None:
        """Look for jobs that ended in other processes while there are callers."""
        while self._waiting:
            await asyncio.sleep(self._poll_s)
            try:
                ended = await self._database.read(rows.ended_jobs, tuple(self._waiting))
            except TensorWasmError as error:
                _log.warning("jobs that ended could not be looked for: %s", error.kind)
                continue
            for job_id in ended:
                self.notify(job_id)
        self._poller = None


class Jobs:
    """Jobs of all tenants, for one event loop. Methods raise as the database does.

    Args:
        invoke: makes an attempt; cancelling it ends the guest.
        alone: no other process runs jobs of this database, so jobs that are running at the start are lost.
        on_active: called with `active` whenever it changes.

    Attributes:
        active: number of jobs that have not ended; where processes share a database, as of the last sweep.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        invoke: Invoke,
        options: JobOptions,
        *,
        alone: bool,
        clock: Clock = SYSTEM,
        on_active: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Start nothing; `open` does."""
        self.active = 0
        self._database = database
        self._options = options
        self._alone = alone
        self._clock = clock
        self._on_active = on_active
        self._closing = False
        self._policy = RetryPolicy(options, random.random)
        self._runner = Runner(database, invoke, self._policy, clock, self._on_status)
        self._waiters = JobWaiters(database, options.poll_s)
        self._claiming: asyncio.Task[None] | None = None
        self._maintenance: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Take over lost jobs, and start to run what is due."""
        await self._sweep(at_start=True)
        self._claiming = asyncio.ensure_future(self._runner.run())
        maintenance = ((self._options.renew_s, self._runner.renew), (self._options.sweep_s, self._sweep))
        self._maintenance = [asyncio.ensure_future(_repeat(pause_s, work)) for pause_s, work in maintenance]

    async def close(self, grace_s: float = 0.0) -> None:
        """Start nothing more; stop what still runs after a time, to run again after the next start. Idempotent."""
        self._closing = True
        self._waiters.close()
        await self._runner.close(grace_s)
        if self._claiming is not None:
            await self._claiming
        for task in self._maintenance:
            task.cancel()
        await asyncio.gather(*self._maintenance, return_exceptions=True)

    async def submit(
        self,
        tenant: int,
        resolved: Resolved,
        request: InvocationRequest,
        terms: Terms = DEFAULT_TERMS,
        *,
        idempotency_key: IdempotencyKey | None = None,
    ) -> str:
        """Accept a job and return its id: from then on it survives the process and the machine.

        Args:
            tenant: the owner, who may call the function.
            resolved: the function, in the version that every attempt calls.
            request: the call; its deadline is ignored.
            terms: when and how often it is run.
            idempotency_key: an earlier request with the same key returns the same job.

        Raises:
            InvalidRequest: the terms are out of range.
            QuotaExceeded: the tenant has `MAX_PENDING` pending jobs.
            IdempotencyMismatch: the key was used with another request.
            Draining: this process is shutting down.
            TensorWasmError: as `check_request` and `encode_request`.
        """
        if self._closing:
            raise Draining("jobs are no longer accepted")
        check_request(resolved.function, request)
        now = self._clock.unix_ms()
        attempts, due, expires = terms.schedule(self._options.attempts, now)
        job = rows.NewJob(
            str(uuid.uuid4()),
            tenant,
            resolved.record.id,
            resolved.version.number,
            encode_request(request, terms.timeout_s),
            attempts,
            due,
            now,
            expires,
            terms.trace_id,
        )
        try:
            await self._database.write(_insert, job, idempotency_key)
        except Repeated as repeated:
            return repeated.subject
        self._count(1)
        self._runner.wake_up.set()
        return job.id

    async def get(self, tenant: int, job_id: str) -> rows.JobRecord:
        """Return a job; NotFound if there is none, or it is another tenant's."""
        if not _ID.fullmatch(job_id):
            raise NotFound("there is no such job")
        return require_owned(await self._database.read(rows.get_job, job_id), tenant, "job")

    async def list(self, tenant: int, wanted: rows.JobFilter) -> list[rows.JobRecord]:
        """Return a tenant's jobs, newest first, without their results; InvalidRequest for a limit not in 1 to 1000."""
        checked_limit(wanted.limit)
        return await self._database.read(rows.list_jobs, tenant, wanted)

    async def cancel(self, tenant: int, job_id: str) -> rows.JobRecord:
        """Cancel a job; raises as `get`, and Conflict if it has ended.

        A pending one has ended on return; a running one can only end as cancelled.
        """
        await self.get(tenant, job_id)
        end = self._policy.cancelled(self._clock.unix_ms())
        found, active = await self._database.write(rows.cancel_job, job_id, end)
        job = require_owned(found, tenant, "job")
        if not active:
            raise Conflict(f"the job has ended: {job.status}")
        if job.status == "running":
            self._runner.cancel(job_id)
        else:
            self._on_status(job_id, job.status)
        return job

    async def wait(self, tenant: int, job_id: str, timeout_s: float) -> rows.JobRecord:
        """Return a job once it has ended, or after a time; raises as `get`, also if it was removed while waiting."""
        with self._waiters.waiting(job_id) as ended:
            job = await self.get(tenant, job_id)
            if job.status in rows.ENDED or self._closing:
                return job
            await asyncio.wait([ended], timeout=max(0.0, timeout_s))
            return await self.get(tenant, job_id)

    async def _sweep(self, *, at_start: bool = False) -> None:
        """Reclaim lost jobs, fail late ones, and remove old jobs and idempotency keys, batch by batch.

        At the start this process runs no job yet; if it is alone all running jobs are lost.
        """
        sweep, more = partial(_sweep_batch, alone=at_start and self._alone), True
        while more:
            now = self._clock.unix_ms()
            lost, late = self._policy.failed(INTERRUPTED, now, dead=True), self._policy.failed(EXPIRED, now)
            changed, active, more = await self._database.write(sweep, lost, late, self._runner.running)
            for job_id, status in changed:
                self._on_status(job_id, status)
        if at_start or not self._alone:
            self._count(active - self.active)

    def _on_status(self, job_id: str, status: rows.JobStatus) -> None:
        if status == "pending":
            self._runner.wake_up.set()
            return
        self._count(-1)
        self._waiters.notify(job_id)

    def _count(self, more: int) -> None:
        self.active += more
        self._on_active(self.active)


def _insert(connection: Connection, job: rows.NewJob, key: IdempotencyKey | None) -> None:
    """Write a job and its idempotency key in one transaction; raises as `use_key`."""
    if key is not None:
        use_key(connection, job.tenant, key, job.id, job.created_unix_ms)
    if rows.count_pending(connection, job.tenant, MAX_PENDING) >= MAX_PENDING:
        raise QuotaExceeded(f"the quota of jobs that wait is {MAX_PENDING}")
    rows.insert_job(connection, job)


def _sweep_batch(
    connection: Connection, lost: rows.JobEnd, late: rows.JobEnd, running_here: Collection[str], *, alone: bool
) -> tuple[tuple[tuple[str, rows.JobStatus], ...], int, bool]:
    """Sweep one batch; return jobs with their new status, the number of active jobs, and whether there may be more.

    ``lost`` ends a job whose process died in its last attempt, ``late`` one that did not start in time.
    """
    now = late.at_unix_ms
    found = reclaim_jobs(connection, lost, running_here, BATCH, alone=alone)
    expired = rows.expire_jobs(connection, late, BATCH)
    removed = rows.remove_jobs(connection, now, BATCH)
    trimmed = rows.trim_jobs(connection, ENDED_JOBS, ENDED_BYTES, BATCH)
    forgotten = forget_keys(connection, now, BATCH)
    changed = (*found, *((job_id, late.status) for job_id in expired))
    return changed, rows.count_active(connection), max(len(found), len(expired), removed, trimmed, forgotten) >= BATCH


async def _repeat(pause_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(pause_s)
        await run_round(work, "jobs could not be looked after", _log)


async def open_jobs(
    stack: AsyncExitStack,
    settings: ServiceSettings,
    database: DatabaseExecutor,
    invocations: Invocations,
    admission: Admission,
    clock: Clock,
    *,
    alone: bool,
    on_active: Callable[[int], None],
) -> Jobs:
    """Open jobs that call the service's functions, until the stack is closed; see `Jobs`."""

    async def invoke(job: rows.JobRecord, request: InvocationRequest) -> Invocation:
        return await invocations.invoke(admission.admit_tenant(job.tenant), f"{job.function_id}@{job.version}", request)

    options = JobOptions(attempts=settings.job_attempts, keep_s=settings.job_keep_s)
    jobs = Jobs(database, invoke, options, alone=alone, clock=clock, on_active=on_active)
    stack.push_async_callback(jobs.close, settings.drain_s * _GRACE)
    await jobs.open()
    return jobs
