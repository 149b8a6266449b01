"""What a module declares before its code: imports and exports, and the vectors of types; read and written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tensorwasm.wasm.cursor import Cursor
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
    write_func_type,
    write_global_type,
    write_memory_type,
    write_table_type,
    write_tag_type,
)
from tensorwasm.wasm.writing import name, unsigned, vector

_T = TypeVar("_T")

MAX_GLOBALS: Final = 1_000_000

KINDS: Final = ("func", "table", "memory", "global", "tag")
MAX_TYPES: Final = 100_000
MAX_IMPORTS: Final = 100_000
MAX_EXPORTS: Final = 100_000
MAX_FUNCTIONS: Final = 1_000_000
MAX_TABLES: Final = 100
MAX_MEMORIES: Final = 100
MAX_TAGS: Final = 1_000_000

ImportType = int | TableType | MemoryType | GlobalType
"""What an import is: a function or a tag by the index of its type, or the type of anything else."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import: two names, one of `KINDS`, and the type that this kind has."""

    module: str
    name: str
    kind: str
    type: ImportType


@dataclass(frozen=True, slots=True)
class Export:
    """One export: its name, one of `KINDS`, and an index into the index space of that kind."""

    name: str
    kind: str
    index: int


def read_vector(cursor: Cursor, read: Callable[[Cursor], _T], maximum: int, what: str) -> tuple[_T, ...]:
    """Read a vector of at most ``maximum`` items.

    Raises:
        InvalidWasm: there are more, or one of them is malformed.
    """
    return tuple([read(cursor) for _ in range(cursor.count(maximum, what))])


def read_types(cursor: Cursor) -> tuple[FuncType, ...]:
    """Read the type section."""
    return read_vector(cursor, read_func_type, MAX_TYPES, "types")


def write_types(types: tuple[FuncType, ...]) -> bytes:
    """Encode the type section."""
    return vector([write_func_type(signature) for signature in types])


def read_kind(cursor: Cursor) -> str:
    """Read the byte that says what is imported or exported."""
    code = cursor.byte()
    if code >= len(KINDS):
        raise cursor.fail(f"unknown kind {code:#04x}", cursor.offset - 1)
    return KINDS[code]


def iterate_imports(cursor: Cursor) -> Iterator[Import]:
    """Read the import section one by one: after each, the cursor is behind it."""
    for _ in range(cursor.count(MAX_IMPORTS, "imports")):
        module, field = cursor.name(), cursor.name()
        kind = read_kind(cursor)
        yield Import(module, field, kind, _READ_IMPORT[kind](cursor))


def read_imports(cursor: Cursor) -> tuple[Import, ...]:
    """Read the import section."""
    return tuple(iterate_imports(cursor))


def write_imports(imports: tuple[Import, ...]) -> bytes:
    """Encode the import section."""
    return vector([_write_import(item) for item in imports])


def _write_import(item: Import) -> bytes:
    kind = bytes([KINDS.index(item.kind)])
    return name(item.module) + name(item.name) + kind + _WRITE_IMPORT[item.kind](item.type)


_READ_IMPORT: Final[dict[str, Callable[[Cursor], ImportType]]] = {
    "func": Cursor.unsigned,
    "table": read_table_type,
    "memory": read_memory_type,
    "global": read_global_type,
    "tag": read_tag_type,
}
_WRITE_IMPORT: Final[dict[str, Callable[[Any], bytes]]] = {
    "func": unsigned,
    "table": write_table_type,
    "memory": write_memory_type,
    "global": write_global_type,
    "tag": write_tag_type,
}


def read_functions(cursor: Cursor) -> tuple[int, ...]:
    """Read the function section: the index of each one's type."""
    return cursor.indices(MAX_FUNCTIONS, "functions")


def write_functions(functions: tuple[int, ...]) -> bytes:
    """Encode the function section."""
    return vector([unsigned(index) for index in functions])


def read_tables(cursor: Cursor) -> tuple[TableType, ...]:
    """Read the table section."""
    return read_vector(cursor, read_table_type, MAX_TABLES, "tables")


def write_tables(tables: tuple[TableType, ...]) -> bytes:
    """Encode the table section."""
    return vector([write_table_type(table) for table in tables])


def read_memories(cursor: Cursor) -> tuple[MemoryType, ...]:
    """Read the memory section."""
    return read_vector(cursor, read_memory_type, MAX_MEMORIES, "memories")


def write_memories(memories: tuple[MemoryType, ...]) -> bytes:
    """Encode the memory section."""
    return vector([write_memory_type(memory) for memory in memories])


def read_tags(cursor: Cursor) -> tuple[int, ...]:
    """Read the tag section: the index of each one's signature."""
    return read_vector(cursor, read_tag_type, MAX_TAGS, "tags")


def write_tags(tags: tuple[int, ...]) -> bytes:
    """Encode the tag section."""
    return vector([write_tag_type(signature) for signature in tags])


def iterate_exports(cursor: Cursor) -> Iterator[Export]:
    """Read the export section one by one: after each, the cursor is behind it."""
    for _ in range(cursor.count(MAX_EXPORTS, "exports")):
        yield Export(cursor.name(), read_kind(cursor), cursor.unsigned())


def read_exports(cursor: Cursor) -> tuple[Export, ...]:
    """Read the export section."""
    return tuple(iterate_exports(cursor))


def write_exports(exports: tuple[Export, ...]) -> bytes:
    """Encode the export section."""
    return vector([name(item.name) + bytes([KINDS.index(item.kind)]) + unsigned(item.index) for item in exports])


_GLOBAL_BYTES: Final = re.compile(
    rb"([\x7b-\x7f])[\x00\x01](?:[\x41\x42][\x80-\xff]{0,9}[\x00-\x7f]|\x43.{4}|\x44.{8})\x0b", re.DOTALL
)
"""A global of a number with a constant as its first value, which nearly all are."""


def read_global_types(cursor: Cursor) -> list[str]:
    """Read the global section for the types alone, at the speed of a regular expression where globals are simple.

    Raises:
        InvalidWasm: it is malformed where this looks.
    """
    types = []
    match, data, end = _GLOBAL_BYTES.match, cursor.data, cursor.end
    for _ in range(cursor.count(MAX_GLOBALS, "globals")):
        found = match(data, cursor.offset, end)
        if found is not None:
            types.append(VALUE_TYPES[found[1][0]])
            cursor.offset = found.end()
        else:
            from tensorwasm.wasm.definitions import read_global  # noqa: PLC0415 - the table of instructions, rarely

            types.append(read_global(cursor).type.value)
    return types
