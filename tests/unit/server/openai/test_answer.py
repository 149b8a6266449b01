"""A model's output is read, and its answer ends at a stop sequence or token limit, wherever its chunks end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorwasm.errors import ModelOutputInvalid, ModelRefused
from tensorwasm.server.openai.answer import (
    BLANK,
    HEAD,
    MAX_LINE_BYTES,
    MAX_TOOL_CALLS,
    ModelAnswer,
    ModelOutputReader,
    OutputLine,
    Piece,
    Stopper,
    Token,
    ToolCall,
    join_text,
)

HEADER = b'{"tensorwasm":1}\n'


def line(**fields: object) -> bytes:
    """Write one line of an answer."""
    return json.dumps(fields).encode() + b"\n"


def feed(answer: ModelAnswer, chunk: bytes) -> list[Piece]:
    """Add a chunk; return what may be sent."""
    return [piece for pieces in answer.read(chunk) for piece in pieces]


def text_of(answer: ModelAnswer, chunks: list[bytes]) -> str:
    """Feed chunks until the answer has ended; return its text."""
    text = ""
    for chunk in chunks:
        text += "".join(piece.text for piece in feed(answer, chunk))
        if answer.ended:
            return text
    return text + "".join(piece.text for piece in answer.finish())


@given(st.lists(st.text("ab", min_size=1)), st.integers(1, 5))
def test_plain_text_is_limited_by_its_chunks(texts: list[str], most: int) -> None:
    answer = ModelAnswer("", (), most)
    assert text_of(answer, [each.encode() for each in texts]) == "".join(texts[:most])
    assert answer.usage.completion_tokens == min(len(texts), most)
    assert answer.finish_reason == ("length" if len(texts) >= most else "stop")


@given(st.lists(st.integers(0, 4)), st.integers(1, 8))
def test_lines_never_exceed_the_token_limit(tokens: list[int], most: int) -> None:
    answer = ModelAnswer("", (), most)
    text = text_of(answer, [HEADER, *(line(delta="x" * each, tokens=each) for each in tokens)])
    assert len(text) == answer.usage.completion_tokens <= most


def test_the_guests_reason_precedes_the_gateways() -> None:
    answer = ModelAnswer("", (), 1)
    text_of(answer, [HEADER, line(delta="a", finish_reason="content_filter")])
    assert answer.finish_reason == "content_filter"


def test_a_stop_sequence_precedes_the_guests_reason() -> None:
    answer = ModelAnswer("", ("b",), None)
    assert text_of(answer, [HEADER, line(delta="ab", finish_reason="length")]) == "a"
    assert answer.ended
    assert answer.finish_reason == "stop"


def test_held_text_is_sent_at_the_token_limit() -> None:
    answer = ModelAnswer("", ("bc",), 1)
    assert text_of(answer, [b"ab", b"c"]) == "ab"
    assert answer.finish_reason == "length"


def test_a_prompt_is_counted_by_its_bytes_unless_the_guest_counts_it() -> None:
    plain, told = ModelAnswer("12345"), ModelAnswer("12345")
    text_of(plain, [b"a"])
    text_of(told, [HEADER, line(usage={"prompt_tokens": 9}), line(delta="a", tokens=3)])
    assert plain.usage == (2, 1)
    assert told.usage == (9, 3)


def test_reported_usage_counts() -> None:
    answer = ModelAnswer("")
    text_of(answer, [HEADER, line(delta="a"), line(usage={"prompt_tokens": 1, "completion_tokens": 7})])
    assert answer.usage == (1, 7)


def test_tool_calls_are_a_finish_reason() -> None:
    answer = ModelAnswer("")
    pieces = [*feed(answer, HEADER), *feed(answer, line(tool_calls=[{"index": 0, "id": "a"}])), *answer.finish()]
    assert [call.id for piece in pieces for call in piece.tool_calls] == ["a"]
    assert answer.finish_reason == "tool_calls"


def test_tool_calls_without_an_index_are_separate_and_bounded() -> None:
    answer = ModelAnswer("")
    assert feed(answer, HEADER + line(tool_calls=[{"index": 0}] * 500)), "parts of one call"
    assert feed(answer, line(tool_calls=[{}] * MAX_TOOL_CALLS))
    with pytest.raises(ModelOutputInvalid, match="256 tool calls"):
        feed(answer, line(tool_calls=[{}]))


def test_a_refusal_of_the_guest_is_an_error() -> None:
    answer = ModelAnswer("")
    with pytest.raises(ModelRefused, match="too long"):
        text_of(answer, [HEADER, line(error="too long")])


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Divide bytes into chunks of some sizes, and the rest."""
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    return [each for each in [*chunks, data[at:]] if each]


