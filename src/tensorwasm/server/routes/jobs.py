"""Jobs: started, seen, waited for and cancelled."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from tensorwasm.database.jobs import JOB_STATUSES, JobFilter
from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    Conflict,
    DatabaseUnavailable,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
)
from tensorwasm.server.bodies import decode_base64
from tensorwasm.server.idempotency import read_key
from tensorwasm.server.routes.functions import CALLED, PAGING, ask_of, page_limit
from tensorwasm.server.routing import Call, Param, Reply, Route
from tensorwasm.server.wire import jobs as wire
from tensorwasm.service.jobs.jobs import Terms
from tensorwasm.service.pages import parse_cursor, render_cursor
from tensorwasm.values import NEVER

MAX_WAIT_S: Final = 60.0
_SECONDS: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", re.ASCII)


async def submit(call: Call) -> Reply:
    """Accept a call that is made later."""
    service, tenant, reference = call.service, call.tenant, call.params["id"]
    call.audit["function_id"] = reference
    body: wire.InvokeLater = call.body
    key = await read_key(call, "invoke", reference)
    earlier = await service.idempotency.find(tenant, key)
    if earlier is None:
        given = [b"" if each is None else await decode_base64(each) for each in (body.input_b64, body.stdin_b64)]
        left_s = body.deadline(service.settings.max_deadline_s).earlier(call.deadline).remaining_s()
        timeout_s = None if math.isinf(left_s) else left_s
        terms = Terms(body.max_attempts, body.delay_s, body.expires_s, timeout_s, call.trace_id)
        resolved = await service.functions.resolve(tenant, reference)
        ask = ask_of(body, NEVER, given[0], given[1])
        earlier = await service.jobs.submit(tenant, resolved, ask, terms, idempotency_key=key)
    call.audit["job_id"] = earlier
    return Reply(wire.Accepted(earlier))


async def list_jobs(call: Call) -> Reply:
    """Return some of the tenant's jobs."""
    status = call.query.get("status")
    if status is not None and status not in JOB_STATUSES:
        raise InvalidRequest(f"status is one of {', '.join(JOB_STATUSES)}")
    limit, before = page_limit(call), parse_cursor(call.query.get("after") or None)
    wanted = JobFilter(status, call.query.get("function_id") or None, before, limit)
    found = await call.service.jobs.list(call.tenant, wanted)
    following = render_cursor((found[-1].created_unix_ms, found[-1].id)) if len(found) == limit else None
    return Reply(wire.JobPage([wire.JobBody.of(each) for each in found], following))


async def get(call: Call) -> Reply:
    """Return a job."""
    return Reply(wire.JobBody.of(await call.service.jobs.get(call.tenant, call.params["id"])))


async def wait(call: Call) -> Reply:
    """Return a job once it has ended, or after a time."""
    timeout_s = min(_seconds(call, "timeout_s", MAX_WAIT_S), call.deadline.remaining_s())
    job = await call.service.jobs.wait(call.tenant, call.params["id"], timeout_s)
    return Reply(wire.JobBody.of(job))


async def cancel(call: Call) -> Reply:
    """End a job."""
    call.audit["job_id"] = call.params["id"]
    return Reply(wire.JobBody.of(await call.service.jobs.cancel(call.tenant, call.params["id"])))


def _seconds(call: Call, name: str, most: float) -> float:
    text = call.query.get(name)
    if text is None:
        return most
    seconds = float(text) if _SECONDS.fullmatch(text) else math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"{name} is a number of seconds")
    return min(seconds, most)


_STORED: Final = (DatabaseUnavailable, CapacityExhausted)


def _route(method: str, path: str, handle: Any, summary: str, **more: Any) -> Route:
    errors = more.pop("errors", (NotFound, *_STORED))
    etag = method == "GET" and "kind" not in more  # what waits is not asked for again and again
    return Route(method, path, handle, summary, "jobs", "jobs", errors=errors, etag=etag, **more)


ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "POST", "/functions/{id}/invoke-async", submit, "Call a function later.", kind="writes", status=202,
        request=wire.InvokeLater, optional_body=True, response=wire.Accepted, action="invoke_function_async",
        errors=tuple(dict.fromkeys((*CALLED, BodyTooLarge, IdempotencyMismatch))),
    ),
    _route(
        "GET", "/jobs", list_jobs, "List jobs, newest first.", response=wire.JobPage, errors=(InvalidRequest, *_STORED),
        query={
            **PAGING,
            "status": Param("Only these.", {"enum": list(JOB_STATUSES)}),
            "function_id": Param("Only those of this function.", {"type": "string"}),
        },
    ),
    _route("GET", "/jobs/{id}", get, "See a job.", response=wire.JobBody),
    _route(
        "GET", "/jobs/{id}/wait", wait, "Wait until a job has ended, or for a time.", kind="streams",
        response=wire.JobBody, errors=(InvalidRequest, NotFound, *_STORED),
        query={
            "timeout_s": Param(
                f"Longest wait in seconds; {MAX_WAIT_S:g} at most, and unless said otherwise.",
                {"type": "number", "minimum": 0},
            )
        },
    ),
    _route(
        "DELETE", "/jobs/{id}", cancel, "Cancel a job; one that runs is ended.", kind="writes",
        response=wire.JobBody, action="cancel_job", errors=(NotFound, Conflict, *_STORED),
    ),
)  # fmt: skip
