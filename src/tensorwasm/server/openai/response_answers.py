"""Answers of ``POST /v1/responses``: one object, or the events that build it.

Source: OpenAI API reference, "Responses" and "Streaming events".
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, field

from tensorwasm.server.openai.answer import Piece, Usage
from tensorwasm.server.openai.reading import CalledFunction, Finish, ToolCall
from tensorwasm.server.openai.response_requests import ResponsesRequest

_encode: Final = msgspec.json.Encoder().encode

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is not complete, by why it ended."""


class Response(Struct, kw_only=True):
    """A response.

    Attributes:
        id: of this answer; it is not kept.
        created_at: Unix seconds.
        model: as the client calls it.
        status: ``in_progress``, ``completed``, ``incomplete`` or ``failed``.
        output: messages and function calls, in the order in which they began.
        error: ``code`` and ``message`` of what failed.
        incomplete_details: ``reason`` of an incomplete one.
        usage: tokens that were counted.
    """

    id: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    usage: dict[str, Any] | None = None
    object: str = "response"
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] = field(default_factory=lambda: {"effort": None, "summary": None})
    store: bool = False
    temperature: float | None = None
    text: dict[str, Any] = field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_p: float | None = None
    truncation: str = "disabled"


class ResponseBuilder:
    """Builds a response out of what the guest says, and the events that tell each step of it.

    Args:
        request: what was asked.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        """Begin a response that is in progress."""
        self.response = _begin(request)
        self._sequence = 0
        self._message: dict[str, Any] | None = None
        self._calls: dict[int, dict[str, Any]] = {}
        self._written: dict[str, list[str]] = {}  # by item: joined once, for adding to a long text copies it

    def begin(self) -> bytes:
        """Return the events that a stream begins with."""
        return self._about("response.created") + self._about("response.in_progress")

    def add(self, piece: Piece) -> bytes:
        """Take more of the answer; return the events that tell it."""
        events = b"".join(self._add_call(at, each) for at, each in enumerate(piece.tool_calls))
        return self._add_text(piece) + events if piece.text or piece.logprobs else events

    def finish(self, reason: Finish, usage: Usage) -> bytes:
        """Complete the response; return the events that tell it."""
        incomplete = _INCOMPLETE.get(reason)
        status = "completed" if incomplete is None else "incomplete"
        events = b"".join(self._end_item(at, item, status) for at, item in enumerate(self.response.output))
        self.response.status = status
        self.response.incomplete_details = None if incomplete is None else {"reason": incomplete}
        self.response.usage = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        return events + self._about(f"response.{status}")

    def fail(self, code: str, message: str) -> bytes:
        """End the response with an error; return the event that tells it."""
        self.response.status, self.response.error = "failed", {"code": code, "message": message}
        return self._about("response.failed")

    def whole(self) -> bytes:
        """Return the response in one piece."""
        return _encode(self.response)

    # ---------------------------------------------------------------- items

    def _add_text(self, piece: Piece) -> bytes:
        events = b""
        message = self._message
        if message is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            message = self._message = {"type": "message", "id": _new_id("msg"), "role": "assistant"}
            message |= {"status": "in_progress", "content": []}
            events = self._add_item(message)
            message["content"].append(part)
            events += self._event("response.content_part.added", **self._place(message), content_index=0, part=part)
        part = message["content"][0]
        logprobs = msgspec.to_builtins(list(piece.logprobs))
        self._written[message["id"]].append(piece.text)
        part["logprobs"] += logprobs
        place = self._place(message)
        return events + self._event(
            "response.output_text.delta", **place, content_index=0, delta=piece.text, logprobs=logprobs
        )

    def _add_call(self, at: int, part: ToolCall) -> bytes:
        index = at if part.index is UNSET else part.index
        call, events = self._calls.get(index), b""
        function = part.function or CalledFunction()
        if call is None:
            call = {"type": "function_call", "id": _new_id("fc"), "call_id": part.id or _new_id("call")}
            call |= {"name": function.name or "", "arguments": "", "status": "in_progress"}
            self._calls[index] = call
            events = self._add_item(call)
        elif function.name:
            call["name"] += function.name
        if not function.arguments:
            return events
        self._written[call["id"]].append(function.arguments)
        place = self._place(call)
        return events + self._event("response.function_call_arguments.delta", **place, delta=function.arguments)

    def _add_item(self, item: dict[str, Any]) -> bytes:
        self.response.output.append(item)
        self._written[item["id"]] = []
        return self._event("response.output_item.added", output_index=len(self.response.output) - 1, item={**item})

    def _end_item(self, at: int, item: dict[str, Any], status: str) -> bytes:
        item["status"] = status
        text = "".join(self._written[item["id"]])
        if item["type"] == "message":
            item["content"][0]["text"] = text
        else:
            item["arguments"] = text
        return b"".join(self._end_parts(item)) + self._event("response.output_item.done", output_index=at, item=item)

    def _end_parts(self, item: dict[str, Any]) -> Iterator[bytes]:
        place = self._place(item)
        if item["type"] == "function_call":
            arguments, name = item["arguments"], item["name"]
            yield self._event("response.function_call_arguments.done", **place, arguments=arguments, name=name)
            return
        for index, part in enumerate(item["content"]):
            told = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._event("response.output_text.done", **place, content_index=index, **told)
            yield self._event("response.content_part.done", **place, content_index=index, part=part)

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        at = next(at for at, each in enumerate(self.response.output) if each is item)
        return {"item_id": item["id"], "output_index": at}

    # ---------------------------------------------------------------- events

    def _about(self, kind: str) -> bytes:
        return self._event(kind, response=self.response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(event))


def _begin(request: ResponsesRequest) -> Response:
    response = Response(
        id=_new_id("resp"),
        created_at=int(time.time()),
        model=request.model,
        status="in_progress",
        output=[],
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        temperature=request.temperature,
        tools=request.tools or [],
        top_p=request.top_p,
    )
    if request.parallel_tool_calls is not None:
        response.parallel_tool_calls = request.parallel_tool_calls
    if request.tool_choice is not None:
        response.tool_choice = request.tool_choice
    if request.reasoning is not None:
        response.reasoning = {"effort": request.reasoning.get("effort"), "summary": None}
    if request.text and isinstance(request.text.get("format"), dict):
        response.text = {"format": request.text["format"]}
    return response


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
