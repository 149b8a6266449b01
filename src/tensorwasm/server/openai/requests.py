"""Requests of OpenAI's API, as far as the gateway reads them. Other fields are ignored.

Source: OpenAI API reference, "Chat", "Completions", "Embeddings", "Responses".
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct

MAX_RUNS: Final = 16
"""Most choices of one answer: each is an invocation."""

Choices = Annotated[int, Meta(ge=1, le=MAX_RUNS)]
Tokens = Annotated[int, Meta(ge=1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(Struct):
    """Options of a stream: whether its last chunk has token counts."""

    include_usage: bool = False


class Message(Struct, omit_defaults=True):
    """One message of a conversation.

    Attributes:
        role: ``system``, ``user``, ``assistant``, ``tool`` or another that the guest knows.
        content: text, or parts, which must be text.
    """

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: Any = UNSET
    tool_calls: Any = UNSET
    tool_call_id: Any = UNSET


class Generation(Struct, kw_only=True):
    """The fields of every request that generates text; those that the gateway does not act on are passed on."""

    model: str
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    user: Any = UNSET


class Sampling(Generation, kw_only=True):
    """The further fields of chats and completions."""

    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: Tokens | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: Any = UNSET
    metadata: Any = UNSET


class ChatRequest(Sampling, kw_only=True):
    """Body of ``POST /v1/chat/completions``; fields not listed are passed to the guest.

    Attributes:
        model: names the function that answers.
        n: number of choices.
        max_tokens: most tokens of each choice.
        seed: of the first choice; the others count up.
        stop: sequences that end an answer.
        max_completion_tokens: takes precedence over ``max_tokens``.
        top_logprobs: number of alternatives at each position.
        modalities: only ``["text"]`` is supported.
    """

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    modalities: list[str] | None = None
    tools: Any = UNSET
    tool_choice: Any = UNSET
    parallel_tool_calls: Any = UNSET
    response_format: Any = UNSET
    functions: Any = UNSET
    function_call: Any = UNSET


class CompletionRequest(Sampling, kw_only=True):
    """Body of ``POST /v1/completions``; the common fields are as in `ChatRequest`.

    Attributes:
        prompt: text or tokens, or several of either.
        suffix: the text after the answer.
        echo: put the prompt before the answer.
        best_of: no more than ``n``.
        logprobs: number of alternatives at each position whose log probabilities are returned.
    """

    prompt: str | list[Any]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Choices | None = None
    logprobs: TopLogprobs | None = None


class EmbeddingRequest(Struct, kw_only=True):
    """Body of ``POST /v1/embeddings``.

    Attributes:
        input: text or tokens, or several of either.
        encoding_format: ``float``, or ``base64`` for little-endian 32-bit floats.
        dimensions: length of the vectors.
    """

    model: str
    input: str | list[Any]
    encoding_format: str | None = None
    dimensions: Tokens | None = None
    user: Any = UNSET


class ResponsesRequest(Generation, kw_only=True):
    """Body of ``POST /v1/responses``; fields not listed are passed to the guest.

    Attributes:
        model: names the function that answers.
        input: text, or messages, tool calls and their outputs.
        instructions: a system message before the input.
        include: ``message.output_text.logprobs`` requests log probabilities; other values are ignored.
        text: ``format`` is the format of the answer.
        reasoning: ``effort`` is passed to the guest.
        metadata: passed to the guest and returned.
        previous_response_id: refused, like conversation: no response is stored.
        background: only false: use a job for later work.
    """

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
