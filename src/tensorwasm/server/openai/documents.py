"""The document that a guest is given, made of what the client sent: nothing of it is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.openai.requests import (
    MAX_RUNS,
    ChatRequest,
    CompletionRequest,
    Document,
    EmbeddingRequest,
    GivenMessage,
    Message,
    Sampling,
)

SCHEMA: Final = 1
"""Version of the document, and of what the guest answers."""

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_INPUTS: Final = 2048
MAX_SEEDED_BYTES: Final = 64 << 20
"""What the documents of all choices may come to that differ by their seeds alone."""

encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


class Plan(NamedTuple):
    """What one request comes to.

    Attributes:
        model: as the client calls it.
        runs: a document for each choice, in order.
        prompts: the text that each is about, for counting and for ``echo``.
        stops: what ends an answer.
        max_tokens: most tokens of each, None for any number.
    """

    model: str
    runs: tuple[bytes, ...]
    prompts: tuple[str, ...]
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None


def plan_chat(request: ChatRequest) -> Plan:
    """Return what a chat request comes to.

    Raises:
        InvalidRequest: it asks for what there is not.
    """
    if request.modalities not in (None, ["text"]):
        raise InvalidRequest("modalities: models here answer in text only")
    messages = [_given(at, each) for at, each in enumerate(request.messages)]
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    document = _document(request, "chat", most)
    document.messages = messages
    document.logprobs = bool(request.logprobs)
    document.top_logprobs = request.top_logprobs
    for name in ("tools", "tool_choice", "parallel_tool_calls", "response_format", "functions", "function_call"):
        setattr(document, name, getattr(request, name))
    text = "\n".join(each.content for each in messages)
    return _plan(request, document, [text], lambda _: document, most)


def plan_completion(request: CompletionRequest) -> Plan:
    """Return what a completion request comes to.

    Raises:
        InvalidRequest: it asks for what there is not.
    """
    prompts = _texts("prompt", request.prompt, MAX_RUNS)
    if (request.best_of or 1) > (request.n or 1):
        raise InvalidRequest("best_of: more than n is not to be had")
    document = _document(request, "completion", request.max_tokens)
    document.suffix = request.suffix
    if request.logprobs is not None:
        document.logprobs, document.top_logprobs = True, request.logprobs
    return _plan(
        request, document, prompts, lambda prompt: structs.replace(document, prompt=prompt), request.max_tokens
    )


def plan_embedding(request: EmbeddingRequest) -> Plan:
    """Return what an embedding request comes to.

    Raises:
        InvalidRequest: it asks for what there is not.
    """
    if request.encoding_format not in (None, "float", "base64"):
        raise InvalidRequest("encoding_format is float or base64")
    texts = _texts("input", request.input, MAX_INPUTS)
    document = Document(
        tensorwasm=SCHEMA,
        kind="embedding",
        model=request.model,
        input=texts,
        dimensions=request.dimensions,
        user=request.user,
    )
    return Plan(request.model, (encode(document),), ("\n".join(texts),))


def _document(request: Sampling, kind: str, max_tokens: int | None) -> Document:
    return Document(
        tensorwasm=SCHEMA,
        kind=kind,
        model=request.model,
        stream=bool(request.stream),
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=list(_stops(request.stop)),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias=request.logit_bias,
        reasoning_effort=request.reasoning_effort,
        user=request.user,
        metadata=request.metadata,
    )


def _plan(
    request: Sampling,
    document: Document,
    prompts: list[str],
    fill: Callable[[str], Document],
    max_tokens: int | None,
) -> Plan:
    count = request.n or 1
    if len(prompts) * count > MAX_RUNS:
        raise InvalidRequest(f"n: prompts and choices come to more than {MAX_RUNS} answers")
    runs = tuple(run for prompt in prompts for run in _seeded(fill(prompt), count))
    repeated = tuple(prompt for prompt in prompts for _ in range(count))
    return Plan(request.model, runs, repeated, tuple(document.stop), max_tokens)


def _seeded(document: Document, count: int) -> Iterator[bytes]:
    """Yield the same for each choice, or give each a seed of its own, if there is one.

    Raises:
        InvalidRequest: they would differ, and be too long together.
    """
    first = encode(document)
    if document.seed is not None and len(first) * count > MAX_SEEDED_BYTES:
        raise InvalidRequest(f"n: choices with seeds come to more than {MAX_SEEDED_BYTES} bytes")
    for at in range(count):
        if document.seed is not None and at:
            yield encode(structs.replace(document, seed=_wrapped(document.seed + at)))
        else:
            yield first


def _wrapped(seed: int) -> int:
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _given(at: int, message: Message) -> GivenMessage:
    content = message.content
    if isinstance(content, list):
        content = "".join(_text_of(f"messages[{at}].content[{index}]", part) for index, part in enumerate(content))
    return GivenMessage(message.role, content or "", message.name, message.tool_calls, message.tool_call_id)


def _text_of(where: str, part: dict[str, Any]) -> str:
    text = part.get("text")
    if part.get("type") != "text" or not isinstance(text, str):
        raise InvalidRequest(f"{where}: models here take text only, not {str(part.get('type'))[:32]!r}")
    return text


def _texts(field: str, given: str | list[Any], most: int) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not 1 <= len(texts) <= most:
        raise InvalidRequest(f"{field}: text, or 1 to {most} texts")
    for each in texts:
        if not isinstance(each, str):
            raise InvalidRequest(f"{field}: text, or an array of texts; tokens are the guest's own affair")
    return texts


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > MAX_STOPS or not all(1 <= len(each) <= MAX_STOP_CHARACTERS for each in stops):
        raise InvalidRequest(f"stop: at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters")
    return stops
