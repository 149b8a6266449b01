"""What came of an attempt, and what follows from it: an end, or another attempt after a pause."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tensorwasm.database.jobs import JobEnd, JobError, JobRecord
from tensorwasm.errors import (
    CallerError,
    Draining,
    GuestExit,
    GuestTrap,
    InternalError,
    LimitError,
    TensorWasmError,
    TooLarge,
)
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.service.jobs.options import RESULT_BYTES, JobOptions

_log = logging.getLogger(__name__)

INTERRUPTED: Final = JobError("job_interrupted", "the process that ran the job went down")
EXPIRED: Final = JobError("job_expired", "the job did not begin in time")

_FOR_NOW: Final = (LimitError, Draining)
_MAX_MESSAGE: Final = 512

LEFT_BYTES: Final = 64 << 10
_OPTIONAL: Final = frozenset({"file", "line"})
"""Most that a failed job keeps of what its guest wrote to standard output, and as much of standard error."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What follows from an attempt.

    Attributes:
        end: how the job ends, or would.
        due_unix_ms: when it is tried again; None if it ends.
        counts: this was one of its attempts.
    """

    end: JobEnd
    due_unix_ms: int | None = None
    counts: bool = True


class Judge:
    """Says what follows.

    Args:
        options: how often and after which pauses a job is tried.
        random: numbers from 0 to 1, so that jobs that failed together are not tried together.
    """

    def __init__(self, options: JobOptions, random: Callable[[], float]) -> None:
        """Remember both."""
        self._options = options
        self._random = random

    def cancel(self, now_unix_ms: int) -> JobEnd:
        """Return the end of a job that is cancelled."""
        return JobEnd("cancelled", now_unix_ms, now_unix_ms + round(self._options.keep_s * 1000))

    def fail(self, error: JobError, now_unix_ms: int, *, dead: bool = False) -> JobEnd:
        """Return the end of a job that came to nothing."""
        return replace(self.cancel(now_unix_ms), status="dead" if dead else "failed", error=error)

    def succeed(self, job: JobRecord, invocation: Invocation, now_unix_ms: int) -> Fate:
        """Judge an attempt that gave something."""
        try:
            result = encode_result(job.function_id, invocation)
        except GuestExit as error:
            return self.excuse(job, error, now_unix_ms)
        if len(result) > RESULT_BYTES:
            return self.excuse(job, TooLarge(len(result), RESULT_BYTES), now_unix_ms)
        return Fate(replace(self.cancel(now_unix_ms), status="completed", result=result))

    def excuse(self, job: JobRecord, error: BaseException, now_unix_ms: int) -> Fate:
        """Judge an attempt that raised something. One that somebody else stopped was interrupted.

        One that was refused for lack of room has not begun: the job goes on waiting, as it would have in the queue.
        """
        if isinstance(error, asyncio.CancelledError):
            return self._again(job, INTERRUPTED, now_unix_ms)
        if not isinstance(error, TensorWasmError):
            _log.error("job %s met a bug", job.id, exc_info=error)
            error = InternalError("a bug")
        told, left = JobError(error.kind, explain(error)), encode_left(error)
        if isinstance(error, _FOR_NOW):
            return Fate(self.fail(told, now_unix_ms), now_unix_ms + self._patience_ms(job, now_unix_ms), counts=False)
        if error.retryable:
            return self._again(job, told, now_unix_ms)
        return Fate(replace(self.fail(told, now_unix_ms), result=left))

    def _again(self, job: JobRecord, error: JobError, now_unix_ms: int) -> Fate:
        end = self.fail(error, now_unix_ms, dead=True)
        return Fate(end, None if job.attempts >= job.max_attempts else now_unix_ms + self.pause_ms(job.attempts))

    def _patience_ms(self, job: JobRecord, now_unix_ms: int) -> int:
        """Return how long to wait for room: anything up to a time that grows with the job's age."""
        age_s = max(0, now_unix_ms - job.created_unix_ms) / 1000
        most_s = min(self._options.back_off_most_s, max(self._options.back_off_s, age_s / 4))
        return round(self._random() * most_s * 1000)

    def pause_ms(self, attempts: int) -> int:
        """Return how long to wait before another attempt: anything up to a time that doubles with each."""
        most_s = min(self._options.back_off_most_s, self._options.back_off_s * 2.0 ** min(attempts - 1, 60))
        return round(self._random() * most_s * 1000)


def explain(error: TensorWasmError) -> str:
    """Return what a client is told of an error: its text where that is about what the client sent, else its kind."""
    if isinstance(error, (CallerError, GuestExit)):
        return error.message[:_MAX_MESSAGE]
    trap = getattr(error, "trap", "")
    return f"the guest trapped: {trap}" if trap else f"the job could not be run: {error.kind}"


def encode_result(function_id: str, invocation: Invocation) -> bytes:
    """Return the answer of a call as JSON, with the fields that a call has that is waited for.

    Raises:
        GuestExit: the guest left with a code other than 0.
    """
    if invocation.exit_code:
        raise GuestExit(invocation.exit_code, invocation.stdout, invocation.stderr)
    result = invocation.to_json() if invocation.result_types else '"ok"'
    written = {"stdout": invocation.stdout, "stderr": invocation.stderr, "output": b"".join(invocation.chunks)}
    shown = [f',"{name}":{_render(data)}' for name, data in written.items() if data]
    shown += [f',"{name}_truncated":true' for name in invocation.truncated]
    return f'{{"function_id":{json.dumps(function_id)},"result":{result}{"".join(shown)}}}'.encode()


def encode_left(error: TensorWasmError) -> bytes | None:
    """Return what a guest that failed left, as JSON: the end of what it wrote, and its stack; None for nothing."""
    written = {name: bytes(getattr(error, name, b"")) for name in ("stdout", "stderr")}
    shown = [
        f'"{name}":{_render(data[-LEFT_BYTES:], truncated=len(data) > LEFT_BYTES)}'
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


def _render(data: bytes, *, truncated: bool = False) -> str:
    """Return bytes as text, or as base64 where they are not UTF-8."""
    cut = {"truncated": True} if truncated else {}
    try:
        return json.dumps({"text": data.decode(), **cut}, ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(data).decode(), **cut})
