"""What a module declares before its code: imports and exports, and the vectors of types; read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from tensorwasm.wasm.binary import Cursor, name, unsigned, vector
from tensorwasm.wasm.types import (
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
