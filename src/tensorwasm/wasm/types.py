"""Types of the binary format: signatures, tables, memories and globals, read and written; and proposals that are off.

What reads a type raises `InvalidWasm`, or `UnsupportedProposal` if the type belongs to a proposal that is off.

Source: Wasm core 2.0, 5.3, and 3.0, 5.3 (exceptions) and its appendix (opcodes); the proposals threads and memory64;
for what is off, the overviews of the proposals at github.com/WebAssembly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidWasm, UnsupportedProposal
from tensorwasm.wasm.binary import Cursor, unsigned, vector

VALUE_TYPES: Final = {
    0x7F: "i32",
    0x7E: "i64",
    0x7D: "f32",
    0x7C: "f64",
    0x7B: "v128",
    0x70: "funcref",
    0x6F: "externref",
    0x69: "exnref",
    0x74: "nullexnref",
}
NULLABLE, NON_NULL = 0x63, 0x64
_LONG_FORMS: Final = {  # of types that have no byte of their own, or a shorter form
    **{(NULLABLE, code): VALUE_TYPES[code] for code in (0x70, 0x6F, 0x69, 0x74)},
    (NON_NULL, 0x69): "(ref exn)",
    (NON_NULL, 0x74): "(ref noexn)",
}
VALUE_CODES: Final = {
    **{name: bytes(form) for form, name in _LONG_FORMS.items()},
    **{name: bytes([code]) for code, name in VALUE_TYPES.items()},
}
HEAP_TYPES: Final = frozenset({"funcref", "externref", "exnref", "nullexnref"})
"""What ``ref.null`` can be of, by the name of the type that it gives."""
REFERENCE_TYPES: Final = HEAP_TYPES | {"(ref exn)", "(ref noexn)"}

_MAX_VALUES: Final = 1_000
_FUNCTION_TYPE: Final = 0x60
_HAS_MAXIMUM, _SHARED, _IS_64, _PAGE_SIZE = 1, 2, 4, 8
_TABLE_WITH_VALUE: Final = 0x40

# ---------------------------------------------------------------------------------------- proposals that are off

_LEGACY: Final = "legacy-exceptions"
_SPECIAL: Final = {
    _LEGACY: "the legacy form of the exception-handling proposal",
    "externref": "externref, of the reference types proposal",
}
_REMEDIES: Final = {
    "custom-page-sizes": "keep pages of 64 KiB",
    "externref": "keep references to host objects out of the module, and pass numbers or memory instead",
    "function-references": "use funcref and call_indirect",
    "gc": "build for linear memory, without struct, array and the types of the garbage collector",
    _LEGACY: "build for its final form, try_table and exnref: clang takes "
    "-mllvm -wasm-use-legacy-eh=false, emcc -sWASM_LEGACY_EXCEPTIONS=0",
    "memory64": "build for wasm32",
    "multi-memory": "keep everything in one memory",
    "shared-everything-threads": "build without shared tables and shared types",
    "stack-switching": "build without continuations",
    "threads": "build without shared memory and atomics, such as -pthread gives",
    "wide-arithmetic": "build without -mwide-arithmetic",
}
_OFF_VALUE_TYPES: Final = {
    **dict.fromkeys((0x6A, 0x6B, 0x6C, 0x6D, 0x6E, 0x71, 0x72, 0x73), "gc"),
    **dict.fromkeys((0x68, 0x75), "stack-switching"),
}
"""The proposal that is off, by a value type's byte."""

_OFF_DEFINITIONS: Final = {0x5D: "stack-switching", **dict.fromkeys((0x4E, 0x4F, 0x50, 0x5E, 0x5F), "gc")}
"""The proposal that is off, by the first byte of a type's definition."""

