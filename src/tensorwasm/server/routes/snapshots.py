"""Snapshots: kept, handed out and brought back; under the original's paths and its command line's too."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from tensorwasm.errors import (
    ArtifactCorrupt,
    CapacityExhausted,
    Conflict,
    DatabaseUnavailable,
    GuestExit,
    GuestTrap,
    InstanceNotFound,
    InvalidBase64,
    InvalidKey,
    InvalidRequest,
    InvokeTimeout,
    ModuleMemoryTooLarge,
    NotCapturable,
    NotFound,
    NotSupported,
    QuotaExceeded,
    RateLimited,
    SessionElsewhere,
    SignatureInvalid,
    SnapshotKeyMissing,
    StoreUnavailable,
    TooLarge,
    WrongModule,
)
from tensorwasm.server.bodies import decode_base64
from tensorwasm.server.routes.functions import PAGING, page_limit
from tensorwasm.server.routing import Call, Ending, Reply, Route, Send, Streamed
from tensorwasm.server.wire import snapshots as wire
from tensorwasm.service.pages import render_cursor
from tensorwasm.service.snapshot_keys import parse_hex_key
from tensorwasm.values import MIB

KEY_HEADER: Final = "X-TensorWasm-Snapshot-HMAC-Key"
SIGNED_HEADER: Final = "X-TensorWasm-Snapshot-Require-Signature"
INSTANCE_HEADER: Final = "X-TensorWasm-As-Instance"

MAX_ENCODED_BYTES: Final = 48 * MIB
"""Longest file that is handed out as base64, which makes 64 MiB of it; longer ones are fetched as they are."""

_PIECE_BYTES: Final = 1 * MIB
_FLAGS: Final = frozenset({"true", "false", "1", "0"})
_BINARY: Final = "application/octet-stream"


async def list_snapshots(call: Call) -> Reply:
    """Return some of the tenant's snapshots."""
    limit = page_limit(call)
    found = await call.service.snapshots.list(call.tenant, call.query.get("after") or None, limit)
    following = render_cursor(found[-1].cursor) if len(found) == limit else None
    return Reply(wire.SnapshotPage([wire.SnapshotBody.of(each) for each in found], following))


async def get(call: Call) -> Reply:
    """Return what is known of a snapshot."""
    return Reply(wire.SnapshotBody.of(await call.service.snapshots.get(call.tenant, call.params["id"])))


async def delete(call: Call) -> Reply:
    """Take a snapshot away."""
    call.audit["snapshot_id"] = call.params["id"]
    await call.service.snapshots.delete(call.tenant, call.params["id"])
    return Reply()


async def content(call: Call) -> Reply | Streamed:
    """Return a snapshot's file."""
    return _file(await call.service.snapshots.content(call.tenant, call.params["id"]))


async def restore_kept(call: Call) -> Reply:
    """Make a session of a snapshot that is kept."""
    call.audit["snapshot_id"] = call.params["id"]
    restored = await call.service.snapshots.restore(call.tenant, call.params["id"], deadline=call.deadline)
    call.audit["session_id"] = restored.session.record.id
    return Reply(wire.RestoredSnapshot.of(restored))


async def save(call: Call) -> Reply:
    """Hand out a snapshot of a session, or of a new instance of a function, as base64."""
    body: wire.CaptureSnapshot = call.body
    snapshots = call.service.snapshots
    if body.session_id is not None:
        call.audit["session_id"] = body.session_id
        captured = await snapshots.capture_session(call.tenant, body.session_id, deadline=call.deadline)
        if body.function_id is not None and body.function_id.partition("@")[0] != captured.function_id:
            raise InvalidRequest("the session is of another function")
    elif body.function_id is not None:
        call.audit["function_id"] = body.function_id
        captured = await snapshots.capture_fresh(call.tenant, body.function_id, deadline=call.deadline)
    else:
        raise InvalidRequest("function_id or session_id says what is to be saved")
    if captured.data.nbytes > MAX_ENCODED_BYTES:
        raise TooLarge(captured.data.nbytes, MAX_ENCODED_BYTES)
    encoded = await asyncio.to_thread(base64.b64encode, captured.data)
    return Reply(wire.CapturedSnapshot(captured.function_id, encoded.decode("ascii")))


async def restore(call: Call) -> Reply:
    """Make a session of a snapshot that is brought as base64."""
    body: wire.RestoreSnapshot = call.body
    data = await decode_base64(body.snapshot_b64)
    restored = await call.service.snapshots.bring(
        call.tenant, memoryview(data), reference=body.function_id, deadline=call.deadline
    )
    call.audit["session_id"] = restored.session.record.id
    return Reply(wire.RestoredSnapshot.of(restored))


