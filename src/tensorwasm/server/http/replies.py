"""Encoded replies: JSON of results, errors with a stable kind, entity tags, and gzip for replies and request bodies.

An error reveals no more than the caller may know. A caller's fault, a guest's failure or a limit names its cause; a
fault of this machine is only named as such: the log has the details under the request's ID.

Long bodies are processed on another thread. The decompressed size of a request counts against the limits of an
uncompressed body, piece by piece, so a small body that would expand too far is refused on the way. A tag is a hash of
the reply's bytes. It is weak: the same reply may be sent compressed or not.

Source: RFC 9110, 8.4 "Content-Encoding", 12.5.3 "Accept-Encoding", 8.8.3 "ETag", 13.1.2 "If-None-Match", 15.4.5 "304
Not Modified"; RFC 1952.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tensorwasm.errors import (
    CallerError,
    Draining,
    GuestError,
    GuestExit,
    HostError,
    InvalidRequest,
    InvokeTimeout,
    KernelFault,
    LimitError,
    ModelOutputInvalid,
    NotReady,
    RateLimited,
    SessionElsewhere,
    SnapshotKeyMissing,
    StorageFull,
    TensorWasmError,
    Unauthorized,
    UnsupportedMediaType,
)
from tensorwasm.server.exchange import BECOME_TASK
from tensorwasm.server.http.results import failure_fields
from tensorwasm.server.http.routing import Reply, UnknownRoute, WrongMethod
from tensorwasm.server.http.schemas import FailureOutput, encode

GZIP_BYTES: Final = 1400
"""Shortest reply that is compressed: a shorter one fits a network packet."""

INLINE_BYTES: Final = 8 << 10
"""Longest reply compressed, and longest body decompressed, on the event loop: 0.2 ms."""

INLINE_HASH_BYTES: Final = 256 << 10
"""Longest reply hashed on the event loop: 0.3 ms."""

REVALIDATED: Final = ("cache-control", "private, no-cache")
"""A client may keep a tagged reply, but revalidates it; shared caches do not keep it."""

_SLICE_BYTES: Final = 64 << 10
"""Compressed bytes given to zlib at a time: it copies what it has not used after every piece."""

_PIECE_BYTES: Final = 1 << 20
"""Decompressed bytes produced at a time."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 4
_NO_WEIGHT: Final = re.compile(r"\s*q\s*=\s*0(\.0{0,3})?\s*", re.IGNORECASE)


class UnknownCoding(UnsupportedMediaType):
    """A body has another content coding; a header of the reply names the accepted one."""


def is_gzip(coding: str | None) -> bool:
    """Return whether a Content-Encoding is gzip, False for none; raise `UnknownCoding` for others."""
    name = (coding or "").strip().lower()
    if name not in {"gzip", "x-gzip", "", "identity"}:
        raise UnknownCoding("a body is compressed with gzip, or not at all")
    return name.endswith("gzip")


async def inflate(body: bytes, hold: Callable[[int], None]) -> bytes:
    """Decompress a gzip stream of one member.

    `hold` is called with the size of each piece before the next one is made, and raises if that is too much.

    Raises:
        InvalidRequest: it is not gzip, is truncated, or has data after it.
    """
    engine = zlib.decompressobj(_GZIP)
    inline = len(body) <= INLINE_BYTES
    parts: list[bytes] = []
    for start in range(0, len(body), _SLICE_BYTES):
        rest = body[start : start + _SLICE_BYTES]
        while rest and not engine.eof:
            if inline:
                piece = _step(engine, rest, INLINE_BYTES)
                inline = len(piece) < INLINE_BYTES  # more may follow than the event loop has time for
            else:
                await BECOME_TASK
                piece = await asyncio.to_thread(_step, engine, rest, _PIECE_BYTES)
            hold(len(piece))
            parts.append(piece)
            rest = engine.unconsumed_tail
        if engine.eof and (engine.unused_data or start + _SLICE_BYTES < len(body)):
            raise InvalidRequest("the body has data after its gzip stream")
    if not engine.eof:
        raise InvalidRequest("the body's gzip stream is truncated")
    return b"".join(parts)


def accepts_gzip(header: str | None) -> bool:
    """Return whether an Accept-Encoding allows gzip; False without one."""
    if header is None:
        return False
    parts = (part.partition(";") for part in header.lower().split(","))
    weights = {name.strip(): not _NO_WEIGHT.fullmatch(weight) for name, _, weight in parts}
    return next((weights[name] for name in ("gzip", "x-gzip", "*") if name in weights), False)


def is_compressible(content_type: str) -> bool:
    """Return whether replies of this type, of at least `GZIP_BYTES`, are worth compressing."""
    return content_type.startswith(("application/json", "text/"))


async def deflate(body: bytes) -> bytes:
    """Compress a body with gzip."""
    if len(body) <= INLINE_BYTES:
        return _pack(body)
    await BECOME_TASK
    return await asyncio.to_thread(_pack, body)


