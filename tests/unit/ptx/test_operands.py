import pytest

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx.lexer import Cursor
from tensorwasm.ptx.model import Address, Float, Int, Name, Not, Offset, Pair, Vector
from tensorwasm.ptx.operands import MAX_OPERAND_DEPTH, parse_element, parse_operand


def operand(text):
    cursor = Cursor(text + ";")
    value = parse_operand(cursor)
    assert cursor.peek() == ";"
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("%r1", Name("%r1")),
        ("%tid.x", Name("%tid", "x")),
        ("%tid .x", Name("%tid", "x")),
        ("_", Name("_")),
        ("a", Name("a")),
        ("-5", Int(-5)),
        ("0x10", Int(16)),
        ("5|6", Int(7)),
        ("WARP_SZ", Int(32)),
        ("!0", Int(1)),
        ("0f3F800000", Float(0x3F800000, 32)),
        ("!p", Not(Name("p"))),
        ("p|q", Pair(Name("p"), Name("q"))),
        ("_|!q", Pair(Name("_"), Not(Name("q")))),
        ("buf+4", Offset(Name("buf"), 4)),
        ("buf+-4", Offset(Name("buf"), -4)),
        ("buf-4+2*3", Offset(Name("buf"), 2)),
        ("buf+0", Offset(Name("buf"), 0)),
        ("buf+0xFFFFFFFFFFFFFFFC", Offset(Name("buf"), -4)),
        ("[%rd1]", Address(Name("%rd1"))),
        ("[%rd1+4]", Address(Name("%rd1"), 4)),
        ("[%rd1+-4]", Address(Name("%rd1"), -4)),
        ("[%rd1-4-4]", Address(Name("%rd1"), -8)),
        ("[ %rd1 + 0 ]", Address(Name("%rd1"))),
        ("[16]", Address(Int(16))),
        ("[4*4+1]", Address(Int(17))),
        ("[t, {x, y}]", Address(Name("t"), 0, (Vector((Name("x"), Name("y"))),))),
        ("[t+8, s, {1}]", Address(Name("t"), 8, (Name("s"), Vector((Int(1),))))),
        ("{a, _, 1, b.y}", Vector((Name("a"), Name("_"), Int(1), Name("b", "y")))),
        ("{}", Vector(())),
    ],
)
def test_operands(text, value):
    assert operand(text) == value
    assert operand(text) == value  # the second reading may come from what the first one left behind


@pytest.mark.parametrize(
    "text",
    ["", ";", "@p", "[a", "[a+]", "[a+b]", "[]", "{a", "{a,", "%tid.q", "a.b.x", "-%f1", "!-1.5", '"s"', ".reg"],
)
def test_words_that_are_not_operands(text):
    with pytest.raises(MalformedPtx):
        assert operand(text) is None


@pytest.mark.parametrize(
    ("opcode", "text", "value"),
    [
        ("mov", "a[1]", Offset(Name("a"), 8)),
        ("ld", "a[1]", Address(Name("a"), 8)),
        ("st", "a[2*2-1]", Address(Name("a"), 24)),
        ("ld", "a[-1]", Address(Name("a"), -8)),
    ],
)
def test_an_element_of_an_array_is_an_address(opcode, text, value):
    cursor = Cursor(text + ";")
    cursor.arrays["a"] = 8
    assert parse_element(cursor, opcode) == value
    assert cursor.peek() == ";"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("a[r]", UnsupportedPtx, "1:4: an array that is indexed by a register"),
        ("b[1]", MalformedPtx, "1:1: 'b' is not an array"),
        ("a[1.5]", MalformedPtx, "1:3: an integer expected"),
        ("a[1", MalformedPtx, "1:4: ']' expected"),
    ],
)
def test_words_that_are_not_array_elements(text, error, message):
    cursor = Cursor(text)
    cursor.arrays["a"] = 8
    with pytest.raises(error, match=message) as caught:
        parse_element(cursor, "ld")
    assert type(caught.value) is error


def test_depth_is_limited():
    assert operand("{" * 8 + "a" + "}" * 8)
    for text in ("{" * 1000, "[a, " * 1000, "a|" * 1000):
        with pytest.raises(MalformedPtx, match=f"more than {MAX_OPERAND_DEPTH} deep"):
            operand(text)
