"""Running jobs: claims, leases, and the single record of each attempt's outcome.

A running job has an owner and a time until which only that owner may run it. An owner's writes take effect only while
it is still the owner, of the same attempt; the outcome of an attempt whose lease was lost is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, func, select, update

from tensorwasm.database.jobs import JobEnd, JobRecord, JobStatus, encode_error, record_of, unexpired
from tensorwasm.database.schema import JOBS

_FREE: Final = {"lease_owner": None, "lease_unix_ms": None}


@dataclass(frozen=True, slots=True)
class Lease:
    """One attempt, numbered from 1, of one job by one process; job and owner are UUIDs."""

    job_id: str
    owner: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that this process may run."""

    job: JobRecord
    lease: Lease
    request: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a process can run.

    Attributes:
        places: most jobs to claim, 1 or more.
        share: most jobs of one tenant that the process runs.
        busy: by tenant, how many it runs already.
        after: the tenant that was served last, in decimal; the turns continue after it and then wrap around.
    """

    owner: str
    now_unix_ms: int
    lease_unix_ms: int
    places: int
    share: int
    busy: Mapping[int, int] = field(default_factory=dict)
    after: str = ""


def claim_jobs(connection: Connection, claim: Claim) -> tuple[list[ClaimedJob], str]:
    """Claim due jobs, one of each tenant in turn, and return them with the tenant that was served last.

    Jobs that another process is claiming at the moment are skipped.
    """
    offers = {tenant: _due(connection, claim, tenant) for tenant in _tenants(connection, claim)}
    in_turn = (each for each in chain.from_iterable(zip_longest(*offers.values())) if each is not None)
    chosen = list(islice(in_turn, claim.places))
    if not chosen:
        return [], claim.after
    rows = connection.execute(
        update(JOBS)
        .where(JOBS.c.id.in_(chosen), JOBS.c.status == "pending")
        .values(
            status="running", lease_owner=claim.owner, lease_unix_ms=claim.lease_unix_ms, attempts=JOBS.c.attempts + 1
        )
        .returning(JOBS)
    ).all()
    claimed = {
        row.id: ClaimedJob(replace(record_of(row), result=None), Lease(row.id, claim.owner, row.attempts), row.request)
        for row in rows
    }
    return [claimed[each] for each in chosen if each in claimed], list(offers)[-1]


def _tenants(connection: Connection, claim: Claim) -> Iterator[str]:
    """Return tenants with a due job that may run more, at most as many as there are places, in turn."""
    full = [str(tenant) for tenant, count in claim.busy.items() if count >= claim.share]
    after = list(connection.execute(_ring(claim, full, claim.after, claim.places)).scalars())
    yield from after
    if claim.after and len(after) < claim.places:
        before = connection.execute(_ring(claim, full, "", claim.places - len(after))).scalars()
        yield from (tenant for tenant in before if tenant <= claim.after)


def _ring(claim: Claim, full: Sequence[str], after: str, limit: int) -> Select[str]:
    """Return the query for tenants in order: one index look-up for each, never a scan of a tenant's jobs."""
    pending = select(func.min(JOBS.c.tenant)).where(JOBS.c.status == "pending")
    ring = pending.where(JOBS.c.tenant > after).cte("ring", recursive=True)
    ring = ring.union_all(
        select(pending.where(JOBS.c.tenant > ring.c[0]).correlate(ring).scalar_subquery()).where(ring.c[0].is_not(None))
    )
    due = (
        select(JOBS.c.id)
        .where(JOBS.c.status == "pending", JOBS.c.tenant == ring.c[0], JOBS.c.due_unix_ms <= claim.now_unix_ms)
        .correlate(ring)
        .exists()
    )
    return select(ring.c[0]).where(ring.c[0].is_not(None), ring.c[0].not_in(full), due).limit(limit)


def _due(connection: Connection, claim: Claim, tenant: str) -> list[str]:
    """Lock and return a tenant's due jobs, the longest due first, as many as it may run."""
    query = (
        select(JOBS.c.id)
        .where(
            JOBS.c.status == "pending",
            JOBS.c.tenant == tenant,
            JOBS.c.due_unix_ms <= claim.now_unix_ms,
            unexpired(claim.now_unix_ms),
        )
        .order_by(JOBS.c.due_unix_ms)
        .limit(min(claim.places, claim.share - claim.busy.get(int(tenant), 0)))
        .with_for_update(skip_locked=True)
    )
    return list(connection.execute(query).scalars())


