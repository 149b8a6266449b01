"""Sessions: their JSON, and the routes that open, show, call, save and end them."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import msgspec

from tensorwasm.database.sessions import SessionOptions
from tensorwasm.errors import (
    ArtifactCorrupt,
    Conflict,
    GuestExit,
    GuestTrap,
    InvalidArgs,
    InvalidBase64,
    InvalidRequest,
    InvokeTimeout,
    MissingExport,
    ModuleMemoryTooLarge,
    NotCapturable,
    NotSupported,
    QuotaExceeded,
    RateLimited,
    SessionElsewhere,
    SnapshotKeyMissing,
    StoreUnavailable,
    TooManyArgs,
)
from tensorwasm.server.http.decoding import PAGING, STORED, check_arguments, decode_base64, page_limit
from tensorwasm.server.http.results import result_reply
from tensorwasm.server.http.routing import HttpRequest, Reply, Route, StreamedReply
from tensorwasm.server.http.schemas import Bytes64, CallResult, ExportCall, Millis, RecordBody
from tensorwasm.server.routes.snapshots import Nothing, SnapshotBody
from tensorwasm.service.pages import render_cursor
from tensorwasm.service.sessions.entries import SessionCall, SessionInfo
from tensorwasm.values import NEVER


class OpenSession(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new session.

    Attributes:
        function: the function's ID, or `ID@VERSION` or `ID@ALIAS`; the session keeps the version that it names now.
        input: what calls read with `read-input` by default, as text, or as base64 in `input_b64`.
        argv: WASI arguments, starting with the program's name.
        env: environment in addition to the function's.
    """

    function: str
    input: str | None = None
    input_b64: Bytes64 | None = None
    argv: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


class SessionBody(RecordBody):
    """A session.

    Attributes:
        status: `fresh` before its first call, `saved` when its whole state is saved, `live` when it was called since,
            `volatile` when it was called since and cannot be saved, `lost` when a volatile one ended with the server.
        in_memory: whether it is in memory; else its next call loads it first.
        calls: calls served; a crash of the server resets it to `saved_calls`, those whose effects are saved.
        rewinds: how often a crash has reset it.
        save_error: kind of the error of its last save, or empty.
        used_unix_ms: when it was last called.
    """

    id: str
    tenant_id: int
    function_id: str
    version: int
    status: Literal["fresh", "saved", "live", "volatile", "lost"]
    in_memory: bool
    calls: int
    saved_calls: int
    rewinds: int
    save_error: str
    created_unix_ms: Millis
    used_unix_ms: Millis

    @classmethod
    def of(cls, session: SessionInfo) -> SessionBody:
        """Return the JSON of a session."""
        record, in_memory, save_error = session.record, session.in_memory, session.save_error
        return cls.copy(record, tenant_id=record.tenant, in_memory=in_memory, save_error=save_error)


class SessionPage(msgspec.Struct):
    """Some sessions, oldest first. `next` is the `after` of the following page, null on the last."""

    sessions: list[SessionBody]
    next: str | None


class InvokeSession(ExportCall, kw_only=True, forbid_unknown_fields=True):
    """A call of a session; the other fields are as in `Invoke`.

    Attributes:
        input: what the guest reads with `read-input` from now on, as text, or as base64 in `input_b64`.
        durable: reply only once the state after the call is saved. An error of the saving itself means that the call
            was made, and that its effects are in memory only.
    """

    durable: bool = False


class SessionInvoked(CallResult, kw_only=True):
    """The result of a call of a session; the other fields are as in `Invoked`."""

    session_id: str


async def open_session(request: HttpRequest) -> Reply:
    """Open a session."""
    body: OpenSession = request.body
    options = SessionOptions(input=await _input(body) or b"", argv=body.argv, env=tuple((body.env or {}).items()))
    request.audit["function_id"] = body.function
    session = await request.service.sessions.open(request.tenant, body.function, options, deadline=request.deadline)
    request.audit["session_id"] = session.record.id
    return Reply(SessionBody.of(session))