OFF_OPCODES: Final = {
    **dict.fromkeys(((0, code) for code in (0x06, 0x07, 0x09, 0x18, 0x19)), _LEGACY),
    **dict.fromkeys(((0, code) for code in (0x14, 0x15, 0xD4, 0xD5, 0xD6)), "function-references"),
    **dict.fromkeys(((0, code) for code in (0xD3, 0xFB)), "gc"),
    **dict.fromkeys(((0, code) for code in range(0xE0, 0xE7)), "stack-switching"),
    (0, 0xFE): "threads",
    **dict.fromkeys(((0xFC, code) for code in range(0x13, 0x17)), "wide-arithmetic"),
}
"""The proposal that is off, by an instruction's prefix, 0 without one, and code."""


def refuse(proposal: str, at: int | None = None) -> UnsupportedProposal:
    """Return the error for a module that uses a proposal, at a byte of the module if it is known."""
    where = "" if at is None else f" (at byte {at})"
    what = _SPECIAL.get(proposal, f"the {proposal} proposal")
    return UnsupportedProposal(f"this module uses {what}, which is off here: {_REMEDIES[proposal]}{where}")


# ----------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True)
class FuncType:
    """A function signature: names of value types, those of `VALUE_CODES`."""

    params: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"({', '.join(self.params)}) -> ({', '.join(self.results)})"


@dataclass(frozen=True, slots=True)
class TableType:
    """A table: its length at the start and its declared maximum in elements, and one of `REFERENCE_TYPES`."""

    minimum: int
    maximum: int | None
    element: str = "funcref"
    is_64: bool = False


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory: its size at the start and its declared maximum in pages of 64 KiB."""

    minimum: int
    maximum: int | None
    shared: bool = False
    is_64: bool = False


@dataclass(frozen=True, slots=True)
class GlobalType:
    """A global: the name of its value type, and whether it can be set."""

    value: str
    mutable: bool = False


def read_value_type(cursor: Cursor) -> str:
    """Read one value type."""
    code = cursor.byte()
    return VALUE_TYPES.get(code) or _read_long_form(cursor, code, f"value type {code:#04x}")


def read_reference_type(cursor: Cursor, what: str) -> str:
    """Read one of `REFERENCE_TYPES`; ``what`` names it in the message."""
    code = cursor.byte()
    name = VALUE_TYPES.get(code) or _read_long_form(cursor, code, what)
    if name not in REFERENCE_TYPES:
        raise cursor.fail(f"unknown {what}", cursor.offset - 1)
    return name


def read_heap_type(cursor: Cursor) -> str:
    """Read what a null reference is of; return the name of its type."""
    start = cursor.offset
    value = cursor.signed(33)
    if value >= 0:
        raise refuse("function-references", cursor.base + start)
    name = VALUE_TYPES.get(value & 0x7F) if cursor.offset == start + 1 else None
    if name in HEAP_TYPES:
        return name
    raise _unknown(cursor, _OFF_VALUE_TYPES.get(value & 0x7F), "unknown reference type", start)


def _read_long_form(cursor: Cursor, code: int, what: str) -> str:
    """Read the rest of a type that is not one of a single byte."""
    start = cursor.offset - 1
    if code not in (NULLABLE, NON_NULL):
        raise _unknown(cursor, _OFF_VALUE_TYPES.get(code), f"unknown {what}", start)
    heap = cursor.signed(33)
    name = _LONG_FORMS.get((code, heap & 0x7F)) if heap < 0 else None
    if name is None:
        proposal = _OFF_VALUE_TYPES.get(heap & 0x7F) if heap < 0 else None
        raise refuse(proposal or "function-references", cursor.base + start)
    return name


def _unknown(cursor: Cursor, proposal: str | None, message: str, start: int) -> InvalidWasm:
    return refuse(proposal, cursor.base + start) if proposal else cursor.fail(message, start)


def read_value_types(cursor: Cursor) -> tuple[str, ...]:
    """Read a vector of value types."""
    count = cursor.count(_MAX_VALUES, "values in a signature")
    start = cursor.offset
    try:
        return tuple([VALUE_TYPES[code] for code in cursor.take(count)])
    except KeyError:
        cursor.offset = start
        return tuple([read_value_type(cursor) for _ in range(count)])


def write_value_types(names: tuple[str, ...]) -> bytes:
    """Encode a vector of value types."""
    return vector([VALUE_CODES[name] for name in names])


def read_func_type(cursor: Cursor) -> FuncType:
    """Read a signature."""
    code = cursor.byte()
    if code != _FUNCTION_TYPE:
        raise _unknown(cursor, _OFF_DEFINITIONS.get(code), "not a type", cursor.offset - 1)
    params = read_value_types(cursor)
    return FuncType(params, read_value_types(cursor))


def write_func_type(signature: FuncType) -> bytes:
    """Encode a signature."""
    return bytes([_FUNCTION_TYPE]) + write_value_types(signature.params) + write_value_types(signature.results)


def _read_limits(cursor: Cursor, allowed: int) -> tuple[int, int, int | None]:
    flags = cursor.byte()
    if flags & ~allowed == _PAGE_SIZE:
        raise refuse("custom-page-sizes", cursor.base + cursor.offset - 1)
    if flags & ~allowed:
        raise cursor.fail(f"unknown limits flags {flags:#04x}", cursor.offset - 1)
    start = cursor.offset
    minimum = cursor.unsigned(64)  # since memory64, a small number may be padded to that width
    maximum = cursor.unsigned(64) if flags & _HAS_MAXIMUM else None
    if not flags & _IS_64 and max(minimum, maximum or 0) >> 32:
        raise cursor.fail("integer too large", start)
    return flags, minimum, maximum


def _write_limits(flags: int, minimum: int, maximum: int | None) -> bytes:
    if maximum is None:
        return bytes([flags]) + unsigned(minimum)
    return bytes([flags | _HAS_MAXIMUM]) + unsigned(minimum) + unsigned(maximum)


def read_table_type(cursor: Cursor) -> TableType:
    """Read a table's type."""
    if cursor.data[cursor.offset : cursor.offset + 1] == bytes([_TABLE_WITH_VALUE]):
        raise refuse("function-references", cursor.base + cursor.offset)
    element = read_reference_type(cursor, "table element type")
    flags, minimum, maximum = _read_limits(cursor, _HAS_MAXIMUM | _IS_64)
    return TableType(minimum, maximum, element, bool(flags & _IS_64))


