from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from oracles.guest import typed_error_of
from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm.binary import Cursor
from tensorwasm.wasm.preamble import Export, Import, Preamble, longest_body, scan
from tensorwasm.wasm.sections import HEADER
from tensorwasm.wasm.types import FuncType, GlobalType, MemoryType, TableType

FULL = bytes(
    wat2wasm(
        """(module $named
          (import "env" "f" (func (param i32 i64) (result f32)))
          (import "env" "t" (table 1 2 funcref))
          (import "env" "g" (global (mut i64)))
          (import "env" "m" (memory 2 8))
          (table 3 funcref)
          (func $a (export "a") (param v128) (result f64 i32) unreachable)
          (func $start)
          (global (export "g") i32 (i32.const 7))
          (export "memory" (memory 0))
          (export "imported" (func 0))
          (start $start)
          (elem (i32.const 0) $a)
          (data (i32.const 16) "hello"))"""
    )
)


def section(number: int, body: bytes) -> bytes:
    return bytes([number]) + leb(len(body)) + body


def leb(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def test_everything_declared_is_found():
    imported = FuncType(("i32", "i64"), ("f32",))
    assert scan(FULL) == Preamble(
        imports=(
            Import("env", "f", "func", 0, imported),
            Import("env", "t", "table", TableType(1, 2)),
            Import("env", "g", "global", GlobalType("i64", mutable=True)),
            Import("env", "m", "memory", MemoryType(2, 8)),
        ),
        exports=(
            Export("a", "func", 1, FuncType(("v128",), ("f64", "i32"))),
            Export("g", "global", 1),
            Export("memory", "memory", 0),
            Export("imported", "func", 0, imported),
        ),
        tables=(TableType(1, 2), TableType(3, None)),
        memories=(MemoryType(2, 8),),
        global_types=("i64", "i32"),
        value_types=frozenset({"i32", "i64", "f32", "f64", "v128"}),
        function_count=3,
        has_start=True,
    )
    assert scan(FULL).memory_bytes == 2 << 16


def test_the_smallest_module_declares_nothing():
    assert scan(HEADER) == Preamble()


def section_ends(wasm: bytes) -> set[int]:
    cursor = Cursor(wasm, 8, len(wasm))
    ends = {8}
    while not cursor.done():
        cursor.byte()
        cursor.take(cursor.unsigned())
        ends.add(cursor.offset)
    return ends


@pytest.mark.parametrize("length", sorted(set(range(len(FULL))) - section_ends(FULL)))
def test_a_module_cut_inside_a_section_is_refused(length):
    with pytest.raises(InvalidWasm, match=r"\(at byte \d+\)"):
        scan(FULL[:length])


@settings(deadline=None)
@given(st.binary(max_size=200), st.booleans())
@example(b"\x05\x03\x01\x00", True)
@example(b"\x01\x86\x80\x80\x80\x00\x01\x60\x00\x00", True)
@example(b"\x07\xff\xff\xff\xff\x0f", True)
def test_arbitrary_bytes_give_only_invalid_wasm(garbage, with_header):
    error = typed_error_of(scan, HEADER + garbage if with_header else garbage)
    assert error is None or "(at byte " in error.message


@settings(deadline=None)
@given(st.integers(0, len(FULL) - 1), st.integers(0, 255))
def test_one_wrong_byte_gives_a_preamble_or_invalid_wasm(position, value):
    damaged = bytearray(FULL)
    damaged[position] = value
    error = typed_error_of(scan, bytes(damaged))
    assert error is None or isinstance(error, InvalidWasm)


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.sampled_from([32, 64]))
def test_leb128_reads_back(value, bits):
    data = leb(value)
    cursor = Cursor(data, 0, len(data))
    if value >> bits:
        with pytest.raises(InvalidWasm):
            cursor.unsigned(bits)
    else:
        assert cursor.unsigned(bits) == value
        assert cursor.done()


