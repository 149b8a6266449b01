from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracles.guest import typed_error_of
from oracles.wasm import instruction_text, to_wasm
from strategies.wasm import BLOCKS, any_instructions, instructions_of, padded
from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm import instructions as streams
from tensorwasm.wasm.binary import Cursor
from tensorwasm.wasm.instructions import decode_stream, encode_stream, read, write
from tensorwasm.wasm.module import decode
from tensorwasm.wasm.opcodes import BY_NAME, OPCODES

STRUCTURE = {"else", "end"}


def over(data: bytes) -> Cursor:
    return Cursor(data, 0, len(data))


def one_by_one(data: bytes) -> list[tuple]:
    cursor = over(data)
    out = []
    while not cursor.done():
        out.append(read(cursor))
    return out


def in_a_function(instruction: tuple) -> tuple[str, list[tuple]]:
    """Return the text of a body around an instruction, and what the body must decode to."""
    text = instruction_text(instruction)
    if instruction[0] in BLOCKS:
        return f"{text} end", [instruction, ("end",)]
    if instruction == ("else",):
        return "if else end", [("if", None), ("else",), ("end",)]
    if instruction == ("end",):
        return "block end", [("block", None), ("end",)]
    return text, [instruction]


@pytest.mark.parametrize("name", [opcode.name for opcode in OPCODES])
@settings(max_examples=6)
@given(data=st.data())
def test_every_instruction_is_what_wasmtime_makes_of_its_text(name, data):
    instruction = data.draw(instructions_of(BY_NAME[name]))
    if name in BLOCKS and isinstance(instruction[1], int):
        instruction = (name, 0, *instruction[2:])  # the text format looks the type up
    text, expected = in_a_function(instruction)
    wasm = to_wasm(f"(module (type (func (param i32 i64) (result f32))) (func {text}))")
    body = decode(wasm).bodies[0]
    assert body.instructions() == expected
    assert body.raw == b"\0" + encode_stream(expected) + b"\x0b"


def test_the_table_names_every_code_once():
    assert len({(opcode.prefix, opcode.code) for opcode in OPCODES}) == len(OPCODES)
    assert len(BY_NAME) == len(OPCODES)


@given(st.lists(any_instructions, max_size=20))
def test_a_stream_reads_back(instructions):
    encoded = encode_stream(instructions)
    assert decode_stream(over(encoded)) == one_by_one(encoded) == instructions
    assert encoded == b"".join(map(write, instructions))


def outcome(function, data: bytes):
    error = typed_error_of(function, data)
    return error and error.message


@settings(max_examples=400)
@given(st.lists(any_instructions.map(write) | st.binary(max_size=5), max_size=12).map(b"".join))
@example(b"\x0e\x80\x01" + bytes(129))
@example(b"\x0e\x81\x80\x80\x80\x00" + bytes(2) + b"\x01")
@example(b"\x0e\xff\xff\xff\xff\x0f")
@example(b"\x1c\x02\x7f\x7f")
@example(b"\xfd\x8c\x00" + bytes(16))
@example(b"\x28\xc0\x80\x80\x80\x00\x05\x01")
@example(b"\x02\xff\x7f\x01")
@example(b"\x41\xff\xff\xff\xff\x0f")
def test_fast_and_slow_agree_on_any_bytes(data):
    message = outcome(one_by_one, data)
    assert outcome(lambda data: decode_stream(over(data)), data) == message
    if message is None:
        assert decode_stream(over(data)) == one_by_one(data)


