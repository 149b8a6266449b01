"""Types of the binary format: signatures, tables, memories and globals, read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm import proposals
from tensorwasm.wasm.cursor import Cursor
from tensorwasm.wasm.writing import unsigned, vector

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


@dataclass(frozen=True, slots=True)
class FuncType:
    """A function signature.

    Attributes:
        params: value type names: those of `VALUE_CODES`.
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
        element: one of `REFERENCE_TYPES`.
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
    return name if name is not None else _read_other(cursor, code, f"value type {code:#04x}")


def read_reference_type(cursor: Cursor, what: str) -> str:
    """Read one of `REFERENCE_TYPES`.

    Raises:
        InvalidWasm: it is another type, or none.
        UnsupportedProposal: it is of a proposal that is off.

    Source: Wasm core 3.0, 5.3.5.
    """
    code = cursor.byte()
    name = VALUE_TYPES.get(code)
    if name is None:
        return _read_other(cursor, code, what)
    if name not in REFERENCE_TYPES:
        raise cursor.fail(f"unknown {what}", cursor.offset - 1)
    return name


def read_heap_type(cursor: Cursor) -> str:
    """Read what a null reference is of; return the name of its type.

    Raises:
        InvalidWasm: there is no such type.
        UnsupportedProposal: it is of a proposal that is off.

    Source: Wasm core 3.0, 5.3.4.
    """
    start = cursor.offset
    value = cursor.signed(33)
    if value >= 0:
        raise proposals.refuse("function-references", cursor.base + start)
    name = VALUE_TYPES.get(value & 0x7F) if cursor.offset == start + 1 else None
    if name in HEAP_TYPES:
        return name
    raise _refuse(cursor, value & 0x7F, "reference type", start)


def _read_other(cursor: Cursor, code: int, what: str) -> str:
    """Read the rest of a type that is not one of a single byte."""
    start = cursor.offset - 1
    if code not in (NULLABLE, NON_NULL):
        raise _refuse(cursor, code, what, start)
    heap = cursor.signed(33)
    name = _LONG_FORMS.get((code, heap & 0x7F)) if heap < 0 else None
    if name is None:
        proposal = proposals.of_value_type(heap & 0x7F) if heap < 0 else None
        raise proposals.refuse(proposal or "function-references", cursor.base + start)
    return name


def _refuse(cursor: Cursor, code: int, what: str, start: int) -> InvalidWasm:
    proposal = proposals.of_value_type(code)
    return proposals.refuse(proposal, cursor.base + start) if proposal else cursor.fail(f"unknown {what}", start)


def read_value_types(cursor: Cursor) -> tuple[str, ...]:
    """Read a vector of value types.

    Raises:
        InvalidWasm: one is unknown, or there are more than engines accept.
    """
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
    """Read a signature.

    Raises:
        InvalidWasm: it is none.

    Source: Wasm core 2.0, 5.3.6.
    """
    code = cursor.byte()
    if code != _FUNCTION_TYPE:
        proposal, at = proposals.of_type(code), cursor.offset - 1
        raise proposals.refuse(proposal, cursor.base + at) if proposal else cursor.fail("not a type", at)
    params = read_value_types(cursor)
    return FuncType(params, read_value_types(cursor))


def write_func_type(signature: FuncType) -> bytes:
    """Encode a signature."""
    return bytes([_FUNCTION_TYPE]) + write_value_types(signature.params) + write_value_types(signature.results)


def _read_limits(cursor: Cursor, allowed: int) -> tuple[int, int, int | None]:
    flags = cursor.byte()
    if flags & ~allowed == _PAGE_SIZE:
        raise proposals.refuse("custom-page-sizes", cursor.base + cursor.offset - 1)
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
    if cursor.data[cursor.offset : cursor.offset + 1] == bytes([_TABLE_WITH_VALUE]):
        raise proposals.refuse("function-references", cursor.base + cursor.offset)
    element = read_reference_type(cursor, "table element type")
    flags, minimum, maximum = _read_limits(cursor, _HAS_MAXIMUM | _IS_64)
    return TableType(minimum, maximum, element, bool(flags & _IS_64))


def write_table_type(table: TableType) -> bytes:
    """Encode a table's type."""
    limits = _write_limits(_IS_64 * table.is_64, table.minimum, table.maximum)
    return VALUE_CODES[table.element] + limits


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
    return VALUE_CODES[global_type.value] + bytes([global_type.mutable])


def read_tag_type(cursor: Cursor) -> int:
    """Read a tag's type: the index of a signature, whose parameters an exception carries.

    Raises:
        InvalidWasm: its attribute is none that there is.

    Source: Wasm core 3.0, 5.3.16.
    """
    if cursor.byte():
        raise cursor.fail("malformed tag attribute", cursor.offset - 1)
    return cursor.unsigned()


def write_tag_type(signature: int) -> bytes:
    """Encode a tag's type."""
    return b"\0" + unsigned(signature)
