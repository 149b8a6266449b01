from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.guest import typed_error_of
from oracles.wasm import fault_of, to_wasm, without_places
from strategies.wasm import damaged, modules, padded
from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm.binary import Cursor
from tensorwasm.wasm.definitions import ACTIVE, CodeEntry, DataSegment, ElementSegment
from tensorwasm.wasm.module import CustomSection, Module, decode, encode
from tensorwasm.wasm.preamble import scan
from tensorwasm.wasm.sections import HEADER, read_sections
from tensorwasm.wasm.types import FuncType, MemoryType

ROOT = Path(__file__).parents[3]
COMMITTED = sorted(path for folder in ("examples", "bench", "tests") for path in ROOT.glob(f"{folder}/**/*.wasm"))
TEXTS = {
    "every element segment": """(module (table 9 funcref) (table $u 9 externref) (func $f)
        (elem (i32.const 0) $f $f) (elem (table $u) (i32.const 1) externref (ref.null extern)) (elem func $f)
        (elem declare func $f) (elem (i32.const 0) funcref (ref.func $f) (ref.null func))
        (elem externref) (elem declare externref (ref.null extern)) (elem funcref (ref.null func)))""",
    "every data segment": """(module (memory 1) (memory $m 1 2) (data (i32.const 0) "a") (data "b")
        (data (memory $m) (i32.add (i32.const 1) (i32.const 2)) "c") (data ""))""",
    "64 bits": """(module (memory i64 1 0x1000000000000) (table i64 1 2 funcref) (data (i64.const 5) "x")
        (elem (i64.const 0) func) (func (param i64) local.get 0 i64.load offset=0x1_0000_0000_0000 drop))""",
    "imports of every kind": """(module (import "a" "b" (func (param v128))) (import "" "" (table 1 externref))
        (import "m" "ü" (memory 0)) (import "g" "h" (global (mut f64))) (export "f" (func 0)) (start 1) (func))""",
    "names and customs": """(module $m (@custom "one" (before type) "1") (type $t (func))
        (@custom "two" (after type) "22") (func $f (local $l i32)) (@custom "three" (after last) ""))""",
    "blocks": """(module (type $t (func (param i32) (result i32 i64))) (func (param i32) (result i32 i64)
        local.get 0 block (type $t) loop (type $t) i64.const 1 br 1 end end drop
        if (result f32) f32.const nan:0x200001 else f32.const -inf end drop i32.const 1 return_call 0))""",
    "empty": "(module)",
}


def canonical(module: Module) -> Module:
    """Forget how a module was encoded, and take apart and put together every body."""
    bodies = tuple(CodeEntry.build(body.local_runs(), body.instructions()) for body in module.bodies)
    return replace(module, kept=(), bodies=bodies)


@settings(max_examples=80)
@given(modules())
def test_a_valid_module_round_trips_in_its_shortest_form(module):
    wasm = encode(module)
    assert fault_of(wasm) is None
    decoded = decode(wasm)
    assert decoded == module
    assert encode(decoded) == encode(canonical(decoded)) == wasm


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_a_committed_module_is_encoded_to_the_same_bytes(path):
    wasm = path.read_bytes()
    decoded = decode(wasm)
    assert encode(decoded) == wasm
    shortest = encode(canonical(decoded))
    assert fault_of(shortest) == fault_of(wasm)
    assert decode(shortest) == canonical(decoded)


def test_there_are_committed_modules():
    assert len(COMMITTED) > 10


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_compiled_text_is_in_the_shortest_form(text):
    wasm = to_wasm(text)
    assert fault_of(wasm) is None
    assert encode(canonical(decode(wasm))) == encode(decode(wasm)) == wasm


def widened(wasm: bytes) -> bytes:
    """Pad the size of every section to five bytes, as object files have it."""
    out = bytearray(HEADER)
    for section, _, cursor in read_sections(wasm):
        contents = wasm[cursor.offset : cursor.end]
        out += bytes([section]) + padded(len(contents), 5) + contents
    return bytes(out)


