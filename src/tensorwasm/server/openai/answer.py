"""A model's answer as it grows: a guest's output read chunk by chunk, bounded by stop sequences and a token limit.

A guest outputs plain text, or lines of JSON.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tensorwasm.errors import ModelOutputInvalid, ModelRefused

HEAD: Final = b'{"tensorwasm":'
"""Beginning of the first line if the output is lines of JSON."""

MAX_LINE_BYTES: Final = 1 << 20
MAX_TOKENS: Final = 1 << 20

MAX_TOOL_CALLS: Final = 256
"""Tool calls of one answer."""

BYTES_A_TOKEN: Final = 4
"""Bytes counted as one token of a prompt that the guest did not count."""

MAX_REFUSAL: Final = 512
"""Longest refusal of a guest that is passed on, in characters."""

Finish = Literal["stop", "length", "tool_calls", "content_filter"]
Count = Annotated[int, Meta(ge=0, le=(1 << 53))]


class OtherToken(Struct, omit_defaults=True):
    """A token that was not chosen, and its log probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class Token(OtherToken, omit_defaults=False):
    """A token of the answer, its log probability, and alternatives to it."""

    top_logprobs: list[OtherToken] = msgspec.field(default_factory=list)


class CalledFunction(Struct, omit_defaults=True):
    """The function of a tool call, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(Struct, omit_defaults=True):
    """Part of a tool call."""

    index: Annotated[int, Meta(ge=0, le=255)] | UnsetType = UNSET
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class ReportedUsage(Struct):
    """Token counts that the guest reports."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class OutputLine(Struct):
    """One line of an answer, or one chunk of plain text. docs/openai.md documents its fields."""

    delta: str = ""
    tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: list[Token] | None = None
    tool_calls: list[ToolCall] | None = None
    usage: ReportedUsage | None = None
    finish_reason: Finish | None = None
    embedding: list[float] | None = None
    error: str | None = None
    tensorwasm: Literal[1] | None = None

    @property
    def counted(self) -> int:
        """Number of tokens: as reported, else 1 for a line with text or tool calls."""
        return self.tokens if self.tokens is not None else int(bool(self.delta or self.tool_calls))


class ModelOutputReader:
    """Reads the chunks of one answer, which may end within characters and lines; sets `in_lines` for lines of JSON."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._start = b""  # of the output, at most as long as `HEAD`
        self._rest = bytearray()
        self.in_lines = False
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._known = False

    def read(self, chunk: bytes) -> Iterator[OutputLine]:
        """Yield the lines that a chunk completes, each read when it is asked for; a blank line is an empty one.

        Raises:
            ModelOutputInvalid: a line violates the protocol.
        """
        if self._known:
            yield from self._read_lines(chunk) if self.in_lines else self._read_text(chunk)
            return
        self._held.append(chunk)
        self._start = (self._start + chunk[: len(HEAD)])[: len(HEAD)]
        if self._start == HEAD or not HEAD.startswith(self._start):  # else it may become either
            yield from self._settle()

    def finish(self) -> list[OutputLine]:
        """Return the lines that were incomplete, once the answer has ended; raises as `read` does."""
        lines = [] if self._known else list(self._settle())
        if self.in_lines:
            return [*lines, *([_parse(bytes(self._rest))] if self._rest.strip() else [])]
        text = self._text.decode(b"", final=True)
        return [*lines, OutputLine(text, tokens=0)] if text else lines

    def _settle(self) -> Iterator[OutputLine]:
        """Decide between text and lines, and read what was held until now."""
        self._known = True
        self.in_lines = self._start == HEAD
        held, self._held = self._held, []
        for chunk in held:
            yield from self.read(chunk)

    def _read_text(self, chunk: bytes) -> Iterator[OutputLine]:
        yield OutputLine(self._text.decode(chunk), tokens=1)

    def _read_lines(self, chunk: bytes) -> Iterator[OutputLine]:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._extend(chunk, start, end)
            line = bytes(self._rest)
            self._rest.clear()
            start = end + 1
            yield _parse(line) if line.strip() else BLANK
        self._extend(chunk, start, len(chunk))

    def _extend(self, chunk: bytes, start: int, end: int) -> None:
        """Add part of a chunk to the line that is read."""
        if len(self._rest) + end - start > MAX_LINE_BYTES:
            raise ModelOutputInvalid("the model answered with a line of more than 1 MiB")
        self._rest += chunk[start:end]


BLANK: Final = OutputLine()
"""Stands for a blank line, so that a reader of many of them can pause in between."""

_decoder: Final = msgspec.json.Decoder(OutputLine)


def _parse(line: bytes) -> OutputLine:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ModelOutputInvalid("the model answered with a line that violates its protocol") from None


class Piece(NamedTuple):
    """A part of an answer: text, which may be empty, with its tokens; parts of tool calls; or the next vector."""

    text: str = ""
    logprobs: Sequence[Token] = ()
    tool_calls: Sequence[ToolCall] = ()
    embedding: Sequence[float] | None = None


def join_text(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same pieces, of which neighbours that are nothing but text are one."""
    joined: list[Piece] = []
    texts: list[str] = []
    for piece in (*pieces, None):
        if piece is not None and not piece.logprobs and not piece.tool_calls and piece.embedding is None:
            texts.append(piece.text)
            continue
        if texts:
            joined.append(Piece("".join(texts)))
            texts = []
        if piece is not None:
            joined.append(piece)
    return joined


class TokenUsage(NamedTuple):
    """Tokens of a prompt and its answer."""

    prompt_tokens: int
    completion_tokens: int