async def list_sessions(request: HttpRequest) -> Reply:
    """Return some of the tenant's sessions."""
    limit = page_limit(request)
    found = await request.service.sessions.list(request.tenant, request.query.get("after") or None, limit)
    following = render_cursor(found[-1].record.cursor) if len(found) == limit else None
    return Reply(SessionPage([SessionBody.of(each) for each in found], following))


async def get(request: HttpRequest) -> Reply:
    """Return a session."""
    return Reply(SessionBody.of(await request.service.sessions.get(request.tenant, request.params["id"])))


async def end(request: HttpRequest) -> Reply:
    """End a session."""
    request.audit["session_id"] = request.params["id"]
    await request.service.sessions.end(request.tenant, request.params["id"])
    return Reply()


async def invoke(request: HttpRequest) -> Reply | StreamedReply:
    """Call a session."""
    body: InvokeSession = request.body
    session_id = request.audit["session_id"] = request.params["id"]
    check_arguments(body.args)
    call = SessionCall(
        export=body.export,
        args=body.args,
        input=await _input(body),
        deadline=None if request.deadline is NEVER else request.deadline,
        durable=body.durable,
    )
    return await result_reply(
        "session_id", session_id, await request.service.sessions.call(request.tenant, session_id, call)
    )


async def save(request: HttpRequest) -> Reply:
    """Save a session as a stored snapshot."""
    request.audit["session_id"] = request.params["id"]
    record = await request.service.snapshots.save(request.tenant, request.params["id"], request.deadline)
    request.audit["snapshot_id"] = record.id
    return Reply(SnapshotBody.of(record))


async def _input(body: OpenSession | InvokeSession) -> bytes | None:
    if body.input is not None and body.input_b64 is not None:
        raise InvalidRequest("input is text or base64, not both")
    if body.input_b64 is not None:
        return await decode_base64(body.input_b64)
    return None if body.input is None else body.input.encode()


_WOKEN: Final = (
    NotSupported, NotCapturable, GuestTrap, GuestExit, InvokeTimeout, QuotaExceeded, Conflict,
    SessionElsewhere, SnapshotKeyMissing, ModuleMemoryTooLarge,
    ArtifactCorrupt, StoreUnavailable, RateLimited, *STORED,
)  # fmt: skip
"""Errors of loading an instance into memory."""

_read = partial(Route, group="sessions", scope="invoke", errors=STORED, etag=True)
_write = partial(Route, group="sessions", scope="invoke", errors=STORED, kind="writes")

ROUTES: Final[tuple[Route, ...]] = (
    _write(
        "POST", "/sessions", open_session, "Open a session: an instance that several calls share.",
        request=OpenSession, response=SessionBody, status=201, action="open_session",
        errors=(InvalidArgs, InvalidBase64, InvalidRequest, *_WOKEN),
    ),
    _read(
        "GET", "/sessions", list_sessions, "List sessions.", response=SessionPage, query=PAGING,
        errors=(InvalidRequest, *STORED),
    ),
    _read("GET", "/sessions/{id}", get, "Show a session.", response=SessionBody),
    _write("DELETE", "/sessions/{id}", end, "End a session.", status=204, action="close_session"),
    _write(
        "POST", "/sessions/{id}/invoke", invoke, "Call a session; its state is kept.", kind="invoke",
        request=InvokeSession, optional_body=True, response=SessionInvoked, action="invoke_session",
        errors=(MissingExport, InvalidArgs, TooManyArgs, InvalidBase64, InvalidRequest, *_WOKEN),
    ),
    _write(
        "POST", "/sessions/{id}/snapshot", save, "Save a session as a stored snapshot.", scope="snapshots",
        request=Nothing, optional_body=True, response=SnapshotBody, status=201, action="save_snapshot",
        errors=_WOKEN,
    ),
)  # fmt: skip
