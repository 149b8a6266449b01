"""Jobs: accepting, listing, cancelling and removing them. `tensorwasm.database.leases` runs them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, or_, select, tuple_, update

from tensorwasm.database.schema import JOBS, decode, encode, find

JobStatus = Literal["pending", "running", "completed", "failed", "cancelled", "dead"]
JOB_STATUSES: Final[tuple[JobStatus, ...]] = ("pending", "running", "completed", "failed", "cancelled", "dead")
ENDED: Final[frozenset[JobStatus]] = frozenset({"completed", "failed", "cancelled", "dead"})


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job or its last attempt failed: the error's kind as on the wire, and a message for people."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job without its request.

    Attributes:
        version: of the function when the job was accepted.
        status: ``pending`` until it is claimed, and between attempts; ``dead`` once the last attempt has failed for a
            reason that another attempt might have mended.
        due_unix_ms: when it may be claimed.
        lease_unix_ms: when the owner's exclusive right to run it ends.
        result: JSON of the result, or of the guest's output before it failed; None else, and in lists.
        cancelled: whether it was asked to end.
        expires_unix_ms: when it is given up if it has not begun; once it has ended, when it is removed.
        trace_id: of the request that made it, 32 hex digits or empty.
    """

    id: str
    tenant: int
    function_id: str
    version: int
    status: JobStatus
    attempts: int
    max_attempts: int
    due_unix_ms: int
    lease_owner: str | None
    lease_unix_ms: int | None
    result: bytes | None = field(repr=False)
    error: JobError | None
    cancelled: bool
    created_unix_ms: int
    ended_unix_ms: int | None
    expires_unix_ms: int | None
    trace_id: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job before it is accepted; attributes as in `JobRecord`, and the encoded call in ``request``."""

    id: str
    tenant: int
    function_id: str
    version: int
    request: bytes = field(repr=False)
    max_attempts: int
    due_unix_ms: int
    created_unix_ms: int
    expires_unix_ms: int | None
    trace_id: str


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs of a tenant are listed, newest first; ``before`` has creation time and id of the last job seen."""

    status: JobStatus | None = None
    function_id: str | None = None
    before: tuple[int, str] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ends: with a status of `ENDED`, and a result or output as JSON; it is removed at ``remove_unix_ms``."""

    status: JobStatus
    at_unix_ms: int
    remove_unix_ms: int
    result: bytes | None = field(default=None, repr=False)
    error: JobError | None = None

    def values(self) -> dict[str, Any]:
        """Return the columns that this sets. The request is erased, since it is never needed again."""
        return {
            "request": b"",
            "status": self.status,
            "ended_unix_ms": self.at_unix_ms,
            "expires_unix_ms": self.remove_unix_ms,
            "lease_owner": None,
            "lease_unix_ms": None,
            "result": self.result,
            "result_bytes": len(self.result or b""),
            "error": encode_error(self.error),
        }


_RECORD: Final = tuple(column for column in JOBS.c if column.name not in ("request", "result", "result_bytes"))


def insert_job(connection: Connection, job: NewJob) -> JobRecord:
    """Add a pending job, and return it."""
    row = encode(job, status="pending", attempts=0, cancelled=False)
    return record_of(connection.execute(insert(JOBS).values(row).returning(*_RECORD)).one())


def count_pending(connection: Connection, tenant: int, most: int) -> int:
    """Return how many jobs of a tenant are pending, counting no further than ``most``."""
    waiting = select(JOBS.c.id).where(JOBS.c.status == "pending", JOBS.c.tenant == str(tenant)).limit(most)
    return connection.execute(select(func.count()).select_from(waiting.subquery())).scalar_one()


def count_active(connection: Connection) -> int:
    """Return how many jobs have not ended."""
    return connection.execute(select(func.count()).where(JOBS.c.status.in_(("pending", "running")))).scalar_one()


def get_job(connection: Connection, job_id: str) -> JobRecord | None:
    """Return a job with its result; None if there is none."""
    return find(connection, select(*_RECORD, JOBS.c.result).where(JOBS.c.id == job_id), record_of)


def list_jobs(connection: Connection, tenant: int, wanted: JobFilter) -> list[JobRecord]:
    """Return a tenant's jobs, newest first, without their results."""
    query = select(*_RECORD).where(JOBS.c.tenant == str(tenant))
    if wanted.status is not None:
        query = query.where(JOBS.c.status == wanted.status)
    if wanted.function_id is not None:
        query = query.where(JOBS.c.function_id == wanted.function_id)
    if wanted.before is not None:
        query = query.where(tuple_(JOBS.c.created_unix_ms, JOBS.c.id) < tuple_(*wanted.before))
    query = query.order_by(JOBS.c.created_unix_ms.desc(), JOBS.c.id.desc()).limit(wanted.limit)
    return [record_of(row) for row in connection.execute(query)]


