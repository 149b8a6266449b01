"""Jobs: what was accepted, and what came of it. Who runs them is in `tensorwasm.database.leases`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from sqlalchemy import delete, func, insert, or_, select, tuple_, update

from tensorwasm.database.schema import JOBS

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

JobStatus = Literal["pending", "running", "completed", "failed", "cancelled", "dead"]
JOB_STATUSES: Final[tuple[JobStatus, ...]] = ("pending", "running", "completed", "failed", "cancelled", "dead")
ENDED: Final[frozenset[JobStatus]] = frozenset({"completed", "failed", "cancelled", "dead"})


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job, or its last attempt, failed.

    Attributes:
        kind: of the error, as on the wire.
        message: for people.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, but for what it asks.

    Attributes:
        id: UUID.
        tenant: whose it is.
        function_id: what it calls.
        version: of the function, as it was when the job was accepted.
        status: ``pending`` until it is claimed, and between attempts; ``dead`` once the last attempt has failed for a
            reason that another one might have mended.
        attempts: that were begun.
        max_attempts: that there are at most.
        due_unix_ms: when it may be claimed.
        lease_owner: the process that runs it.
        lease_unix_ms: until when that process alone may.
        result: JSON of what it gave, or of what its guest wrote before it failed; None else, and in lists.
        error: of the last attempt that failed.
        cancelled: it is to end.
        created_unix_ms: when it was accepted.
        ended_unix_ms: when its end was recorded.
        expires_unix_ms: when it is given up if it has not begun; once it has ended, when it is removed.
        trace_id: of the request that brought it, 32 hex digits or empty.
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
    """A job that is to be. Attributes as in `JobRecord`; ``request`` is the encoded call."""

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
    """Which jobs of a tenant, newest first.

    Attributes:
        status: only those.
        function_id: only those of this function.
        before: creation time and id of the last one seen; None begins with the newest.
        limit: how many at most, 1 or more.
    """

    status: JobStatus | None = None
    function_id: str | None = None
    before: tuple[int, str] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ends.

    Attributes:
        status: one of `ENDED`.
        at_unix_ms: now.
        remove_unix_ms: when it is removed.
        result: JSON of what it gave, where it completed, or of what its guest wrote before it failed.
        error: why not, where it did not.
    """

    status: JobStatus
    at_unix_ms: int
    remove_unix_ms: int
    result: bytes | None = field(default=None, repr=False)
    error: JobError | None = None

    def values(self) -> dict[str, Any]:
        """Return the columns that this sets: what the job asked goes, for nobody makes it again."""
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
    row = connection.execute(
        insert(JOBS)
        .values(
            id=job.id,
            tenant=str(job.tenant),
            function_id=job.function_id,
            version=job.version,
            request=job.request,
            status="pending",
            attempts=0,
            max_attempts=job.max_attempts,
            due_unix_ms=job.due_unix_ms,
            cancelled=False,
            created_unix_ms=job.created_unix_ms,
            expires_unix_ms=job.expires_unix_ms,
            trace_id=job.trace_id,
        )
        .returning(*_RECORD)
    ).one()
    return record_of(row)


def count_pending(connection: Connection, tenant: int, most: int) -> int:
    """Return how many jobs of a tenant wait, and no more than ``most``: counting ends there."""
    waiting = select(JOBS.c.id).where(JOBS.c.status == "pending", JOBS.c.tenant == str(tenant)).limit(most)
    return connection.execute(select(func.count()).select_from(waiting.subquery())).scalar_one()


def count_active(connection: Connection) -> int:
    """Return how many jobs have not ended."""
    return connection.execute(
        select(func.count()).select_from(JOBS).where(JOBS.c.status.in_(("pending", "running")))
    ).scalar_one()


