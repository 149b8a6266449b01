"""What a module declares before its code: types, imports, functions, tables, memories and exports.

The scan costs microseconds, needs no engine and runs before any compiler sees the bytes, so a module that asks for too
much is refused for nothing. It is not a validator: it reads what it needs exactly, checks the frame around the rest,
and leaves the final word to the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import InvalidWasm
from tensorwasm.values import WASM_PAGE_BYTES
from tensorwasm.wasm.cursor import Cursor

HEADER: Final = b"\0asm\x01\0\0\0"

_MAX_TYPES: Final = 100_000
_MAX_IMPORTS: Final = 100_000
_MAX_EXPORTS: Final = 100_000
_MAX_FUNCTIONS: Final = 1_000_000
_MAX_VALUES: Final = 1_000
_MAX_TABLES: Final = 100
_MAX_MEMORIES: Final = 100

_VALUE_TYPES: Final = {
    0x7F: "i32",
    0x7E: "i64",
    0x7D: "f32",
    0x7C: "f64",
    0x7B: "v128",
    0x70: "funcref",
    0x6F: "externref",
}
_KINDS: Final = ("func", "table", "memory", "global", "tag")
# Wasm core 2.0, 5.5.2; the tag section (13) sits between memories and globals, the data count (12) before the code.
_SECTION_ORDER: Final = {section: rank for rank, section in enumerate((1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11))}


@dataclass(frozen=True, slots=True)
class FuncType:
    """A function signature.

    Attributes:
        params: value type names: ``i32``, ``i64``, ``f32``, ``f64``, ``v128``, ``funcref``, ``externref``.
        results: the same.
    """

    params: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"({', '.join(self.params)}) -> ({', '.join(self.results)})"


@dataclass(frozen=True, slots=True)
class TableType:
    """A table: elements at the start, and the declared maximum or None."""

    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory.

    Attributes:
        minimum: pages of 64 KiB at the start.
        maximum: declared maximum in pages, or None.
    """

    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class Import:
    """One import. ``signature`` is None unless ``kind`` is ``func``."""

    module: str
    name: str
    kind: str
    signature: FuncType | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """One export. ``signature`` is None unless ``kind`` is ``func``."""

    name: str
    kind: str
    signature: FuncType | None = None


@dataclass(frozen=True, slots=True)
class Preamble:
    """Declarations of a module, imported ones included.

    Attributes:
        imports: in order.
        exports: in order.
        tables: imported ones first.
        memories: imported ones first.
        has_start: instantiating runs a start function.
    """

    imports: tuple[Import, ...] = ()
    exports: tuple[Export, ...] = ()
    tables: tuple[TableType, ...] = ()
    memories: tuple[MemoryType, ...] = ()
    has_start: bool = False

    @property
    def memory_bytes(self) -> int:
        """Bytes that all memories have at the start."""
        return sum(memory.minimum for memory in self.memories) * WASM_PAGE_BYTES


@dataclass(slots=True)
class _Scan:
    types: list[FuncType] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    tables: list[TableType] = field(default_factory=list)
    memories: list[MemoryType] = field(default_factory=list)
    has_start: bool = False

    def signature(self, cursor: Cursor, type_index: int) -> FuncType:
        if type_index >= len(self.types):
            raise cursor.fail(f"unknown type {type_index}")
        return self.types[type_index]


def scan(wasm: bytes) -> Preamble:
    """Read a module's declarations.

    Args:
        wasm: a whole binary module.

    Raises:
        InvalidWasm: the bytes break the binary format where this looks; the message has the offset.

    Source: Wasm core 2.0, 5.5.
    """
    if len(wasm) < len(HEADER) or wasm[:8] != HEADER:
        raise InvalidWasm(_describe_header(wasm))
    found = _Scan()
    cursor = Cursor(wasm, len(HEADER), len(wasm))
    last_rank = -1
    while not cursor.done():
        start = cursor.offset
        section = cursor.byte()
        size = cursor.unsigned()
        body = Cursor(wasm, cursor.offset, cursor.offset + size)
        cursor.take(size)
        if section == 0:
            body.name()
            continue
        rank = _SECTION_ORDER.get(section, -1)
        if rank <= last_rank:
            raise cursor.fail("malformed section id" if rank < 0 else "unexpected section", start)
        last_rank = rank
        read = _SECTIONS.get(section)
        if read is not None:
            read(body, found)
            if not body.done():
                raise body.fail("section size mismatch")
    return Preamble(
        tuple(found.imports), tuple(found.exports), tuple(found.tables), tuple(found.memories), found.has_start
    )


