"""The document that a guest is given, built from a client's request: every field is passed on, or refused.

Source: OpenAI API reference, "Chat", "Completions", "Embeddings", "Responses".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.http.schemas import encode
from tensorwasm.server.openai.requests import (
    MAX_RUNS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Message,
    ResponsesRequest,
    Sampling,
)

SCHEMA: Final = 1
"""Version of the document and of the guest's answer."""

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 256
MAX_INPUTS: Final = 2048
MAX_SEEDED_BYTES: Final = 64 << 20
"""Most bytes of the documents of all choices if they differ by their seeds."""

MAX_TOKEN: Final = (1 << 53) - 1

_PASSED_ON: Final = (
    "model", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "reasoning_effort",
    "user", "metadata",
)  # fmt: skip
"""Fields of chats and completions that are passed on unchanged."""

LOGPROBS: Final = "message.output_text.logprobs"
"""Value of ``include`` that requests log probabilities."""

Prompt = str | list[int]
"""Text, or tokens of the model."""


class Document(Struct, omit_defaults=True, kw_only=True):
    """The guest's input: docs/openai.md documents its fields and their order."""

    tensorwasm: int | UnsetType
    kind: str | UnsetType
    model: str | UnsetType
    messages: list[Message] | UnsetType = UNSET
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


class ModelPlan(NamedTuple):
    """The invocations that answer one request.

    Attributes:
        runs: a document for each choice, in order.
        prompts: the prompt of each, for counting and, where it is text, for ``echo``.
        max_tokens: most tokens of each, None for any number.
        inputs: number of vectors, for embeddings.
    """

    model: str
    runs: tuple[bytes, ...]
    prompts: tuple[Prompt, ...]
    stops: tuple[str, ...] = ()
    max_tokens: int | None = None
    inputs: int = 0


def plan_chat(request: ChatRequest) -> ModelPlan:
    """Return the plan of a chat; raise `InvalidRequest` for what is not supported, as all plans do."""
    if request.modalities not in (None, ["text"]):
        raise InvalidRequest("modalities: models here answer in text only")
    texts = [_text_of(at, each) for at, each in enumerate(request.messages)]
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    document = _document(request, "chat", most)
    document.messages = [
        structs.replace(each, content=text) for each, text in zip(request.messages, texts, strict=True)
    ]
    document.logprobs = bool(request.logprobs)
    document.top_logprobs = request.top_logprobs
    for name in ("tools", "tool_choice", "parallel_tool_calls", "response_format", "functions", "function_call"):
        setattr(document, name, getattr(request, name))
    return _plan(request, [document], ["\n".join(texts)])


def plan_completion(request: CompletionRequest) -> ModelPlan:
    """Return the plan of a completion."""
    prompts = _prompts("prompt", request.prompt, MAX_RUNS)
    if request.echo and not isinstance(prompts[0], str):
        raise InvalidRequest("echo: only a prompt of text can precede its answer")
    if (request.best_of or 1) > (request.n or 1):
        raise InvalidRequest("best_of: at most n is supported")
    document = _document(request, "completion", request.max_tokens)
    document.suffix = request.suffix
    if request.logprobs is not None:
        document.logprobs, document.top_logprobs = True, request.logprobs
    named = [{"prompt": each} if isinstance(each, str) else {"prompt_tokens": each} for each in prompts]
    return _plan(request, [structs.replace(document, **each) for each in named], prompts)


def plan_embedding(request: EmbeddingRequest) -> ModelPlan:
    """Return the plan of an embedding."""
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
    prompt = "\n".join(texts) if texts else [each for one in tokens for each in one]
    return ModelPlan(request.model, (encode(document),), (prompt,), inputs=len(inputs))


def plan_response(request: ResponsesRequest) -> ModelPlan:
    """Return the plan of a request of the Responses API: that of a chat, which guests know already."""
    if request.previous_response_id is not None or request.conversation is not None:
        raise InvalidRequest("previous_response_id and conversation: no response is stored here; send the whole input")
    if request.background:
        raise InvalidRequest("background: start a job instead (POST /functions/{id}/invoke-async)")
    chat = ChatRequest(
        model=request.model,
        messages=_messages(request),
        stream=request.stream,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        logprobs=LOGPROBS in (request.include or ()),
        top_logprobs=request.top_logprobs,
        user=request.user,
    )
    passed_on = {
        "tools": [_tool(at, each) for at, each in enumerate(request.tools or ())] or None,
        "tool_choice": _tool_choice(request.tool_choice),
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _format(request.text),
        "reasoning_effort": (request.reasoning or {}).get("effort"),
        "metadata": request.metadata,
    }
    return plan_chat(structs.replace(chat, **{name: each for name, each in passed_on.items() if each is not None}))


def _document(request: Sampling, kind: str, max_tokens: int | None) -> Document:
    fields: dict[str, Any] = {name: getattr(request, name) for name in _PASSED_ON}
    fields |= {"stream": bool(request.stream), "max_tokens": max_tokens, "stop": _stops(request.stop)}
    return Document(tensorwasm=SCHEMA, kind=kind, **fields)


