"""Source lines of a module's code, from the DWARF line tables that compilers leave in custom sections.

Addresses in them count from the start of the code section's contents. The tables are untrusted input: the reader is
bounded in bytes and time, makes one pass, stores nothing, and treats file names as plain text.

General readers trust their input: pyelftools 0.33 counts to 2**63 on a header of 37 bytes that announces that many
directories without a format; it reads no byte on the way, so nothing ends it.

Source: WebAssembly tool conventions, Dwarf.md; DWARF 5, 6.2; DWARF 4, 6.2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tensorwasm.values import MIB
from tensorwasm.wasm import sections
from tensorwasm.wasm.binary import Cursor
from tensorwasm.watch import Watch

MAX_SECTION_BYTES: Final = 8 * MIB
"""Largest line table, and largest table of its strings, that is read."""

_MAX_FILES: Final = 8192
_MAX_TEXT: Final = 256  # bytes; file tables may name one long string again and again
_PATH, _DIRECTORY = 1, 2  # DW_LNCT_*
_FIXED_FORMS: Final = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}  # DW_FORM_data*: sizes in bytes
_NUMBER_MASK: Final = (1 << 32) - 1
_REMOVED: Final = frozenset({0, _NUMBER_MASK - 1, _NUMBER_MASK})
"""Addresses of functions that the linker has removed."""


class SourceLine(NamedTuple):
    """A line of a guest's source: its file, as the compiler wrote it, and its number, from 1."""

    file: str
    line: int


class LineSections(NamedTuple):
    """The offset of the code section's contents, and the contents of ``.debug_line`` and ``.debug_line_str``."""

    code_offset: int
    lines: bytes
    strings: bytes


def find_sections(wasm: bytes) -> LineSections | None:
    """Return the sections that lines are read from; None without them, or if they are too large.

    Raises:
        InvalidWasm: the bytes break the binary format.
    """
    code_offset, found = 0, {".debug_line": b"", ".debug_line_str": b""}
    for section, _, cursor in sections.read_sections(wasm):
        if section == sections.CODE:
            code_offset = cursor.offset
        if section == sections.CUSTOM and (name := cursor.name()) in found:
            size = cursor.end - cursor.offset
            if size > MAX_SECTION_BYTES:
                return None
            found[name] = cursor.take(size)
    if not code_offset or not found[".debug_line"]:
        return None
    return LineSections(code_offset, found[".debug_line"], found[".debug_line_str"])


def find_lines(table: LineSections, offsets: Sequence[int], watch: Watch) -> dict[int, SourceLine]:
    """Return the source lines of instructions, by their offset in the module, as far as the table has them.

    Args:
        table: from `find_sections`.
        offsets: of the instructions, in bytes.
        watch: ends the work.

    Raises:
        InvalidWasm: the table is malformed, or of a kind that is not supported.
        InvokeTimeout: the watch's deadline has passed.
    """
    wanted = sorted({offset - table.code_offset for offset in offsets})
    found: dict[int, SourceLine] = {}
    cursor = Cursor(table.lines, 0, len(table.lines))
    while not cursor.done() and len(found) < len(wanted):
        watch.look()
        unit = _read_unit(cursor)
        header = _read_header(unit, table.strings, watch)
        for start, end, file, line in _ranges(unit, header, watch):
            for address in wanted[bisect_left(wanted, start) : bisect_left(wanted, end)]:
                found.setdefault(address, SourceLine(header.name(file), line))
    return {address + table.code_offset: line for address, line in found.items()}


@dataclass(slots=True)
class _Header:
    """The parameters of a unit's line program.

    Attributes:
        least_length: bytes of the shortest instruction.
        line_base: smallest value that a special opcode adds to the line.
        line_range: number of different values that one can add.
        lengths: number of operands of each standard opcode, from opcode 1.
        files: name and index of the directory.
    """

    least_length: int
    line_base: int
    line_range: int
    lengths: bytes
    directories: list[str]
    files: list[tuple[str, int]]

    def name(self, file: int) -> str:
        """Return a file's name with its directory, unless that is the one in which the compiler ran."""
        if file >= len(self.files):
            return "?"
        name, directory = self.files[file]
        if not directory or directory >= len(self.directories) or name.startswith("/"):
            return name
        return f"{self.directories[directory]}/{name}"


def _number(cursor: Cursor, size: int) -> int:
    return int.from_bytes(cursor.take(size), "little")


def _text(cursor: Cursor) -> str:
    end = cursor.data.find(b"\0", cursor.offset, cursor.end)
    if end < 0:
        raise cursor.fail("a string without an end")
    text = cursor.data[cursor.offset : min(end, cursor.offset + _MAX_TEXT)].decode("utf-8", "replace")
    cursor.offset = end + 1
    return text


def _read_unit(cursor: Cursor) -> Cursor:
    """Return a cursor over the next unit, and move the given one behind it."""
    size = _number(cursor, 4)
    start = cursor.offset
    cursor.take(size)  # no section is as long as 0xffffffff, which marks the 64-bit format
    return Cursor(cursor.data, start, start + size)


