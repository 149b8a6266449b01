"""Encoded replies: JSON of results, and errors with a stable kind.

An error reveals no more than the caller may know. A caller's fault, a guest's failure or a limit names its cause; a
fault of this machine is only named as such: the log has the details under the request's ID.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tensorwasm.errors import (
    CallerError,
    Draining,
    GuestError,
    GuestExit,
    HostError,
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
)
from tensorwasm.server.http.representation import UnknownCoding
from tensorwasm.server.http.routing import Reply, UnknownRoute, WrongMethod
from tensorwasm.server.http.schemas import Left, encode, left_by

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


class ErrorDetail(Left, kw_only=True, omit_defaults=True):
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
    return encode(ErrorBody(ErrorDetail(kind=error.kind, message=message_of(error), **left_by(error))))


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
