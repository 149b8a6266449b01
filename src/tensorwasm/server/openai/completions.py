"""Replies of the chat, completion, embedding and model routes, whole or in a stream.

Source: OpenAI API reference, "Chat", "Chat streaming", "Completions", "Embeddings", "Models".
"""

from __future__ import annotations

import base64
import math
import struct
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec import UNSET, Struct, UnsetType

from tensorwasm.server.http.schemas import encode
from tensorwasm.server.openai.answer import CalledFunction, Finish, Piece, Token, TokenUsage, ToolCall

DONE: Final = b"data: [DONE]\n\n"

_MAX_FLOAT32: Final = 3.4028234663852886e38


class Spent(Struct):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatLogprobs(Struct):
    """Log probabilities of a chat's tokens."""

    content: list[Token]


class TextLogprobs(Struct):
    """Log probabilities of a completion's tokens, one list for each property."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class FunctionOfCall(Struct):
    """The function of a tool call, and its arguments."""

    name: str
    arguments: str


class WholeToolCall(Struct):
    """A complete tool call."""

    id: str
    type: str
    function: FunctionOfCall


class ChatMessage(Struct):
    """The assistant's message."""

    role: str
    content: str | None
    refusal: str | None = None
    tool_calls: list[WholeToolCall] | UnsetType = UNSET


class ChatDelta(Struct):
    """The next part of the assistant's message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One answer of a chat."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(Struct):
    """Part of one answer of a chat."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class TextChoice(Struct):
    """One completion, or part of it."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None


AnyChoice = TypeVar("AnyChoice")


class Completion(Struct, Generic[AnyChoice]):
    """Reply of the chat and completion routes, and each part of it in a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[AnyChoice]
    usage: Spent | UnsetType | None = UNSET
    system_fingerprint: str | None = None


class Vector(Struct):
    """One embedding."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(Struct):
    """Token counts of embeddings."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Struct):
    """Reply of ``POST /v1/embeddings``."""

    data: list[Vector]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class Model(Struct):
    """One model."""

    id: str
    created: int
    owned_by: str
    object: str = "model"


class Models(Struct):
    """Reply of ``GET /v1/models``."""

    data: list[Model]
    object: str = "list"


def add_usage(spent: Sequence[TokenUsage]) -> Spent:
    """Return the token counts of several answers together."""
    prompt, completion = sum(each.prompt_tokens for each in spent), sum(each.completion_tokens for each in spent)
    return Spent(prompt, completion, prompt + completion)


class FinishedChoice(NamedTuple):
    """One complete answer, and the text that precedes it (``echo``)."""

    pieces: Sequence[Piece]
    finish_reason: Finish
    before: str = ""


