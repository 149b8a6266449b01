"""One answer as it grows: what the guest says, bounded by what the client asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tensorwasm.errors import ModelRefused
from tensorwasm.server.openai.reading import Finish, Line, Reader, Token, ToolCall
from tensorwasm.server.openai.stopping import Stopper

BYTES_A_TOKEN = 4
"""What counts as one token of a prompt that the guest did not count."""

MAX_REFUSAL = 512


class Piece(NamedTuple):
    """More of an answer.

    Attributes:
        text: of it; may be empty.
        logprobs: of the tokens that begin in the text.
        tool_calls: parts of tool calls.
        embedding: the next vector.
    """

    text: str = ""
    logprobs: Sequence[Token] = ()
    tool_calls: Sequence[ToolCall] = ()
    embedding: Sequence[float] | None = None


class Usage(NamedTuple):
    """What an answer took."""

    prompt_tokens: int
    completion_tokens: int


class Answer:
    """Reads a guest's chunks; does no input or output.

    Args:
        prompt: what it answers, text or tokens, for counting.
        stops: sequences that end it.
        max_tokens: most tokens; None for any number.
    """

    def __init__(self, prompt: str | Sequence[int], stops: Sequence[str] = (), max_tokens: int | None = None) -> None:
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._reader = Reader()
        self._stopper = Stopper(stops)
        self._tokens = 0
        self._told = Line().usage
        self._said: Finish | None = None
        self._cut: Finish | None = None
        self._called = False

    @property
    def ended(self) -> bool:
        """Whether it is complete, whatever the guest still does."""
        return self._cut is not None

    @property
    def in_lines(self) -> bool:
        """Whether the guest answers in lines of JSON."""
        return self._reader.in_lines

    @property
    def finish_reason(self) -> Finish:
        """Why it ends here."""
        return self._cut or self._said or ("tool_calls" if self._called else "stop")

    @property
    def usage(self) -> Usage:
        """What it took, by the guest's word, and what the guest does not say by counting."""
        told = self._told
        prompt = told.prompt_tokens if told is not None else None
        completion = told.completion_tokens if told is not None else None
        if prompt is None:
            given = self._prompt
            prompt = -(-len(given.encode()) // BYTES_A_TOKEN) if isinstance(given, str) else len(given)
        return Usage(prompt, self._tokens if completion is None else completion)

    def feed(self, chunk: bytes) -> list[Piece]:
        """Take a chunk; return what may be sent.

        Raises:
            ModelOutputInvalid: it is not of the protocol.
            ModelRefused: the guest says that it cannot.
        """
        return self._take(self._reader.feed(chunk))

    def finish(self) -> list[Piece]:
        """Return what was held back, now that the guest has ended.

        Raises:
            ModelOutputInvalid: it is not of the protocol.
            ModelRefused: the guest says that it cannot.
        """
        if self.ended:
            return []
        return [*self._take(self._reader.finish()), *map(_piece, self._stopper.finish())]

    def _take(self, lines: Iterable[Line]) -> list[Piece]:
        pieces: list[Piece] = []
        for line in lines:
            if self.ended:
                break
            pieces += self._read(line)
        return pieces

    def _read(self, line: Line) -> list[Piece]:
        if line.error is not None:
            raise ModelRefused(line.error[:MAX_REFUSAL])
        self._told = line.usage or self._told
        self._said = line.finish_reason or self._said
        tokens = self._tokens + line.counted
        if self._max_tokens is not None and tokens > self._max_tokens:
            return self._end()
        self._tokens = tokens
        pieces = []
        if line.delta or line.logprobs:
            pieces += [_piece(each) for each in self._stopper.feed(line.delta, line.logprobs or [])]
        if self._stopper.stopped:
            self._cut = "stop"
            return pieces
        if line.tool_calls or line.embedding is not None:
            self._called = self._called or bool(line.tool_calls)
            pieces.append(Piece(tool_calls=line.tool_calls or (), embedding=line.embedding))
        return pieces + self._end() if tokens == self._max_tokens else pieces

    def _end(self) -> list[Piece]:
        """End it at its most tokens, if the guest has not given another reason."""
        self._cut = self._said or "length"
        return [_piece(each) for each in self._stopper.finish()]


def _piece(released: tuple[str, Sequence[Token]]) -> Piece:
    return Piece(*released)
