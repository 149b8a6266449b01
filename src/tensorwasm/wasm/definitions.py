"""What a module defines: globals, element and data segments, and function bodies; read and written.

Source: Wasm core 2.0, 5.5.9 to 5.5.14; the extended constant expressions proposal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.wasm.binary import Cursor, sized, unsigned, vector
from tensorwasm.wasm.instructions import Instruction, decode_stream, encode_stream, read
from tensorwasm.wasm.preamble import MAX_FUNCTIONS, MAX_GLOBALS, vector_format
from tensorwasm.wasm.types import (
    VALUE_CODES,
    GlobalType,
    read_global_type,
    read_reference_type,
    read_value_type,
    write_global_type,
)

Expression = tuple[Instruction, ...]
"""A constant expression without its ``end``."""

ACTIVE: Final = "active"
PASSIVE: Final = "passive"
DECLARATIVE: Final = "declarative"

_MAX_SEGMENTS: Final = 100_000
_MAX_ELEMENTS: Final = 10_000_000
_MAX_LOCALS: Final = (1 << 32) - 1
_NOT_ACTIVE, _HAS_INDEX, _HAS_EXPRESSIONS = 1, 2, 4
_END: Final = ("end",)
_CONSTANT_INSTRUCTIONS: Final = frozenset(
    f"{type_name}.{operation}" for type_name in ("i32", "i64") for operation in ("const", "add", "sub", "mul")
) | {"f32.const", "f64.const", "v128.const", "ref.null", "ref.func", "global.get"}


@dataclass(frozen=True, slots=True)
class Global:
    """A global and the expression of its first value."""

    type: GlobalType
    init: Expression


@dataclass(frozen=True, slots=True)
class ElementSegment:
    """An element segment.

    Attributes:
        mode: `ACTIVE`, `PASSIVE` or `DECLARATIVE`.
        items: indices of functions, or expressions.
        type: one of `tensorwasm.wasm.types.REFERENCE_TYPES`.
        table: its destination, if it is active.
        offset: in the table, if it is active.
    """

    mode: str
    items: tuple[int | Expression, ...] = ()
    type: str = "funcref"
    table: int = 0
    offset: Expression = ()


@dataclass(frozen=True, slots=True)
class DataSegment:
    """A data segment, `ACTIVE` or `PASSIVE`; an active one goes to an offset in a memory."""

    mode: str
    data: bytes = b""
    memory: int = 0
    offset: Expression = ()


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A function's locals and code, decoded on demand.

    Attributes:
        raw: its bytes, without the length before them.
        at: their offset in the module, for errors.
    """

    raw: bytes
    at: int = field(default=0, compare=False)

    @classmethod
    def build(cls, local_runs: Iterable[tuple[int, str]], instructions: Iterable[Instruction]) -> CodeEntry:
        """Encode a body.

        Args:
            local_runs: how many locals of which type follow each other, after the parameters.
            instructions: all but the closing ``end``.

        Raises:
            KeyError: there is no such instruction or type.
            ValueError: an immediate is not of its kind.
        """
        runs = vector([unsigned(count) + VALUE_CODES[name] for count, name in local_runs])
        return cls(runs + encode_stream(instructions) + encode_stream((_END,)))

    def local_runs(self) -> tuple[tuple[int, str], ...]:
        """Decode the locals, in the form that `build` takes.

        Raises:
            InvalidWasm: they are malformed.
        """
        return _read_local_runs(self._cursor())

    def instructions(self) -> list[Instruction]:
        """Decode the code, all but the closing ``end``.

        Raises:
            InvalidWasm: it is malformed.
        """
        cursor = self._cursor()
        _read_local_runs(cursor)
        instructions = decode_stream(cursor)
        if not instructions or instructions.pop() != _END:
            raise cursor.fail("a function does not end")
        return instructions

    def offsets(self) -> list[int]:
        """Return the offset in the module of each of the instructions, the closing ``end`` included.

        Raises:
            InvalidWasm: it is malformed.
        """
        cursor = self._cursor()
        _read_local_runs(cursor)
        offsets = []
        while not cursor.done():
            offsets.append(cursor.base + cursor.offset)
            read(cursor)
        return offsets

    def _cursor(self) -> Cursor:
        return Cursor(self.raw, 0, len(self.raw), self.at)


def _read_local_runs(cursor: Cursor) -> tuple[tuple[int, str], ...]:
    start = cursor.offset
    runs = cursor.vector(lambda cursor: (cursor.unsigned(), read_value_type(cursor)), _MAX_LOCALS, "locals")
    if sum(count for count, _ in runs) > _MAX_LOCALS:
        raise cursor.fail("too many locals", start)
    return runs