def renew_leases(connection: Connection, leases: Collection[Lease], lease_unix_ms: int) -> dict[Lease, bool]:
    """Renew the leases that are still held, and return for each whether its job is to be cancelled."""
    held = {(lease.job_id, lease.owner, lease.attempt): lease for lease in leases}
    rows = connection.execute(
        update(JOBS)
        .where(
            JOBS.c.id.in_([lease.job_id for lease in leases]),
            JOBS.c.status == "running",
            JOBS.c.lease_owner.in_({lease.owner for lease in leases}),
        )
        .values(lease_unix_ms=lease_unix_ms)
        .returning(JOBS.c.id, JOBS.c.lease_owner, JOBS.c.attempts, JOBS.c.cancelled)
    )
    return {held[tuple(row[:3])]: row.cancelled for row in rows if tuple(row[:3]) in held}


def end_attempt(connection: Connection, lease: Lease, end: JobEnd) -> JobStatus | None:
    """Record a job's end and return its status, ``cancelled`` if that was requested; None if the lease is lost."""
    return _write(connection, lease, end, end.status, end.values())


def retry_attempt(
    connection: Connection, lease: Lease, end: JobEnd, due_unix_ms: int, *, counts: bool = True
) -> JobStatus | None:
    """Make a job pending again, or end it if it was cancelled; return its status, None if the lease is lost.

    An ``end`` without an error keeps that of an earlier attempt. An attempt that does not count may be made again.
    """
    again: dict[str, Any] = {"status": "pending", "due_unix_ms": due_unix_ms, **_FREE}
    if end.error is not None:
        again["error"] = encode_error(end.error)
    if not counts:
        again["attempts"] = JOBS.c.attempts - 1
    return _write(connection, lease, end, "pending", again)


def _write(
    connection: Connection, lease: Lease, end: JobEnd, status: JobStatus, values: Mapping[str, Any]
) -> JobStatus | None:
    held = update(JOBS).where(
        JOBS.c.id == lease.job_id,
        JOBS.c.status == "running",
        JOBS.c.lease_owner == lease.owner,
        JOBS.c.attempts == lease.attempt,
    )
    if connection.execute(held.where(JOBS.c.cancelled.is_(False)).values(**values)).rowcount:
        return status
    cancelled = JobEnd("cancelled", end.at_unix_ms, end.remove_unix_ms)
    return "cancelled" if connection.execute(held.values(**cancelled.values())).rowcount else None


def reclaim_jobs(
    connection: Connection, end: JobEnd, mine: Collection[str], limit: int, *, alone: bool = False
) -> list[tuple[str, JobStatus]]:
    """Take jobs from dead processes, and return their ids and new statuses: pending, or ``end`` after the last attempt.

    The caller's own jobs, ``mine``, are left alone whatever the clock says. If it is ``alone``, no other process runs
    jobs, and leases need not have expired.
    """
    query = select(JOBS.c.id, JOBS.c.attempts, JOBS.c.max_attempts, JOBS.c.cancelled).where(
        JOBS.c.status == "running", JOBS.c.id.not_in(mine)
    )
    if not alone:
        query = query.where(JOBS.c.lease_unix_ms <= end.at_unix_ms)
    lost = connection.execute(query.limit(limit).with_for_update(skip_locked=True)).all()
    values_of: dict[JobStatus, dict[str, Any]] = {
        "cancelled": JobEnd("cancelled", end.at_unix_ms, end.remove_unix_ms).values(),
        "dead": end.values(),
        "pending": {"status": "pending", "due_unix_ms": end.at_unix_ms, "error": encode_error(end.error), **_FREE},
    }
    now: list[tuple[str, JobStatus]] = [(row.id, _status_of_lost(row)) for row in lost]
    for status, values in values_of.items():
        if chosen := [job_id for job_id, its_status in now if its_status == status]:
            connection.execute(update(JOBS).where(JOBS.c.id.in_(chosen)).values(**values))
    return now


def _status_of_lost(row: Row[*tuple[Any, ...]]) -> JobStatus:
    return "cancelled" if row.cancelled else "dead" if row.attempts >= row.max_attempts else "pending"