@settings(max_examples=30)
@given(modules())
def test_padded_sections_keep_their_bytes_until_they_are_changed(module):
    wasm = widened(encode(module))
    decoded = decode(wasm)
    assert encode(decoded) == wasm
    longer = replace(decoded, types=(*decoded.types, FuncType(("i32",))))
    again = decode(encode(longer))
    assert again == longer
    assert [item.encoded for item in again.kept[1:] if item.section not in (0, 1)] == [
        item.encoded for item in decoded.kept[1:] if item.section not in (0, 1)
    ]


def test_an_unchanged_body_keeps_its_bytes_in_a_changed_section():
    wasm = to_wasm("(module (func) (func))")
    loose = CodeEntry(b"\x81\x80\x00\x83\x80\x00\x7f\x20\x80\x00\x1a\x0b")
    decoded = decode(encode(replace(decode(wasm), bodies=(CodeEntry.build([], []), loose))))
    changed = decode(encode(replace(decoded, bodies=(CodeEntry.build([], [("nop",)]), decoded.bodies[1]))))
    assert changed.bodies[1] == loose
    assert (loose.local_runs(), loose.instructions()) == (((3, "i32"),), [("local.get", 0), ("drop",)])


def test_custom_sections_keep_their_places():
    wasm = to_wasm(TEXTS["names and customs"])
    module = decode(wasm)
    assert [(item.name, item.after) for item in module.customs][:2] == [("one", 0), ("two", 1)]
    edited = replace(
        module, memories=(MemoryType(1, None),), customs=(*module.customs, CustomSection("last", b"!", 10))
    )
    assert [section for section, _, _ in read_sections(encode(edited))][:5] == [0, 1, 0, 3, 5]
    assert without_places(decode(encode(edited))) == without_places(edited)


def small_texts():
    return st.sampled_from([to_wasm(text) for text in TEXTS.values()])


def read_all(wasm: bytes) -> None:
    for body in decode(wasm).bodies:
        body.local_runs()
        body.instructions()


@settings(max_examples=150)
@given(damaged(small_texts()) | damaged(modules().map(encode)) | st.binary(max_size=60).map(HEADER.__add__))
def test_damaged_bytes_give_a_module_or_invalid_wasm(wasm):
    error = typed_error_of(read_all, wasm)
    if error is None:
        assert encode(decode(wasm)) == wasm
        assert without_places(decode(encode(replace(decode(wasm), kept=())))) == without_places(decode(wasm))
        return
    assert isinstance(error, InvalidWasm)
    assert int(re.search(r"\(at byte (\d+)\)", error.message).group(1)) <= len(wasm)


@settings(max_examples=80)
@given(damaged(small_texts()) | damaged(modules().map(encode)))
def test_modules_that_an_engine_accepts_are_never_refused(wasm):
    if fault_of(wasm) is None:
        read_all(wasm)
        assert fault_of(encode(canonical(decode(wasm)))) is None


@settings(max_examples=40)
@given(modules())
def test_the_preamble_agrees_with_the_decoded_module(module):
    found = scan(encode(module))
    assert found.memories == (*(item.type for item in module.imported("memory")), *module.memories)
    assert found.tables == (*(item.type for item in module.imported("table")), *module.tables)
    assert [(item.name, item.kind) for item in found.exports] == [(item.name, item.kind) for item in module.exports]
    assert found.has_start == (module.start is not None)
    kinds = [item.type for item in module.imported("global")] + [item.type for item in module.globals]
    assert found.global_types == tuple(kind.value for kind in kinds)
    assert found.function_count == len(module.imported("func")) + len(module.functions)
    assert found.tag_count == len(module.imported("tag")) + len(module.tags)


def section(number: int, body: bytes) -> bytes:
    return bytes([number]) + padded(len(body), 5) + body


