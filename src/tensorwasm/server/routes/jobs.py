"""Jobs: their JSON, and the routes that start, show, await and cancel them."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tensorwasm.database.jobs import JOB_STATUSES, JobFilter, JobRecord, JobStatus
from tensorwasm.errors import BodyTooLarge, Conflict, IdempotencyMismatch, InvalidRequest
from tensorwasm.server.http.decoding import PAGING, STORED, UNAVAILABLE, page_limit, read_key
from tensorwasm.server.http.routing import HttpRequest, QueryParam, Reply, Route
from tensorwasm.server.http.schemas import FailureOutput, Invoke, Millis, Output, RecordBody, StackFrame
from tensorwasm.server.routes.invocations import CALLED, call_of, decode_input
from tensorwasm.service.jobs.attempts import Terms
from tensorwasm.service.pages import parse_cursor, render_cursor
from tensorwasm.values import NEVER

MAX_WAIT_S: Final = 60.0
_SECONDS: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_decode_failure: Final = msgspec.json.Decoder(FailureOutput).decode


class InvokeLater(Invoke, kw_only=True):
    """A call of an export that is made later. `deadline_ms` applies to each attempt.

    Attributes:
        max_attempts: most attempts, where another one may help; default: the operator's.
        delay_s: seconds until it is due.
        expires_s: seconds after which it is dropped if it does not run yet.
    """

    from_arrival: ClassVar[bool] = False

    max_attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    delay_s: Annotated[float, Meta(ge=0, le=2_592_000)] = 0.0
    expires_s: Annotated[float, Meta(gt=0, le=2_592_000)] | None = None


class Accepted(msgspec.Struct):
    """A job that was accepted, now or earlier under the same idempotency key."""

    job_id: str


class JobFailure(msgspec.Struct):
    """Why a job, or its last attempt, failed.

    Attributes:
        kind: stable identifier: an error's, `job_interrupted` or `job_expired`.
        message: for people; it may change.
        stdout: the end of its guest's standard output, if any: 64 KiB at most; likewise stderr. Not in lists.
        backtrace: stack of a trap, innermost frame first. Not in lists.
    """

    kind: str
    message: str
    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    backtrace: list[StackFrame] | UnsetType = UNSET


class JobBody(RecordBody, kw_only=True, omit_defaults=True):
    """A job.

    Attributes:
        status: `pending` until it begins and between attempts, `running`, `completed`, `failed`, `cancelled`, or `dead`
            once its last attempt has failed for a reason that another one might have overcome.
        result: of a completed job, what a call of the function returns; of a failed or dead one, the failure. Not in
            lists.
        version: of the function, when the job was accepted.
        attempts: begun so far.
        cancelled: it is being cancelled, or was.
        error: why its last attempt failed, if it did.
        due_unix_ms: when it may begin.
        expires_unix_ms: when it is dropped if it does not run yet; once it has ended, when it is deleted.
        trace_id: of the request that created it.
    """

    id: str
    function_id: str
    tenant_id: int
    status: JobStatus
    result: Annotated[Any, Meta(description="What a call returns, or why it failed.")] | UnsetType = UNSET
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
        """Return the JSON of a job."""
        failure = UNSET if job.error is None else JobFailure(job.error.kind, job.error.message)
        result: Any = UNSET if job.result is None else msgspec.Raw(job.result)
        if job.status in {"failed", "dead"}:
            result = failure
            if job.error is not None and job.result is not None:
                left = _decode_failure(job.result)
                result = JobFailure(job.error.kind, job.error.message, left.stdout, left.stderr, left.backtrace)
        return cls.copy(
            job,
            tenant_id=job.tenant,
            result=result,
            error=failure,
            ended_unix_ms=UNSET if job.ended_unix_ms is None else job.ended_unix_ms,
            expires_unix_ms=UNSET if job.expires_unix_ms is None else job.expires_unix_ms,
        )


class JobPage(msgspec.Struct):
    """Some jobs, newest first, without their results. `next` is the `after` of the following page, null on the last."""

    jobs: list[JobBody]
    next: str | None


async def submit(request: HttpRequest) -> Reply:
    """Accept a call that is made later."""
    service, tenant, body = request.service, request.tenant, request.body
    reference = request.audit["function_id"] = request.params["id"]
    key = await read_key(request, "invoke", reference)
    job_id = await service.idempotency.find(tenant, key)
    if job_id is None:
        given = await decode_input(body)
        left_s = body.deadline(service.settings.max_deadline_s).earlier(request.deadline).remaining_s()
        timeout_s = None if math.isinf(left_s) else left_s
        terms = Terms(body.max_attempts, body.delay_s, body.expires_s, timeout_s, request.trace_id)
        resolved = await service.functions.resolve(tenant, reference)
        job_id = await service.jobs.submit(tenant, resolved, call_of(body, NEVER, *given), terms, idempotency_key=key)
    request.audit["job_id"] = job_id
    return Reply(Accepted(job_id))


async def list_jobs(request: HttpRequest) -> Reply:
    """Return some of the tenant's jobs."""
    status = request.query.get("status")
    if status is not None and status not in JOB_STATUSES:
        raise InvalidRequest(f"status is one of {', '.join(JOB_STATUSES)}")
    limit, before = page_limit(request), parse_cursor(request.query.get("after") or None)
    wanted = JobFilter(status, request.query.get("function_id") or None, before, limit)
    found = await request.service.jobs.list(request.tenant, wanted)
    following = render_cursor((found[-1].created_unix_ms, found[-1].id)) if len(found) == limit else None
    return Reply(JobPage([JobBody.of(each) for each in found], following))