def _read_header(unit: Cursor, strings: bytes, watch: Watch) -> _Header:
    """Read a unit's header, and move its cursor to the program."""
    version = _number(unit, 2)
    if not 2 <= version <= 5:
        raise unit.fail(f"a line table of version {version}")
    if version == 5:
        unit.take(2)
    size = _number(unit, 4)
    program = unit.offset + size
    least_length = unit.byte()
    if version >= 4:
        unit.byte()
    unit.byte()
    line_base, line_range, opcode_base = unit.byte(), unit.byte(), unit.byte()
    if not line_range or not opcode_base:
        raise unit.fail("a line table without lines or opcodes")
    lengths = unit.take(opcode_base - 1)
    if version == 5:
        directories = [name for name, _ in _read_entries(unit, strings, watch)]
        files = list(_read_entries(unit, strings, watch))
    else:
        directories = ["", *_read_names(unit, watch)]
        files = [("?", 0), *_read_old_files(unit, watch)]
    if program > unit.end:
        raise unit.fail("a header behind its unit")
    unit.offset = program
    return _Header(least_length, line_base - (line_base >> 7 << 8), line_range, lengths, directories, files)


def _read_names(unit: Cursor, watch: Watch) -> Iterator[str]:
    for _ in range(_MAX_FILES):
        watch.step()
        name = _text(unit)
        if not name:
            return
        yield name
    raise unit.fail("too many files")


def _read_old_files(unit: Cursor, watch: Watch) -> Iterator[tuple[str, int]]:
    for name in _read_names(unit, watch):
        directory, _, _ = (unit.unsigned(64) for _ in range(3))
        yield name, directory


def _read_entries(unit: Cursor, strings: bytes, watch: Watch) -> Iterator[tuple[str, int]]:
    """Yield the name and the directory of each entry of a table of DWARF 5."""
    formats = [(unit.unsigned(64), unit.unsigned(64)) for _ in range(unit.byte())]
    count = unit.unsigned(64)
    if count > _MAX_FILES or (count and not formats):
        raise unit.fail("too many files")
    for _ in range(count):
        name, directory = "?", 0
        for content, form in formats:
            watch.step()
            value = _read_form(unit, form, strings)
            if content == _PATH and isinstance(value, str):
                name = value
            elif content == _DIRECTORY and isinstance(value, int):
                directory = value
        yield name, directory


def _read_form(unit: Cursor, form: int, strings: bytes) -> str | int:
    match form:
        case 0x08:  # DW_FORM_string
            return _text(unit)
        case 0x1F:  # DW_FORM_line_strp
            return _text(Cursor(strings, _number(unit, 4), len(strings)))
        case 0x0F:  # DW_FORM_udata
            return unit.unsigned(64)
        case _ if form in _FIXED_FORMS:
            return _number(unit, _FIXED_FORMS[form])
    raise unit.fail(f"a file in form {form:#x}")


@dataclass(slots=True)
class _Machine:
    """The registers of a line program, and whether the linker has removed the function of the current sequence."""

    address: int = 0
    file: int = 1
    line: int = 1
    ends: bool = False
    removed: bool = True

    def step(self, unit: Cursor, header: _Header) -> bool:
        """Run one instruction; return whether it completes a row."""
        opcode = unit.byte()
        if opcode > len(header.lengths):
            address, line = divmod(opcode - len(header.lengths) - 1, header.line_range)
            self._advance(address * header.least_length)
            self.line = (self.line + header.line_base + line) & _NUMBER_MASK
            return True
        match opcode:
            case 0:
                return self._step_extended(unit)
            case 1:  # DW_LNS_copy
                return True
            case 2:  # DW_LNS_advance_pc
                self._advance(unit.unsigned(64) * header.least_length)
            case 3:  # DW_LNS_advance_line
                self.line = (self.line + unit.signed(64)) & _NUMBER_MASK
            case 4:  # DW_LNS_set_file
                self.file = unit.unsigned(64)
            case 8:  # DW_LNS_const_add_pc
                self._advance((254 - len(header.lengths)) // header.line_range * header.least_length)
            case 9:  # DW_LNS_fixed_advance_pc
                self._advance(_number(unit, 2))
            case _:
                for _ in range(header.lengths[opcode - 1]):
                    unit.unsigned(64)
        return False

    def _step_extended(self, unit: Cursor) -> bool:
        size = unit.unsigned(64)
        end = unit.offset + size
        if not size or end > unit.end:
            raise unit.fail("an instruction behind its unit")
        opcode = unit.byte()
        if opcode == 2:
            self.address = _number(unit, end - unit.offset) & _NUMBER_MASK
            self.removed = self.address in _REMOVED
        unit.offset = end
        self.ends = opcode == 1
        return self.ends

    def _advance(self, length: int) -> None:
        self.address = (self.address + length) & _NUMBER_MASK


def _ranges(unit: Cursor, header: _Header, watch: Watch) -> Iterator[tuple[int, int, int, int]]:
    """Yield the start and end address of each row's code, its file and its line."""
    machine = _Machine()
    start, file, line, open_row = 0, 0, 0, False
    while not unit.done():
        watch.step()
        if not machine.step(unit, header):
            continue
        if open_row and line and start < machine.address:
            yield start, machine.address, file, line
        start, file, line = machine.address, machine.file, machine.line
        open_row = not machine.ends and not machine.removed
        if machine.ends:
            machine = _Machine()
