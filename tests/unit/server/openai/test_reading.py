"""What guests answer is read the same wherever their chunks end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorwasm.errors import ModelOutputInvalid
from tensorwasm.server.openai.reading import HEAD, MAX_LINE_BYTES, Line, Reader

HEADER = b'{"tensorwasm":1}\n'


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Divide bytes into chunks of some sizes, and the rest."""
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    return [each for each in [*chunks, data[at:]] if each]


def read(chunks: list[bytes]) -> list[Line]:
    """Read a whole answer."""
    reader = Reader()
    return [line for chunk in chunks for line in reader.feed(chunk)] + reader.finish()


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
def test_what_is_no_utf8_is_replaced_as_if_it_came_at_once(data: bytes, sizes: list[int]) -> None:
    if data.startswith(HEAD):
        return
    assert "".join(line.delta for line in read(cut(data, sizes))) == data.decode(errors="replace")


@given(st.lists(st.text(st.characters(codec="utf-8"))), SIZES, st.booleans())
def test_lines_are_the_same_wherever_chunks_end(deltas: list[str], sizes: list[int], ended: bool) -> None:  # noqa: FBT001 - Hypothesis gives it
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
def test_fields_mean_what_is_documented(line: dict[str, Any], expected: dict[str, Any]) -> None:
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
def test_a_line_that_is_none_is_refused(bad: bytes) -> None:
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
    assert all(isinstance(each, Line) for each in lines)


def test_a_mebibyte_in_single_bytes_is_read_in_one_pass() -> None:
    reader = Reader()
    reader.feed(HEADER)
    for _ in range(200_000):
        assert reader.feed(b" ") == []
    (line,) = reader.feed(b'{"delta":"x"}\n')
    assert line.delta == "x"
