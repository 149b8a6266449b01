import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx import lexer
from tensorwasm.ptx.lexer import MAX_NAME_CHARS, MAX_PTX_BYTES, Cursor, decode, literal, shown

TEXTS = {
    "ld.global.v2.f32 %r1": ["ld.global.v2.f32", "%r1"],
    "%tid.x": ["%tid.x"],
    "ld.shared::cta.L2::128B": ["ld.shared::cta.L2::128B"],
    ".reg.b32": [".reg", ".b32"],
    "%r<5>;": ["%r", "<", "5", ">", ";"],
    "[a+-4]": ["[", "a", "+", "-", "4", "]"],
    "a//b\n/* c ; \n **/d": ["a", "d"],
    "$L__BB0_1: _": ["$L__BB0_1", ":", "_"],
    "0x1FU 0b101 017 1.5e-3 0f3F800000 0d3FF0000000000000": [
        "0x1FU", "0b101", "017", "1.5e-3", "0f3F800000", "0d3FF0000000000000",
    ],
    '"a // b /* c" 1<<2>>3&&4||5': ['"a // b /* c"', "1", "<<", "2", ">>", "3", "&&", "4", "||", "5"],
    "/**/": [],
    "": [],
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_tokens(text):
    assert Cursor(text).tokens == [*TEXTS[text], ""]


@given(st.lists(st.sampled_from(["a.b", ".reg", "%r1", "12", "0x3", "{", ";", "<<", '"s"'])))
def test_white_space_and_comments_change_nothing_but_positions(tokens):
    plain, airy = Cursor(" ".join(tokens)), Cursor(" /* x */\n".join(tokens) + "// end")
    assert plain.tokens == airy.tokens == [*tokens, ""]
    for index in range(len(tokens)):
        assert airy.position(index).line == index + 1
        assert airy.position(index).column == 1


def test_positions_count_lines_and_columns_from_one():
    cursor = Cursor("a\n  b /*\n\n*/ c")
    assert [(cursor.position(at).line, cursor.position(at).column) for at in range(4)] == [
        (1, 1),
        (2, 3),
        (4, 4),
        (4, 5),
    ]


@pytest.mark.parametrize("character", ["\0", "\x80", "é", "\udc80", "\U0001f600"])
def test_characters_outside_ascii_are_refused_with_their_position(character):
    with pytest.raises(MalformedPtx) as caught:
        decode(f"ab\nc{character}d")
    assert (caught.value.line, caught.value.column) == (2, 2)
    assert caught.value.message.isascii()


@given(st.binary())
@example(b"\0")
@example(b"a\0\0")
def test_bytes_are_decoded_or_refused(data):
    text = data.removesuffix(b"\0")
    if all(0 < byte < 128 for byte in text):
        assert decode(data) == text.decode("ascii")
    else:
        with pytest.raises(MalformedPtx, match="ASCII"):
            decode(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a /* b", "comment that does not end"),
        ("a /*/", "comment that does not end"),
        ('a "b', "string that does not end"),
        ('a "b\n"c"', "string that does not end"),
        ('"', "string that does not end"),
        ("a" * (MAX_NAME_CHARS + 1), "token of more than"),
        (" " * (MAX_PTX_BYTES + 1), "bytes of PTX"),
    ],
)
def test_unterminated_or_too_long_tokens_are_refused(text, message):
    with pytest.raises(MalformedPtx, match=message):
        Cursor(text)


def test_the_number_of_tokens_is_limited(monkeypatch):
    monkeypatch.setattr(lexer, "MAX_TOKENS", 10)
    assert len(Cursor("(" * 10).tokens) == 11
    with pytest.raises(MalformedPtx, match="more than 10 tokens"):
        Cursor("(" * 11)


@given(st.integers(0, (1 << 64) - 1))
def test_integers_of_every_base(value):
    spellings = [f"{value}", f"{value:#x}", f"{value:#X}", f"{value:#b}", f"0{value:o}", f"{value}U", f"{value:#x}U"]
    assert {literal(spelling) for spelling in spellings} == {value}


@pytest.mark.parametrize("word", ["08", "0b2", "0x", "1.0", "1e5", "0f3F800000", "a", "", "-1", "1_0", "U", "0xfg"])
def test_words_that_are_not_integers(word):
    assert literal(word) is None


def test_extremely_long_integers_are_not_computed():
    assert literal("9" * 5000) == 1 << 64
    assert literal("0x" + "f" * 17) == (1 << 68) - 1


def test_messages_shorten_what_they_quote():
    assert shown("a" * 1000) == repr("a" * 40 + "...")
    assert re.search("end of the text", shown(""))
