"""The document that a guest is given, made of what the client sent: nothing of it is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, structs

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

MAX_TOKEN: Final = (1 << 53) - 1

Prompt = str | list[int]
"""What is asked about: text, or tokens of the model's own."""

encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode


class Plan(NamedTuple):
    """What one request comes to.

    Attributes:
        model: as the client calls it.
        runs: a document for each choice, in order.
        prompts: what each is about, for counting and, where it is text, for ``echo``.
        stops: what ends an answer.
        max_tokens: most tokens of each, None for any number.
        inputs: how many vectors are wanted, of an embedding.
    """

    model: str
    runs: tuple[bytes, ...]
    prompts: tuple[Prompt, ...]
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    inputs: int = 0


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
    prompts = _prompts("prompt", request.prompt, MAX_RUNS)
    if request.echo and not isinstance(prompts[0], str):
        raise InvalidRequest("echo: only a prompt of text can come before its answer")
    if (request.best_of or 1) > (request.n or 1):
        raise InvalidRequest("best_of: more than n is not to be had")
    document = _document(request, "completion", request.max_tokens)
    document.suffix = request.suffix
    if request.logprobs is not None:
        document.logprobs, document.top_logprobs = True, request.logprobs

    def fill(prompt: Prompt) -> Document:
        named = {"prompt": prompt} if isinstance(prompt, str) else {"prompt_tokens": prompt}
        return structs.replace(document, **named)

    return _plan(request, document, prompts, fill, request.max_tokens)


def plan_embedding(request: EmbeddingRequest) -> Plan:
    """Return what an embedding request comes to.

    Raises:
        InvalidRequest: it asks for what there is not.
    """
    if request.encoding_format not in (None, "float", "base64"):
        raise InvalidRequest("encoding_format is float or base64")
    inputs = _prompts("input", request.input, MAX_INPUTS)
    texts = [each for each in inputs if isinstance(each, str)]
    tokens = [each for each in inputs if isinstance(each, list)]
    document = Document(
        tensorwasm=SCHEMA,
        kind="embedding",
        model=request.model,
        input=texts or UNSET,
        input_tokens=tokens or UNSET,
        dimensions=request.dimensions,
        user=request.user,
    )
    asked = "\n".join(texts) if texts else [each for one in tokens for each in one]
    return Plan(request.model, (encode(document),), (asked,), inputs=len(inputs))


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
    prompts: Sequence[Prompt],
    fill: Callable[[Prompt], Document],
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


def _prompts(field: str, given: str | list[Any], most: int) -> list[str] | list[list[int]]:
    """Return texts, or arrays of tokens, of which a client sends one or several."""
    if isinstance(given, str):
        return [given]
    if given and all(map(_is_token, given)):
        return [given]
    if not 1 <= len(given) <= most:
        raise InvalidRequest(f"{field}: text or tokens, or 1 to {most} of them")
    if all(isinstance(each, str) for each in given):
        return given
    if all(isinstance(each, list) and each and all(map(_is_token, each)) for each in given):
        return given
    raise InvalidRequest(f"{field}: text, an array of tokens, or an array of either; tokens are whole numbers")


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKEN


def _stops(given: str | list[str] | None) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > MAX_STOPS or not all(1 <= len(each) <= MAX_STOP_CHARACTERS for each in stops):
        raise InvalidRequest(f"stop: at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters")
    return stops
