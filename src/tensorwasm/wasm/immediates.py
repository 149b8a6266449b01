"""Kinds of immediates: for each how it is read, how it is written, and the bytes that it can have.

The pattern of a kind matches everything that its reader accepts, to the same end; it may match more bytes than valid
ones, but never another length of these.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tensorwasm.wasm.binary import Cursor, signed, unsigned, vector
from tensorwasm.wasm.types import (
    HEAP_TYPES,
    NON_NULL,
    NULLABLE,
    VALUE_CODES,
    VALUE_TYPES,
    read_heap_type,
    read_value_type,
    read_value_types,
    write_value_types,
)

_EMPTY_BLOCK: Final = 0x40
_HAS_MEMORY: Final = 0x40
_LEB32: Final = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_LEB64: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_ALIGN: Final = rb"(?:[\x00-\x3f]|[\x80-\xbf]\x80{0,3}\x00)"
_ALIGN_AND_MEMORY: Final = rb"(?:[\x40-\x7f]|[\xc0-\xff]\x80{0,3}\x00)"
_TYPED: Final = rb"[\x%02x\x%02x]" % (NULLABLE, NON_NULL)
_VALUE_TYPE: Final = rb"(?:%b%b|.)" % (_TYPED, _LEB32)
_CATCH: Final = rb"(?:[\x00\x01]%b%b|[\x02\x03]%b)" % (_LEB32, _LEB32, _LEB32)
_COUNTED: Final = 0x80
"""Patterns match shorter vectors; longer ones go through the reader."""

MemArg = tuple[int, int, int]
"""Alignment as a power of two, offset in bytes, index of the memory."""


@dataclass(frozen=True, slots=True)
class ImmediateFormat:
    """How one kind of immediate is read and written, and the pattern of its bytes."""

    read: Callable[[Cursor], Any]
    write: Callable[[Any], bytes]
    pattern: bytes


def _read_memarg(cursor: Cursor) -> MemArg:
    start = cursor.offset
    flags = cursor.unsigned()
    if flags >= 2 * _HAS_MEMORY:
        raise cursor.fail("malformed memory operation flags", start)
    memory = cursor.unsigned() if flags & _HAS_MEMORY else 0
    return flags & ~_HAS_MEMORY, cursor.unsigned(64), memory


def _write_memarg(argument: MemArg) -> bytes:
    align, offset, memory = argument
    if not 0 <= align < _HAS_MEMORY:
        raise ValueError(f"alignment 2**{align}")
    where = unsigned(align | _HAS_MEMORY) + unsigned(memory) if memory else unsigned(align)
    return where + unsigned(offset)


def _read_block(cursor: Cursor) -> str | int | None:
    start = cursor.offset
    value = cursor.signed(33)
    if value >= 0:
        return value
    code = value & 0x7F if value >= -_EMPTY_BLOCK else 0
    if code == _EMPTY_BLOCK:
        return None
    if cursor.offset > start + 1:
        raise cursor.fail("unknown block type", start)
    if code in VALUE_TYPES:
        return VALUE_TYPES[code]
    cursor.offset = start
    return read_value_type(cursor)


def _write_block(block: str | int | None) -> bytes:
    if isinstance(block, int):
        return signed(block)
    return bytes([_EMPTY_BLOCK]) if block is None else VALUE_CODES[block]


def _read_labels(cursor: Cursor) -> tuple[int, ...]:
    return (*cursor.indices(1 << 32, "labels"), cursor.unsigned())


def _write_labels(labels: tuple[int, ...]) -> bytes:
    *chosen, default = map(unsigned, labels)
    return vector(chosen) + default


Catch = tuple[str, int | None, int]
"""One of `_CATCHES`, the index of the tag where it has one, and the label."""
_CATCHES: Final = ("catch", "catch_ref", "catch_all", "catch_all_ref")
_TAGGED: Final = 2
_MAX_CATCHES: Final = 10_000


def _read_catches(cursor: Cursor) -> tuple[Catch, ...]:
    catches = []
    for _ in range(cursor.count(_MAX_CATCHES, "catches")):
        kind = cursor.byte()
        if kind >= len(_CATCHES):
            raise cursor.fail("malformed catch", cursor.offset - 1)
        tag = cursor.unsigned() if kind < _TAGGED else None
        catches.append((_CATCHES[kind], tag, cursor.unsigned()))
    return tuple(catches)


def _write_catches(catches: tuple[Catch, ...]) -> bytes:
    return vector(
        [
            bytes([_CATCHES.index(kind)]) + (unsigned(tag) if tag is not None else b"") + unsigned(label)
            for kind, tag, label in catches
        ]
    )


def _counted(item: bytes, more: int) -> bytes:
    """Return the pattern of a short vector, its length padded or not, and ``more`` items behind it."""
    lengths = range(_COUNTED)
    return b"(?:%b)" % b"|".join(
        [b"\\x%02x(?:%b){%d}" % (length, item, length + more) for length in lengths]
        + [b"\\x%02x\\x80{0,3}\\x00(?:%b){%d}" % (length | 0x80, item, length + more) for length in lengths]
    )


def _float(code: str, size_bytes: int) -> ImmediateFormat:
    layout = struct.Struct(code)
    return ImmediateFormat(lambda cursor: layout.unpack(cursor.take(size_bytes))[0], layout.pack, b".{%d}" % size_bytes)


def _write_bytes16(value: bytes) -> bytes:
    if len(value) != 16:
        raise ValueError(f"{len(value)} bytes for a v128")
    return value


def _integer(bits: int, pattern: bytes) -> ImmediateFormat:
    def write(value: int) -> bytes:
        if not -1 << (bits - 1) <= value < 1 << (bits - 1):
            raise ValueError(f"{value} is not a signed number of {bits} bits")
        return signed(value)

    return ImmediateFormat(lambda cursor: cursor.signed(bits), write, pattern)


def _write_reference(name: str) -> bytes:
    if name not in HEAP_TYPES:
        raise ValueError(f"{name} is not a reference type")
    return VALUE_CODES[name]


IMMEDIATES: Final[dict[str, ImmediateFormat]] = {
    "index": ImmediateFormat(Cursor.unsigned, unsigned, _LEB32),
    "i32": _integer(32, _LEB32),
    "i64": _integer(64, _LEB64),
    "f32": _float("<I", 4),
    "f64": _float("<Q", 8),
    "bytes16": ImmediateFormat(lambda cursor: cursor.take(16), _write_bytes16, b".{16}"),
    "lane": ImmediateFormat(Cursor.byte, lambda lane: bytes([lane]), b"."),
    "memarg": ImmediateFormat(
        _read_memarg,
        _write_memarg,
        b"(?:%b|%b%b)%b" % (_ALIGN, _ALIGN_AND_MEMORY, _LEB32, _LEB64),
    ),
    "block": ImmediateFormat(_read_block, _write_block, rb"(?:%b%b|%b)" % (_TYPED, _LEB32, _LEB32)),
    "catches": ImmediateFormat(_read_catches, _write_catches, _counted(_CATCH, 0)),
    "labels": ImmediateFormat(_read_labels, _write_labels, _counted(_LEB32, 1)),
    "types": ImmediateFormat(read_value_types, write_value_types, _counted(_VALUE_TYPE, 0)),
    "reference": ImmediateFormat(read_heap_type, _write_reference, _LEB32),
}
"""By kind. Their values are: ``index``, ``i32``, ``i64``: a number; ``f32``, ``f64``: the number's bits; ``bytes16``:
16 bytes; ``lane``: a number; ``memarg``: a `MemArg`; ``block``: the name of a value type, the index of a type, or
None; ``labels``: a tuple, its last the default; ``catches``: a tuple of `Catch`; ``types``: a tuple of names;
``reference``: a name."""