def read(chunks: list[bytes]) -> list[OutputLine]:
    """Read a whole answer."""
    reader = ModelOutputReader()
    return [line for chunk in chunks for line in reader.read(chunk) if line is not BLANK] + reader.finish()


SIZES = st.lists(st.integers(1, 20))


@given(st.text(st.characters(codec="utf-8")), SIZES)
@example('{"tensorwas', [1, 1])
@example("{", [])
@example("", [])
def test_plain_text_is_the_text_of_all_chunks(text: str, sizes: list[int]) -> None:
    data = text.encode()
    chunks = cut(data, sizes)
    if data.startswith(HEAD):
        return
    lines = read(chunks)
    assert "".join(line.delta for line in lines) == text
    assert sum(line.counted for line in lines) == len(chunks)


@given(st.binary(), SIZES)
def test_invalid_utf8_is_replaced_as_if_it_came_at_once(data: bytes, sizes: list[int]) -> None:
    if data.startswith(HEAD):
        return
    assert "".join(line.delta for line in read(cut(data, sizes))) == data.decode(errors="replace")


@given(st.lists(st.text(st.characters(codec="utf-8"))), SIZES, st.booleans())
def test_lines_do_not_depend_on_chunk_borders(deltas: list[str], sizes: list[int], ended: bool) -> None:  # noqa: FBT001 - Hypothesis gives it
    document = HEADER + b"".join(json.dumps({"delta": each}).encode() + b"\n" for each in deltas)
    lines = read(cut(document if ended else document.rstrip(b"\n"), sizes))
    assert [line.delta for line in lines[1:]] == deltas
    assert lines[0].tensorwasm == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"delta": "a"}, {"delta": "a", "counted": 1}),
        ({"delta": "abc", "tokens": 3}, {"counted": 3}),
        ({"finish_reason": "length"}, {"finish_reason": "length", "counted": 0}),
        ({"embedding": [1, 2.5]}, {"embedding": [1.0, 2.5], "counted": 0}),
        ({"error": "no"}, {"error": "no"}),
        ({"unheard": {"of": []}}, {"delta": ""}),
    ],
)
def test_fields_are_read_as_documented(line: dict[str, Any], expected: dict[str, Any]) -> None:
    (found,) = read([HEADER, json.dumps(line).encode()])[1:]
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    "bad",
    [
        b"hello\n",
        b"[]\n",
        b'{"delta":1}\n',
        b'{"tokens":-1}\n',
        b'{"finish_reason":"tired"}\n',
        b'{"delta":"\xff"}\n',
        b'{"delta":"\\ud800"}\n',
        b'{"tool_calls":[{"index":99999}]}\n',
        b'{"embedding":["a"]}\n',
        b"[" * 5000 + b"\n",
        b" " * (MAX_LINE_BYTES + 1),
        b'{"delta":"' + b"a" * MAX_LINE_BYTES + b'"}\n',
    ],
)
def test_an_invalid_line_is_refused(bad: bytes) -> None:
    with pytest.raises(ModelOutputInvalid):
        read([HEADER, bad])


def test_another_version_is_refused() -> None:
    with pytest.raises(ModelOutputInvalid):
        read([b'{"tensorwasm":2}\n'])


