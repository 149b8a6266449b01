import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles.ptx import evaluate, spell
from strategies.ptx import expressions
from tensorwasm.errors import MalformedPtx
from tensorwasm.ptx.constants import MAX_EXPRESSION_DEPTH, parse_constant, parse_integer
from tensorwasm.ptx.lexer import Cursor
from tensorwasm.ptx.model import Float, Int


def fold(text):
    cursor = Cursor(text)
    value = parse_constant(cursor)
    assert cursor.peek() == ""
    return value


def double(value):
    return Float(struct.unpack("<Q", struct.pack("<d", value))[0], 64)


@given(expressions())
def test_integer_expressions_fold_as_c_computes_them(tree):
    try:
        expected = evaluate(tree).value
    except ZeroDivisionError:
        assume(False)
    assert fold(spell(tree)) == Int(expected)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("-7/2", -3),
        ("-7 % 3", -1),
        ("~0", (1 << 64) - 1),
        ("!0", 1),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775807+1", -(1 << 63)),
        ("18446744073709551615", (1 << 64) - 1),
        ("(.s64)18446744073709551615", -1),
        ("(.u64)-1 > 0", 1),
        ("-1 > 0U", 1),
        ("-1 > 0", 0),
        ("1 << 63", -(1 << 63)),
        ("1 << 64", 0),
        ("-8 >> 1", -4),
        ("-8 >> 99", -1),
        ("(.u64)-8 >> 63", 1),
        ("0x10 | 0b1 ^ 07 & 3", 0x12),
        ("1 ? 2 : 0 ? 3 : 4", 2),
        ("0 ? 2 : 0 ? 3 : 4", 4),
        ("WARP_SZ - 1", 31),
        ("1.5 < 2.5", 1),
    ],
)
def test_folded(text, value):
    assert fold(text) == Int(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", double(1.5)),
        (".5", double(0.5)),
        ("1.", double(1.0)),
        ("2.5e-3", double(0.0025)),
        ("1e999", double(float("inf"))),
        ("-1.5", double(-1.5)),
        ("-0.0", double(-0.0)),
        ("1.0 / 4.0 + 2.0", double(2.25)),
        ("-1.0 / 0.0", double(float("-inf"))),
        ("1.0 ? 2.0 : 3.0", double(2.0)),
        ("0f7FC00001", Float(0x7FC00001, 32)),
        ("0F3f800000", Float(0x3F800000, 32)),
        ("0D3FF0000000000000", double(1.0)),
        ("-0d3FF0000000000000", double(-1.0)),
    ],
)
def test_floating_point(text, value):
    assert fold(text) == value


@given(st.integers(0, (1 << 64) - 1))
def test_double_bits_are_kept_for_signalling_nans_too(bits):
    cursor = Cursor(f"0d{bits:016X};")
    assert parse_constant(cursor) == Float(bits, 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1/0", "division by zero"),
        ("1%(2-2)", "division by zero"),
        ("18446744073709551616", "64 bits"),
        ("9" * 1000, "64 bits"),
        ("1+1.0", "integer and a floating-point"),
        ("1.0 << 2.0", "floating-point"),
        ("~1.0", "floating-point"),
        ("(.u64)1.0", "cast"),
        ("-0f3F800000", "constant expected"),
        ("1+", "ends too early"),
        ("1+a", "constant expected"),
        ("(1", "expected"),
        ("1?2", "expected"),
        ("08", "constant expected"),
    ],
)
def test_refused(text, message):
    with pytest.raises(MalformedPtx, match=message):
        fold(text)


def test_depth_is_limited_and_length_is_not():
    deep = "(" * MAX_EXPRESSION_DEPTH + "1" + ")" * MAX_EXPRESSION_DEPTH
    assert fold(deep) == Int(1)
    assert fold("~" * 100_001 + "0") == Int((1 << 64) - 1)
    assert fold("1" + "+1" * 100_000) == Int(100_001)
    for text in (f"({deep})", "1 ? 1 : " * 1000 + "1", "1 ? " * 1000):
        with pytest.raises(MalformedPtx, match="nested"):
            fold(text)


def test_a_float_is_refused_where_an_integer_is_required():
    with pytest.raises(MalformedPtx, match="integer expected"):
        parse_integer(Cursor("1.5"))
