"""`Runner`: claims jobs that are due, runs them, and records what came of each, once."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from tensorwasm.database import Connection
from tensorwasm.database.engine.executor import DatabaseExecutor
from tensorwasm.database.jobs import JobRecord, JobStatus, check_due
from tensorwasm.database.leases import Claim, ClaimedJob, Lease, claim_jobs, end_attempt, renew_leases, retry_attempt
from tensorwasm.errors import TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.runtime.invoke.pending import locate_trap
from tensorwasm.service.clock import Clock
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.service.jobs.options import JobOptions
from tensorwasm.service.jobs.outcomes import Fate, Judge
from tensorwasm.service.jobs.requests import decode_ask

_log = logging.getLogger(__name__)

Invoke = Callable[[JobRecord, InvocationRequest], Awaitable[Invocation]]
"""Makes one attempt; cancelling it ends the guest."""

Stop = Literal["", "cancelled", "lost", "returned"]
"""Why an attempt is stopped: it was asked for, the lease is lost, or this process is going down."""

_RECORD_PAUSE_S: Final = 0.2


@dataclass(slots=True, eq=False)
class Attempt:
    """An attempt that this process makes.

    Attributes:
        job: as it was claimed.
        lease: until when it is this process's own.
        until_s: the same on the monotonic clock.
        call: the invocation.
        stop: why it is stopped.
    """

    job: JobRecord
    lease: Lease
    until_s: float
    call: asyncio.Future[Invocation]
    stop: Stop = ""

    def end(self, why: Stop) -> None:
        """Stop it, unless that was done or it has ended; that the lease is lost counts in any case."""
        if why == "lost" or not (self.stop or self.call.done()):
            self.stop = why
        self.call.cancel()


class Runner:
    """Runs jobs in one event loop.

    Args:
        desk: of the database.
        invoke: makes an attempt.
        judge: says what follows from it.
        options: how many at a time, and for how long they are this process's own.
        clock: what time it is.
        changed: told each job's new status, once that is durable.
    """

    def __init__(
        self,
        desk: DatabaseExecutor,
        invoke: Invoke,
        judge: Judge,
        options: JobOptions,
        clock: Clock,
        changed: Callable[[str, JobStatus], None],
    ) -> None:
        """Begin nothing yet."""
        self.owner = str(uuid.uuid4())
        self._desk = desk
        self._invoke = invoke
        self._judge = judge
        self._options = options
        self._clock = clock
        self._changed = changed
        self._attempts: dict[Lease, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._after = ""
        self._closing = False
        self._woken = asyncio.Event()

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the jobs that this process runs."""
        return tuple(lease.job_id for lease in self._attempts)

    def wake(self) -> None:
        """Have due jobs looked for now."""
        self._woken.set()

    def stop(self, job_id: str, why: Stop) -> None:
        """Stop a job if this process runs it."""
        for lease, attempt in self._attempts.items():
            if lease.job_id == job_id:
                attempt.end(why)

    async def run(self) -> None:
        """Claim what is due, again and again, until `close`."""
        while not self._closing:
            self._woken.clear()
            try:
                pause_s = await self.turn()
            except TensorWasmError as error:
                _log.warning("jobs could not be claimed: %s", error.kind)
                pause_s = self._options.poll_s
            except Exception:  # noqa: BLE001 - a bug in one round must not end all others
                _log.exception("jobs could not be claimed")
                pause_s = self._options.poll_s
            await _either(self._woken, pause_s)

    async def turn(self) -> float:
        """Claim what is due and start it; return how long there is nothing more to do, in seconds."""
        self._end_expired()
        free = self._options.places - len(self._attempts)
        if free <= 0 or self._closing:
            return self._options.poll_s
        now = self._clock.unix_ms()
        due, later = await self._desk.read(check_due, now)
        if due and await self._claim(now, free):
            return 0.0
        return self._options.poll_s if later is None else min(self._options.poll_s, max(0, later - now) / 1000)

    def _end_expired(self) -> None:
        """Stop attempts whose lease has run out: after a pause of this process it may claim their jobs itself."""
        now_s = self._clock.monotonic_s()
        for attempt in self._attempts.values():
            if attempt.until_s <= now_s:
                attempt.end("lost")

    async def _claim(self, now: int, free: int) -> int:
        claim = Claim(
            self.owner,
            now,
            now + round(self._options.lease_s * 1000),
            free,
            self._options.share,
            Counter(attempt.job.tenant for attempt in self._attempts.values()),
            self._after,
        )
        until_s = self._clock.monotonic_s() + self._options.lease_s
        claimed, self._after = await self._desk.write(claim_jobs, claim)
        for each in claimed:
            self._start(each, until_s)
        return len(claimed)

    def _start(self, claimed: ClaimedJob, until_s: float) -> None:
        job = claimed.job
        call = asyncio.ensure_future(self._call(job, claimed.request))
        attempt = self._attempts[claimed.lease] = Attempt(job, claimed.lease, until_s, call)
        task = asyncio.ensure_future(self._attend(attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, job: JobRecord, request: bytes) -> Invocation:
        return await self._invoke(job, decode_ask(request))

    async def _attend(self, attempt: Attempt) -> None:
        """Wait for an attempt and record what came of it."""
        try:
            await asyncio.wait([attempt.call])
            status = await self._record(attempt)
        finally:
            del self._attempts[attempt.lease]
            self._woken.set()
        if status is not None:
            self._changed(attempt.job.id, status)

    async def _record(self, attempt: Attempt) -> JobStatus | None:
        """Write what follows, for as long as the lease is held; None if it was lost."""
        if not attempt.call.cancelled():
            await locate_trap(attempt.call.exception())
        fate = self._fate(attempt)
        while attempt.stop != "lost":
            try:
                return await self._desk.write(_write, attempt.lease, fate)
            except TensorWasmError as error:
                _log.warning("what came of job %s could not be written: %s", attempt.job.id, error.kind)
                if not error.retryable or self._closing:
                    return None
            await asyncio.sleep(_RECORD_PAUSE_S)
        return None

    def _fate(self, attempt: Attempt) -> Fate:
        """Return what follows from an attempt."""
        job, call, now = attempt.job, attempt.call, self._clock.unix_ms()
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            return self._judge.succeed(job, call.result(), now)
        if attempt.stop == "returned":
            return Fate(self._judge.cancel(now), now, counts=False)
        return Fate(self._judge.cancel(now)) if attempt.stop else self._judge.excuse(job, error, now)

    async def renew(self) -> None:
        """Renew the leases of what runs; stop what is to end, and what is no longer this process's own."""
        attempts = tuple(self._attempts.values())
        if not attempts:
            return
        now_s, until = self._clock.monotonic_s(), self._clock.unix_ms() + round(self._options.lease_s * 1000)
        try:
            held = await self._desk.write(renew_leases, [each.lease for each in attempts], until)
        except TensorWasmError as error:
            _log.warning("leases of jobs could not be renewed: %s", error.kind)
            self._give_up(attempts)
            return
        for attempt in attempts:
            if attempt.lease not in held:
                attempt.end("lost")
            else:
                attempt.until_s = now_s + self._options.lease_s
                if held[attempt.lease]:
                    attempt.end("cancelled")

    def _give_up(self, attempts: tuple[Attempt, ...]) -> None:
        """Stop what another process may claim before the next renewal."""
        soon_s = self._clock.monotonic_s() + 2 * self._options.renew_s
        for attempt in attempts:
            if attempt.until_s <= soon_s:
                attempt.end("lost")

    async def close(self, grace_s: float = 0.0) -> None:
        """Claim nothing more, let what runs end, and give back what does not within a time. Idempotent."""
        self._closing = True
        self._woken.set()
        tasks = tuple(self._tasks)
        if tasks and grace_s:
            await asyncio.wait(tasks, timeout=grace_s)
        for attempt in tuple(self._attempts.values()):
            attempt.end("returned")
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=self._options.lease_s)


def _write(connection: Connection, lease: Lease, fate: Fate) -> JobStatus | None:
    if fate.due_unix_ms is None:
        return end_attempt(connection, lease, fate.end)
    return retry_attempt(connection, lease, fate.end, fate.due_unix_ms, counts=fate.counts)


async def _either(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, or for a time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
