"""What a job asks for, how its call is stored, and what follows from an attempt: the job's end, or another attempt."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tensorwasm.database.jobs import JobEnd, JobError, JobRecord
from tensorwasm.errors import (
    BodyTooLarge,
    CallerError,
    Draining,
    GuestExit,
    GuestTrap,
    InternalError,
    InvalidArgs,
    InvalidRequest,
    LimitError,
    TensorWasmError,
    TooLarge,
)
from tensorwasm.guest.engine import codec
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.executor.request import Argument
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.values import Deadline

_log = logging.getLogger(__name__)

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

        InvalidRequest if the terms are out of range.
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
    codec.encode(function.prepared.module.plan(function.choose(request.export)).params, request.args)


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


RESULT_BYTES: Final = 1 << 20
"""Maximum length of a result; a job with a longer one fails as too large."""

OUTPUT_BYTES: Final = 64 << 10
"""How much of standard output, and of standard error, is kept of a failed job."""

INTERRUPTED: Final = JobError("job_interrupted", "the process that ran the job went down")
EXPIRED: Final = JobError("job_expired", "the job did not begin in time")

_NO_CAPACITY: Final = (LimitError, Draining)
_MAX_MESSAGE: Final = 512
_OPTIONAL: Final = frozenset({"file", "line"})


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How jobs are run.

    Attributes:
        attempts: default of `Terms.max_attempts`.
        keep_s: how long an ended job is kept.
        places: maximum of jobs that this process runs at a time, and ``share`` of those of one tenant.
        lease_s: how long a process that does not renew its leases keeps its jobs. Where processes share a database,
            their clocks must agree much better than that.
        renew_s: between renewals, which also find jobs that another process cancelled; at most ``lease_s / 3``.
        sweep_s: between searches for late, old and lost jobs.
        poll_s: between searches for due jobs that other processes accepted.
        back_off_s: longest pause after the first attempt; doubles with each further one, to ``back_off_most_s``.
    """

    attempts: int = 3
    keep_s: float = 86_400.0
    places: int = 32
    share: int = 16
    lease_s: float = 30.0
    renew_s: float = 3.0
    sweep_s: float = 5.0
    poll_s: float = 2.0
    back_off_s: float = 1.0
    back_off_most_s: float = 300.0


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What follows from an attempt: how the job ends, or when it is tried again, and whether the attempt counts."""

    end: JobEnd
    due_unix_ms: int | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Decides what follows from an attempt. ``random`` (0 to 1) spreads retries of jobs that failed together."""

    options: JobOptions
    random: Callable[[], float]

    def cancelled(self, now_unix_ms: int) -> JobEnd:
        """Return the end of a cancelled job."""
        return JobEnd("cancelled", now_unix_ms, now_unix_ms + round(self.options.keep_s * 1000))

    def failed(self, error: JobError, now_unix_ms: int, *, dead: bool = False) -> JobEnd:
        """Return the end of a failed job, or of one that is dead after its last attempt."""
        return replace(self.cancelled(now_unix_ms), status="dead" if dead else "failed", error=error)

    def after_result(self, job: JobRecord, invocation: Invocation, now_unix_ms: int) -> AttemptOutcome:
        """Return what follows from an attempt that returned."""
        try:
            result = encode_result(job.function_id, invocation)
        except GuestExit as error:
            return self.after_error(job, error, now_unix_ms)
        if len(result) > RESULT_BYTES:
            return self.after_error(job, TooLarge(len(result), RESULT_BYTES), now_unix_ms)
        return AttemptOutcome(replace(self.cancelled(now_unix_ms), status="completed", result=result))

    def after_error(self, job: JobRecord, error: BaseException, now_unix_ms: int) -> AttemptOutcome:
        """Return what follows from an attempt that raised.

        A cancelled call was interrupted. A call refused for lack of capacity does not count as an attempt.
        """
        if isinstance(error, asyncio.CancelledError):
            return self._retry(job, INTERRUPTED, now_unix_ms)
        if not isinstance(error, TensorWasmError):
            _log.error("job %s met a bug", job.id, exc_info=error)
            error = InternalError("a bug")
        shown = JobError(error.kind, client_message(error))
        if isinstance(error, _NO_CAPACITY):
            age_s = max(0, now_unix_ms - job.created_unix_ms) / 1000
            due = now_unix_ms + self._pause_ms(max(self.options.back_off_s, age_s / 4))
            return AttemptOutcome(self.failed(shown, now_unix_ms), due, counts=False)
        if error.retryable:
            return self._retry(job, shown, now_unix_ms)
        return AttemptOutcome(replace(self.failed(shown, now_unix_ms), result=encode_failure(error)))

    def _retry(self, job: JobRecord, error: JobError, now_unix_ms: int) -> AttemptOutcome:
        due = None if job.attempts >= job.max_attempts else now_unix_ms + self.retry_pause_ms(job.attempts)
        return AttemptOutcome(self.failed(error, now_unix_ms, dead=True), due)

    def retry_pause_ms(self, attempts: int) -> int:
        """Return the pause before another attempt: random, up to a time that doubles with each."""
        return self._pause_ms(self.options.back_off_s * 2.0 ** min(attempts - 1, 60))

    def _pause_ms(self, longest_s: float) -> int:
        return round(self.random() * min(self.options.back_off_most_s, longest_s) * 1000)


def client_message(error: TensorWasmError) -> str:
    """Return an error's text as clients see it: its message where that is about the request, else its kind."""
    if isinstance(error, (CallerError, GuestExit)):
        return error.message[:_MAX_MESSAGE]
    trap = getattr(error, "trap", "")
    return f"the guest trapped: {trap}" if trap else f"the job could not be run: {error.kind}"


def encode_result(function_id: str, invocation: Invocation) -> bytes:
    """Encode the result of a call as JSON, with the fields of a synchronous invocation's reply.

    GuestExit if the exit code is not 0.
    """
    if invocation.exit_code:
        raise GuestExit(invocation.exit_code, invocation.stdout, invocation.stderr)
    result = invocation.to_json() if invocation.result_types else '"ok"'
    written = {"stdout": invocation.stdout, "stderr": invocation.stderr, "output": b"".join(invocation.chunks)}
    shown = [f',"{name}":{_encode_output(data)}' for name, data in written.items() if data]
    shown += [f',"{name}_truncated":true' for name in invocation.truncated]
    return f'{{"function_id":{json.dumps(function_id)},"result":{result}{"".join(shown)}}}'.encode()


def encode_failure(error: TensorWasmError) -> bytes | None:
    """Encode the end of a failed guest's output, and its backtrace, as JSON; None if it left neither."""
    written = {name: bytes(getattr(error, name, b"")) for name in ("stdout", "stderr")}
    shown = [
        f'"{name}":{_encode_output(data[-OUTPUT_BYTES:], truncated=len(data) > OUTPUT_BYTES)}'
        for name, data in written.items()
        if data
    ]
    if isinstance(error, GuestTrap) and error.backtrace:
        rows = [
            {name: value for name, value in frame._asdict().items() if name not in _OPTIONAL or value}
            for frame in error.backtrace
        ]
        shown.append(f'"backtrace":{json.dumps(rows, ensure_ascii=False)}')
    return f"{{{','.join(shown)}}}".encode() if shown else None


def _encode_output(data: bytes, *, truncated: bool = False) -> str:
    """Encode bytes as JSON: as text, or as base64 where they are not UTF-8."""
    cut = {"truncated": True} if truncated else {}
    try:
        return json.dumps({"text": data.decode(), **cut}, ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(data).decode(), **cut})