@given(any_instructions, st.integers(0, 3 * streams._CHUNK_BYTES // 2))
def test_an_instruction_may_lie_across_the_end_of_a_chunk(instruction, before):
    data = b"\x01" * before + write(instruction) + b"\x01\x0b"
    assert decode_stream(over(data)) == [("nop",)] * before + [instruction, ("nop",), ("end",)]


@given(st.lists(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=400).map(tuple), max_size=4))
def test_branch_tables_of_any_length_read_back(tables):
    instructions = [("br_table", labels) for labels in tables]
    assert decode_stream(over(encode_stream(instructions))) == instructions


@pytest.mark.parametrize(
    ("name", "code"), [("data.drop", 9), ("v128.const", 12), ("i16x8.abs", 0x80), ("i8x16.relaxed_swizzle", 0x100)]
)
@pytest.mark.parametrize("width", [2, 3, 4, 5])
def test_a_padded_code_is_the_same_instruction(name, code, width):
    prefix, rest = write((name, *{"data.drop": (7,), "v128.const": (bytes(16),)}.get(name, ())))[:1], b""
    if name in {"data.drop", "v128.const"}:
        rest = b"\x07" if name == "data.drop" else bytes(16)
    data = prefix + padded(code, width) + rest
    assert decode_stream(over(data * 3)) == one_by_one(data) * 3
    assert one_by_one(data)[0][0] == name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x01\x16", r"unknown instruction 0x16 \(at byte 101\)"),
        (b"\x01\x06", r"legacy form.*use-legacy-eh=false, emcc -sWASM_LEGACY_EXCEPTIONS=0.*\(at byte 101\)"),
        (b"\xfb\x00", r"gc proposal.*\(at byte 100\)"),
        (b"\xfe\x10", r"threads proposal.*\(at byte 100\)"),
        (b"\xfc\x13", r"wide-arithmetic proposal.*\(at byte 100\)"),
        (b"\x14\x00", r"function-references proposal.*\(at byte 100\)"),
        (b"\xe3\x00", r"stack-switching proposal.*\(at byte 100\)"),
        (b"\x02\x63\x00", r"function-references proposal.*\(at byte 101\)"),
        (b"\x02\x63\x6e", r"gc proposal.*\(at byte 101\)"),
        (b"\x1f\x40\x01\x04\x00", r"malformed catch \(at byte 103\)"),
        (b"\x1f\x40\xff\xff\x03", r"unexpected end \(at byte 102\)"),
        (b"\x01\xfc\x12", r"unknown instruction 0xfc 0x12 \(at byte 101\)"),
        (b"\xfd\x9a\x01", r"unknown instruction 0xfd 0x9a \(at byte 100\)"),
        (b"\x20\x80\x80\x80\x80\x10", r"integer too large \(at byte 101\)"),
        (b"\x20\x80\x80\x80\x80\x80\x00", r"representation too long \(at byte 101\)"),
        (b"\x41\x80\x80\x80\x80\x08", r"integer too large \(at byte 101\)"),
        (b"\x42" + b"\xff" * 9 + b"\x01", r"integer too large \(at byte 101\)"),
        (b"\x28\x80\x01\x00", r"memory operation flags \(at byte 101\)"),
        (b"\x02\x6e", r"gc proposal.*\(at byte 101\)"),
        (b"\x02\x50", r"unknown value type 0x50 \(at byte 101\)"),
        (b"\x02\xff\x7f", r"unknown block type \(at byte 101\)"),
        (b"\x1c\x01\x11", r"unknown value type 0x11 \(at byte 102\)"),
        (b"\xd0\x7f", r"unknown reference type \(at byte 101\)"),
        (b"\xfd\x0c" + bytes(15), r"unexpected end \(at byte 102\)"),
        (b"\x0e\xff\xff\xff\xff\x0f\x00", r"unexpected end \(at byte 101\)"),
        (b"\x43\x00\x00\x00", r"unexpected end \(at byte 101\)"),
        (b"\x41", r"unexpected end \(at byte 101\)"),
    ],
)
def test_each_fault_is_named_with_its_offset(data, message):
    with pytest.raises(InvalidWasm, match=message):
        decode_stream(Cursor(data, 0, len(data), 100))


@pytest.mark.parametrize(
    "instruction",
    [
        ("local.get", -1),
        ("local.get",),
        ("nop", 1),
        ("i32.const", 1 << 31),
        ("i64.const", 1 << 63),
        ("i32.load", (64, 0, 0)),
        ("v128.const", b"short"),
        ("i8x16.extract_lane_s", 256),
        ("ref.null", "i32"),
    ],
)
def test_values_that_cannot_be_encoded_are_refused(instruction):
    with pytest.raises(ValueError, match=r"."):
        encode_stream([instruction])
    with pytest.raises(KeyError):
        encode_stream([("no.such",)])


@pytest.mark.parametrize(
    "data",
    [
        b"\x1c\x82\x80\x00\x7f\x7f",
        b"\x0e\x81\x80\x80\x80\x00\x00\x00",
        b"\xfc\x89\x80\x80\x80\x00\x80\x00",
        b"\xfd\xcd\x81\x00",
        b"\x28\xc2\x80\x00\x80\x00\x80\x00",
    ],
)
def test_short_instructions_are_not_read_one_by_one(data, monkeypatch):
    calls = []
    monkeypatch.setattr(streams, "read", lambda cursor: calls.append(cursor) or read(cursor))
    assert len(decode_stream(over(data * 20_000))) == 20_000
    assert len(calls) < 40  # one for each form, and one where a chunk ends inside an instruction


def test_caches_are_bounded():
    many = [("i64.const", number << 20) for number in range(2 * streams._REMEMBERED)]
    assert decode_stream(over(encode_stream(many))) == many
    assert len(streams._decoded) <= streams._REMEMBERED
    assert len(streams._encoded) <= streams._REMEMBERED
    long = ("br_table", tuple(range(100)))
    assert decode_stream(over(encode_stream([long]))) == [long]
    assert long not in streams._encoded
