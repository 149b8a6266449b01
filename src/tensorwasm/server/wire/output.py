"""What a guest wrote, and what one that failed left behind, in JSON."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tensorwasm.errors import Frame, GuestExit, GuestTrap, TensorWasmError

Bytes64 = Annotated[str, Meta(description="Standard base64, padded.", extra_json_schema={"contentEncoding": "base64"})]

ENDING_BYTES: Final = 64 << 10
"""Most that an error's answer has of what its guest wrote to standard output, and as much of standard error."""


class Output(msgspec.Struct, omit_defaults=True):
    """What a guest wrote, as text, or as base64 where it is not UTF-8.

    Attributes:
        text: what it wrote.
        base64: likewise.
        truncated: there was more before it.
    """

    text: str | UnsetType = UNSET
    base64: Bytes64 | UnsetType = UNSET
    truncated: bool = False

    @classmethod
    def of(cls, written: bytes) -> Output | UnsetType:
        """Return what was written; nothing for nothing."""
        if not written:
            return UNSET
        try:
            return cls(text=written.decode())
        except UnicodeDecodeError:
            return cls(base64=base64.b64encode(written).decode())

    @classmethod
    def end_of(cls, written: bytes, most_bytes: int = ENDING_BYTES) -> Output | UnsetType:
        """Return the end of what was written, where what went wrong is said; nothing for nothing."""
        if len(written) <= most_bytes:
            return cls.of(written)
        kept = written[-most_bytes:]
        # A character that was cut is left out, if that is what it was.
        start = next((index for index in range(min(4, len(kept))) if kept[index] & 0xC0 != 0x80), 0)
        output = cls.of(kept[start:])
        if output is not UNSET:
            output.truncated = True
        return output


class StackFrame(msgspec.Struct, omit_defaults=True):
    """A function on a guest's stack.

    Attributes:
        function: its index in the module.
        name: what the module calls it; empty without one.
        offset: byte of the module where its instruction is.
        file: source file of the instruction, where the module has debug information.
        line: its line there.
    """

    function: int
    name: str
    offset: int
    file: str | UnsetType = UNSET
    line: int | UnsetType = UNSET

    @classmethod
    def of(cls, frame: Frame) -> StackFrame:
        """Return a function as the guest's trap has it."""
        return cls(frame.function, frame.name, frame.offset, frame.file or UNSET, frame.line or UNSET)


class Left(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a guest that failed left behind, in the answer that says how it failed.

    Attributes:
        stdout: the end of what it had written to standard output, if anything: 64 KiB at most.
        stderr: likewise.
        exit_code: the code it exited with.
        backtrace: of a trap, its stack, innermost first.
    """

    stdout: Output | UnsetType = UNSET
    stderr: Output | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    backtrace: list[StackFrame] | UnsetType = UNSET


def left_by(error: TensorWasmError) -> dict[str, Any]:
    """Return the fields of `Left` that an error has."""
    found: dict[str, Any] = {
        name: Output.end_of(getattr(error, name, b"")) for name in ("stdout", "stderr") if getattr(error, name, b"")
    }
    if isinstance(error, GuestExit):
        found["exit_code"] = error.code
    if isinstance(error, GuestTrap) and error.backtrace:
        found["backtrace"] = [StackFrame.of(frame) for frame in error.backtrace]
    return found