@pytest.mark.parametrize("data", [b"\x80", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f", b""])
def test_a_bad_leb128_is_refused(data):
    with pytest.raises(InvalidWasm):
        Cursor(data, 0, len(data)).unsigned()


def test_a_padded_leb128_is_allowed():
    assert Cursor(b"\x83\x80\x80\x80\x00", 0, 5).unsigned() == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "it is empty"),
        (b"<html>", "magic bytes"),
        (b"\0asm\x0d\0\x01\0", "a component"),
        (b"\0asm\x02\0\0\0", "binary version"),
        (HEADER + section(1, b"\x01\x5f\x00"), "the gc proposal"),
        (HEADER + section(1, b"\x01\x5d\x00"), "the stack-switching proposal"),
        (HEADER + section(1, b"\x01\x21\x00"), "not a type"),
        (HEADER + section(5, b"\x01\x08\x00\x00"), "the custom-page-sizes proposal"),
        (HEADER + section(1, b"\x01\x60\x01\x11\x00"), "unknown value type 0x11"),
        (HEADER + section(1, b"\x01\x60\x00\x00\x00"), "section size mismatch"),
        (HEADER + section(1, leb(10**6)), "unexpected end"),
        (HEADER + section(2, b"\x01\x01m\x01n\x00\x05"), "unknown type 5"),
        (HEADER + section(2, b"\x01\x01m\x01n\x09"), "unknown kind 0x09"),
        (HEADER + section(2, b"\x01\x01m\x01n\x04\x01\x00"), "malformed tag attribute"),
        (HEADER + section(2, b"\x01\x01\xff"), "malformed UTF-8"),
        (HEADER + section(4, b"\x01\x70\x10\x00"), "unknown limits flags 0x10"),
        (HEADER + section(4, b"\x01\x7f\x00"), "unknown table element type"),
        (HEADER + section(4, b"\x01\x40\x00"), "the function-references proposal"),
        (HEADER + section(7, b"\x01\x01f\x00\x03"), "unknown function 3"),
        (HEADER + section(5, b"\x01\x00\x01") + section(5, b"\x01\x00\x01"), "unexpected section"),
        (HEADER + section(5, b"\x01\x00\x01") + section(4, b"\x00"), "unexpected section"),
        (HEADER + section(14, b""), "malformed section id"),
        (HEADER + b"\x05\x7f", "unexpected end"),
    ],
)
def test_each_fault_is_named(body, message):
    with pytest.raises(InvalidWasm, match=message):
        scan(body)


def test_a_64_bit_and_shared_memory_is_read():
    assert scan(HEADER + section(5, b"\x01\x07\x01" + leb(2**40))).memories == (
        MemoryType(1, 2**40, shared=True, is_64=True),
    )


def test_custom_sections_are_skipped_anywhere():
    custom = section(0, b"\x03abc" + bytes(100))
    assert scan(HEADER + custom + section(5, b"\x01\x00\x01") + custom + custom).memory_bytes == 1 << 16


def test_a_huge_count_is_refused_at_once():
    with pytest.raises(InvalidWasm):
        scan(HEADER + section(3, leb(2**32 - 1)))


@given(st.lists(st.integers(0, 300), max_size=5))
def test_the_longest_function_is_measured_with_its_locals(lengths):
    text = " ".join(f"(func {'nop ' * length})" for length in lengths)
    # Each has the number of its groups of locals, and its end.
    assert longest_body(bytes(wat2wasm(f"(module {text})"))) == max((length + 2 for length in lengths), default=0)


@pytest.mark.parametrize("body", [b"\x01", b"\x01\x05", b"\x02\xff\xff\xff\xff\x0f\x00", b"\xff\xff\xff\xff\x0f"])
def test_wrong_body_lengths_are_refused_or_measured_without_reading(body):
    typed_error_of(longest_body, HEADER + section(10, body))
