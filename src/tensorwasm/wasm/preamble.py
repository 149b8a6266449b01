"""What a module declares before its code: types, imports, functions, tables, memories, tags, globals and exports.

The scan takes microseconds and needs no engine, so a module that asks for too much is refused before any compiler sees
it. It is no validator: it reads the sections that it needs, checks the frame of the others, and leaves the rest to the
engine.

Source: Wasm core 2.0, 5.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from tensorwasm.values import WASM_PAGE_BYTES
from tensorwasm.wasm import sections
from tensorwasm.wasm.binary import Cursor, name, unsigned, vector
from tensorwasm.wasm.types import (
    VALUE_TYPES,
    FuncType,
    GlobalType,
    MemoryType,
    TableType,
    read_func_type,
    read_global_type,
    read_memory_type,
    read_table_type,
    read_tag_type,
    refuse,
    write_func_type,
    write_global_type,
    write_memory_type,
    write_table_type,
    write_tag_type,
)

MAX_TYPES: Final = 100_000
MAX_IMPORTS: Final = 100_000
MAX_EXPORTS: Final = 100_000
MAX_FUNCTIONS: Final = 1_000_000
MAX_TABLES: Final = 100
MAX_MEMORIES: Final = 100
MAX_GLOBALS: Final = 1_000_000
MAX_TAGS: Final = 1_000_000

ImportType = int | TableType | MemoryType | GlobalType
"""What an import is: a function or a tag by the index of its type, or the type of anything else."""


class BinaryFormat(NamedTuple):
    """How a value is read, and how it is written in its shortest form."""

    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]


def vector_format(
    read: Callable[[Cursor], Any], write: Callable[[Any], bytes], maximum: int, what: str
) -> BinaryFormat:
    """Return the format of a section that is a vector; limit and name of its items are those of `Cursor.count`."""
    return BinaryFormat(
        lambda cursor: cursor.vector(read, maximum, what), lambda items: vector([write(item) for item in items])
    )


_KINDS: Final = {
    "func": BinaryFormat(Cursor.unsigned, unsigned),
    "table": BinaryFormat(read_table_type, write_table_type),
    "memory": BinaryFormat(read_memory_type, write_memory_type),
    "global": BinaryFormat(read_global_type, write_global_type),
    "tag": BinaryFormat(read_tag_type, write_tag_type),
}
"""What can be imported and exported, in the order of its codes, and the format of its type."""
_KIND_NAMES: Final = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class Import:
    """One import.

    Attributes:
        kind: ``func``, ``table``, ``memory``, ``global`` or ``tag``.
        type: of this kind.
        signature: of a function that `tensorwasm.wasm.preamble.scan` found, else None.
    """

    module: str
    name: str
    kind: str
    type: ImportType
    signature: FuncType | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """One export: as an `Import`, but with an index into the index space of its kind."""

    name: str
    kind: str
    index: int
    signature: FuncType | None = None


def _read_kind(cursor: Cursor) -> str:
    code = cursor.byte()
    if code >= len(_KIND_NAMES):
        raise cursor.fail(f"unknown kind {code:#04x}", cursor.offset - 1)
    return _KIND_NAMES[code]


def _write_kind(kind: str) -> bytes:
    return bytes([_KIND_NAMES.index(kind)])


def read_import(cursor: Cursor) -> tuple[str, str, str, ImportType]:
    """Read the first four fields of an `Import`."""
    module, field, kind = cursor.name(), cursor.name(), _read_kind(cursor)
    return module, field, kind, _KINDS[kind].read(cursor)


def _write_import(item: Import) -> bytes:
    return name(item.module) + name(item.name) + _write_kind(item.kind) + _KINDS[item.kind].write(item.type)


def read_export(cursor: Cursor) -> tuple[str, str, int]:
    """Read the first three fields of an `Export`."""
    return cursor.name(), _read_kind(cursor), cursor.unsigned()


def _write_export(item: Export) -> bytes:
    return name(item.name) + _write_kind(item.kind) + unsigned(item.index)


TYPES: Final = vector_format(read_func_type, write_func_type, MAX_TYPES, "types")
IMPORTS: Final = vector_format(lambda cursor: Import(*read_import(cursor)), _write_import, MAX_IMPORTS, "imports")
FUNCTIONS: Final = vector_format(Cursor.unsigned, unsigned, MAX_FUNCTIONS, "functions")._replace(
    read=partial(Cursor.indices, maximum=MAX_FUNCTIONS, what="functions")
)
TABLES: Final = vector_format(read_table_type, write_table_type, MAX_TABLES, "tables")
MEMORIES: Final = vector_format(read_memory_type, write_memory_type, MAX_MEMORIES, "memories")
TAGS: Final = vector_format(read_tag_type, write_tag_type, MAX_TAGS, "tags")
EXPORTS: Final = vector_format(lambda cursor: Export(*read_export(cursor)), _write_export, MAX_EXPORTS, "exports")


# --------------------------------------------------------------------------------------------------------- the preamble

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
    """What was found so far; ``types_of`` are the types of everything imported or defined, of globals their values'."""

    types: list[FuncType] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    types_of: dict[str, list[Any]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})

    def signature(self, cursor: Cursor, type_index: int) -> FuncType:
        if type_index >= len(self.types):
            raise cursor.fail(f"unknown type {type_index}")
        return self.types[type_index]

    def read_imports(self, cursor: Cursor) -> None:
        for _ in range(cursor.count(MAX_IMPORTS, "imports")):
            module, name, kind, of_type = read_import(cursor)
            self.types_of[kind].append(of_type.value if isinstance(of_type, GlobalType) else of_type)
            signature = self.signature(cursor, of_type) if isinstance(of_type, int) else None
            self.imports.append(Import(module, name, kind, of_type, signature if kind == "func" else None))

    def read_exports(self, cursor: Cursor) -> None:
        for _ in range(cursor.count(MAX_EXPORTS, "exports")):
            name, kind, index = read_export(cursor)
            signature = None
            if kind == "func":
                if index >= len(self.types_of["func"]):
                    raise cursor.fail(f"unknown function {index}")
                signature = self.signature(cursor, self.types_of["func"][index])
            self.exports.append(Export(name, kind, index, signature))


