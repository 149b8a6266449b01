from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracles.guest import typed_error_of
from strategies import guest as gen
from tensorwasm.errors import InvalidArgs
from tensorwasm.guest.engine import codec


@settings(deadline=None)
@given(gen.frames())
@example([("f32", 0x7F800001)])  # signalling: a processor's conversion would make it quiet
@example([("f64", (0x7FF0 << 48) + 1)])
def test_bits_survive_decoding_and_encoding(frame):
    kinds, cells = [kind for kind, _ in frame], [cell for _, cell in frame]
    assert codec.encode(kinds, codec.decode(kinds, cells)) == cells


@settings(deadline=None)
@given(gen.frames())
@example([("f32", 0x00000001), ("f32", 0x7F7FFFFF), ("f32", 0x3DCCCCCD)])
def test_bits_survive_json(frame):
    kinds, cells = [kind for kind, _ in frame], [cell for _, cell in frame]
    text = codec.render(kinds, codec.decode(kinds, cells))
    assert codec.encode(kinds, codec.parse(text)) == cells
    assert "\n" not in text


@settings(deadline=None)
@given(gen.f32_values().filter(math.isfinite))
def test_an_f32_is_rendered_no_longer_than_its_repr(value):
    text = codec.render(["f32"], [value])[1:-1]
    assert struct.pack("<f", float(text)) == struct.pack("<f", value)
    assert len(text) <= len(repr(value))


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_unsigned_and_signed_forms_are_one_value(bits):
    signed = bits - (1 << 64) if bits >> 63 else bits
    expected = codec.encode(["i64"], [bits])
    assert codec.encode(["i64"], [signed]) == codec.encode(["i64"], [str(signed)]) == expected == [bits]


@settings(deadline=None)
@given(gen.kinds(), gen.unfit_values())
def test_an_argument_that_does_not_fit_is_refused_by_index_and_type(kind, value):
    with pytest.raises(InvalidArgs) as caught:
        codec.encode(["i32", kind], [0, value])
    assert caught.value.message.startswith("argument 1 (")
    assert kind in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("kind", "value", "bits"),
    [
        ("i32", -1, 0xFFFFFFFF),
        ("i32", 2**32 - 1, 0xFFFFFFFF),
        ("i32", "0x10", 16),
        ("i64", 2**53 + 1, 2**53 + 1),
        ("i64", str(2**64 - 1), 2**64 - 1),
        ("f32", "NaN", 0x7FC00000),
        ("f32", "-NaN", 0xFFC00000),
        ("f32", "nan:0x1", 0x7F800001),
        ("f32", "Infinity", 0x7F800000),
        ("f32", "-Infinity", 0xFF800000),
        ("f32", 16777216, 0x4B800000),
        ("f64", "nan:0xfffffffffffff", 0x7FFFFFFFFFFFFFFF),
        ("f64", 5, struct.unpack("<Q", struct.pack("<d", 5.0))[0]),
        ("f64", "-0.0", 1 << 63),
        ("f64", float("inf"), 0x7FF0 << 48),
    ],
)
def test_encodes(kind, value, bits):
    assert codec.encode([kind], [value]) == [bits]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("i32", 2**32),
        ("i32", -(2**31) - 1),
        ("i64", 2**64),
        ("i64", -(2**63) - 1),
        ("i32", 1.0),
        ("i32", True),
        ("f64", False),
        ("f32", 1e39),
        ("f32", "1e39"),
        ("f64", "1e999"),
        ("f32", 2**24 + 1),
        ("f64", 2**53 + 1),
        ("f64", 10**400),
        ("f32", "nan:0x800000"),
        ("f32", "nan:0x0"),
        ("i64", "1.5"),
        ("i64", "9" * 5000),
        ("f64", "9" * 5000),
        ("i32", "\u0663"),
        ("v128", 1),
        ("funcref", 1),
    ],
)
def test_refuses(kind, value):
    with pytest.raises(InvalidArgs):
        codec.encode([kind], [value])


def test_the_count_is_checked_and_named():
    with pytest.raises(InvalidArgs, match=r"takes 2 arguments \(i32, f64\); 1 given"):
        codec.encode(["i32", "f64"], [1])
    with pytest.raises(InvalidArgs, match="takes no arguments; 1 given"):
        codec.encode([], [1])


def test_results_render_as_json_that_python_reads():
    text = codec.render(["i64", "f32", "f64", "f64"], [2**63 - 1, 0.10000000149011612, math.inf, math.nan])
    assert text == '[9223372036854775807, 0.1, "Infinity", "NaN"]'
    assert json.loads(text)[0] == 2**63 - 1


@settings(deadline=None)
@given(st.text() | st.sampled_from(["{}", "1", "[", "[1", "[1e999]", "[" * 5000, "[" + "9" * 5000 + "]", "null"]))
def test_arguments_that_are_no_json_array_are_refused(text):
    error = typed_error_of(codec.parse, text)
    assert error is None or isinstance(error, InvalidArgs)
    if error is None:
        assert isinstance(codec.parse(text), list)
