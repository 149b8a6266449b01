"""Requests of ``POST /v1/responses``, read as the chat that they are.

Source: OpenAI API reference, "Responses".
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.openai.requests import ChatRequest, Message, Share, Temperature, Tokens

LOGPROBS: Final = "message.output_text.logprobs"
"""What ``include`` names when log probabilities are wanted."""

_TEXTS: Final = frozenset({"input_text", "output_text", "text"})


class ResponsesRequest(Struct, kw_only=True):
    """Body of ``POST /v1/responses``.

    Attributes:
        model: whose function answers.
        input: text, or messages, tool calls and their outputs.
        instructions: goes before the input, as a message of the system's.
        stream: the answer comes as events while it is made.
        max_output_tokens: most tokens of the answer.
        temperature: passed to the guest, like all below that the gateway does not act on.
        top_p: likewise.
        top_logprobs: likewise.
        include: ``message.output_text.logprobs`` asks for log probabilities; others are ignored.
        tools: functions that the model may call.
        tool_choice: which of them.
        parallel_tool_calls: passed on.
        text: ``format`` says what the answer is to look like.
        reasoning: ``effort`` is passed on.
        user: likewise.
        metadata: passed on, and given back.
        previous_response_id: refused: no response is kept.
        conversation: likewise.
        background: only false: a job does what is to be done later.
    """

    model: str
    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    user: Any = UNSET
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None


def as_chat(request: ResponsesRequest) -> ChatRequest:
    """Return the chat that a request asks for, which guests know already.

    Raises:
        InvalidRequest: it asks for what there is not.
    """
    if request.previous_response_id is not None or request.conversation is not None:
        raise InvalidRequest("previous_response_id and conversation: no response is kept here; send the whole input")
    if request.background:
        raise InvalidRequest("background: start a job instead (POST /functions/{id}/invoke-async)")
    return ChatRequest(
        model=request.model,
        messages=_messages(request),
        stream=request.stream,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        logprobs=LOGPROBS in (request.include or ()),
        top_logprobs=request.top_logprobs,
        tools=_given([_tool(at, each) for at, each in enumerate(request.tools or ())] or None),
        tool_choice=_given(_tool_choice(request.tool_choice)),
        parallel_tool_calls=_given(request.parallel_tool_calls),
        response_format=_given(_format(request.text)),
        reasoning_effort=_given((request.reasoning or {}).get("effort")),
        user=request.user,
        metadata=_given(request.metadata),
    )


def _given(value: Any) -> Any | UnsetType:
    return UNSET if value is None else value


def _messages(request: ResponsesRequest) -> list[Message]:
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    messages = [Message("system", request.instructions)] if request.instructions else []
    for at, item in enumerate(items):
        messages.append(_message(f"input[{at}]", item))
    return messages


def _message(where: str, item: dict[str, Any]) -> Message:
    kind = item.get("type", "message")
    if kind == "message" and isinstance(item.get("role"), str):
        return Message(item["role"], _content(f"{where}.content", item.get("content")))
    if kind == "function_call":
        function = {"name": _text(where, item, "name"), "arguments": _text(where, item, "arguments")}
        call = {"id": _text(where, item, "call_id"), "type": "function", "function": function}
        return Message("assistant", None, tool_calls=[call])
    if kind == "function_call_output":
        output = _content(f"{where}.output", item.get("output"))
        return Message("tool", output, tool_call_id=_text(where, item, "call_id"))
    raise InvalidRequest(f"{where}: models here take messages, function_call and function_call_output")


def _content(where: str, content: Any) -> str:
    """Return the text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: text, or parts of it")
    return "".join(_part(f"{where}[{at}]", part) for at, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else None
    raise InvalidRequest(f"{where}: models here take text only, not {str(kind)[:32]!r}")


def _text(where: str, item: dict[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise InvalidRequest(f"{where}.{name}: a text is needed")
    return str(item[name])


def _tool(at: int, tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in the form that chats have it in."""
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