class CompletionRenderer(NamedTuple):
    """Encodes the answers of one request.

    Attributes:
        created: Unix seconds.
        model: as the client names it.
        chat: True for a chat, False for a completion.
        counted: parts of a stream have a field ``usage``, null in all but the last.
    """

    id: str
    created: int
    model: str
    chat: bool
    counted: bool = False

    @classmethod
    def of(cls, model: str, *, chat: bool, counted: bool = False) -> CompletionRenderer:
        """Return the renderer of a new reply."""
        return cls(f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", int(time.time()), model, chat, counted)

    def whole(self, choices: Sequence[FinishedChoice], spent: Spent) -> bytes:
        """Return a reply in one piece."""
        made: Any = [(_chat_choice if self.chat else _text_choice)(at, each) for at, each in enumerate(choices)]
        kind = "chat.completion" if self.chat else "text_completion"
        return encode(Completion(self.id, kind, self.created, self.model, made, spent))

    def first(self, index: int, before: str = "") -> bytes:
        """Return the beginning of a choice in a stream; may be empty."""
        if self.chat:
            return self._event([ChatChunkChoice(index, ChatDelta("assistant", ""))])
        return self._event([TextChoice(index, before)]) if before else b""

    def piece(self, index: int, piece: Piece, offset: int) -> bytes:
        """Return more of a choice, whose text is `offset` characters long so far."""
        if not self.chat:
            return self._event([TextChoice(index, piece.text, None, _text_logprobs([piece], offset))])
        delta = ChatDelta()
        if piece.text:
            delta.content = piece.text
        if piece.tool_calls:
            delta.tool_calls = [_identified(at, each) for at, each in enumerate(piece.tool_calls)]
        return self._event([ChatChunkChoice(index, delta, None, _chat_logprobs([piece]))])

    def last(self, index: int, finish_reason: Finish) -> bytes:
        """Return the end of a choice in a stream."""
        if self.chat:
            return self._event([ChatChunkChoice(index, ChatDelta(), finish_reason)])
        return self._event([TextChoice(index, "", finish_reason)])

    def usage(self, spent: Spent) -> bytes:
        """Return the part of a stream with the token counts."""
        return self._event([], spent)

    def _event(self, choices: Any, spent: Spent | None = None) -> bytes:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        part = Completion(self.id, kind, self.created, self.model, choices, spent if self.counted else UNSET)
        return b"data: " + encode(part) + b"\n\n"


def render_embeddings(model: str, vectors: Sequence[Sequence[float]], prompt_tokens: int, *, packed: bool) -> bytes:
    """Return the reply of the embeddings route; packed vectors are base64 of 32-bit floats."""
    data = [Vector(at, pack(each) if packed else list(each)) for at, each in enumerate(vectors)]
    return encode(Embeddings(data, model, EmbeddingUsage(prompt_tokens, prompt_tokens)))


def pack(vector: Sequence[float]) -> str:
    """Return base64 of little-endian 32-bit floats; values out of range become infinite."""
    try:
        packed = struct.pack(f"<{len(vector)}f", *vector)
    except OverflowError:
        bounded = (each if abs(each) <= _MAX_FLOAT32 else math.copysign(math.inf, each) for each in vector)
        packed = struct.pack(f"<{len(vector)}f", *bounded)
    return base64.b64encode(packed).decode("ascii")


def _chat_choice(index: int, choice: FinishedChoice) -> ChatChoice:
    text = "".join(piece.text for piece in choice.pieces)
    calls = join_tool_calls([call for piece in choice.pieces for call in piece.tool_calls])
    message = ChatMessage("assistant", text if text or not calls else None, tool_calls=calls or UNSET)
    return ChatChoice(index, message, choice.finish_reason, _chat_logprobs(choice.pieces))


def _text_choice(index: int, choice: FinishedChoice) -> TextChoice:
    text = choice.before + "".join(piece.text for piece in choice.pieces)
    return TextChoice(index, text, choice.finish_reason, _text_logprobs(choice.pieces, len(choice.before)))


def join_tool_calls(parts: Sequence[ToolCall]) -> list[WholeToolCall]:
    """Return the complete calls, by index."""
    calls: dict[int, WholeToolCall] = {}
    written: dict[int, tuple[list[str], list[str]]] = {}  # joined at the end, for appending to a long text copies it
    for at, part in enumerate(parts):
        index = at if part.index is UNSET else part.index
        call = calls.get(index)
        if call is None:
            call = calls[index] = WholeToolCall(f"call_{uuid.uuid4().hex}", "function", FunctionOfCall("", ""))
            written[index] = [], []
        call.id = part.id or call.id
        call.type = part.type or call.type
        function = part.function or CalledFunction()
        names, arguments = written[index]
        names.append(function.name or "")
        arguments.append(function.arguments or "")
    for index, (names, arguments) in written.items():
        calls[index].function = FunctionOfCall("".join(names), "".join(arguments))
    return [calls[index] for index in sorted(calls)]


def _identified(at: int, part: ToolCall) -> ToolCall:
    """Return part of a call with the index and ID that clients join it by."""
    if part.index is not UNSET:
        return part
    return ToolCall(at, part.id or f"call_{uuid.uuid4().hex}", part.type or "function", part.function)


def _chat_logprobs(pieces: Iterable[Piece]) -> ChatLogprobs | None:
    tokens = [token for piece in pieces for token in piece.logprobs]
    return ChatLogprobs(tokens) if tokens else None


def _text_logprobs(pieces: Iterable[Piece], offset: int) -> TextLogprobs | None:
    found = TextLogprobs([], [], [], [])
    for piece in pieces:
        at = offset
        for token in piece.logprobs:
            found.tokens.append(token.token)
            found.token_logprobs.append(token.logprob)
            found.top_logprobs.append({other.token: other.logprob for other in token.top_logprobs})
            found.text_offset.append(at)
            at += len(token.token)
        offset += len(piece.text)
    return found if found.tokens else None
