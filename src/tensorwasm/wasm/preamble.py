"""What a module declares before its code: types, imports, functions, tables, memories, tags, globals and exports.

The scan costs microseconds, needs no engine and runs before any compiler sees the bytes, so a module that asks for too
much is refused for nothing. It is not a validator: it reads what it needs exactly, checks the frame around the rest,
and leaves the final word to the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.values import WASM_PAGE_BYTES
from tensorwasm.wasm import declarations, frame
from tensorwasm.wasm.cursor import Cursor
from tensorwasm.wasm.frame import HEADER, frames
from tensorwasm.wasm.proposals import refuse
from tensorwasm.wasm.types import FuncType, MemoryType, TableType

__all__ = ["HEADER", "Export", "FuncType", "Import", "MemoryType", "Preamble", "TableType", "scan"]


_EXCEPTIONS: Final = frozenset({"exnref", "nullexnref", "(ref exn)", "(ref noexn)"})


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
        global_types: of all globals, imported ones first.
        value_types: that any signature names.
        function_count: all functions, imported ones counted.
        tag_count: all tags, imported ones counted.
        has_start: instantiating runs a start function.
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
        """Bytes that all memories have at the start."""
        return sum(memory.minimum for memory in self.memories) * WASM_PAGE_BYTES

    @property
    def has_exceptions(self) -> bool:
        """Whether its guests can throw, or keep exceptions outside of functions: an engine has a heap for them."""
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
    found = _Scan()
    for section, _, cursor in frames(wasm):
        read = _SECTIONS.get(section)
        if read is None:
            continue
        read(cursor, found)
        if section != frame.CUSTOM and not cursor.done():
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
        found.has_start,
    )


def require_enabled(declared: Preamble) -> None:
    """Refuse a module that declares what belongs to a proposal that is off here.

    What only its code uses is known to the engine, which refuses it too (`tensorwasm.wasm.refusal` says its name).

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
        InvalidWasm: the bytes break the binary format where this looks.

    Source: Wasm core 2.0, 5.5.13.
    """
    longest = 0
    for section, _, cursor in frames(wasm):
        if section == frame.CODE:
            for _ in range(cursor.count(declarations.MAX_FUNCTIONS, "function bodies")):
                length = cursor.unsigned()
                longest = max(longest, length)
                cursor.offset += length
    return longest


def _read_custom(cursor: Cursor, _: _Scan) -> None:
    cursor.name()


def _read_types(cursor: Cursor, found: _Scan) -> None:
    found.types.extend(declarations.read_types(cursor))


def _read_imports(cursor: Cursor, found: _Scan) -> None:
    for item in declarations.iterate_imports(cursor):
        signature = None
        if isinstance(item.type, int):
            (found.functions if item.kind == "func" else found.tags).append(item.type)
            signature = found.signature(cursor, item.type)
        elif isinstance(item.type, TableType):
            found.tables.append(item.type)
        elif isinstance(item.type, MemoryType):
            found.memories.append(item.type)
        else:
            found.global_types.append(item.type.value)
        found.imports.append(Import(item.module, item.name, item.kind, signature if item.kind == "func" else None))


def _read_functions(cursor: Cursor, found: _Scan) -> None:
    found.functions.extend(declarations.read_functions(cursor))


def _read_tables(cursor: Cursor, found: _Scan) -> None:
    found.tables.extend(declarations.read_tables(cursor))


def _read_memories(cursor: Cursor, found: _Scan) -> None:
    found.memories.extend(declarations.read_memories(cursor))


def _read_tags(cursor: Cursor, found: _Scan) -> None:
    found.tags.extend(declarations.read_tags(cursor))


def _read_globals(cursor: Cursor, found: _Scan) -> None:
    found.global_types.extend(declarations.read_global_types(cursor))


def _read_exports(cursor: Cursor, found: _Scan) -> None:
    for item in declarations.iterate_exports(cursor):
        signature = None
        if item.kind == "func":
            if item.index >= len(found.functions):
                raise cursor.fail(f"unknown function {item.index}")
            signature = found.signature(cursor, found.functions[item.index])
        found.exports.append(Export(item.name, item.kind, signature))


def _read_start(cursor: Cursor, found: _Scan) -> None:
    cursor.unsigned()
    found.has_start = True


_SECTIONS: Final[dict[int, Callable[[Cursor, _Scan], None]]] = {
    frame.CUSTOM: _read_custom,
    frame.TYPE: _read_types,
    frame.IMPORT: _read_imports,
    frame.FUNCTION: _read_functions,
    frame.TABLE: _read_tables,
    frame.MEMORY: _read_memories,
    frame.TAG: _read_tags,
    frame.GLOBAL: _read_globals,
    frame.EXPORT: _read_exports,
    frame.START: _read_start,
}
