"""Jobs in JSON."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tensorwasm.database.jobs import JobRecord, JobStatus
from tensorwasm.server.wire.functions import Invoke, Millis
from tensorwasm.server.wire.output import Left, Output, StackFrame


class InvokeLater(Invoke, kw_only=True):
    """A call of an export that is made later. `deadline_ms` is what each attempt has.

    Attributes:
        max_attempts: how often it is tried where another attempt may help; without, the operator's usual number.
        delay_s: seconds until it is due.
        expires_s: seconds after which it is given up if it does not run yet.
    """

    from_arrival: ClassVar[bool] = False

    max_attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    delay_s: Annotated[float, Meta(ge=0, le=2_592_000)] = 0.0
    expires_s: Annotated[float, Meta(gt=0, le=2_592_000)] | None = None


class Accepted(msgspec.Struct):
    """A job that was accepted, or was before under the same idempotency key."""

    job_id: str


class JobFailure(msgspec.Struct):
    """Why a job, or its last attempt, failed.

    Attributes:
        kind: stable identifier, as of an error; besides, `job_interrupted` and `job_expired`.
        message: for people; it may change.
        stdout: the end of what its guest had written to standard output, if anything: 64 KiB at most. Not in lists.
        stderr: likewise.
        backtrace: of a trap, its stack, innermost first. Not in lists.
    """

    kind: str
    message: str
    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    backtrace: list[StackFrame] | UnsetType = UNSET


_decode_left: Final = msgspec.json.Decoder(Left).decode


class JobBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job.

    Attributes:
        id: UUID.
        function_id: what it calls.
        tenant_id: whose it is.
        status: `pending` until it begins and between attempts, `running`, `completed`, `failed`, `cancelled`, or `dead`
            once its last attempt has failed for a reason that another one might have mended.
        result: once it has completed, what a call of the function answers; once it has failed or is dead, why. Not in
            lists.
        created_unix_ms: when it was accepted.
        version: of the function, as it was then.
        attempts: that were begun.
        max_attempts: that there are at most.
        cancelled: it is to end, or has.
        error: why its last attempt failed, if one did.
        due_unix_ms: when it may begin.
        ended_unix_ms: when it ended.
        expires_unix_ms: when it is given up if it does not run yet; once it has ended, when it is removed.
        trace_id: of the request that brought it.
    """

    id: str
    function_id: str
    tenant_id: int
    status: JobStatus
    result: Annotated[Any, Meta(description="What a call answers, or why it failed.")] | UnsetType = UNSET
    created_unix_ms: Millis
    version: int
    attempts: int
    max_attempts: int
    cancelled: bool
    error: JobFailure | UnsetType = UNSET
    due_unix_ms: Millis
    ended_unix_ms: Millis | UnsetType = UNSET
    expires_unix_ms: Millis | UnsetType = UNSET
    trace_id: str = ""

    @classmethod
    def of(cls, job: JobRecord) -> JobBody:
        """Return the service's."""
        failed = job.status in {"failed", "dead"}
        failure = UNSET if job.error is None else JobFailure(job.error.kind, job.error.message)
        told = failure
        if job.error is not None and failed and job.result is not None:
            left = _decode_left(job.result)
            told = JobFailure(job.error.kind, job.error.message, left.stdout, left.stderr, left.backtrace)
        result = msgspec.Raw(job.result) if job.result is not None else UNSET
        return cls(
            id=job.id,
            function_id=job.function_id,
            tenant_id=job.tenant,
            status=job.status,
            result=told if failed else result,
            created_unix_ms=job.created_unix_ms,
            version=job.version,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            cancelled=job.cancelled,
            error=failure,
            due_unix_ms=job.due_unix_ms,
            ended_unix_ms=UNSET if job.ended_unix_ms is None else job.ended_unix_ms,
            expires_unix_ms=UNSET if job.expires_unix_ms is None else job.expires_unix_ms,
            trace_id=job.trace_id,
        )


class JobPage(msgspec.Struct):
    """Some jobs, newest first, without their results.

    Attributes:
        jobs: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    jobs: list[JobBody]
    next: str | None
