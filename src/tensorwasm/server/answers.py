"""Answers as they go over the wire: what was asked for, or an error of a stable kind.

An error says no more than its maker may know. What is the caller's own fault, the guest's own doing or a limit says
what is wrong; what is this machine's fault says so and nothing else: the log has the rest, under the request's id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from tensorwasm.server.compression import UnknownCoding
from tensorwasm.server.matching import UnknownRoute, WrongMethod
from tensorwasm.server.routing import Reply
from tensorwasm.server.wire.output import Left, left_by

Headers = tuple[tuple[str, str], ...]

JSON: Final = ("content-type", "application/json")
RETRY_S: Final = 1
"""After how long who was refused for lack of room may come again."""

MAX_MESSAGE: Final = 512
"""Longest message on the wire, in characters."""

encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode

_FIXED: Final[Mapping[type[TensorWasmError], str]] = {
    InvokeTimeout: "the deadline passed",
    KernelFault: "a kernel broke a rule while it ran",
    GuestError: "the guest failed",
    LimitError: "there is no room for this now; it may be tried again",
    Draining: "the server is going down; it takes nothing new",
    SnapshotKeyMissing: "the key that this state was saved under is not here: the operator has to bring it back",
    StorageFull: "the server's data folder cannot be written, or has less room than its reserve",
    NotReady: "compiled host functions are being made or loaded; what needs them waits for that",
    HostError: "the server could not do this",
    TensorWasmError: "the server could not do this",
}
"""What is said of errors whose own text may have addresses, sizes or paths in it; the nearest class counts."""

_FIELDS: Final[Mapping[type[TensorWasmError], tuple[str, str]]] = {
    UnknownCoding: ("accept-encoding", "gzip"),
    UnknownRoute: ("x-tensorwasm-route", "none"),
    Unauthorized: ("www-authenticate", "Bearer"),
}
"""What belongs to an error that says nothing else."""

_OWN: Final = (CallerError, GuestExit, ModelOutputInvalid, RateLimited)
"""Errors whose own text is about what the caller sent or sent too often."""


class ErrorDetail(Left, kw_only=True, omit_defaults=True):
    """What went wrong.

    Attributes:
        kind: stable identifier.
        message: for people; it may change.
    """

    kind: str
    message: str


class ErrorBody(msgspec.Struct):
    """Every answer that is no success."""

    error: ErrorDetail


class OpenAIDetail(msgspec.Struct):
    """What went wrong, as OpenAI's clients read it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIBody(msgspec.Struct):
    """Every answer of the OpenAI routes that is no success."""

    error: OpenAIDetail


def message_of(error: TensorWasmError) -> str:
    """Return what a client is told of an error."""
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


def error_headers(error: TensorWasmError) -> Headers:
    """Return the headers that belong to an error."""
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
    """Return the bytes of an answer."""
    body: Any = reply.body
    if body is None:
        return b""
    return body if type(body) is bytes else encode(body)


def openai_detail(error: TensorWasmError) -> OpenAIDetail:
    """Return what clients of OpenAI's API are told of an error."""
    if error.kind == "model_not_found":
        return OpenAIDetail(message_of(error), "invalid_request_error", "model", "model_not_found")
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    if error.http_status in kinds:
        return OpenAIDetail(message_of(error), kinds[error.http_status], None, error.kind)
    if error.http_status >= 500:
        return OpenAIDetail(message_of(error), "server_error", None, error.kind)
    code = "openai_invalid_request" if error.kind in {"invalid_json", "invalid_request"} else error.kind
    return OpenAIDetail(message_of(error), "invalid_request_error", None, code)
