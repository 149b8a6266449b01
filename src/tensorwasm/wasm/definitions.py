"""What a module defines: globals, element and data segments, and function bodies; read and written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.wasm.cursor import Cursor
from tensorwasm.wasm.declarations import MAX_FUNCTIONS, MAX_GLOBALS, read_vector
from tensorwasm.wasm.instructions import Instruction, decode_stream, encode_stream, read
from tensorwasm.wasm.types import (
    VALUE_CODES,
    GlobalType,
    read_global_type,
    read_reference_type,
    read_value_type,
    write_global_type,
)
from tensorwasm.wasm.writing import sized, unsigned, vector

Expression = tuple[Instruction, ...]
"""A constant expression without its ``end``."""

ACTIVE: Final = "active"
PASSIVE: Final = "passive"
DECLARATIVE: Final = "declarative"

_MAX_SEGMENTS: Final = 100_000
_MAX_ELEMENTS: Final = 10_000_000
_MAX_LOCALS: Final = (1 << 32) - 1
_END: Final = ("end",)
_IS_CONSTANT: Final = frozenset(
    f"{type_name}.{operation}" for type_name in ("i32", "i64") for operation in ("const", "add", "sub", "mul")
) | {"f32.const", "f64.const", "v128.const", "ref.null", "ref.func", "global.get"}


@dataclass(frozen=True, slots=True)
class Global:
    """A global and the expression of its first value."""

    type: GlobalType
    init: Expression


@dataclass(frozen=True, slots=True)
class Element:
    """An element segment.

    Attributes:
        mode: `ACTIVE`, `PASSIVE` or `DECLARATIVE`.
        items: indices of functions, or expressions.
        type: one of `tensorwasm.wasm.types.REFERENCE_TYPES`.
        table: where an active one goes.
        offset: where in the table, of an active one.
    """

    mode: str
    items: tuple[int | Expression, ...] = ()
    type: str = "funcref"
    table: int = 0
    offset: Expression = ()


@dataclass(frozen=True, slots=True)
class Data:
    """A data segment.

    Attributes:
        mode: `ACTIVE` or `PASSIVE`.
        data: its bytes.
        memory: where an active one goes.
        offset: where in the memory, of an active one.
    """

    mode: str
    data: bytes = b""
    memory: int = 0
    offset: Expression = ()


@dataclass(frozen=True, slots=True)
class Body:
    """A function's locals and code, decoded when somebody asks.

    Attributes:
        raw: its bytes, without the length before them.
        at: where they were in the module; errors say it.
    """

    raw: bytes
    at: int = field(default=0, compare=False)

    @classmethod
    def build(cls, local_runs: Iterable[tuple[int, str]], instructions: Iterable[Instruction]) -> Body:
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
        """Decode the locals: how many of which type follow each other, after the parameters.

        Raises:
            InvalidWasm: they are malformed.
        """
        return _read_local_runs(self._cursor())

    def instructions(self) -> list[Instruction]:
        """Decode the code, all but the closing ``end``.

        Raises:
            InvalidWasm: it is malformed.

        Source: Wasm core 2.0, 5.4.9 and 5.5.13.
        """
        cursor = self._cursor()
        _read_local_runs(cursor)
        instructions = decode_stream(cursor)
        if not instructions or instructions.pop() != _END:
            raise cursor.fail("a function does not end")
        return instructions

    def _cursor(self) -> Cursor:
        return Cursor(self.raw, 0, len(self.raw), self.at)


def _read_local_runs(cursor: Cursor) -> tuple[tuple[int, str], ...]:
    start = cursor.offset
    runs = read_vector(cursor, lambda cursor: (cursor.unsigned(), read_value_type(cursor)), _MAX_LOCALS, "locals")
    if sum(count for count, _ in runs) > _MAX_LOCALS:
        raise cursor.fail("too many locals", start)
    return runs


def read_expression(cursor: Cursor) -> Expression:
    """Read a constant expression.

    Raises:
        InvalidWasm: it is malformed, or an instruction is not constant.

    Source: Wasm core 2.0, 3.3.10 and 5.4.9; the extended constant expressions proposal.
    """
    expression: list[Instruction] = []
    while True:
        start = cursor.offset
        instruction = read(cursor)
        if instruction == _END:
            return tuple(expression)
        if instruction[0] not in _IS_CONSTANT:
            raise cursor.fail(f"{instruction[0]} in a constant expression", start)
        expression.append(instruction)


def write_expression(expression: Expression) -> bytes:
    """Encode a constant expression."""
    return encode_stream((*expression, _END))


def read_global(cursor: Cursor) -> Global:
    """Read one global with its first value."""
    return Global(read_global_type(cursor), read_expression(cursor))


def read_globals(cursor: Cursor) -> tuple[Global, ...]:
    """Read the global section."""
    return read_vector(cursor, read_global, MAX_GLOBALS, "globals")


def write_globals(items: tuple[Global, ...]) -> bytes:
    """Encode the global section."""
    return vector([write_global_type(item.type) + write_expression(item.init) for item in items])


_NOT_ACTIVE, _HAS_INDEX, _HAS_EXPRESSIONS = 1, 2, 4


def _read_element(cursor: Cursor) -> Element:
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
        offset = read_expression(cursor)
    if flags & (_NOT_ACTIVE | _HAS_INDEX):
        element_type = _read_element_type(cursor, has_expressions=bool(flags & _HAS_EXPRESSIONS))
    if flags & _HAS_EXPRESSIONS:
        items: tuple[int | Expression, ...] = read_vector(cursor, read_expression, _MAX_ELEMENTS, "elements")
    else:
        items = cursor.indices(_MAX_ELEMENTS, "elements")
    return Element(mode, items, element_type, table, offset)


def _read_element_type(cursor: Cursor, *, has_expressions: bool) -> str:
    if has_expressions:
        return read_reference_type(cursor, "element type")
    if cursor.byte():
        raise cursor.fail("malformed element kind", cursor.offset - 1)
    return "funcref"


def _write_element(element: Element) -> bytes:
    plain = element.type == "funcref"
    by_expression = not plain or any(not isinstance(item, int) for item in element.items)
    flags = _HAS_EXPRESSIONS if by_expression else 0
    head = b""
    if element.mode == ACTIVE:
        if element.table or not plain:
            flags |= _HAS_INDEX
            head = unsigned(element.table)
        head += write_expression(element.offset)
    else:
        flags |= _NOT_ACTIVE | (_HAS_INDEX if element.mode == DECLARATIVE else 0)
    if flags & (_NOT_ACTIVE | _HAS_INDEX):
        head += VALUE_CODES[element.type] if by_expression else b"\0"
    return bytes([flags]) + head + vector([_write_item(item, by_expression=by_expression) for item in element.items])


def _write_item(item: int | Expression, *, by_expression: bool) -> bytes:
    if not isinstance(item, int):
        return write_expression(item)
    return write_expression((("ref.func", item),)) if by_expression else unsigned(item)


def read_elements(cursor: Cursor) -> tuple[Element, ...]:
    """Read the element section.

    Source: Wasm core 2.0, 5.5.12.
    """
    return read_vector(cursor, _read_element, _MAX_SEGMENTS, "element segments")


def write_elements(elements: tuple[Element, ...]) -> bytes:
    """Encode the element section, each segment in its shortest form."""
    return vector([_write_element(element) for element in elements])


def _read_data(cursor: Cursor) -> Data:
    start = cursor.offset
    flags = cursor.unsigned()
    if flags > _HAS_INDEX:
        raise cursor.fail("malformed data segment", start)
    if flags == _NOT_ACTIVE:
        return Data(PASSIVE, cursor.take(cursor.unsigned()))
    memory = cursor.unsigned() if flags else 0
    offset = read_expression(cursor)
    return Data(ACTIVE, cursor.take(cursor.unsigned()), memory, offset)


def _write_data(segment: Data) -> bytes:
    if segment.mode == PASSIVE:
        return bytes([_NOT_ACTIVE]) + sized(segment.data)
    where = bytes([_HAS_INDEX]) + unsigned(segment.memory) if segment.memory else b"\0"
    return where + write_expression(segment.offset) + sized(segment.data)


def read_data(cursor: Cursor) -> tuple[Data, ...]:
    """Read the data section.

    Source: Wasm core 2.0, 5.5.14.
    """
    return read_vector(cursor, _read_data, _MAX_SEGMENTS, "data segments")


def write_data(segments: tuple[Data, ...]) -> bytes:
    """Encode the data section, each segment in its shortest form."""
    return vector([_write_data(segment) for segment in segments])


def _read_body(cursor: Cursor) -> Body:
    size_bytes = cursor.unsigned()
    at = cursor.offset
    return Body(cursor.take(size_bytes), cursor.base + at)


def read_bodies(cursor: Cursor) -> tuple[Body, ...]:
    """Read the code section; the bodies stay as they are."""
    return read_vector(cursor, _read_body, MAX_FUNCTIONS, "function bodies")


def write_bodies(bodies: tuple[Body, ...]) -> bytes:
    """Encode the code section; the bodies go as they are."""
    return vector([sized(body.raw) for body in bodies])