def write_table_type(table: TableType) -> bytes:
    """Encode a table's type."""
    return VALUE_CODES[table.element] + _write_limits(_IS_64 * table.is_64, table.minimum, table.maximum)


def read_memory_type(cursor: Cursor) -> MemoryType:
    """Read a memory's type."""
    flags, minimum, maximum = _read_limits(cursor, _HAS_MAXIMUM | _SHARED | _IS_64)
    return MemoryType(minimum, maximum, bool(flags & _SHARED), bool(flags & _IS_64))


def write_memory_type(memory: MemoryType) -> bytes:
    """Encode a memory's type."""
    return _write_limits(_SHARED * memory.shared | _IS_64 * memory.is_64, memory.minimum, memory.maximum)


def read_global_type(cursor: Cursor) -> GlobalType:
    """Read a global's type."""
    value = read_value_type(cursor)
    mutable = cursor.byte()
    if mutable > 1:
        raise cursor.fail("malformed mutability", cursor.offset - 1)
    return GlobalType(value, mutable == 1)


def write_global_type(global_type: GlobalType) -> bytes:
    """Encode a global's type."""
    return VALUE_CODES[global_type.value] + bytes([global_type.mutable])


def read_tag_type(cursor: Cursor) -> int:
    """Read a tag's type: the index of a signature, whose parameters an exception carries."""
    if cursor.byte():
        raise cursor.fail("malformed tag attribute", cursor.offset - 1)
    return cursor.unsigned()


def write_tag_type(signature: int) -> bytes:
    """Encode a tag's type."""
    return b"\0" + unsigned(signature)
