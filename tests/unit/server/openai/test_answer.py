"""An answer is bounded by what was asked for, whatever the guest does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import ModelRefused
from tensorwasm.server.openai.answer import Answer

HEADER = b'{"tensorwasm":1}\n'


def line(**fields: object) -> bytes:
    """Write one line of an answer."""
    return json.dumps(fields).encode() + b"\n"


def text_of(answer: Answer, chunks: list[bytes]) -> str:
    """Feed chunks until the answer has ended; return its text."""
    text = ""
    for chunk in chunks:
        text += "".join(piece.text for piece in answer.feed(chunk))
        if answer.ended:
            return text
    return text + "".join(piece.text for piece in answer.finish())


@given(st.lists(st.text("ab", min_size=1)), st.integers(1, 5))
def test_plain_text_has_at_most_so_many_chunks(texts: list[str], most: int) -> None:
    answer = Answer("", (), most)
    assert text_of(answer, [each.encode() for each in texts]) == "".join(texts[:most])
    assert answer.usage.completion_tokens == min(len(texts), most)
    assert answer.finish_reason == ("length" if len(texts) >= most else "stop")


@given(st.lists(st.integers(0, 4)), st.integers(1, 8))
def test_lines_never_come_to_more_tokens_than_asked_for(tokens: list[int], most: int) -> None:
    answer = Answer("", (), most)
    text = text_of(answer, [HEADER, *(line(delta="x" * each, tokens=each) for each in tokens)])
    assert len(text) == answer.usage.completion_tokens <= most


def test_the_guests_own_reason_goes_before_the_gateways() -> None:
    answer = Answer("", (), 1)
    text_of(answer, [HEADER, line(delta="a", finish_reason="content_filter")])
    assert answer.finish_reason == "content_filter"


def test_a_stop_sequence_goes_before_the_guests_reason() -> None:
    answer = Answer("", ("b",), None)
    assert text_of(answer, [HEADER, line(delta="ab", finish_reason="length")]) == "a"
    assert answer.ended
    assert answer.finish_reason == "stop"


def test_text_that_waited_for_a_stop_sequence_is_sent_when_tokens_run_out() -> None:
    answer = Answer("", ("bc",), 1)
    assert text_of(answer, [b"ab", b"c"]) == "ab"
    assert answer.finish_reason == "length"


def test_a_prompt_is_counted_by_its_bytes_unless_the_guest_counts_it() -> None:
    plain, told = Answer("12345"), Answer("12345")
    text_of(plain, [b"a"])
    text_of(told, [HEADER, line(usage={"prompt_tokens": 9}), line(delta="a", tokens=3)])
    assert plain.usage == (2, 1)
    assert told.usage == (9, 3)


def test_what_the_guest_says_it_used_counts() -> None:
    answer = Answer("")
    text_of(answer, [HEADER, line(delta="a"), line(usage={"prompt_tokens": 1, "completion_tokens": 7})])
    assert answer.usage == (1, 7)


def test_tool_calls_are_a_reason_of_their_own() -> None:
    answer = Answer("")
    pieces = [*answer.feed(HEADER), *answer.feed(line(tool_calls=[{"index": 0, "id": "a"}])), *answer.finish()]
    assert [call.id for piece in pieces for call in piece.tool_calls] == ["a"]
    assert answer.finish_reason == "tool_calls"


def test_a_guest_may_refuse() -> None:
    answer = Answer("")
    with pytest.raises(ModelRefused, match="too long"):
        text_of(answer, [HEADER, line(error="too long")])