async def save_instance(call: Call) -> Reply | Streamed:
    """Hand out a snapshot of a session as a file."""
    call.audit["session_id"] = call.params["id"]
    key = _client_key(call)
    try:
        captured = await call.service.snapshots.capture_session(
            call.tenant, call.params["id"], client_key=key, deadline=call.deadline
        )
    except NotFound as missing:
        raise InstanceNotFound(missing.message) from None
    return _file(captured.data)


async def restore_instance(call: Call) -> Reply:
    """Make a session of a file."""
    required = call.headers.get(SIGNED_HEADER)
    if required is not None and required.lower() not in _FLAGS:
        raise InvalidRequest(f"{SIGNED_HEADER} is true or false")
    restored = await call.service.snapshots.bring(
        call.tenant,
        memoryview(call.raw),
        client_key=_client_key(call),
        session_id=call.headers.get(INSTANCE_HEADER),
        deadline=call.deadline,
    )
    call.audit["session_id"] = restored.session.record.id
    return Reply(wire.RestoredSnapshot.of(restored))


def _client_key(call: Call) -> bytes:
    text = call.headers.get(KEY_HEADER)
    return parse_hex_key(KEY_HEADER, text) if text is not None else b""


def _file(data: memoryview) -> Reply | Streamed:
    if data.nbytes <= _PIECE_BYTES:
        return Reply(bytes(data), content_type=_BINARY)

    async def send(out: Send) -> Ending:
        for start in range(0, data.nbytes, _PIECE_BYTES):
            piece = await asyncio.to_thread(bytes, data[start : start + _PIECE_BYTES])  # it may wait for the disk
            if not await out(piece):
                return Ending(whole=False)
        return Ending()

    return Streamed(send, _BINARY)


_STORED: Final = (NotFound, DatabaseUnavailable, CapacityExhausted)
_KEPT: Final = (ArtifactCorrupt, StoreUnavailable, *_STORED)
_SAVED: Final = (
    NotSupported, NotCapturable, GuestTrap, GuestExit, InvokeTimeout, QuotaExceeded, Conflict,
    SessionElsewhere, SnapshotKeyMissing, RateLimited, TooLarge,
    InvalidRequest, *_KEPT,
)  # fmt: skip
_RESTORED: Final = (WrongModule, ModuleMemoryTooLarge, *_SAVED)
_BROUGHT: Final = (SignatureInvalid, InvalidBase64, *_RESTORED)


def _route(method: str, path: str, handle: Any, summary: str, **more: Any) -> Route:
    return Route(method, path, handle, summary, "snapshots", "snapshots", etag=method == "GET", **more)


ROUTES: Final[tuple[Route, ...]] = (
    _route(
        "GET", "/snapshots", list_snapshots, "List snapshots.", response=wire.SnapshotPage, query=PAGING,
        errors=(InvalidRequest, *_STORED),
    ),
    _route("GET", "/snapshots/{id}", get, "See a snapshot.", response=wire.SnapshotBody, errors=_STORED),
    _route(
        "DELETE", "/snapshots/{id}", delete, "Delete a snapshot.", kind="writes", status=204, errors=_KEPT,
        action="delete_snapshot",
    ),
    _route(
        "GET", "/snapshots/{id}/content", content, "Fetch a snapshot's file.", response=bytes, errors=_KEPT
    ),
    _route(
        "POST", "/snapshots/{id}/restore", restore_kept, "Make a session of a snapshot.", kind="writes",
        request=wire.Nothing, optional_body=True, response=wire.RestoredSnapshot, status=201, errors=_RESTORED,
        action="restore_snapshot",
    ),
    _route(
        "POST", "/snapshot/save", save, "Hand out a snapshot of a session or of a new instance.", kind="writes",
        request=wire.CaptureSnapshot, response=wire.CapturedSnapshot, errors=_SAVED, action="save_snapshot",
    ),
    _route(
        "POST", "/snapshot/restore", restore, "Make a session of a snapshot that is brought.", kind="writes",
        request=wire.RestoreSnapshot, response=wire.RestoredSnapshot, errors=_BROUGHT, action="restore_snapshot",
    ),
    _route(
        "POST", "/instances/restore", restore_instance, "Make a session of a snapshot's file.", kind="writes",
        request=bytes, response=wire.RestoredSnapshot, errors=(InvalidKey, *_BROUGHT), action="restore_snapshot",
    ),
    _route(
        "POST", "/instances/{id}/snapshot", save_instance, "Hand out a session's snapshot as a file.", kind="writes",
        request=wire.Nothing, optional_body=True, response=bytes, errors=(InvalidKey, InstanceNotFound, *_SAVED),
        action="save_snapshot",
    ),
)  # fmt: skip
