"""Snapshots: their JSON, and the routes that keep, export and restore them.

Two sets of paths are served: those of the stored snapshots, and those that earlier clients and command lines use.
"""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Final

import msgspec

from tensorwasm.database.snapshots import SnapshotRecord
from tensorwasm.errors import (
    ArtifactCorrupt,
    Conflict,
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
from tensorwasm.server.http.decoding import BINARY, PAGING, STORED, decode_base64, page_limit
from tensorwasm.server.http.routing import HttpRequest, Reply, Route, SendChunk, StreamedReply, StreamEnd
from tensorwasm.server.http.schemas import Bytes64, Millis, RecordBody
from tensorwasm.service.pages import render_cursor
from tensorwasm.service.snapshot_keys import parse_hex_key
from tensorwasm.service.snapshots.snapshots import Restored
from tensorwasm.values import MIB

KEY_HEADER: Final = "X-TensorWasm-Snapshot-HMAC-Key"
SIGNED_HEADER: Final = "X-TensorWasm-Snapshot-Require-Signature"
INSTANCE_HEADER: Final = "X-TensorWasm-As-Instance"

MAX_ENCODED_BYTES: Final = 48 * MIB
"""Longest file that is returned as base64, which makes 64 MiB of it; longer ones are fetched as raw bytes."""

PIECE_BYTES: Final = 128 << 10
"""How much of a file is read at a time. Each of thousands of clients that take nothing holds one or two pieces."""
_FLAGS: Final = frozenset({"true", "false", "1", "0"})
_LOW_BITS: Final = (1 << 53) - 1
"""The integers that every client reads exactly: JavaScript's numbers are doubles."""


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A request whose path and head say everything."""


class SnapshotBody(RecordBody):
    """A stored snapshot.

    Attributes:
        function_id: the function saved, and its version.
        session_id: the session saved, which may have ended.
        content_hash: BLAKE3 of the state, 64 hex digits.
        size_bytes: length of the file.
    """

    id: str
    tenant_id: int
    function_id: str
    version: int
    session_id: str | None
    content_hash: str
    size_bytes: int
    created_unix_ms: Millis

    @classmethod
    def of(cls, record: SnapshotRecord) -> SnapshotBody:
        """Return the JSON of a snapshot."""
        return cls.copy(record, tenant_id=record.tenant, content_hash=record.content_hash.hex())


class SnapshotPage(msgspec.Struct):
    """Some snapshots, oldest first. `next` is the `after` of the following page, null on the last."""

    snapshots: list[SnapshotBody]
    next: str | None


class CaptureSnapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to save and return: a session, or a new instance of a function.

    Attributes:
        function_id: the function's ID, or `ID@VERSION` or `ID@ALIAS`; not needed for a session.
        session_id: the session; without it, a new instance after its start function.
    """

    function_id: str | None = None
    session_id: str | None = None


class CapturedSnapshot(msgspec.Struct):
    """A snapshot of a function as a file, which is always signed."""

    function_id: str
    snapshot_b64: Bytes64
    signed: bool = True


class RestoreSnapshot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A snapshot's file, and the function to run it in; default: the tenant's newest with its module."""

    snapshot_b64: Bytes64
    function_id: str | None = None


class RestoredSnapshot(msgspec.Struct):
    """A session restored from a snapshot.

    Attributes:
        instance_id: ID of the session; `instance_number` is its low 53 bits.
        total_uncompressed_bytes: uncompressed size of the file.
        version: of the file's format.
    """

    tenant_id: int
    instance_id: str
    instance_number: int
    function_id: str
    total_uncompressed_bytes: int
    version: int


async def list_snapshots(request: HttpRequest) -> Reply:
    """Return some of the tenant's snapshots."""
    limit = page_limit(request)
    found = await request.service.snapshots.list(request.tenant, request.query.get("after") or None, limit)
    following = render_cursor(found[-1].cursor) if len(found) == limit else None
    return Reply(SnapshotPage([SnapshotBody.of(each) for each in found], following))


async def get(request: HttpRequest) -> Reply:
    """Return the record of a snapshot."""
    return Reply(SnapshotBody.of(await request.service.snapshots.get(request.tenant, request.params["id"])))


async def delete(request: HttpRequest) -> Reply:
    """Delete a snapshot."""
    request.audit["snapshot_id"] = request.params["id"]
    await request.service.snapshots.delete(request.tenant, request.params["id"])
    return Reply()


async def content(request: HttpRequest) -> Reply | StreamedReply:
    """Return a snapshot's file."""
    return _file(await request.service.snapshots.content(request.tenant, request.params["id"]))


async def restore_kept(request: HttpRequest) -> Reply:
    """Restore a session from a stored snapshot."""
    snapshot_id = request.audit["snapshot_id"] = request.params["id"]
    restored = await request.service.snapshots.restore(request.tenant, snapshot_id, deadline=request.deadline)
    return _restored(request, restored)


async def save(request: HttpRequest) -> Reply:
    """Return a snapshot of a session, or of a new instance of a function, as base64."""
    body: CaptureSnapshot = request.body
    snapshots = request.service.snapshots
    if body.session_id is not None:
        request.audit["session_id"] = body.session_id
        captured = await snapshots.capture_session(request.tenant, body.session_id, deadline=request.deadline)
        if body.function_id is not None and body.function_id.partition("@")[0] != captured.function_id:
            raise InvalidRequest("the session is of another function")
    elif body.function_id is not None:
        request.audit["function_id"] = body.function_id
        captured = await snapshots.capture_fresh(request.tenant, body.function_id, deadline=request.deadline)
    else:
        raise InvalidRequest("function_id or session_id names what is to be saved")
    if captured.data.nbytes > MAX_ENCODED_BYTES:
        raise TooLarge(captured.data.nbytes, MAX_ENCODED_BYTES)
    encoded = await asyncio.to_thread(base64.b64encode, captured.data)
    return Reply(CapturedSnapshot(captured.function_id, encoded.decode("ascii")))


async def restore(request: HttpRequest) -> Reply:
    """Restore a session from a snapshot in base64."""
    body: RestoreSnapshot = request.body
    data = memoryview(await decode_base64(body.snapshot_b64))
    restored = await request.service.snapshots.restore_file(
        request.tenant, data, reference=body.function_id, deadline=request.deadline
    )
    return _restored(request, restored)


async def save_instance(request: HttpRequest) -> Reply | StreamedReply:
    """Return a snapshot of a session as a file."""
    session_id = request.audit["session_id"] = request.params["id"]
    key = _client_key(request)
    try:
        captured = await request.service.snapshots.capture_session(
            request.tenant, session_id, client_key=key, deadline=request.deadline
        )
    except NotFound as missing:
        raise InstanceNotFound(missing.message) from None
    return _file(captured.data)


async def restore_instance(request: HttpRequest) -> Reply:
    """Restore a session from a file."""
    required = request.headers.get(SIGNED_HEADER)
    if required is not None and required.lower() not in _FLAGS:
        raise InvalidRequest(f"{SIGNED_HEADER} is true or false")
    restored = await request.service.snapshots.restore_file(
        request.tenant,
        memoryview(request.raw),
        client_key=_client_key(request),
        session_id=request.headers.get(INSTANCE_HEADER),
        deadline=request.deadline,
    )
    return _restored(request, restored)


def _restored(request: HttpRequest, restored: Restored) -> Reply:
    record = restored.session.record
    request.audit["session_id"] = record.id
    number = int(record.id.replace("-", ""), 16) & _LOW_BITS
    return Reply(
        RestoredSnapshot(record.tenant, record.id, number, record.function_id, restored.content_bytes, restored.version)
    )


def _client_key(request: HttpRequest) -> bytes:
    text = request.headers.get(KEY_HEADER)
    return parse_hex_key(KEY_HEADER, text) if text is not None else b""


def _file(data: memoryview) -> Reply | StreamedReply:
    if data.nbytes <= PIECE_BYTES:
        return Reply(bytes(data), content_type=BINARY)

    async def send(out: SendChunk) -> StreamEnd:
        for start in range(0, data.nbytes, PIECE_BYTES):
            piece = await asyncio.to_thread(bytes, data[start : start + PIECE_BYTES])  # may read from disk
            if not await out(piece):
                return StreamEnd(whole=False)
        return StreamEnd()

    return StreamedReply(send, BINARY)


_KEPT: Final = (ArtifactCorrupt, StoreUnavailable, *STORED)
_SAVED: Final = (
    NotSupported, NotCapturable, GuestTrap, GuestExit, InvokeTimeout, QuotaExceeded, Conflict,
    SessionElsewhere, SnapshotKeyMissing, RateLimited, TooLarge,
    InvalidRequest, *_KEPT,
)  # fmt: skip
_RESTORED: Final = (WrongModule, ModuleMemoryTooLarge, *_SAVED)
_BROUGHT: Final = (SignatureInvalid, InvalidBase64, *_RESTORED)

_read = partial(Route, group="snapshots", scope="snapshots", etag=True)
_write = partial(Route, group="snapshots", scope="snapshots", kind="writes")
_restore = partial(_write, response=RestoredSnapshot, action="restore_snapshot")

ROUTES: Final[tuple[Route, ...]] = (
    _read(
        "GET", "/snapshots", list_snapshots, "List snapshots.", response=SnapshotPage, query=PAGING,
        errors=(InvalidRequest, *STORED),
    ),
    _read("GET", "/snapshots/{id}", get, "Show a snapshot.", response=SnapshotBody, errors=STORED),
    _write(
        "DELETE", "/snapshots/{id}", delete, "Delete a snapshot.", status=204, errors=_KEPT, action="delete_snapshot"
    ),
    _read("GET", "/snapshots/{id}/content", content, "Fetch a snapshot's file.", response=bytes, errors=_KEPT),
    _restore(
        "POST", "/snapshots/{id}/restore", restore_kept, "Restore a session from a stored snapshot.",
        request=Nothing, optional_body=True, status=201, errors=_RESTORED,
    ),
    _write(
        "POST", "/snapshot/save", save, "Return a snapshot of a session or of a new instance.",
        request=CaptureSnapshot, response=CapturedSnapshot, errors=_SAVED, action="save_snapshot",
    ),
    _restore(
        "POST", "/snapshot/restore", restore, "Restore a session from a snapshot in the request.",
        request=RestoreSnapshot, errors=_BROUGHT,
    ),
    _restore(
        "POST", "/instances/restore", restore_instance, "Restore a session from a snapshot's file.",
        request=bytes, errors=(InvalidKey, *_BROUGHT),
    ),
    _write(
        "POST", "/instances/{id}/snapshot", save_instance, "Return a session's snapshot as a file.",
        request=Nothing, optional_body=True, response=bytes, errors=(InvalidKey, InstanceNotFound, *_SAVED),
        action="save_snapshot",
    ),
)  # fmt: skip
