"""What clients of OpenAI's API send, as far as the gateway looks at it. Other fields are ignored.

Source: OpenAI API reference, "Chat", "Completions", "Embeddings".
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

MAX_RUNS: Final = 16
"""Most choices of one answer: each is an invocation."""

Choices = Annotated[int, Meta(ge=1, le=MAX_RUNS)]
Tokens = Annotated[int, Meta(ge=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class StreamOptions(Struct):
    """How a stream is told.

    Attributes:
        include_usage: a last chunk says what was used.
    """

    include_usage: bool = False


class Message(Struct):
    """One message of a conversation.

    Attributes:
        role: ``system``, ``user``, ``assistant``, ``tool`` or whatever the guest knows.
        content: text, or parts, of which the gateway takes those of text.
        name: of who speaks.
        tool_calls: what the assistant called.
        tool_call_id: which call this answers.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: Any = UNSET
    tool_calls: Any = UNSET
    tool_call_id: Any = UNSET


class Sampling(Struct, kw_only=True):
    """What chat and completions have in common.

    Attributes:
        model: whose function answers.
        stream: the answer comes as it is made.
        stream_options: how.
        n: choices to make.
        max_tokens: most tokens of each.
        temperature: passed to the guest, like all below that the gateway does not act on.
        top_p: likewise.
        seed: of the first choice.
        stop: what ends an answer.
        presence_penalty: passed on.
        frequency_penalty: likewise.
        logit_bias: likewise.
        reasoning_effort: likewise.
        user: likewise.
        metadata: likewise.
    """

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: Any = UNSET
    user: Any = UNSET
    metadata: Any = UNSET


class ChatRequest(Sampling, kw_only=True):
    """Body of ``POST /v1/chat/completions``.

    Attributes:
        messages: the conversation, at least one.
        max_completion_tokens: as ``max_tokens``, which it goes before.
        logprobs: log probabilities are wanted.
        top_logprobs: for so many others at each place.
        modalities: ``["text"]`` is what can be had.
        tools: passed to the guest, like all below.
        tool_choice: likewise.
        parallel_tool_calls: likewise.
        response_format: likewise.
        functions: likewise.
        function_call: likewise.
    """

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    modalities: list[str] | None = None
    tools: Any = UNSET
    tool_choice: Any = UNSET
    parallel_tool_calls: Any = UNSET
    response_format: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET


class CompletionRequest(Sampling, kw_only=True):
    """Body of ``POST /v1/completions``.

    Attributes:
        prompt: text or tokens, or several.
        suffix: what is to come after the answer.
        echo: the prompt comes before the answer.
        best_of: no more than ``n``.
        logprobs: for how many tokens at each place log probabilities are wanted.
    """

    prompt: str | list[Any]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Choices | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class EmbeddingRequest(Struct, kw_only=True):
    """Body of ``POST /v1/embeddings``.

    Attributes:
        model: whose function answers.
        input: text or tokens, or several.
        encoding_format: ``float``, or ``base64`` for little-endian 32-bit floats.
        dimensions: length of the vectors.
        user: passed to the guest.
    """

    model: str
    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: Tokens | None = None
    user: Any = UNSET


class GivenMessage(Struct, omit_defaults=True):
    """A message, as the guest reads it."""

    role: str
    content: str
    name: Any = UNSET
    tool_calls: Any = UNSET
    tool_call_id: Any = UNSET


class Document(Struct, omit_defaults=True, kw_only=True):
    """What the guest is given: docs/openai.md has the meaning and order of its fields."""

    tensorwasm: int | UnsetType
    kind: str | UnsetType
    model: str | UnsetType
    messages: list[GivenMessage] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    prompt_tokens: list[int] | UnsetType = UNSET
    suffix: str | None = None
    input: list[str] | UnsetType = UNSET
    input_tokens: list[list[int]] | UnsetType = UNSET
    stream: bool | UnsetType = UNSET
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = msgspec.field(default_factory=list)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: Any = UNSET
    tool_choice: Any = UNSET
    parallel_tool_calls: Any = UNSET
    response_format: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET
    reasoning_effort: Any = UNSET
    user: Any = UNSET
    metadata: Any = UNSET
    dimensions: int | None = None
