"""Event streams carry any bytes exactly."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oracles.sse import Event, read_chunks, read_events
from tensorwasm.server.streaming.streamed_call import KEEP_ALIVE, encode_chunk, encode_event, wants_events

TEXTS = st.text(
    st.sampled_from("a :\n\r\t\x00\x0b\x0c\x1c\x7f\x85\u2028\u2029\ufeffé€𝄞") | st.characters(codec="utf-8")
)
CHUNKS = st.binary(min_size=1, max_size=200) | TEXTS.filter(bool).map(str.encode)


@st.composite
def split_texts(draw: st.DrawFn) -> list[bytes]:
    """Text whose characters are divided anywhere."""
    rest = draw(TEXTS).encode()
    chunks = []
    while rest:
        size = draw(st.integers(1, 5))
        chunks.append(rest[:size])
        rest = rest[size:]
    return chunks


@given(st.lists(CHUNKS) | split_texts())
@example([b"\n"])
@example([b"a\r\nb"])
@example([b" leading", b"trailing\n\n", b"data: x\n\nevent: done\n"])
@example(["\ufeff".encode()])
@example([b"\xed\xa0\x80"])
@example([b"\xc3", b"\xa9"])
@example([b"\xf0\x9d", b"\x84\x9e"])
def test_a_reader_decodes_the_guests_bytes(chunks: list[bytes]) -> None:
    stream = b"".join(KEEP_ALIVE + encode_chunk(each) for each in chunks)
    assert read_chunks(stream) == chunks


@given(st.lists(CHUNKS))
def test_readers_that_accept_any_line_break_decode_the_guests_bytes(chunks: list[bytes]) -> None:
    stream = b"".join(encode_chunk(each) for each in chunks)
    lines = stream.decode().splitlines()
    assert read_chunks("".join(f"{line}\n" for line in lines).encode()) == chunks


@pytest.mark.parametrize(
    ("chunk", "name"),
    [
        (b"plain", "chunk"),
        (b"two\nlines\n", "chunk"),
        (b"a\tb", "chunk"),
        ("é€𝄞".encode(), "chunk"),
        (b"\xff", "chunk-base64"),
        (b"a\rb", "chunk-base64"),
        (b"a\0b", "chunk-base64"),
        (b"\xed\xa0\x80", "chunk-base64"),
        (b"\xc3", "chunk-base64"),
        ("\u2028".encode(), "chunk-base64"),
    ],
)
def test_only_safe_text_is_sent_as_text(chunk: bytes, name: str) -> None:
    assert [each.name for each in read_events(encode_chunk(chunk))] == [name]


def test_an_event_keeps_its_lines() -> None:
    assert read_events(encode_event("done", '{"a":1}')) == [Event("done", '{"a":1}')]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/event-stream", True),
        ("application/json, text/event-stream;q=0.5", True),
        ("TEXT/EVENT-STREAM", True),
        ("text/plain", False),
        ("x-text/event-stream", False),
        ("", False),
        (None, False),
        ("*/*", False),
    ],
)
def test_the_accept_header_requests_events(accept: str | None, *, expected: bool) -> None:
    assert wants_events(accept) is expected
