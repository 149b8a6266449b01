"""Replies of ``POST /v1/responses``: one object, or the events that build it.

Source: OpenAI API reference, "Responses" and "Streaming events".
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, field

from tensorwasm.server.http.schemas import encode
from tensorwasm.server.openai.answer import CalledFunction, Finish, Piece, TokenUsage, ToolCall
from tensorwasm.server.openai.requests import ResponsesRequest

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reason of an incomplete response, by the answer's finish reason."""


class Response(Struct, kw_only=True):
    """A response, which is not stored.

    Attributes:
        created_at: Unix seconds.
        status: ``in_progress``, ``completed``, ``incomplete`` or ``failed``.
        output: messages and function calls, in the order in which they began.
        error: ``code`` and ``message`` of a failure.
        incomplete_details: ``reason`` of an incomplete one.
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
    """Builds the response to a request from the pieces of its answer, and the events of each step."""

    def __init__(self, request: ResponsesRequest) -> None:
        choice, parallel = request.tool_choice, request.parallel_tool_calls
        shape = (request.text or {}).get("format")
        self.response = Response(
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
            parallel_tool_calls=True if parallel is None else parallel,
            tool_choice="auto" if choice is None else choice,
            reasoning={"effort": (request.reasoning or {}).get("effort"), "summary": None},
            text={"format": shape if isinstance(shape, dict) else {"type": "text"}},
        )
        self._sequence = 0
        self._message: dict[str, Any] | None = None
        self._calls: dict[int, dict[str, Any]] = {}
        self._written: dict[str, list[str]] = {}  # by item: joined at the end, for appending to a long text copies it

    def begin(self) -> bytes:
        """Return the events that begin a stream."""
        return self._about("response.created") + self._about("response.in_progress")

    def add(self, piece: Piece) -> bytes:
        """Add a piece of the answer; return its events."""
        events = b"".join(self._add_call(at, each) for at, each in enumerate(piece.tool_calls))
        return self._add_text(piece) + events if piece.text or piece.logprobs else events

    def finish(self, reason: Finish, usage: TokenUsage) -> bytes:
        """Complete the response; return the final events."""
        incomplete = _INCOMPLETE.get(reason)
        status = "completed" if incomplete is None else "incomplete"
        events = b"".join(self._end_item(item, status) for item in self.response.output)
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
        """End the response with an error; return its event."""
        self.response.status, self.response.error = "failed", {"code": code, "message": message}
        return self._about("response.failed")

    # ---------------------------------------------------------------- items

    def _add_text(self, piece: Piece) -> bytes:
        events, message = b"", self._message
        if message is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            message = self._message = {"type": "message", "id": _new_id("msg"), "role": "assistant"}
            message |= {"status": "in_progress", "content": []}
            events = self._add_item(message)
            message["content"].append(part)
            events += self._event("response.content_part.added", message, content_index=0, part=part)
        logprobs = msgspec.to_builtins(list(piece.logprobs))
        self._written[message["id"]].append(piece.text)
        message["content"][0]["logprobs"] += logprobs
        return events + self._event(
            "response.output_text.delta", message, content_index=0, delta=piece.text, logprobs=logprobs
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
        return events + self._event("response.function_call_arguments.delta", call, delta=function.arguments)

    def _add_item(self, item: dict[str, Any]) -> bytes:
        self.response.output.append(item)
        self._written[item["id"]] = []
        index = len(self.response.output) - 1
        return self._event("response.output_item.added", output_index=index, item={**item})

    def _end_item(self, item: dict[str, Any], status: str) -> bytes:
        item["status"] = status
        text = "".join(self._written[item["id"]])
        if item["type"] == "function_call":
            item["arguments"] = text
            events = self._event("response.function_call_arguments.done", item, arguments=text, name=item["name"])
        else:
            (part,) = item["content"]
            part["text"] = text
            events = self._event(
                "response.output_text.done", item, content_index=0, text=text, logprobs=part["logprobs"]
            )
            events += self._event("response.content_part.done", item, content_index=0, part=part)
        return events + self._event("response.output_item.done", output_index=self._index(item), item=item)

    def _index(self, item: dict[str, Any]) -> int:
        return next(at for at, each in enumerate(self.response.output) if each is item)

    # ---------------------------------------------------------------- events

    def _about(self, kind: str) -> bytes:
        return self._event(kind, response=self.response)

    def _event(self, kind: str, of: dict[str, Any] | None = None, **fields: Any) -> bytes:
        """Return an event, of an item if one is given."""
        place = {} if of is None else {"item_id": of["id"], "output_index": self._index(of)}
        event = {"type": kind, "sequence_number": self._sequence, **place, **fields}
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(event))


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