def get_job(connection: Connection, job_id: str) -> JobRecord | None:
    """Return a job with its result; None if there is none."""
    row = connection.execute(select(*_RECORD, JOBS.c.result).where(JOBS.c.id == job_id)).one_or_none()
    return None if row is None else record_of(row)


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
    """End a job that waits, at once; have one that runs end; leave one that has ended as it is.

    Args:
        connection: in a transaction.
        job_id: which.
        end: what is written where it waits; its status is ``cancelled``.

    Returns:
        The job as it is now, None if there is none, and whether it had not ended before.
    """
    # The row is locked first: between looking and writing it could be claimed.
    row = connection.execute(select(*_RECORD).where(JOBS.c.id == job_id).with_for_update()).one_or_none()
    if row is None or row.status in ENDED:
        return None if row is None else record_of(row), False
    values = {"cancelled": True, **(end.values() if row.status == "pending" else {})}
    statement = update(JOBS).where(JOBS.c.id == job_id).values(**values).returning(*_RECORD)
    return record_of(connection.execute(statement).one()), True


def expire_jobs(connection: Connection, end: JobEnd, limit: int) -> list[str]:
    """End jobs that wait longer than they were to, ``limit`` at most, and return their ids."""
    late = (
        select(JOBS.c.id)
        .where(JOBS.c.expires_unix_ms <= end.at_unix_ms, JOBS.c.status == "pending")
        .order_by(JOBS.c.expires_unix_ms)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = list(connection.execute(late).scalars())
    if found:
        connection.execute(update(JOBS).where(JOBS.c.id.in_(found)).values(end.values()))
    return found


def remove_jobs(connection: Connection, now_unix_ms: int, limit: int) -> int:
    """Remove jobs that ended long enough ago, ``limit`` at most, and return how many."""
    old = (
        select(JOBS.c.id)
        .where(JOBS.c.expires_unix_ms <= now_unix_ms, JOBS.c.status.in_(ENDED))
        .order_by(JOBS.c.expires_unix_ms)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = list(connection.execute(old).scalars())
    if found:
        connection.execute(delete(JOBS).where(JOBS.c.id.in_(found)))
    return len(found)


def trim_jobs(connection: Connection, most: int, most_bytes: int, limit: int) -> int:
    """Remove jobs of tenants that have more ended ones than they may, those first that ended first.

    Args:
        connection: in a transaction.
        most: ended jobs of one tenant.
        most_bytes: results of one tenant.
        limit: jobs that are removed at most.

    Returns:
        How many were removed.
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
    found = list(connection.execute(old.order_by(ranked.c.ended_unix_ms).limit(limit)).scalars())
    if found:
        connection.execute(delete(JOBS).where(JOBS.c.id.in_(found)))
    return len(found)


def look_ahead(connection: Connection, now_unix_ms: int) -> tuple[bool, int | None]:
    """Return whether a pending job is due, and when the next one that is not will be."""
    pending = select(func.min(JOBS.c.due_unix_ms)).where(JOBS.c.status == "pending")
    first = connection.execute(pending).scalar_one()
    later = connection.execute(pending.where(JOBS.c.due_unix_ms > now_unix_ms)).scalar_one()
    return first is not None and first <= now_unix_ms, later


def unexpired(now_unix_ms: int) -> Any:
    """Return the condition that a job is not to be given up yet."""
    return or_(JOBS.c.expires_unix_ms.is_(None), JOBS.c.expires_unix_ms > now_unix_ms)


def record_of(row: Row[*tuple[Any, ...]]) -> JobRecord:
    """Return what a row says; without a result where the query did not ask for one."""
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
    values.pop("request", None)
    values.pop("result_bytes", None)
    values["tenant"] = int(values["tenant"])
    values["error"] = _decode_error(values["error"])
    return JobRecord(**{"result": None, **values})


def encode_error(error: JobError | None) -> str | None:
    """Return an error as text."""
    return None if error is None else json.dumps([error.kind, error.message])


def _decode_error(text: str | None) -> JobError | None:
    return None if text is None else JobError(*cast("Sequence[str]", json.loads(text)))