HUGE = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (section(3, b"\x01\x00"), "function and code section have inconsistent lengths"),
        (section(12, b"\x02") + section(11, b"\x00"), "data count and data section have inconsistent lengths"),
        (section(13, b"\x01\x01\x00"), r"malformed tag attribute \(at byte 15\)"),
        (section(6, b"\x01\x7f\x02\x41\x00\x0b"), "malformed mutability"),
        (section(6, b"\x01\x7f\x00\x6a\x20\x00\x0b"), r"local.get in a constant expression \(at byte 18\)"),
        (section(6, b"\x01\x7f\x00\x02\x40\x0b\x0b"), "block in a constant expression"),
        (section(6, b"\x01\x7f\x00\x41\x00"), "unexpected end"),
        (section(9, b"\x01\x08"), "malformed element segment"),
        (section(9, b"\x01\x01\x01\x00"), "malformed element kind"),
        (section(9, b"\x01\x05\x7f\x00"), "unknown element type"),
        (section(11, b"\x01\x03"), "malformed data segment"),
        (section(11, b"\x01\x01" + HUGE), "unexpected end"),
        (section(5, b"\x01\x00" + padded(1 << 32, 5)), "integer too large"),
        (section(10, b"\x01" + HUGE), "unexpected end"),
        (section(8, b"\x00\x00"), "section size mismatch"),
        *((section(number, HUGE), r"\(at byte 14\)") for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11)),
    ],
)
def test_each_fault_is_named(body, message):
    with pytest.raises(InvalidWasm, match=message):
        decode(HEADER + body)


def test_four_billion_locals_are_decoded_at_once():
    module = decode(
        HEADER
        + section(1, b"\x01\x60\x00\x00")
        + section(3, b"\x01\x00")
        + section(10, b"\x01\x08\x01" + HUGE + b"\x7f\x0b")
    )
    assert module.bodies[0].local_runs() == (((1 << 32) - 1, "i32"),)
    assert CodeEntry.build(module.bodies[0].local_runs(), module.bodies[0].instructions()) == module.bodies[0]
    more = CodeEntry(b"\x02" + HUGE + b"\x7f\x01\x7f\x0b", at=30)
    for read in (more.local_runs, more.instructions):
        with pytest.raises(InvalidWasm, match=r"too many locals \(at byte 30\)"):
            read()


@pytest.mark.parametrize("raw", [b"\x00", b"\x00\x01", b"\x00\x0b\x01"])
def test_a_body_must_end_with_end(raw):
    with pytest.raises(InvalidWasm, match=rf"a function does not end \(at byte {40 + len(raw)}\)"):
        CodeEntry(raw, at=40).instructions()


@pytest.mark.parametrize("nesting", [200_000])
def test_nesting_does_not_recurse(nesting):
    body = CodeEntry(b"\x00" + b"\x02\x40" * nesting + b"\x0b" * (nesting + 1))
    assert len(body.instructions()) == 2 * nesting


def test_a_segment_without_a_short_form_takes_the_long_one():
    zero = (("i32.const", 0),)
    segments = (
        ElementSegment(ACTIVE, (0,), "funcref", 1, zero),
        ElementSegment(ACTIVE, (0, (("ref.null", "funcref"),)), offset=zero),
    )
    module = Module(elements=segments, data=(DataSegment(ACTIVE, b"x", 1, zero),))
    again = decode(encode(module))
    assert again.elements[0] == segments[0]
    assert again.elements[1].items == ((("ref.func", 0),), (("ref.null", "funcref"),))
    assert again.data == module.data


@settings(max_examples=200)
@given(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([32, 33, 64]))
def test_signed_leb128_reads_back(value, bits):
    data = encode_signed(value)
    cursor = Cursor(data, 0, len(data))
    if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        assert cursor.signed(bits) == value
        assert cursor.done()
    else:
        with pytest.raises(InvalidWasm):
            cursor.signed(bits)


def encode_signed(value: int) -> bytes:
    """Encode by the definition, in as many bytes as 64 bits can need, less what only repeats the sign."""
    digits = [value >> 7 * place & 0x7F for place in range(10)]
    while len(digits) > 1 and digits[-1] == (0x7F if digits[-2] & 0x40 else 0):
        digits.pop()
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])
