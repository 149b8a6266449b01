import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import Frame, InvalidWasm, InvokeTimeout
from tensorwasm.guest.engine.traps import MAX_FILE, SourceLines
from tensorwasm.values import NEVER, Deadline
from tensorwasm.wasm.line_table import LineSections, find_lines, find_sections
from tensorwasm.watch import Watch

GUEST = Path("tests/golden/wasm/guests/traps.wasm").read_bytes()
SECTIONS = find_sections(GUEST)
CODE = range(SECTIONS.code_offset, SECTIONS.code_offset + 0x1F)


def watch(deadline=NEVER):
    return Watch(deadline, "while lines were read")


def test_lines_are_those_of_the_source():
    found = find_lines(SECTIONS, CODE, watch())
    assert {line.file for line in found.values()} == {"tests/golden/wasm/guests/traps.c"}
    source = Path("tests/golden/wasm/guests/traps.c").read_text().splitlines()
    assert {source[line.line - 1].strip() for line in found.values()} >= {
        "return whole / wanted;",
        "first += part_of(wanted);",
    }


def table(version, head, program):
    """Return a line table of one unit: opcodes from 13 on are special, lines from -5 on, 14 of them."""
    sizes = bytes((0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1))
    common = b"\x01" + (b"\x01" if version >= 4 else b"") + b"\x01\xfb\x0e\x0d" + sizes + head
    body = struct.pack("<H", version) + (b"\x04\0" if version == 5 else b"") + struct.pack("<I", len(common)) + common
    return struct.pack("<I", len(body + program)) + body + program


PROGRAM = b"\0\x05\x02" + struct.pack("<I", 8) + b"\x03\x04\x01\x02\x04\x03\x02\x01\x02\x04\0\x01\x01"
"""From address 8 on line 5, from 12 on line 7, and the end at 16."""

OLD = b"src\0\0a.c\0\x01\0\0\0"


@pytest.mark.parametrize("version", [2, 3, 4])
def test_tables_before_dwarf_5_name_files_from_1(version):
    sections = LineSections(100, table(version, OLD, PROGRAM), b"")
    found = find_lines(sections, range(90, 130), watch())
    assert {offset: tuple(line) for offset, line in found.items()} == {
        offset: ("src/a.c", 5 if offset < 112 else 7) for offset in range(108, 116)
    }


def test_functions_removed_by_the_linker_have_no_lines():
    for address in (0, 0xFFFFFFFF, 0xFFFFFFFE):
        program = b"\0\x05\x02" + struct.pack("<I", address) + PROGRAM[7:]
        assert find_lines(LineSections(100, table(4, OLD, program), b""), range(90, 130), watch()) == {}


@pytest.mark.parametrize(
    "head",
    [
        b"\0" + b"\xff" * 9 + b"\x01",  # so many directories that have no format, and so no bytes
        b"\x01\x01\x08" + b"\xff" * 9 + b"\x01",
        b"\x01\x01\x1f\x01\xff\xff\xff\xff",
        b"",
    ],
)
def test_headers_that_announce_missing_bytes_are_refused(head):
    with pytest.raises(InvalidWasm):
        find_lines(LineSections(100, table(5, head, b""), b""), [108], watch())


def test_a_deadline_ends_the_reading_of_a_table():
    with pytest.raises(InvokeTimeout):
        find_lines(LineSections(100, table(4, OLD, b"\x01" * 100_000), b""), [108], watch(Deadline.after(0)))


@given(
    st.binary(max_size=200)
    | st.builds(table, st.integers(2, 5), st.binary(max_size=60), st.binary(max_size=60))
    | st.builds(lambda program: table(4, OLD, program), st.binary(max_size=200))
    | st.builds(
        lambda at, byte: SECTIONS.lines[:at] + bytes((byte,)) + SECTIONS.lines[at + 1 :],
        st.integers(0, len(SECTIONS.lines) - 1),
        st.integers(0, 255),
    ),
    st.just(SECTIONS.strings) | st.binary(max_size=40),
)
def test_any_table_leaves_the_stack_of_a_trap_readable(lines, strings):
    stack = tuple(Frame(0, "f", offset) for offset in CODE)
    located = SourceLines(LineSections(SECTIONS.code_offset, lines, strings)).add_to(stack)
    assert [frame[:3] for frame in located] == [frame[:3] for frame in stack]
    assert all(frame.file.isprintable() and len(frame.file) <= MAX_FILE for frame in located)


def test_file_names_are_printable_and_bounded():
    head = b"\0" + b"\x1b[2J" + b"x" * 100_000 + b"\0\0\0\0\0"
    (frame,) = SourceLines(LineSections(100, table(4, head, PROGRAM), b"")).add_to((Frame(0, "f", 108),))
    assert frame.line == 5
    assert frame.file.isprintable()
    assert len(frame.file) <= MAX_FILE


def test_a_module_without_time_left_has_no_lines():
    lines = SourceLines(LineSections(100, table(4, OLD, PROGRAM), b""))
    lines._left_s = 0
    assert lines.add_to((Frame(0, "f", 108),)) == (Frame(0, "f", 108),)


@given(st.binary(max_size=100))
def test_a_module_with_broken_sections_has_no_lines(data):
    assert SourceLines.of(b"\0asm\1\0\0\0" + data) is None
