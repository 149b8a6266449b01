"""What a guest is given is what the client sent, in the documented order, or the request is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.openai.documents import Document, plan_chat, plan_completion, plan_embedding
from tensorwasm.server.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest

DOCS = Path(__file__).parents[4] / "docs/openai.md"
PLANS = {
    "chat": (ChatRequest, plan_chat, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "completion": (CompletionRequest, plan_completion, {"model": "m", "prompt": "hi"}),
    "embedding": (EmbeddingRequest, plan_embedding, {"model": "m", "input": "hi"}),
}


def plan(kind, **fields):
    request, make, usual = PLANS[kind]
    return make(msgspec.json.decode(json.dumps(usual | fields), type=request))


def document(kind, **fields):
    (run,) = plan(kind, **fields).runs
    return json.loads(run)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("chat", {"messages": [{"role": "user", "content": "hi"}], "stream": False}),
        ("completion", {"prompt": "hi", "stream": False}),
        ("embedding", {"input": ["hi"]}),
    ],
)
def test_without_options_a_document_has_only_its_required_fields(kind, expected):
    assert document(kind) == {"tensorwasm": 1, "kind": kind, "model": "m"} | expected


def test_every_option_is_passed_on():
    options = {
        "max_tokens": 5, "temperature": 0, "top_p": 0.5, "seed": -3, "stop": ["a", "b"], "presence_penalty": -2,
        "frequency_penalty": 2, "logit_bias": {"1": 2.5}, "reasoning_effort": "low", "user": "u",
        "metadata": {"a": "b"},
        "logprobs": True, "top_logprobs": 3, "tools": [{"type": "function"}], "tool_choice": "auto",
        "parallel_tool_calls": False, "response_format": {"type": "json_object"}, "functions": [],
        "function_call": "none", "stream": True,
    }  # fmt: skip
    assert document("chat", **options).items() >= options.items()


def test_the_documented_fields_and_their_order_match_the_code():
    table = DOCS.read_text().partition("## What the guest is given")[2].partition("\n\n`content`")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert documented == [each.name for each in msgspec.structs.fields(Document)]


def test_a_document_has_fields_in_that_order_on_one_line():
    (run,) = plan("chat", stop="x", tools=[], messages=[{"role": "u", "content": 'é"\n/'}]).runs
    assert run.startswith(b'{"tensorwasm":1,"kind":"chat","model":"m","messages":[{"role":"u","content":')
    assert b"\n" not in run
    assert 'é\\"\\n/'.encode() in run


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert document("chat", messages=[{"role": "u", "content": parts}])["messages"][0]["content"] == "ab"


def test_a_message_keeps_its_calls():
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "tool_call_id": "2", "name": "n"}
    assert document("chat", messages=[message])["messages"] == [message | {"content": ""}]


def test_max_completion_tokens_precedes_max_tokens():
    assert document("chat", max_tokens=5, max_completion_tokens=3)["max_tokens"] == 3
    assert plan("chat", max_completion_tokens=3).max_tokens == 3


def test_log_probabilities_of_completions_are_a_number():
    assert document("completion", logprobs=0).items() >= {"logprobs": True, "top_logprobs": 0}.items()


def test_choices_have_seeds_of_their_own():
    same = plan("chat", n=16).runs
    assert len({id(run) for run in same}) == 1  # a long prompt is there once
    with pytest.raises(InvalidRequest):
        plan("chat", n=16, seed=5, messages=[{"role": "user", "content": "x" * (4 << 20)}])
    seeds = [json.loads(run)["seed"] for run in plan("chat", n=3, seed=5).runs]
    assert seeds == [5, 6, 7]
    assert [json.loads(run)["seed"] for run in plan("chat", n=2, seed=(1 << 63) - 1).runs] == [
        (1 << 63) - 1,
        -(1 << 63),
    ]


def test_prompts_are_answered_one_after_the_other():
    found = plan("completion", prompt=["a", "b"], n=2)
    assert [json.loads(run)["prompt"] for run in found.runs] == ["a", "a", "b", "b"]
    assert found.prompts == ("a", "a", "b", "b")


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        ("chat", {"messages": [{"role": "u", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ("chat", {"messages": [{"role": "u", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ("chat", {"messages": [{"role": "u", "content": [{"type": "text"}]}]}, "content"),
        ("chat", {"messages": [{"role": "u", "content": [{}]}]}, "content"),
        ("chat", {"modalities": ["text", "audio"]}, "modalities"),
        ("chat", {"stop": [""]}, "stop"),
        ("chat", {"stop": ["a"] * 17}, "stop"),
        ("chat", {"stop": "a" * 257}, "stop"),
        ("completion", {"prompt": [1, -2]}, "prompt"),
        ("completion", {"prompt": [[1], []]}, "prompt"),
        ("completion", {"prompt": []}, "prompt"),
        ("completion", {"prompt": ["a"] * 9, "n": 2}, "n"),
        ("completion", {"best_of": 2}, "best_of"),
        ("embedding", {"input": [1, "a"]}, "input"),
        ("embedding", {"input": []}, "input"),
        ("embedding", {"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_unsupported_values_are_refused_by_name(kind, fields, named):
    with pytest.raises(InvalidRequest, match=named):
        plan(kind, **fields)


@pytest.mark.parametrize(
    "fields",
    [{"n": 0}, {"n": 17}, {"max_tokens": 0}, {"temperature": 3}, {"top_p": -1}, {"seed": 1 << 63}, {"messages": []}],
)
def test_values_out_of_range_are_refused(fields):
    with pytest.raises(msgspec.ValidationError):
        plan("chat", **fields)


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_reaches_the_guest_unchanged(text):
    assert document("completion", prompt=text)["prompt"] == text
    assert document("embedding", input=[text])["input"] == [text]