@given(st.binary(), SIZES)
def test_any_bytes_after_the_header_are_read_or_refused(data: bytes, sizes: list[int]) -> None:
    try:
        lines = read(cut(HEADER + data, sizes))
    except ModelOutputInvalid:
        return
    assert all(isinstance(each, OutputLine) for each in lines)


def test_a_mebibyte_in_single_bytes_is_read_in_one_pass() -> None:
    reader = ModelOutputReader()
    list(reader.read(HEADER))
    for _ in range(200_000):
        assert list(reader.read(b" ")) == []
    (line,) = reader.read(b'{"delta":"x"}\n')
    assert line.delta == "x"


TEXTS = st.lists(st.text("abc", max_size=6))
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def expected(text: str, stops: list[str]) -> str:
    """Read characters one by one, until a sequence is complete."""
    for end in range(1, len(text) + 1):
        complete = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: min(complete)]
    return text


@given(TEXTS, STOPS)
@example(["ab", "cd"], ["bcd", "c"])
@example(["a", "a", "b"], ["aab"])
@example(["aa", "ab"], ["aab"])
@example(["abc"], ["c", "abc"])
def test_an_answer_ends_before_the_first_stop_sequence(texts: list[str], stops: list[str]) -> None:
    stopper = Stopper(stops)
    pieces = [piece for each in texts for piece in stopper.feed(each, [])] + stopper.finish()
    assert "".join(piece.text for piece in pieces) == expected("".join(texts), stops)


@given(TEXTS, STOPS)
def test_no_part_of_a_stop_sequence_is_sent(texts: list[str], stops: list[str]) -> None:
    stopper, sent = Stopper(stops), ""
    whole = expected("".join(texts), stops)
    for each in texts:
        sent += "".join(piece.text for piece in stopper.feed(each, []))
        assert whole.startswith(sent)


@given(TEXTS, STOPS)
def test_only_a_possible_beginning_of_a_stop_sequence_is_held(texts: list[str], stops: list[str]) -> None:
    stopper, sent, came = Stopper(stops), "", ""
    for each in texts:
        came += each
        sent += "".join(piece.text for piece in stopper.feed(each, []))
        if stopper.stopped:
            return
        held = came[len(sent) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(TEXTS, STOPS)
def test_log_probabilities_stay_with_their_text(texts: list[str], stops: list[str]) -> None:
    stopper = Stopper(stops)
    pieces = [
        piece for at, each in enumerate(texts) for piece in stopper.feed(each, [Token(str(at), -1.0)])
    ] + stopper.finish()
    sent = expected("".join(texts), stops)
    begins, at = [], 0
    for index, each in enumerate(texts):
        if at < len(sent) and each:
            begins.append(str(index))
        at += len(each)
    found = [token.token for piece in pieces for token in piece.logprobs]
    assert found == sorted(found, key=int)
    assert set(begins) <= set(found)
    kept = len("".join(texts))
    if len(sent) < kept:
        assert all(sum(map(len, texts[: int(each)])) <= len(sent) for each in found)


def test_a_chunk_is_read_line_by_line():
    """A chunk of many lines, blank ones too, does not keep others waiting: its reader can rest after each."""
    lines = ModelAnswer("").read(HEADER + b"\n" + line(delta="a") + b"what?\n" + line(delta="b"))
    assert [next(lines) for _ in range(3)] == [[], [], [Piece("a", [])]]
    with pytest.raises(ModelOutputInvalid):
        next(lines)


def test_neighbours_that_are_only_text_are_one_piece():
    token, call = Piece("c", [Token("c", -1.0)]), Piece(tool_calls=[ToolCall(0)])
    vector = Piece(embedding=[1.0])
    given = [Piece("a"), Piece("b", []), token, call, Piece("d"), vector, Piece(""), Piece("e")]
    assert join_text(given) == [Piece("ab"), token, call, Piece("d"), vector, Piece("e")]
    assert join_text([]) == []