_SIMPLE_GLOBAL: Final = re.compile(
    rb"([\x7b-\x7f])[\x00\x01](?:[\x41\x42][\x80-\xff]{0,9}[\x00-\x7f]|\x43.{4}|\x44.{8})\x0b", re.DOTALL
)
"""A global of a number with a constant as its first value, as nearly all are."""


def _read_global_types(cursor: Cursor) -> list[str]:
    """Read the global section for the types alone, at the speed of a regular expression where globals are simple."""
    types = []
    match, data, end = _SIMPLE_GLOBAL.match, cursor.data, cursor.end
    for _ in range(cursor.count(MAX_GLOBALS, "globals")):
        found = match(data, cursor.offset, end)
        if found is not None:
            types.append(VALUE_TYPES[found[1][0]])
            cursor.offset = found.end()
        else:
            from tensorwasm.wasm.definitions import read_global  # noqa: PLC0415 - the table of instructions, rarely

            types.append(read_global(cursor).type.value)
    return types


_LISTS: Final = {
    sections.FUNCTION: ("func", FUNCTIONS.read),
    sections.TABLE: ("table", TABLES.read),
    sections.MEMORY: ("memory", MEMORIES.read),
    sections.TAG: ("tag", TAGS.read),
    sections.GLOBAL: ("global", _read_global_types),
}
"""Sections of the types of what is defined, by their kind."""
_READ: Final = frozenset({*_LISTS, sections.TYPE, sections.IMPORT, sections.EXPORT, sections.START})


def declared_bytes(wasm: bytes) -> int:
    """Return the length of the sections that `scan` reads, which its time depends on; raise as it does."""
    return sum(cursor.end - cursor.offset for section, _, cursor in sections.read_sections(wasm) if section in _READ)


def scan(wasm: bytes) -> Preamble:
    """Read a module's declarations.

    Args:
        wasm: a whole binary module.

    Raises:
        InvalidWasm: the bytes break the binary format in a section that is read; the message has the offset.
        ModuleTooLarge: it declares more of something than is read.
    """
    found = _Scan()
    has_start = False
    for section, _, cursor in sections.read_sections(wasm):
        match section:
            case _ if section in _LISTS:
                kind, read = _LISTS[section]
                found.types_of[kind] += read(cursor)
            case sections.TYPE:
                found.types += TYPES.read(cursor)
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
        tuple(found.types_of["table"]),
        tuple(found.types_of["memory"]),
        tuple(found.types_of["global"]),
        frozenset(kind for signature in found.types for kind in signature.params + signature.results),
        len(found.types_of["func"]),
        len(found.types_of["tag"]),
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
    if "externref" in {*declared.value_types, *declared.global_types, *(table.element for table in declared.tables)}:
        raise refuse("externref")


def longest_body(wasm: bytes) -> int:
    """Return the length in bytes of a module's longest function, its locals included; 0 without one.

    Raises:
        InvalidWasm: the bytes break the binary format before the last body.
    """
    longest = 0
    for section, _, cursor in sections.read_sections(wasm):
        if section == sections.CODE:
            for _ in range(cursor.count(MAX_FUNCTIONS, "function bodies")):
                length = cursor.unsigned()
                longest = max(longest, length)
                cursor.offset += length
    return longest