async def entity_tag(body: bytes) -> str:
    """Return the entity tag of a reply."""
    if len(body) <= INLINE_HASH_BYTES:
        return _tag(body)
    await BECOME_TASK
    return await asyncio.to_thread(_tag, body)


def is_known(headers: Any, tag: str) -> bool:
    """Return whether If-None-Match names a tag, that is, the client already has the reply."""
    if "if-none-match" not in headers:
        return False
    given = [each.strip() for line in headers.get_all("if-none-match") for each in line.split(",")]
    return "*" in given or any(each.removeprefix("W/") == tag.removeprefix("W/") for each in given)


def _pack(body: bytes) -> bytes:
    return zlib.compress(body, _LEVEL, wbits=_GZIP)


def _step(engine: zlib._Decompress, data: bytes, most_bytes: int) -> bytes:
    try:
        return engine.decompress(data, most_bytes)
    except zlib.error:
        raise InvalidRequest("the body is not a gzip stream") from None


def _tag(body: bytes) -> str:
    return f'W/"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'


JSON: Final = ("content-type", "application/json")
RETRY_S: Final = 1
"""Retry-After of refusals for lack of capacity, in seconds."""

MAX_MESSAGE: Final = 512
"""Longest error message, in characters."""

_FIXED: Final[Mapping[type[TensorWasmError], str]] = {
    InvokeTimeout: "the deadline passed",
    KernelFault: "a kernel broke a rule while it ran",
    GuestError: "the guest failed",
    LimitError: "there is no room for this now; it may be tried again",
    Draining: "the server is shutting down and takes no new requests",
    SnapshotKeyMissing: "the key that this state was saved under is not here: the operator has to bring it back",
    StorageFull: "the server's data folder cannot be written, or has less room than its reserve",
    NotReady: "compiled host functions are being built or loaded; calls that need them have to wait",
    HostError: "the server could not do this",
    TensorWasmError: "the server could not do this",
}
"""Messages of errors whose own text may contain addresses, sizes or paths; the nearest class counts."""

_FIELDS: Final[Mapping[type[TensorWasmError], tuple[str, str]]] = {
    UnknownCoding: ("accept-encoding", "gzip"),
    UnknownRoute: ("x-tensorwasm-route", "none"),
    Unauthorized: ("www-authenticate", "Bearer"),
}
"""Headers of errors without values."""

_OWN: Final = (CallerError, GuestExit, ModelOutputInvalid, RateLimited)
"""Errors whose own text is about what the caller sent or sent too often."""

_INVALID: Final = "invalid_request_error"
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorDetail(FailureOutput, kw_only=True, omit_defaults=True):
    """An error: its stable `kind`, and a `message` for people, which may change."""

    kind: str
    message: str


class ErrorBody(msgspec.Struct):
    """Every reply that is not a success."""

    error: ErrorDetail


class OpenAIDetail(msgspec.Struct):
    """An error in the form that OpenAI's clients read."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIBody(msgspec.Struct):
    """Every reply of the OpenAI routes that is not a success."""

    error: OpenAIDetail


def message_of(error: TensorWasmError) -> str:
    """Return the message that a client receives for an error."""
    if isinstance(error, _OWN) or "quota" in error.kind:
        return error.message[:MAX_MESSAGE]
    trap = getattr(error, "trap", "")
    if trap:
        return f"the guest trapped: {trap}"
    return next(_FIXED[each] for each in type(error).__mro__ if each in _FIXED)


def error_body(error: TensorWasmError, *, openai: bool = False) -> bytes:
    """Return an error's JSON, in the service's shape or in OpenAI's."""
    if openai:
        return encode(OpenAIBody(openai_detail(error)))
    return encode(ErrorBody(ErrorDetail(kind=error.kind, message=message_of(error), **failure_fields(error))))


def error_headers(error: TensorWasmError) -> tuple[tuple[str, str], ...]:
    """Return the headers of an error."""
    match error:
        case RateLimited():
            found = "retry-after", str(max(1, error.retry_after_s))
        case WrongMethod():
            found = "allow", ", ".join(error.allowed)
        case SessionElsewhere(server=str(name)) if name:
            found = "x-tensorwasm-server", name
        case _ if type(error) in _FIELDS:
            found = _FIELDS[type(error)]
        case TensorWasmError(retryable=True, http_status=429 | 503):
            found = "retry-after", str(RETRY_S)
        case _:
            return ()
    return (found,)


def body_of(reply: Reply) -> bytes:
    """Return the encoded body of a reply that is not encoded yet."""
    body: Any = reply.body
    return b"" if body is None else encode(body)


def openai_detail(error: TensorWasmError) -> OpenAIDetail:
    """Return an error as OpenAI's API describes it."""
    code = error.kind
    kind = _OPENAI_TYPES.get(error.http_status) or ("server_error" if error.http_status >= 500 else _INVALID)
    if kind == _INVALID and code in {"invalid_json", "invalid_request"}:
        code = "openai_invalid_request"
    return OpenAIDetail(message_of(error), kind, "model" if code == "model_not_found" else None, code)
