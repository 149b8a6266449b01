"""What a job asks for: its terms, and its call, which is checked before it is accepted and stored encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tensorwasm.errors import BodyTooLarge, InvalidArgs, InvalidRequest
from tensorwasm.guest.engine import codec
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.executor.request import Argument
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.values import Deadline

MAX_ATTEMPTS: Final = 100
MAX_DELAY_S: Final = 30 * 86_400.0
REQUEST_BYTES: Final = 1 << 20
"""Maximum length of an encoded call."""


@dataclass(frozen=True, slots=True)
class Terms:
    """When and how often a job is run.

    Attributes:
        max_attempts: 1 to 100; None takes the setting.
        delay_s: wait before the first attempt, 0 to 30 days.
        expires_s: the job fails if it has not started by then, up to 30 days; None for never.
        timeout_s: of each attempt; None takes the function's.
        trace_id: of the submitting request, 32 hex digits or empty.
    """

    max_attempts: int | None = None
    delay_s: float = 0.0
    expires_s: float | None = None
    timeout_s: float | None = None
    trace_id: str = ""

    def schedule(self, default_attempts: int, now_unix_ms: int) -> tuple[int, int, int | None]:
        """Return the maximum number of attempts, and when the job is due and expires, in milliseconds since 1970.

        Raises:
            InvalidRequest: the terms are out of range.
        """
        attempts = default_attempts if self.max_attempts is None else self.max_attempts
        if not 1 <= attempts <= MAX_ATTEMPTS:
            raise InvalidRequest(f"max_attempts is 1 to {MAX_ATTEMPTS}")
        if not 0 <= self.delay_s <= MAX_DELAY_S:
            raise InvalidRequest(f"delay_s is 0 to {MAX_DELAY_S:g}")
        if self.expires_s is not None and not self.delay_s < self.expires_s <= MAX_DELAY_S:
            raise InvalidRequest(f"expires_s is more than delay_s, and at most {MAX_DELAY_S:g}")
        expires = None if self.expires_s is None else now_unix_ms + round(self.expires_s * 1000)
        return attempts, now_unix_ms + round(self.delay_s * 1000), expires


DEFAULT_TERMS: Final = Terms()


class _StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """An `InvocationRequest` as stored: with the time limit of each attempt in place of a deadline."""

    export: str | None
    args: tuple[Argument, ...]
    input: bytes
    stdin: bytes
    env: tuple[tuple[str, str], ...]
    argv: tuple[str, ...] | None
    timeout_s: float | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_StoredRequest)


def check_request(function: Function, request: InvocationRequest) -> None:
    """Check a call against the limits and the signature of its export.

    Raises:
        TooManyArgs: more than 256 arguments.
        MissingExport: no such function.
        InvalidArgs: the arguments do not fit, or the environment is invalid.
    """
    request.check()
    plan = function.prepared.module.plan(function.choose(request.export))
    codec.encode(plan.params, request.args)


def encode_request(request: InvocationRequest, timeout_s: float | None) -> bytes:
    """Encode a call with a time limit for each attempt, None for the function's, in place of its deadline.

    Raises:
        BodyTooLarge: more than `REQUEST_BYTES`.
        InvalidArgs: an argument is neither a number nor a text.
    """
    stored = _StoredRequest(
        request.export, tuple(request.args), request.input, request.stdin, request.env, request.argv, timeout_s
    )
    try:
        data = _ENCODER.encode(stored)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgs("an argument is neither a number nor a text") from None
    if len(data) > REQUEST_BYTES:
        raise BodyTooLarge(f"a job's call has at most {REQUEST_BYTES} bytes")
    return data


def decode_request(data: bytes) -> InvocationRequest:
    """Decode what `encode_request` returned; the time limit starts now."""
    stored = _DECODER.decode(data)
    deadline = Deadline.after(stored.timeout_s)
    return InvocationRequest(stored.export, stored.args, stored.input, stored.stdin, stored.env, stored.argv, deadline)
