"""Types of the binary format: signatures, tables, memories and globals, read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.wasm.cursor import Cursor
from tensorwasm.wasm.writing import unsigned

VALUE_TYPES: Final = {
    0x7F: "i32",
    0x7E: "i64",
    0x7D: "f32",
    0x7C: "f64",
    0x7B: "v128",
    0x70: "funcref",
    0x6F: "externref",
}
VALUE_CODES: Final = {name: code for code, name in VALUE_TYPES.items()}
REFERENCE_TYPES: Final = frozenset({"funcref", "externref"})

_MAX_VALUES: Final = 1_000
_FUNCTION_TYPE: Final = 0x60
_HAS_MAXIMUM, _SHARED, _IS_64 = 1, 2, 4


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
    """A table.

    Attributes:
        minimum: elements at the start.
        maximum: declared maximum in elements, or None.
        element: ``funcref`` or ``externref``.
        is_64: indices are 64 bits wide.
    """

    minimum: int
    maximum: int | None
    element: str = "funcref"
    is_64: bool = False


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory.

    Attributes:
        minimum: pages of 64 KiB at the start.
        maximum: declared maximum in pages, or None.
        shared: threads may share it.
        is_64: addresses are 64 bits wide.
    """

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
    """Read one value type.

    Raises:
        InvalidWasm: there is no such type.

    Source: Wasm core 2.0, 5.3.4.
    """
    code = cursor.byte()
    name = VALUE_TYPES.get(code)
    if name is None:
        raise cursor.fail(f"unknown value type {code:#04x}")
    return name


def read_reference_type(cursor: Cursor, what: str) -> str:
    """Read ``funcref`` or ``externref``.

    Raises:
        InvalidWasm: it is neither.

    Source: Wasm core 2.0, 5.3.3.
    """
    name = VALUE_TYPES.get(cursor.byte())
    if name not in REFERENCE_TYPES:
        raise cursor.fail(f"unknown {what}", cursor.offset - 1)
    return name


def read_value_types(cursor: Cursor) -> tuple[str, ...]:
    """Read a vector of value types.

    Raises:
        InvalidWasm: one is unknown, or there are more than engines accept.
    """
    codes = cursor.take(cursor.count(_MAX_VALUES, "values in a signature"))
    try:
        return tuple([VALUE_TYPES[code] for code in codes])
    except KeyError as error:
        raise cursor.fail(f"unknown value type {error.args[0]:#04x}") from None


def write_value_types(names: tuple[str, ...]) -> bytes:
    """Encode a vector of value types."""
    return unsigned(len(names)) + bytes([VALUE_CODES[name] for name in names])


def read_func_type(cursor: Cursor) -> FuncType:
    """Read a signature.

    Raises:
        InvalidWasm: it is none.

    Source: Wasm core 2.0, 5.3.6.
    """
    if cursor.byte() != _FUNCTION_TYPE:
        raise cursor.fail("not a function type; the GC proposal is off", cursor.offset - 1)
    params = read_value_types(cursor)
    return FuncType(params, read_value_types(cursor))


def write_func_type(signature: FuncType) -> bytes:
    """Encode a signature."""
    return bytes([_FUNCTION_TYPE]) + write_value_types(signature.params) + write_value_types(signature.results)


def _read_limits(cursor: Cursor, allowed: int) -> tuple[int, int, int | None]:
    flags = cursor.byte()
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
    """Read a table's type.

    Raises:
        InvalidWasm: its element type or its limits have no such form.

    Source: Wasm core 2.0, 5.3.9; the memory64 proposal.
    """
    element = read_reference_type(cursor, "table element type")
    flags, minimum, maximum = _read_limits(cursor, _HAS_MAXIMUM | _IS_64)
    return TableType(minimum, maximum, element, bool(flags & _IS_64))


def write_table_type(table: TableType) -> bytes:
    """Encode a table's type."""
    limits = _write_limits(_IS_64 * table.is_64, table.minimum, table.maximum)
    return bytes([VALUE_CODES[table.element]]) + limits


def read_memory_type(cursor: Cursor) -> MemoryType:
    """Read a memory's type.

    Raises:
        InvalidWasm: its limits have no such form.

    Source: Wasm core 2.0, 5.3.8; the threads and memory64 proposals.
    """
    flags, minimum, maximum = _read_limits(cursor, _HAS_MAXIMUM | _SHARED | _IS_64)
    return MemoryType(minimum, maximum, bool(flags & _SHARED), bool(flags & _IS_64))


def write_memory_type(memory: MemoryType) -> bytes:
    """Encode a memory's type."""
    return _write_limits(_SHARED * memory.shared | _IS_64 * memory.is_64, memory.minimum, memory.maximum)


def read_global_type(cursor: Cursor) -> GlobalType:
    """Read a global's type.

    Raises:
        InvalidWasm: its value type or its mutability has no such form.

    Source: Wasm core 2.0, 5.3.10.
    """
    value = read_value_type(cursor)
    mutable = cursor.byte()
    if mutable > 1:
        raise cursor.fail("malformed mutability", cursor.offset - 1)
    return GlobalType(value, mutable == 1)


def write_global_type(global_type: GlobalType) -> bytes:
    """Encode a global's type."""
    return bytes([VALUE_CODES[global_type.value], global_type.mutable])
