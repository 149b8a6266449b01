"""Answers are what OpenAI's own types say."""

from __future__ import annotations

import base64
import json
import math
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tensorwasm.server.openai.answer import CalledFunction, OtherToken, Piece, Token, TokenUsage, ToolCall
from tensorwasm.server.openai.completions import (
    CompletionRenderer,
    FinishedChoice,
    add_usage,
    join_tool_calls,
    pack,
    render_embeddings,
)

TOKEN = Token("a", -0.5, [97], [OtherToken("b", -1.5)])
SPENT = add_usage([TokenUsage(1, 2), TokenUsage(3, 4)])


def event(data):
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    return json.loads(data[6:])


def test_a_chat():
    pieces = [Piece("a", [TOKEN]), Piece("b")]
    found = ChatCompletion.model_validate_json(
        CompletionRenderer.of("m", chat=True).whole([FinishedChoice(pieces, "stop")], SPENT)
    )
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == ("ab", "stop")
    assert choice.logprobs.content[0].top_logprobs[0].token == "b"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (4, 6, 10)
    assert found.id.startswith("chatcmpl-")


def test_tool_calls():
    pieces = [
        Piece(tool_calls=[ToolCall(0, "c0", "function", CalledFunction("f", "{"))]),
        Piece(tool_calls=[ToolCall(0, None, None, CalledFunction(None, "}")), ToolCall(1, "c1")]),
    ]
    found = ChatCompletion.model_validate_json(
        CompletionRenderer.of("m", chat=True).whole([FinishedChoice(pieces, "tool_calls")], SPENT)
    )
    message = found.choices[0].message
    assert message.content is None
    assert [(each.id, each.function.name, each.function.arguments) for each in message.tool_calls] == [
        ("c0", "f", "{}"),
        ("c1", "", ""),
    ]


def test_a_call_without_index_or_id_gets_them():
    calls = join_tool_calls([ToolCall(function=CalledFunction("f", "1")), ToolCall(function=CalledFunction("g", "2"))])
    assert [each.function.name for each in calls] == ["f", "g"]
    assert all(each.id.startswith("call_") for each in calls)


def test_a_completion():
    pieces = [Piece("a", [TOKEN]), Piece("bc", [TOKEN])]
    found = Completion.model_validate_json(
        CompletionRenderer.of("m", chat=False).whole([FinishedChoice(pieces, "length", "in:")], SPENT)
    )
    (choice,) = found.choices
    assert (choice.text, choice.finish_reason) == ("in:abc", "length")
    assert choice.logprobs.text_offset == [3, 4]
    assert choice.logprobs.top_logprobs == [{"b": -1.5}] * 2


def test_parts_of_a_chat():
    shape = CompletionRenderer.of("m", chat=True, counted=True)
    piece = Piece("é", [TOKEN], [ToolCall(function=CalledFunction("f", ""))])
    parts = [shape.first(1), shape.piece(1, piece, 0), shape.last(1, "stop"), shape.usage(SPENT)]
    first, middle, last, usage = [ChatCompletionChunk.model_validate(event(each)) for each in parts]
    assert (first.choices[0].delta.role, first.choices[0].index) == ("assistant", 1)
    assert middle.choices[0].delta.content == "é"
    assert middle.choices[0].delta.tool_calls[0].function.name == "f"
    assert last.choices[0].finish_reason == "stop"
    assert (usage.choices, usage.usage.total_tokens) == ([], 10)
    assert event(parts[0])["usage"] is None
    assert "usage" not in event(CompletionRenderer.of("m", chat=True).last(0, "stop"))


def test_parts_of_a_completion():
    shape = CompletionRenderer.of("m", chat=False)
    assert shape.first(0) == b""
    parts = [shape.first(0, "in:"), shape.piece(0, Piece("a", [TOKEN]), 3), shape.last(0, "stop")]
    found = [Completion.model_validate(event(each) | {"usage": None}) for each in parts[2:]]
    assert found[0].choices[0].finish_reason == "stop"
    assert [event(each)["choices"][0]["text"] for each in parts] == ["in:", "a", ""]
    assert event(parts[1])["choices"][0]["logprobs"]["text_offset"] == [3]


@given(st.lists(st.floats(width=32), min_size=1))
def test_vectors_are_packed_as_clients_unpack_them(vector):
    unpacked = struct.unpack(f"<{len(vector)}f", base64.b64decode(pack(vector)))
    assert [each if not math.isnan(each) else None for each in unpacked] == [
        each if not math.isnan(each) else None for each in vector
    ]


def test_values_too_large_for_a_vector_become_infinite():
    assert struct.unpack("<3f", base64.b64decode(pack([1e39, -1e300, 1.0]))) == (math.inf, -math.inf, 1.0)


@pytest.mark.parametrize("packed", [False, True])
def test_embeddings(packed):
    found = json.loads(render_embeddings("m", [[1.0, 2.0], [3.0, 4.0]], 7, packed=packed))
    assert [each["index"] for each in found["data"]] == [0, 1]
    if not packed:
        assert CreateEmbeddingResponse.model_validate(found).data[1].embedding == [3.0, 4.0]
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_a_call_in_very_many_parts_is_joined_without_copying_it_for_each():
    """Appending to one text took minutes for what fits an answer, on the event loop."""
    parts = [ToolCall(0, function=CalledFunction(arguments="a" * 40)) for _ in range(200_000)]
    begun_s = time.monotonic()
    (call,) = join_tool_calls(parts)
    assert time.monotonic() - begun_s < 2
    assert call.function.arguments == "a" * 8_000_000
