"""`Runner`: claims due jobs, runs them, and records the outcome of each attempt once."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.database import Connection
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.jobs import JobRecord, JobStatus, check_due
from tensorwasm.database.leases import Claim, ClaimedJob, Lease, claim_jobs, end_attempt, renew_leases, retry_attempt
from tensorwasm.errors import TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation, locate_trap
from tensorwasm.service.clock import Clock
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.attempts import AttemptOutcome, RetryPolicy, decode_request

_log = logging.getLogger(__name__)

Invoke = Callable[[JobRecord, InvocationRequest], Awaitable[Invocation]]
"""Makes one attempt; cancelling it ends the guest."""

StopReason = Literal["", "cancelled", "lost", "returned"]
"""Why an attempt is stopped: the job was cancelled, the lease is lost, or this process is shutting down."""

_RECORD_PAUSE_S: Final = 0.2


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt that this process makes; ``until_s`` is the end of the lease on the monotonic clock."""

    job: JobRecord
    lease: Lease
    until_s: float
    call: asyncio.Future[Invocation]
    stop_reason: StopReason = ""

    def stop(self, reason: StopReason) -> None:
        """Stop the call. The first reason stays, but ``lost`` replaces any: it forbids recording the outcome."""
        if reason == "lost" or not (self.stop_reason or self.call.done()):
            self.stop_reason = reason
        self.call.cancel()


class Runner:
    """Runs jobs in one event loop, and reports each job's new status once that is durable.

    Attributes:
        wake_up: set it to have due jobs claimed now.
    """

    def __init__(
        self,
        database: DatabaseExecutor,
        invoke: Invoke,
        policy: RetryPolicy,
        clock: Clock,
        on_status: Callable[[str, JobStatus], None],
    ) -> None:
        """Start nothing; `run` does."""
        self.owner = str(uuid.uuid4())
        self.wake_up = asyncio.Event()
        self._database = database
        self._invoke = invoke
        self._policy = policy
        self._options = policy.options
        self._clock = clock
        self._on_status = on_status
        self._attempts: dict[Lease, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_tenant = ""
        self._closing = False

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs that this process runs."""
        return tuple(lease.job_id for lease in self._attempts)

    def cancel(self, job_id: str) -> None:
        """Stop a cancelled job if this process runs it."""
        for lease, attempt in self._attempts.items():
            if lease.job_id == job_id:
                attempt.stop("cancelled")

    async def run(self) -> None:
        """Claim and start due jobs until `close`."""
        while not self._closing:
            self.wake_up.clear()
            pause_s = self._options.poll_s
            try:
                pause_s = await self.claim_due()
            except TensorWasmError as error:
                _log.warning("jobs could not be claimed: %s", error.kind)
            except Exception:  # noqa: BLE001 - a bug in one round must not end all others
                _log.exception("jobs could not be claimed")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.wake_up.wait()

    async def claim_due(self) -> float:
        """Claim and start due jobs; return the seconds until there may be more."""
        # After a pause of this process its leases may have ended, and it may claim the same jobs again itself.
        self._stop_expiring(self._attempts.values(), self._clock.monotonic_s())
        free = self._options.places - len(self._attempts)
        if free <= 0 or self._closing:
            return self._options.poll_s
        now = self._clock.unix_ms()
        due, later = await self._database.read(check_due, now)
        if due and await self._claim(now, free):
            return 0.0
        return self._options.poll_s if later is None else min(self._options.poll_s, max(0, later - now) / 1000)

    async def _claim(self, now: int, free: int) -> int:
        claim = Claim(
            self.owner,
            now,
            now + round(self._options.lease_s * 1000),
            free,
            self._options.share,
            Counter(attempt.job.tenant for attempt in self._attempts.values()),
            self._last_tenant,
        )
        until_s = self._clock.monotonic_s() + self._options.lease_s
        claimed, self._last_tenant = await self._database.write(claim_jobs, claim)
        for each in claimed:
            call = asyncio.ensure_future(self._call(each))
            attempt = self._attempts[each.lease] = Attempt(each.job, each.lease, until_s, call)
            self._tasks.add(task := asyncio.ensure_future(self._follow(attempt)))
            task.add_done_callback(self._tasks.discard)
        return len(claimed)

    async def _call(self, claimed: ClaimedJob) -> Invocation:
        return await self._invoke(claimed.job, decode_request(claimed.request))

    async def _follow(self, attempt: Attempt) -> None:
        """Wait for an attempt and record its outcome."""
        try:
            await asyncio.wait([attempt.call])
            status = await self._record(attempt)
        finally:
            del self._attempts[attempt.lease]
            self.wake_up.set()
        if status is not None:
            self._on_status(attempt.job.id, status)

    async def _record(self, attempt: Attempt) -> JobStatus | None:
        """Write the outcome, trying for as long as the lease is held; return None if it was not written."""
        if not attempt.call.cancelled():
            await locate_trap(attempt.call.exception())
        outcome = self._outcome(attempt)
        while attempt.stop_reason != "lost":
            try:
                return await self._database.write(_write, attempt.lease, outcome)
            except TensorWasmError as error:
                _log.warning("the outcome of job %s could not be written: %s", attempt.job.id, error.kind)
                if not error.retryable or self._closing:
                    return None
            await asyncio.sleep(_RECORD_PAUSE_S)
        return None

    def _outcome(self, attempt: Attempt) -> AttemptOutcome:
        job, call, now = attempt.job, attempt.call, self._clock.unix_ms()
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            return self._policy.after_result(job, call.result(), now)
        if attempt.stop_reason == "returned":
            return AttemptOutcome(self._policy.cancelled(now), now, counts=False)
        if attempt.stop_reason:
            return AttemptOutcome(self._policy.cancelled(now))
        return self._policy.after_error(job, error, now)

    async def renew(self) -> None:
        """Renew the leases of running jobs; stop those that were cancelled elsewhere or whose lease is lost."""
        attempts = tuple(self._attempts.values())
        if not attempts:
            return
        now_s, until = self._clock.monotonic_s(), self._clock.unix_ms() + round(self._options.lease_s * 1000)
        try:
            held = await self._database.write(renew_leases, [each.lease for each in attempts], until)
        except TensorWasmError as error:
            _log.warning("leases of jobs could not be renewed: %s", error.kind)
            # Another process may claim these before the next renewal.
            self._stop_expiring(attempts, self._clock.monotonic_s() + 2 * self._options.renew_s)
            return
        for attempt in attempts:
            if attempt.lease not in held:
                attempt.stop("lost")
            else:
                attempt.until_s = now_s + self._options.lease_s
                if held[attempt.lease]:
                    attempt.stop("cancelled")

    @staticmethod
    def _stop_expiring(attempts: Collection[Attempt], by_s: float) -> None:
        """Stop attempts whose lease ends by a time of the monotonic clock."""
        for attempt in attempts:
            if attempt.until_s <= by_s:
                attempt.stop("lost")

    async def close(self, grace_s: float = 0.0) -> None:
        """Claim nothing more, wait for running jobs, and return those that do not end in time. Idempotent."""
        self._closing = True
        self.wake_up.set()
        if self._tasks and grace_s:
            await asyncio.wait(tuple(self._tasks), timeout=grace_s)
        for attempt in tuple(self._attempts.values()):
            attempt.stop("returned")
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=self._options.lease_s)


def _write(connection: Connection, lease: Lease, outcome: AttemptOutcome) -> JobStatus | None:
    if outcome.due_unix_ms is None:
        return end_attempt(connection, lease, outcome.end)
    return retry_attempt(connection, lease, outcome.end, outcome.due_unix_ms, counts=outcome.counts)
