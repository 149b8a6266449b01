"""What a guest answers, read chunk by chunk: plain text, or lines of JSON."""

from __future__ import annotations

import codecs
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tensorwasm.errors import ModelOutputInvalid

HEAD: Final = b'{"tensorwasm":'
"""How the first line begins where lines follow."""

MAX_LINE_BYTES: Final = 1 << 20
MAX_TOKENS: Final = 1 << 20

Finish = Literal["stop", "length", "tool_calls", "content_filter"]
Count = Annotated[int, Meta(ge=0, le=(1 << 53))]


class OtherToken(Struct, omit_defaults=True):
    """A token that was not taken, and its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class Token(Struct):
    """A token of the answer, and its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[OtherToken] = msgspec.field(default_factory=list)


class CalledFunction(Struct, omit_defaults=True):
    """What a tool call calls, or goes on with."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(Struct, omit_defaults=True):
    """Part of a tool call."""

    index: Annotated[int, Meta(ge=0, le=255)] | UnsetType = UNSET
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class Used(Struct):
    """What the guest says that it used."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Line(Struct):
    """One line of an answer, or one chunk of plain text. docs/openai.md has the meaning of its fields."""

    delta: str = ""
    tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: list[Token] | None = None
    tool_calls: list[ToolCall] | None = None
    usage: Used | None = None
    finish_reason: Finish | None = None
    embedding: list[float] | None = None
    error: str | None = None
    tensorwasm: Literal[1] | None = None

    @property
    def counted(self) -> int:
        """How many tokens it is."""
        if self.tokens is not None:
            return self.tokens
        return 1 if self.delta or self.tool_calls else 0


class Reader:
    """Reads the chunks of one answer. They may end anywhere, within characters and lines too."""

    def __init__(self) -> None:
        """Know nothing of the answer yet."""
        self._held: list[bytes] = []
        self._rest: bytearray | None = None
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._known = False

    @property
    def in_lines(self) -> bool:
        """Whether the guest answers in lines."""
        return self._rest is not None

    def feed(self, chunk: bytes) -> list[Line]:
        """Return what a chunk completes.

        Raises:
            ModelOutputInvalid: a line is none.
        """
        if not self._known:
            return self._begin(chunk)
        return self._read_text(chunk) if self._rest is None else self._read_lines(self._rest, chunk)

    def finish(self) -> list[Line]:
        """Return what was waiting for more, now that no more comes.

        Raises:
            ModelOutputInvalid: the last line is none.
        """
        lines = [] if self._known else self._settle()
        if self._rest is not None:
            return [*lines, *([_parse(bytes(self._rest))] if self._rest.strip() else [])]
        text = self._text.decode(b"", final=True)
        return [*lines, Line(text, tokens=0)] if text else lines

    def _begin(self, chunk: bytes) -> list[Line]:
        self._held.append(chunk)
        start = b"".join(self._held)[: len(HEAD)]
        if HEAD.startswith(start) and start != HEAD:
            return []  # it may become either
        return self._settle()

    def _settle(self) -> list[Line]:
        self._known = True
        if b"".join(self._held).startswith(HEAD):
            self._rest = bytearray()
        held, self._held = self._held, []
        return [line for chunk in held for line in self.feed(chunk)]

    def _read_text(self, chunk: bytes) -> list[Line]:
        return [Line(self._text.decode(chunk), tokens=1)]

    @staticmethod
    def _read_lines(rest: bytearray, chunk: bytes) -> list[Line]:
        first, *others = chunk.split(b"\n")
        rest += first
        lines = []
        for other in others:
            lines.append(bytes(rest))
            rest[:] = other
        if len(rest) > MAX_LINE_BYTES or any(len(each) > MAX_LINE_BYTES for each in lines):
            raise ModelOutputInvalid("the model answered with a line of more than 1 MiB")
        return [_parse(each) for each in lines if each.strip()]


_decoder: Final[Any] = msgspec.json.Decoder(Line)


def _parse(line: bytes) -> Line:
    try:
        parsed: Line = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ModelOutputInvalid("the model answered with a line that is not of its protocol") from None
    return parsed