class Stopper:
    """Finds stop sequences, none empty, across any borders, and holds text back while it may be part of one."""

    __slots__ = ("_held", "_stops", "_text", "stopped")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._text = ""
        self._held: deque[Piece] = deque()
        self.stopped = False

    def feed(self, text: str, logprobs: Sequence[Token]) -> list[Piece]:
        """Add text with the log probabilities of its tokens; return what may be sent."""
        if not self._stops:
            return [Piece(text, logprobs)]
        if self.stopped:
            return []
        self._held.append(Piece(text, logprobs))
        self._text += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._release(min(found)[1])  # of the sequence that ends first, wherever chunks end
        return self._release(len(self._text) - max(map(self._pending, self._stops)))

    def finish(self) -> list[Piece]:
        """Return the text that was held back, once the answer has ended."""
        return [] if self.stopped else self._release(len(self._text), last=True)

    def _pending(self, stop: str) -> int:
        """Return the length of the longest end of the text that begins a sequence."""
        text = self._text
        first = max(0, len(text) - len(stop) + 1)
        return next((len(text) - at for at in range(first, len(text)) if stop.startswith(text[at:])), 0)

    def _release(self, count: int, *, last: bool = False) -> list[Piece]:
        """Return the first held characters, and the pieces without text right after them."""
        released = []
        self._text = self._text[count:]
        while self._held and (len(self._held[0].text) <= count if count or last else not self._held[0].text):
            piece = self._held.popleft()
            count -= len(piece.text)
            released.append(piece)
        if count and self._held:
            piece = self._held.popleft()
            released.append(Piece(piece.text[:count], piece.logprobs))
            self._held.appendleft(Piece(piece.text[count:]))
        return released


class ModelAnswer:
    """Turns a guest's chunks into pieces of an answer; performs no I/O.

    Args:
        prompt: text or tokens, for counting.
        stops: sequences before which the answer ends.
        max_tokens: None means any number.

    Attributes:
        reader: reads the guest's output.
        read_bytes: length of that output so far.
    """

    def __init__(self, prompt: str | Sequence[int], stops: Sequence[str] = (), max_tokens: int | None = None) -> None:
        self._prompt = prompt
        self._max_tokens = max_tokens
        self.reader = ModelOutputReader()
        self._stopper = Stopper(stops)
        self._tokens = 0
        self._reported = ReportedUsage()
        self._guest_reason: Finish | None = None
        self._own_reason: Finish | None = None
        self._calls = 0  # parts of tool calls without an index: each is a call
        self._has_calls = False
        self.read_bytes = 0  # of the guest's output

    @property
    def ended(self) -> bool:
        """Whether it is complete, whatever the guest still sends."""
        return self._own_reason is not None

    @property
    def finish_reason(self) -> Finish:
        """Why it ends here."""
        return self._own_reason or self._guest_reason or ("tool_calls" if self._has_calls else "stop")

    @property
    def usage(self) -> TokenUsage:
        """Token counts as the guest reports them; what it does not report is counted."""
        prompt, completion = self._reported.prompt_tokens, self._reported.completion_tokens
        if prompt is None:
            given = self._prompt
            prompt = -(-len(given.encode()) // BYTES_A_TOKEN) if isinstance(given, str) else len(given)
        return TokenUsage(prompt, self._tokens if completion is None else completion)

    def read(self, chunk: bytes) -> Iterator[list[Piece]]:
        """Yield what may be sent of each line that a chunk completes, read when it is asked for.

        Raises:
            ModelOutputInvalid: the chunk violates the protocol.
            ModelRefused: the guest reports an error.
        """
        self.read_bytes += len(chunk)
        return self._take(self.reader.read(chunk))

    def finish(self) -> list[Piece]:
        """Return what was held back, once the guest has ended; raises as `read` does."""
        if self.ended:
            return []
        read = [piece for pieces in self._take(self.reader.finish()) for piece in pieces]
        return [*read, *self._stopper.finish()]

    def _take(self, lines: Iterable[OutputLine]) -> Iterator[list[Piece]]:
        """Yield the pieces of each line until the answer ends."""
        for line in lines:
            if self.ended:
                return
            yield self._read(line)

    def _read(self, line: OutputLine) -> list[Piece]:
        if line.error is not None:
            raise ModelRefused(line.error[:MAX_REFUSAL])
        self._reported = line.usage or self._reported
        self._guest_reason = line.finish_reason or self._guest_reason
        tokens = self._tokens + line.counted
        if self._max_tokens is not None and tokens > self._max_tokens:
            return self._end()
        self._tokens = tokens
        pieces = []
        if line.delta or line.logprobs:
            pieces += self._stopper.feed(line.delta, line.logprobs or [])
        if self._stopper.stopped:
            self._own_reason = "stop"
            return pieces
        if line.tool_calls or line.embedding is not None:
            self._count_calls(line.tool_calls or ())
            pieces.append(Piece(tool_calls=line.tool_calls or (), embedding=line.embedding))
        return pieces + self._end() if tokens == self._max_tokens else pieces

    def _count_calls(self, parts: Sequence[ToolCall]) -> None:
        self._has_calls = self._has_calls or bool(parts)
        self._calls += sum(part.index is UNSET for part in parts)
        if self._calls > MAX_TOOL_CALLS:
            raise ModelOutputInvalid(f"the model answered with more than {MAX_TOOL_CALLS} tool calls")

    def _end(self) -> list[Piece]:
        """End the answer at its token limit, unless the guest has given another reason."""
        self._own_reason = self._guest_reason or "length"
        return self._stopper.finish()
