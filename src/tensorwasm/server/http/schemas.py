"""JSON types that several routes share: a guest's output, that of a failed guest, calls and their results.

The class names are the schema names of the OpenAPI document, and their docstrings its descriptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tensorwasm.errors import Frame
from tensorwasm.service.invocations.request import MAX_ARGS
from tensorwasm.values import NEVER, Deadline

Millis = Annotated[int, Meta(ge=0, description="Milliseconds since 1970.")]
Bytes64 = Annotated[str, Meta(description="Standard base64, padded.", extra_json_schema={"contentEncoding": "base64"})]

NAME: Final = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]{1,256}$"}
"""Schema of a name. That it has at most 256 bytes and is not blank is checked by handlers, with an error of its own."""

Name = Annotated[str, Meta(extra_json_schema=NAME)]

encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
"""Encodes JSON."""


class RecordBody(msgspec.Struct):
    """The JSON of a record."""

    @classmethod
    def copy(cls, record: object, **fields: Any) -> Self:
        """Return the JSON of a record: the attributes with the fields' names, and `fields` with other values."""
        names = cls.__struct_fields__
        return cls(**{name: fields[name] if name in fields else getattr(record, name) for name in names})


class Output(msgspec.Struct, omit_defaults=True):
    """What a guest wrote, as text, or as base64 where it is not UTF-8; truncated if more output preceded it."""

    text: str | UnsetType = UNSET
    base64: Bytes64 | UnsetType = UNSET
    truncated: bool = False


class StackFrame(msgspec.Struct, omit_defaults=True):
    """A function on a guest's stack, by its index and name in the module.

    Attributes:
        offset: byte offset of its instruction in the module.
        file: source file of the instruction, where the module has debug information; likewise its line.
    """

    function: int
    name: str
    offset: int
    file: str | UnsetType = UNSET
    line: int | UnsetType = UNSET

    @classmethod
    def of(cls, frame: Frame) -> StackFrame:
        """Return the JSON of a trap's frame."""
        return cls(frame.function, frame.name, frame.offset, frame.file or UNSET, frame.line or UNSET)


class FailureOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Output, exit code and stack of a failed guest, part of the error's reply.

    Attributes:
        stdout: the end of its standard output, if any: 64 KiB at most; likewise stderr.
        backtrace: stack of a trap, innermost frame first.
    """

    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    backtrace: list[StackFrame] | UnsetType = UNSET


class Timed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request with a deadline."""

    from_arrival: ClassVar[bool] = True
    """Whether the time begins when the request is read."""

    deadline_ms: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None

    def deadline(self, most_s: float) -> Deadline:
        """Return the deadline of a call that begins now, at most `most_s` seconds later."""
        return NEVER if self.deadline_ms is None else Deadline.after(min(self.deadline_ms / 1000, most_s))


class ExportCall(Timed, kw_only=True, forbid_unknown_fields=True):
    """The fields that calls of functions and of sessions share."""

    export: str | None = None
    args: Annotated[
        tuple[Any, ...], Meta(extra_json_schema={"items": {"type": ["number", "string"]}, "maxItems": MAX_ARGS})
    ] = ()
    input: str | None = None
    input_b64: Bytes64 | None = None


class Invoke(ExportCall, kw_only=True, forbid_unknown_fields=True):
    """A call of an export.

    Attributes:
        export: default `_start`, else `main`.
        args: numbers, or their texts, as the export's signature says: at most 256. A text may be `NaN` or `Infinity`.
        input: what the guest reads with `read-input`, as text, or as base64 in `input_b64`.
        stdin: all of standard input, as text, or as base64 in `stdin_b64`.
        argv: WASI arguments, starting with the program's name.
        env: environment in addition to the function's.
        deadline_ms: milliseconds until the result is due, from when the request was read and queueing included; at most
            what the operator allows.
    """

    stdin: str | None = None
    stdin_b64: Bytes64 | None = None
    argv: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


class SocketMessage(Invoke, kw_only=True):
    """A client's text message: a call, or with `cancel` the cancellation of the running one."""

    cancel: bool = False


class CallResult(msgspec.Struct, kw_only=True):
    """The fields that results of functions and of sessions share."""

    result: Annotated[list[int | float | str], Meta(description="All results.")] | str
    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    output: Output | UnsetType = UNSET
    stdout_truncated: bool | UnsetType = UNSET
    stderr_truncated: bool | UnsetType = UNSET


class Invoked(CallResult, kw_only=True):
    """The result of a call.

    Attributes:
        function_id: UUID of the function.
        result: `ok` for an export without results, else all of them; numbers that JSON lacks are texts.
        output: what the guest sent with `emit-chunk`, if anything; likewise its stdout and stderr.
        stdout_truncated: true if it wrote more than the operator allows (TENSOR_WASM_OUTPUT), else absent; likewise
            stderr_truncated.
    """

    function_id: str


class StreamOutcome(msgspec.Struct):
    """How a stream ended.

    Attributes:
        request_id: its `X-Request-Id`.
        reason: stable name of the failure, or empty.
    """

    request_id: str
    function: str
    status: Literal["running", "done", "error"]
    reason: str
    message: str
