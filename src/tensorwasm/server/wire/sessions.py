"""Sessions in JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tensorwasm.server.wire.functions import Arguments, Millis, Timed
from tensorwasm.server.wire.output import Bytes64, Output
from tensorwasm.service.sessions import Session


class OpenSession(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A session to be opened.

    Attributes:
        function: the function's ID, or `ID@VERSION` or `ID@ALIAS`; the version that it leads to now stays.
        input: what calls read with `read-input` unless one brings its own, as text.
        input_b64: likewise, as base64.
        argv: arguments of WASI, the program's name first.
        env: environment besides the function's.
    """

    function: str
    input: str | None = None
    input_b64: Bytes64 | None = None
    argv: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


class SessionBody(msgspec.Struct):
    """A session.

    Attributes:
        id: UUID.
        tenant_id: whose it is.
        function_id: what it runs.
        version: of the function.
        status: `fresh` before its first call, `saved` when all that it is has been saved, `live` when it was called
            since, `volatile` when it was and cannot be saved, `lost` when such a one ended with the server.
        in_memory: whether its next call finds it there; else it is brought back first.
        calls: that it has served; a crash of the server takes it back to `saved_calls`.
        saved_calls: those of them whose effects are saved.
        rewinds: times that a crash has taken it back.
        save_error: kind of the error that its last save ended with; empty if none.
        created_unix_ms: when it was opened.
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
    def of(cls, session: Session) -> SessionBody:
        """Return the service's."""
        record = session.record
        return cls(
            record.id,
            record.tenant,
            record.function_id,
            record.version,
            record.status,
            session.in_memory,
            record.calls,
            record.saved_calls,
            record.rewinds,
            session.save_error,
            record.created_unix_ms,
            record.used_unix_ms,
        )


class SessionPage(msgspec.Struct):
    """Some sessions, oldest first.

    Attributes:
        sessions: them.
        next: what `after` is to be for those that follow; null if there are none.
    """

    sessions: list[SessionBody]
    next: str | None


class InvokeSession(Timed, kw_only=True, forbid_unknown_fields=True):
    """A call of a session.

    Attributes:
        export: without, `_start`, and where there is none, `main`.
        args: numbers, or their texts, as the export's signature says: at most 256. A text may be `NaN` or `Infinity`.
        input: what the guest reads with `read-input` from now on, as text.
        input_b64: likewise, as base64.
        deadline_ms: milliseconds from when the request was read in which it must have ended, waiting included; no more
            than the operator allows.
        durable: answer only once the state after the call is saved. An error of the saving itself means that the call
            was made, and that its effects are in memory only.
    """

    export: str | None = None
    args: Arguments = ()
    input: str | None = None
    input_b64: Bytes64 | None = None
    durable: bool = False


class SessionInvoked(msgspec.Struct):
    """What came of a call.

    Attributes:
        session_id: UUID of the session.
        result: `ok` from an export without results, else all of them; numbers that JSON lacks are texts.
        stdout: what the guest wrote to standard output, if anything.
        stderr: likewise.
        output: what it sent with `emit-chunk`, if anything.
        stdout_truncated: true if it wrote more than the operator allows (TENSOR_WASM_OUTPUT); else left out.
        stderr_truncated: likewise.
    """

    session_id: str
    result: Annotated[list[int | float | str], Meta(description="All results.")] | str
    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    output: Output | UnsetType = UNSET
    stdout_truncated: bool | UnsetType = UNSET
    stderr_truncated: bool | UnsetType = UNSET