def _read_expression(cursor: Cursor) -> Expression:
    expression: list[Instruction] = []
    while True:
        start = cursor.offset
        instruction = read(cursor)
        if instruction == _END:
            return tuple(expression)
        if instruction[0] not in _CONSTANT_INSTRUCTIONS:
            raise cursor.fail(f"{instruction[0]} in a constant expression", start)
        expression.append(instruction)


def _write_expression(expression: Expression) -> bytes:
    return encode_stream((*expression, _END))


def read_global(cursor: Cursor) -> Global:
    """Read one global with its first value.

    Raises:
        InvalidWasm: it is malformed, or an instruction is not constant.
    """
    return Global(read_global_type(cursor), _read_expression(cursor))


def _write_global(item: Global) -> bytes:
    return write_global_type(item.type) + _write_expression(item.init)


def _read_element(cursor: Cursor) -> ElementSegment:
    start = cursor.offset
    flags = cursor.unsigned()
    if flags > _NOT_ACTIVE | _HAS_INDEX | _HAS_EXPRESSIONS:
        raise cursor.fail("malformed element segment", start)
    mode, table, element_type = ACTIVE, 0, "funcref"
    offset: Expression = ()
    if flags & _NOT_ACTIVE:
        mode = DECLARATIVE if flags & _HAS_INDEX else PASSIVE
    else:
        table = cursor.unsigned() if flags & _HAS_INDEX else 0
        offset = _read_expression(cursor)
    if flags & (_NOT_ACTIVE | _HAS_INDEX):
        if flags & _HAS_EXPRESSIONS:
            element_type = read_reference_type(cursor, "element type")
        elif cursor.byte():
            raise cursor.fail("malformed element kind", cursor.offset - 1)
    items: tuple[int | Expression, ...]
    if flags & _HAS_EXPRESSIONS:
        items = cursor.vector(_read_expression, _MAX_ELEMENTS, "elements")
    else:
        items = cursor.indices(_MAX_ELEMENTS, "elements")
    return ElementSegment(mode, items, element_type, table, offset)


def _write_element(element: ElementSegment) -> bytes:
    plain = element.type == "funcref"
    by_expression = not plain or any(not isinstance(item, int) for item in element.items)
    flags = _HAS_EXPRESSIONS if by_expression else 0
    head = b""
    if element.mode == ACTIVE:
        if element.table or not plain:
            flags |= _HAS_INDEX
            head = unsigned(element.table)
        head += _write_expression(element.offset)
    else:
        flags |= _NOT_ACTIVE | (_HAS_INDEX if element.mode == DECLARATIVE else 0)
    if flags & (_NOT_ACTIVE | _HAS_INDEX):
        head += VALUE_CODES[element.type] if by_expression else b"\0"
    return bytes([flags]) + head + vector([_write_item(item, by_expression=by_expression) for item in element.items])


def _write_item(item: int | Expression, *, by_expression: bool) -> bytes:
    if not isinstance(item, int):
        return _write_expression(item)
    return _write_expression((("ref.func", item),)) if by_expression else unsigned(item)


def _read_data(cursor: Cursor) -> DataSegment:
    start = cursor.offset
    flags = cursor.unsigned()
    if flags > _HAS_INDEX:
        raise cursor.fail("malformed data segment", start)
    if flags == _NOT_ACTIVE:
        return DataSegment(PASSIVE, cursor.take(cursor.unsigned()))
    memory = cursor.unsigned() if flags else 0
    offset = _read_expression(cursor)
    return DataSegment(ACTIVE, cursor.take(cursor.unsigned()), memory, offset)


def _write_data(segment: DataSegment) -> bytes:
    if segment.mode == PASSIVE:
        return bytes([_NOT_ACTIVE]) + sized(segment.data)
    where = bytes([_HAS_INDEX]) + unsigned(segment.memory) if segment.memory else b"\0"
    return where + _write_expression(segment.offset) + sized(segment.data)


def _read_body(cursor: Cursor) -> CodeEntry:
    size_bytes = cursor.unsigned()
    at = cursor.offset
    return CodeEntry(cursor.take(size_bytes), cursor.base + at)


GLOBALS: Final = vector_format(read_global, _write_global, MAX_GLOBALS, "globals")
ELEMENTS: Final = vector_format(_read_element, _write_element, _MAX_SEGMENTS, "element segments")
DATA: Final = vector_format(_read_data, _write_data, _MAX_SEGMENTS, "data segments")
BODIES: Final = vector_format(_read_body, lambda body: sized(body.raw), MAX_FUNCTIONS, "function bodies")
"""Bodies are neither decoded nor encoded: they keep their bytes."""