def _describe_header(wasm: bytes) -> str:
    if wasm[:4] != HEADER[:4]:
        what = "it is empty" if not wasm else r"it does not start with the magic bytes \0asm"
        return f"not a WebAssembly module: {what} (at byte 0)"
    if wasm[4:8] == b"\x0d\0\x01\0":
        return "a component, not a core module: build for wasm32-wasip1 instead (at byte 4)"
    return "not a valid WebAssembly module: unknown binary version (at byte 4)"


def _read_types(cursor: Cursor, found: _Scan) -> None:
    for _ in range(cursor.count(_MAX_TYPES, "types")):
        if cursor.byte() != 0x60:
            raise cursor.fail("not a function type; the GC proposal is off", cursor.offset - 1)
        params = _read_value_types(cursor)
        found.types.append(FuncType(params, _read_value_types(cursor)))


def _read_value_types(cursor: Cursor) -> tuple[str, ...]:
    codes = cursor.take(cursor.count(_MAX_VALUES, "values in a signature"))
    try:
        return tuple(_VALUE_TYPES[code] for code in codes)
    except KeyError as error:
        raise cursor.fail(f"unknown value type {error.args[0]:#04x}") from None


def _read_imports(cursor: Cursor, found: _Scan) -> None:
    for _ in range(cursor.count(_MAX_IMPORTS, "imports")):
        module, name = cursor.name(), cursor.name()
        kind = _read_kind(cursor)
        signature = None
        if kind == "func":
            index = cursor.unsigned()
            signature = found.signature(cursor, index)
            found.functions.append(index)
        elif kind == "table":
            found.tables.append(_read_table(cursor))
        elif kind == "memory":
            found.memories.append(_read_memory(cursor))
        elif kind == "global":
            cursor.take(2)  # a value type and its mutability
        else:
            raise cursor.fail("tags are imported, but the exceptions proposal is off")
        found.imports.append(Import(module, name, kind, signature))


def _read_kind(cursor: Cursor) -> str:
    code = cursor.byte()
    if code >= len(_KINDS):
        raise cursor.fail(f"unknown kind {code:#04x}", cursor.offset - 1)
    return _KINDS[code]


def _read_limits(cursor: Cursor, allowed: int) -> tuple[int, int | None]:
    flags = cursor.byte()
    if flags & ~allowed:
        raise cursor.fail(f"unknown limits flags {flags:#04x}", cursor.offset - 1)
    bits = 64 if flags & 4 else 32
    minimum = cursor.unsigned(bits)
    return minimum, cursor.unsigned(bits) if flags & 1 else None


def _read_table(cursor: Cursor) -> TableType:
    if cursor.byte() not in (0x70, 0x6F):
        raise cursor.fail("unknown table element type", cursor.offset - 1)
    return TableType(*_read_limits(cursor, allowed=5))


def _read_memory(cursor: Cursor) -> MemoryType:
    return MemoryType(*_read_limits(cursor, allowed=7))


def _read_functions(cursor: Cursor, found: _Scan) -> None:
    found.functions.extend(cursor.unsigned() for _ in range(cursor.count(_MAX_FUNCTIONS, "functions")))


def _read_tables(cursor: Cursor, found: _Scan) -> None:
    found.tables.extend(_read_table(cursor) for _ in range(cursor.count(_MAX_TABLES, "tables")))


def _read_memories(cursor: Cursor, found: _Scan) -> None:
    found.memories.extend(_read_memory(cursor) for _ in range(cursor.count(_MAX_MEMORIES, "memories")))


def _read_exports(cursor: Cursor, found: _Scan) -> None:
    for _ in range(cursor.count(_MAX_EXPORTS, "exports")):
        name, kind, index = cursor.name(), _read_kind(cursor), cursor.unsigned()
        signature = None
        if kind == "func":
            if index >= len(found.functions):
                raise cursor.fail(f"unknown function {index}")
            signature = found.signature(cursor, found.functions[index])
        found.exports.append(Export(name, kind, signature))


def _read_start(cursor: Cursor, found: _Scan) -> None:
    cursor.unsigned()
    found.has_start = True


_SECTIONS: Final[dict[int, Callable[[Cursor, _Scan], None]]] = {
    1: _read_types,
    2: _read_imports,
    3: _read_functions,
    4: _read_tables,
    5: _read_memories,
    7: _read_exports,
    8: _read_start,
}
