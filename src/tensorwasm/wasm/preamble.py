"""What a module declares before its code: types, imports, functions, tables, memories, tags, globals and exports.

The scan takes microseconds and needs no engine, so a module that asks for too much is refused before any compiler sees
it. It is no validator: it reads the sections that it needs, checks the frame of the others, and leaves the rest to the
engine.

Source: Wasm core 2.0, 5.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.values import WASM_PAGE_BYTES
from tensorwasm.wasm import declarations, sections
from tensorwasm.wasm.binary import Cursor
from tensorwasm.wasm.declarations import Export, Import
from tensorwasm.wasm.proposals import refuse
from tensorwasm.wasm.types import VALUE_TYPES, FuncType, MemoryType, TableType

_EXCEPTIONS: Final = frozenset({"exnref", "nullexnref", "(ref exn)", "(ref noexn)"})


@dataclass(frozen=True, slots=True)
class Preamble:
    """Declarations of a module; in each attribute imported ones come first, and in counts they are included.

    Attributes:
        global_types: types of all globals.
        value_types: all that signatures name.
        has_start: whether instantiating runs a start function.
    """

    imports: tuple[Import, ...] = ()
    exports: tuple[Export, ...] = ()
    tables: tuple[TableType, ...] = ()
    memories: tuple[MemoryType, ...] = ()
    global_types: tuple[str, ...] = ()
    value_types: frozenset[str] = frozenset()
    function_count: int = 0
    tag_count: int = 0
    has_start: bool = False

    @property
    def memory_bytes(self) -> int:
        """Size of all memories at the start."""
        return sum(memory.minimum for memory in self.memories) * WASM_PAGE_BYTES

    @property
    def has_exceptions(self) -> bool:
        """Whether guests can throw, or keep exceptions outside of functions: an engine has a heap for them."""
        kept = {*self.global_types, *(table.element for table in self.tables)}
        return self.tag_count > 0 or not kept.isdisjoint(_EXCEPTIONS)


@dataclass(slots=True)
class _Scan:
    types: list[FuncType] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    tables: list[TableType] = field(default_factory=list)
    memories: list[MemoryType] = field(default_factory=list)
    global_types: list[str] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)

    def signature(self, cursor: Cursor, type_index: int) -> FuncType:
        if type_index >= len(self.types):
            raise cursor.fail(f"unknown type {type_index}")
        return self.types[type_index]

    def read_imports(self, cursor: Cursor) -> None:
        for _ in range(cursor.count(declarations.MAX_IMPORTS, "imports")):
            module, name, kind, of_type = declarations.read_import(cursor)
            signature = None
            if isinstance(of_type, int):
                (self.functions if kind == "func" else self.tags).append(of_type)
                signature = self.signature(cursor, of_type)
            elif isinstance(of_type, TableType):
                self.tables.append(of_type)
            elif isinstance(of_type, MemoryType):
                self.memories.append(of_type)
            else:
                self.global_types.append(of_type.value)
            self.imports.append(Import(module, name, kind, of_type, signature if kind == "func" else None))

    def read_exports(self, cursor: Cursor) -> None:
        for _ in range(cursor.count(declarations.MAX_EXPORTS, "exports")):
            name, kind, index = declarations.read_export(cursor)
            signature = None
            if kind == "func":
                if index >= len(self.functions):
                    raise cursor.fail(f"unknown function {index}")
                signature = self.signature(cursor, self.functions[index])
            self.exports.append(Export(name, kind, index, signature))


_SIMPLE_GLOBAL: Final = re.compile(
    rb"([\x7b-\x7f])[\x00\x01](?:[\x41\x42][\x80-\xff]{0,9}[\x00-\x7f]|\x43.{4}|\x44.{8})\x0b", re.DOTALL
)
"""A global of a number with a constant as its first value, as nearly all are."""


def _read_global_types(cursor: Cursor) -> list[str]:
    """Read the global section for the types alone, at the speed of a regular expression where globals are simple."""
    types = []
    match, data, end = _SIMPLE_GLOBAL.match, cursor.data, cursor.end
    for _ in range(cursor.count(declarations.MAX_GLOBALS, "globals")):
        found = match(data, cursor.offset, end)
        if found is not None:
            types.append(VALUE_TYPES[found[1][0]])
            cursor.offset = found.end()
        else:
            from tensorwasm.wasm.definitions import read_global  # noqa: PLC0415 - the table of instructions, rarely

            types.append(read_global(cursor).type.value)
    return types


_LISTS: Final = {
    sections.TYPE: ("types", declarations.TYPES.read),
    sections.FUNCTION: ("functions", declarations.FUNCTIONS.read),
    sections.TABLE: ("tables", declarations.TABLES.read),
    sections.MEMORY: ("memories", declarations.MEMORIES.read),
    sections.TAG: ("tags", declarations.TAGS.read),
    sections.GLOBAL: ("global_types", _read_global_types),
}
"""Sections whose items are appended to a list of `_Scan`."""
_READ: Final = frozenset({*_LISTS, sections.IMPORT, sections.EXPORT, sections.START})


def scan(wasm: bytes) -> Preamble:
    """Read a module's declarations.

    Args:
        wasm: a whole binary module.

    Raises:
        InvalidWasm: the bytes break the binary format in a section that is read; the message has the offset.
    """
    found = _Scan()
    has_start = False
    for section, _, cursor in sections.read_sections(wasm):
        match section:
            case _ if section in _LISTS:
                name, read = _LISTS[section]
                getattr(found, name).extend(read(cursor))
            case sections.IMPORT:
                found.read_imports(cursor)
            case sections.EXPORT:
                found.read_exports(cursor)
            case sections.START:
                cursor.unsigned()
                has_start = True
            case sections.CUSTOM:
                cursor.name()
        if section in _READ and not cursor.done():
            raise cursor.fail("section size mismatch")
    return Preamble(
        tuple(found.imports),
        tuple(found.exports),
        tuple(found.tables),
        tuple(found.memories),
        tuple(found.global_types),
        frozenset(kind for signature in found.types for kind in signature.params + signature.results),
        len(found.functions),
        len(found.tags),
        has_start,
    )


def require_enabled(declared: Preamble) -> None:
    """Check that a module declares nothing that belongs to a proposal that is off.

    What only its code uses is found by the engine (`tensorwasm.wasm.module.find_proposal` names it).

    Raises:
        UnsupportedProposal: it does; the message names the proposal.
    """
    if any(memory.is_64 for memory in declared.memories) or any(table.is_64 for table in declared.tables):
        raise refuse("memory64")
    if any(memory.shared for memory in declared.memories):
        raise refuse("threads")
    if len(declared.memories) > 1:
        raise refuse("multi-memory")
    elements = {table.element for table in declared.tables}
    if "externref" in declared.value_types.union(elements, declared.global_types):
        raise refuse("externref")


def longest_body(wasm: bytes) -> int:
    """Return the length in bytes of a module's longest function, its locals included; 0 without one.

    Raises:
        InvalidWasm: the bytes break the binary format before the last body.
    """
    longest = 0
    for section, _, cursor in sections.read_sections(wasm):
        if section == sections.CODE:
            for _ in range(cursor.count(declarations.MAX_FUNCTIONS, "function bodies")):
                length = cursor.unsigned()
                longest = max(longest, length)
                cursor.offset += length
    return longest