async def get(request: HttpRequest) -> Reply:
    """Return a job."""
    return Reply(JobBody.of(await request.service.jobs.get(request.tenant, request.params["id"])))


async def wait(request: HttpRequest) -> Reply:
    """Return a job once it has ended, or after a timeout."""
    text, timeout_s = request.query.get("timeout_s"), MAX_WAIT_S
    if text is not None:
        timeout_s = float(text) if _SECONDS.fullmatch(text) else math.nan
        if not 0 <= timeout_s < math.inf:
            raise InvalidRequest("timeout_s is a number of seconds")
    timeout_s = min(timeout_s, MAX_WAIT_S, request.deadline.remaining_s())
    return Reply(JobBody.of(await request.service.jobs.wait(request.tenant, request.params["id"], timeout_s)))


async def cancel(request: HttpRequest) -> Reply:
    """Cancel a job."""
    request.audit["job_id"] = request.params["id"]
    return Reply(JobBody.of(await request.service.jobs.cancel(request.tenant, request.params["id"])))


_route = partial(Route, group="jobs", scope="jobs", response=JobBody)

ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "POST", "/functions/{id}/invoke-async", submit, "Call a function later.", kind="writes", status=202,
        request=InvokeLater, optional_body=True, response=Accepted, action="invoke_function_async",
        errors=tuple(dict.fromkeys((*CALLED, BodyTooLarge, IdempotencyMismatch))),
    ),
    _route(
        "GET", "/jobs", list_jobs, "List jobs, newest first.", response=JobPage, errors=(InvalidRequest, *UNAVAILABLE),
        etag=True,
        query={
            **PAGING,
            "status": QueryParam("Only jobs with this status.", {"enum": list(JOB_STATUSES)}),
            "function_id": QueryParam("Only jobs of this function.", {"type": "string"}),
        },
    ),
    _route("GET", "/jobs/{id}", get, "Show a job.", errors=STORED, etag=True),
    _route(  # without an entity tag: a client that waits does not revalidate
        "GET", "/jobs/{id}/wait", wait, "Wait until a job has ended, or for a time.", kind="streams",
        errors=(InvalidRequest, *STORED),
        query={
            "timeout_s": QueryParam(
                f"Longest wait in seconds; {MAX_WAIT_S:g} at most and by default.", {"type": "number", "minimum": 0}
            )
        },
    ),
    _route(
        "DELETE", "/jobs/{id}", cancel, "Cancel a job, ending it if it runs.", kind="writes", action="cancel_job",
        errors=(Conflict, *STORED),
    ),
)  # fmt: skip