def ended_jobs(connection: Connection, job_ids: Collection[str]) -> list[str]:
    """Return those of some jobs that have ended or are gone."""
    query = select(JOBS.c.id).where(JOBS.c.id.in_(job_ids), JOBS.c.status.not_in(ENDED))
    return sorted(set(job_ids) - set(connection.execute(query).scalars()))


def cancel_job(connection: Connection, job_id: str, end: JobEnd) -> tuple[JobRecord | None, bool]:
    """Write ``end`` to a pending job, mark a running one as cancelled, and leave an ended one as it is.

    Returns:
        The job as it is now, None if there is none, and whether it had not ended before.
    """
    # The row is locked first: between reading and writing it could be claimed.
    row = connection.execute(select(*_RECORD).where(JOBS.c.id == job_id).with_for_update()).one_or_none()
    if row is None or row.status in ENDED:
        return None if row is None else record_of(row), False
    values = {"cancelled": True, **(end.values() if row.status == "pending" else {})}
    statement = update(JOBS).where(JOBS.c.id == job_id).values(**values).returning(*_RECORD)
    return record_of(connection.execute(statement).one()), True


def expire_jobs(connection: Connection, end: JobEnd, limit: int) -> list[str]:
    """End at most ``limit`` pending jobs whose time has run out, and return their ids."""
    if found := _expired(connection, end.at_unix_ms, JOBS.c.status == "pending", limit):
        connection.execute(update(JOBS).where(JOBS.c.id.in_(found)).values(end.values()))
    return found


def remove_jobs(connection: Connection, now_unix_ms: int, limit: int) -> int:
    """Delete at most ``limit`` ended jobs whose time of removal has come, and return how many."""
    return _delete(connection, _expired(connection, now_unix_ms, JOBS.c.status.in_(ENDED), limit))


def trim_jobs(connection: Connection, most: int, most_bytes: int, limit: int) -> int:
    """Delete at most ``limit`` ended jobs of tenants over ``most`` jobs or ``most_bytes`` results; return how many.

    Those that ended first are deleted first.
    """
    ended, size = JOBS.c.ended_unix_ms.is_not(None), func.sum(JOBS.c.result_bytes)
    over = (
        select(JOBS.c.tenant).where(ended).group_by(JOBS.c.tenant).having(or_(func.count() > most, size > most_bytes))
    )
    newest = (JOBS.c.ended_unix_ms.desc(), JOBS.c.id.desc())
    ranked = (
        select(
            JOBS.c.id,
            JOBS.c.ended_unix_ms,
            func.row_number().over(partition_by=JOBS.c.tenant, order_by=newest).label("count"),
            size.over(partition_by=JOBS.c.tenant, order_by=newest).label("size"),
        )
        .where(ended, JOBS.c.tenant.in_(list(connection.execute(over).scalars())))
        .subquery()
    )
    old = select(ranked.c.id).where(or_(ranked.c.count > most, ranked.c.size > most_bytes))
    return _delete(connection, connection.execute(old.order_by(ranked.c.ended_unix_ms).limit(limit)).scalars().all())


def check_due(connection: Connection, now_unix_ms: int) -> tuple[bool, int | None]:
    """Return whether a pending job is due now, and when the next later one is."""
    pending = select(func.min(JOBS.c.due_unix_ms)).where(JOBS.c.status == "pending")
    first = connection.execute(pending).scalar_one()
    later = connection.execute(pending.where(JOBS.c.due_unix_ms > now_unix_ms)).scalar_one()
    return first is not None and first <= now_unix_ms, later


def unexpired(now_unix_ms: int) -> ColumnElement[bool]:
    """Return the condition that a pending job is not given up yet."""
    return or_(JOBS.c.expires_unix_ms.is_(None), JOBS.c.expires_unix_ms > now_unix_ms)


def record_of(row: Row[*tuple[Any, ...]]) -> JobRecord:
    """Return the record of a row, which may lack the result."""
    error = None if row.error is None else JobError(*json.loads(row.error))
    return decode(JobRecord, row, error=error, result=row._mapping.get("result"))  # noqa: SLF001 - SQLAlchemy's documented name


def encode_error(error: JobError | None) -> str | None:
    """Return an error as text."""
    return None if error is None else json.dumps([error.kind, error.message])


def _expired(connection: Connection, now_unix_ms: int, status: ColumnElement[bool], limit: int) -> list[str]:
    """Lock expired jobs, and return their ids; those that another process has locked are skipped."""
    query = (
        select(JOBS.c.id)
        .where(JOBS.c.expires_unix_ms <= now_unix_ms, status)
        .order_by(JOBS.c.expires_unix_ms)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return list(connection.execute(query).scalars())


def _delete(connection: Connection, job_ids: Collection[str]) -> int:
    if job_ids:
        connection.execute(delete(JOBS).where(JOBS.c.id.in_(job_ids)))
    return len(job_ids)