def _plan(request: Sampling, documents: Sequence[Document], prompts: Sequence[Prompt]) -> ModelPlan:
    """Return the plan of prompts, each with its document, which differ in nothing else."""
    count = request.n or 1
    if len(prompts) * count > MAX_RUNS:
        raise InvalidRequest(f"n: prompts and choices come to more than {MAX_RUNS} answers")
    runs = tuple(run for document in documents for run in _seeded(document, count))
    repeated = tuple(prompt for prompt in prompts for _ in range(count))
    return ModelPlan(request.model, runs, repeated, tuple(documents[0].stop), documents[0].max_tokens)


def _seeded(document: Document, count: int) -> Iterator[bytes]:
    """Yield the document for each choice: the same one, or with a seed of its own if there is a seed."""
    first = encode(document)
    if document.seed is not None and len(first) * count > MAX_SEEDED_BYTES:
        raise InvalidRequest(f"n: choices with seeds come to more than {MAX_SEEDED_BYTES} bytes")
    for at in range(count):
        if document.seed is not None and at:
            seed = (document.seed + at + (1 << 63)) % (1 << 64) - (1 << 63)  # wraps around as a signed 64-bit integer
            yield encode(structs.replace(document, seed=seed))
        else:
            yield first


def _prompts(field: str, given: str | list[Any], most: int) -> list[Prompt]:
    """Return a list of texts, or of arrays of tokens; a client sends one or several."""
    if isinstance(given, str) or _is_tokens(given):
        return [given]
    if not 1 <= len(given) <= most:
        raise InvalidRequest(f"{field}: text or tokens, or 1 to {most} of them")
    if not all(isinstance(each, str) for each in given) and not all(map(_is_tokens, given)):
        raise InvalidRequest(f"{field}: text, an array of tokens, or an array of either; tokens are integers")
    return given


def _is_tokens(value: object) -> bool:
    """Return whether a value is an array of tokens, not empty."""
    return isinstance(value, list) and bool(value) and all(type(at) is int and 0 <= at <= MAX_TOKEN for at in value)


def _stops(given: str | list[str] | None) -> list[str]:
    stops = [given] if isinstance(given, str) else list(given or ())
    if len(stops) > MAX_STOPS or not all(1 <= len(each) <= MAX_STOP_CHARACTERS for each in stops):
        raise InvalidRequest(f"stop: at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARACTERS} characters")
    return stops


# ---------------------------------------------------------------- messages


def _text_of(at: int, message: Message) -> str:
    if isinstance(message.content, list):
        return _join(f"messages[{at}].content", message.content, ("text",))
    return message.content or ""


def _join(where: str, parts: list[Any], kinds: tuple[str, ...]) -> str:
    """Return the text of a message that comes in parts, each of one of some types."""
    texts = []
    for at, part in enumerate(parts):
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
        if kind not in kinds or not isinstance(text, str):
            raise InvalidRequest(f"{where}[{at}]: models here take text only, not {str(kind)[:32]!r}")
        texts.append(text)
    return "".join(texts)


def _messages(request: ResponsesRequest) -> list[Message]:
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    messages = [Message("system", request.instructions)] if request.instructions else []
    return messages + [_message(f"input[{at}]", item) for at, item in enumerate(items)]


def _message(where: str, item: dict[str, Any]) -> Message:
    """Return an item of a Responses request as a chat message."""
    kind = item.get("type", "message")
    if kind == "message" and isinstance(item.get("role"), str):
        return Message(item["role"], _content(f"{where}.content", item.get("content")))
    if kind == "function_call":
        function = {"name": _text(where, item, "name"), "arguments": _text(where, item, "arguments")}
        call = {"id": _text(where, item, "call_id"), "type": "function", "function": function}
        return Message("assistant", tool_calls=[call])
    if kind == "function_call_output":
        output = _content(f"{where}.output", item.get("output"))
        return Message("tool", output, tool_call_id=_text(where, item, "call_id"))
    raise InvalidRequest(f"{where}: models here take messages, function_call and function_call_output")


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: text, or parts of it")
    return _join(where, content, ("input_text", "output_text", "text"))


def _text(where: str, item: dict[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise InvalidRequest(f"{where}.{name}: a text is needed")
    return str(item[name])


def _tool(at: int, tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool of a Responses request in the form of a chat."""
    if tool.get("type") != "function":
        raise InvalidRequest(f"tools[{at}]: models here call functions only, not {str(tool.get('type'))[:32]!r}")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_choice(choice: str | dict[str, Any] | None) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(text: dict[str, Any] | None) -> Any:
    wanted = (text or {}).get("format")
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        return wanted
    return {"type": "json_schema", "json_schema": {name: value for name, value in wanted.items() if name != "type"}}
