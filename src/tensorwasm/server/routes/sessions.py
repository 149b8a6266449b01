"""Sessions: opened, seen, called, saved and ended."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tensorwasm.database.sessions import SessionOptions
from tensorwasm.errors import (
    ArtifactCorrupt,
    CapacityExhausted,
    Conflict,
    DatabaseUnavailable,
    GuestExit,
    GuestTrap,
    InvalidArgs,
    InvalidBase64,
    InvalidRequest,
    InvokeTimeout,
    MissingExport,
    ModuleMemoryTooLarge,
    NotCapturable,
    NotFound,
    NotSupported,
    QuotaExceeded,
    RateLimited,
    SessionElsewhere,
    SnapshotKeyMissing,
    StoreUnavailable,
    TooManyArgs,
)
from tensorwasm.server.bodies import decode_base64
from tensorwasm.server.outcomes import answer
from tensorwasm.server.routes.functions import PAGING, page_limit
from tensorwasm.server.routing import Call, Reply, Route, Streamed
from tensorwasm.server.wire import sessions as wire
from tensorwasm.server.wire.snapshots import Nothing, SnapshotBody
from tensorwasm.service.pages import render_cursor
from tensorwasm.service.sessions import SessionCall
from tensorwasm.values import NEVER

_SCALARS: Final = frozenset({int, float, str})
_encode: Final = msgspec.json.Encoder().encode


async def open_session(call: Call) -> Reply:
    """Open a session."""
    body: wire.OpenSession = call.body
    options = SessionOptions(
        input=await _given(body.input, body.input_b64) or b"", argv=body.argv, env=tuple((body.env or {}).items())
    )
    call.audit["function_id"] = body.function
    session = await call.service.sessions.open(call.tenant, body.function, options, deadline=call.deadline)
    call.audit["session_id"] = session.record.id
    return Reply(wire.SessionBody.of(session))


async def list_sessions(call: Call) -> Reply:
    """Return some of the tenant's sessions."""
    limit = page_limit(call)
    found = await call.service.sessions.list(call.tenant, call.query.get("after") or None, limit)
    following = render_cursor(found[-1].record.cursor) if len(found) == limit else None
    return Reply(wire.SessionPage([wire.SessionBody.of(each) for each in found], following))


async def get(call: Call) -> Reply:
    """Return a session."""
    return Reply(wire.SessionBody.of(await call.service.sessions.get(call.tenant, call.params["id"])))


async def end(call: Call) -> Reply:
    """End a session for good."""
    call.audit["session_id"] = call.params["id"]
    await call.service.sessions.end(call.tenant, call.params["id"])
    return Reply()


async def invoke(call: Call) -> Reply | Streamed:
    """Call a session."""
    body: wire.InvokeSession = call.body
    session_id = call.params["id"]
    call.audit["session_id"] = session_id
    for index, value in enumerate(body.args):
        if type(value) not in _SCALARS:
            raise InvalidArgs(f"argument {index} is neither a number nor a text")
    ask = SessionCall(
        export=body.export,
        args=body.args,
        input=await _given(body.input, body.input_b64),
        deadline=None if call.deadline is NEVER else call.deadline,
        durable=body.durable,
    )
    outcome = await call.service.sessions.call(call.tenant, session_id, ask)
    return await answer(b'"session_id":%b' % _encode(session_id), outcome)


async def save(call: Call) -> Reply:
    """Save a session, and keep what was saved."""
    call.audit["session_id"] = call.params["id"]
    record = await call.service.snapshots.save(call.tenant, call.params["id"], call.deadline)
    call.audit["snapshot_id"] = record.id
    return Reply(SnapshotBody.of(record))


async def _given(text: str | None, encoded: str | None) -> bytes | None:
    if text is not None and encoded is not None:
        raise InvalidRequest("input is text or base64, not both")
    if encoded is not None:
        return await decode_base64(encoded)
    return None if text is None else text.encode()


_STORED: Final = (NotFound, DatabaseUnavailable, CapacityExhausted)
_WOKEN: Final = (
    NotSupported, NotCapturable, GuestTrap, GuestExit, InvokeTimeout, QuotaExceeded, Conflict,
    SessionElsewhere, SnapshotKeyMissing, ModuleMemoryTooLarge,
    ArtifactCorrupt, StoreUnavailable, RateLimited, *_STORED,
)  # fmt: skip
"""What bringing an instance into memory can raise."""


def _route(method: str, path: str, handle: Any, summary: str, **more: Any) -> Route:
    scope, errors = more.pop("scope", "invoke"), more.pop("errors", _STORED)
    return Route(method, path, handle, summary, "sessions", scope, errors=errors, etag=method == "GET", **more)


ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "POST", "/sessions", open_session, "Open a session: an instance that several calls share.", kind="writes",
        request=wire.OpenSession, response=wire.SessionBody, status=201, action="open_session",
        errors=(InvalidArgs, InvalidBase64, InvalidRequest, *_WOKEN),
    ),
    _route(
        "GET", "/sessions", list_sessions, "List sessions.", response=wire.SessionPage, query=PAGING,
        errors=(InvalidRequest, *_STORED),
    ),
    _route("GET", "/sessions/{id}", get, "See a session.", response=wire.SessionBody),
    _route(
        "DELETE", "/sessions/{id}", end, "End a session for good.", kind="writes", status=204, action="close_session"
    ),
    _route(
        "POST", "/sessions/{id}/invoke", invoke, "Call a session; its state stays.", kind="invoke",
        request=wire.InvokeSession, optional_body=True, response=wire.SessionInvoked, action="invoke_session",
        errors=(MissingExport, InvalidArgs, TooManyArgs, InvalidBase64, InvalidRequest, *_WOKEN),
    ),
    _route(
        "POST", "/sessions/{id}/snapshot", save, "Save a session, and keep what was saved.", scope="snapshots",
        kind="writes", request=Nothing, optional_body=True, response=SnapshotBody, status=201,
        action="save_snapshot", errors=_WOKEN,
    ),
)  # fmt: skip
