"""Instruction streams: bytes to tuples and back.

An instruction is a tuple: its name, then one value for each immediate. Most of a stream is cut into instructions by one
regular expression and translated by a dictionary of what was seen before, both at the speed of C. The rest goes through
`read`: it is the only definition of the format, and reports what is wrong and where.

The pattern of a kind of immediates matches everything that its reader accepts, to the same end; it may match more bytes
than valid ones, but never another length of these.

Source: Wasm core 2.0, 5.4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final, TypeVar

from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm.binary import Cursor, signed, unsigned, vector
from tensorwasm.wasm.opcodes import BY_NAME, OPCODES, PREFIXES, Opcode
from tensorwasm.wasm.types import (
    HEAP_TYPES,
    NON_NULL,
    NULLABLE,
    OFF_OPCODES,
    VALUE_CODES,
    VALUE_TYPES,
    read_heap_type,
    read_value_type,
    read_value_types,
    refuse,
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


# -------------------------------------------------------------------------------------------------------------- streams

Instruction = tuple[Any, ...]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_CHUNK_BYTES: Final = 1 << 14
"""What the expression cannot match takes the rest of its chunk with it: the smaller a chunk, the less is cut twice."""
_OFTEN_FIRST: Final = (("index",), (), ("i32",), ("memarg",), ("block",))
_REMEMBERED: Final = 1 << 15
_LONGEST_REMEMBERED: Final = 32  # bytes; longer than any but br_table and select with types

_READERS: Final = {
    (opcode.prefix, opcode.code): (opcode.name, [IMMEDIATES[kind].read for kind in opcode.immediates])
    for opcode in OPCODES
}


def read(cursor: Cursor) -> Instruction:
    """Read one instruction.

    Raises:
        InvalidWasm: there is no such instruction, or it is cut off.
        UnsupportedProposal: it belongs to a proposal that is off.
    """
    start = cursor.offset
    prefix, code = 0, cursor.byte()
    if code in PREFIXES:
        prefix, code = code, cursor.unsigned()
    form = _READERS.get((prefix, code))
    if form is None:
        proposal = OFF_OPCODES.get((prefix, code))
        if proposal is not None:
            raise refuse(proposal, cursor.base + start)
        raise cursor.fail(f"unknown instruction {f'{prefix:#04x} ' if prefix else ''}{code:#04x}", start)
    name, readers = form
    return (name, *[read_immediate(cursor) for read_immediate in readers])


def write(instruction: Instruction) -> bytes:
    """Encode one instruction.

    Raises:
        KeyError: there is no such instruction or type.
        ValueError: an immediate is missing, too many, or not of its kind.
    """
    name, *values = instruction
    opcode = BY_NAME[name]
    code = bytes([opcode.prefix]) + unsigned(opcode.code) if opcode.prefix else bytes([opcode.code])
    return code + b"".join(
        [IMMEDIATES[kind].write(value) for kind, value in zip(opcode.immediates, values, strict=True)]
    )


class _Cache(dict[_Key, _Value]):
    """A bounded dictionary, emptied when it is full: a look-up stays one call in C."""

    def keep(self, key: _Key, value: _Value, size_bytes: int) -> _Value:
        """Add a pair unless the instruction is long; return its value."""
        if size_bytes <= _LONGEST_REMEMBERED:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[key] = value
        return value


class _Decoded(_Cache[bytes, Instruction]):
    def __missing__(self, token: bytes) -> Instruction:
        cursor = Cursor(token, 0, len(token))
        instruction = read(cursor)
        if not cursor.done():
            raise cursor.fail("more than one instruction")
        return self.keep(token, instruction, len(token))


class _Encoded(_Cache[Instruction, bytes]):
    def __missing__(self, instruction: Instruction) -> bytes:
        encoded = write(instruction)
        return self.keep(instruction, encoded, len(encoded))


_decoded: Final = _Decoded()
_encoded: Final = _Encoded()


def _charset(codes: Iterable[int]) -> bytes:
    return b"[%b]" % b"".join(b"\\x%02x" % code for code in codes)


def _numbers_pattern(codes: list[int]) -> bytes:
    """Match unsigned LEB128 numbers below 2**14, each in any of its lengths."""
    forms = []
    for high, group in groupby(sorted(codes), lambda code: code >> 7):
        low = [code & 0x7F for code in group]
        more = _charset(code | 0x80 for code in low)
        forms += [more + b"\\x%02x" % high, more + b"\\x%02x\\x80{0,2}\\x00" % (high | 0x80)]
        if not high:
            forms.insert(0, _charset(low))
    return b"(?:" + b"|".join(forms) + b")"


def _alternatives(opcodes: Iterable[Opcode]) -> bytes:
    """Match instructions of one prefix, the kinds of immediates most often seen first."""
    by_kinds: dict[tuple[str, ...], list[Opcode]] = {kinds: [] for kinds in _OFTEN_FIRST}
    for opcode in opcodes:
        by_kinds.setdefault(opcode.immediates, []).append(opcode)
    return b"|".join(
        (_numbers_pattern if group[0].prefix else _charset)([opcode.code for opcode in group])
        + b"".join(IMMEDIATES[kind].pattern for kind in kinds)
        for kinds, group in by_kinds.items()
        if group
    )


@cache
def _cutter() -> Callable[[bytes, int, int], list[bytes]]:
    """Return a function that cuts bytes into instructions; the last piece is everything that does not match."""
    forms = [_alternatives(opcode for opcode in OPCODES if not opcode.prefix)]
    for prefix in PREFIXES:
        rest = _alternatives(opcode for opcode in OPCODES if opcode.prefix == prefix)
        forms.append(_charset([prefix]) + b"(?:" + rest + b")")
    return re.compile(b"|".join([*forms, b".+"]), re.DOTALL).findall


def decode_stream(cursor: Cursor) -> list[Instruction]:
    """Read instructions up to the cursor's end.

    Raises:
        InvalidWasm: there is no such instruction, or the last is cut off.
    """
    instructions: list[Instruction] = []
    cut = _cutter()
    while cursor.offset < cursor.end:
        start, stop = cursor.offset, min(cursor.end, cursor.offset + _CHUNK_BYTES)
        tokens = cut(cursor.data, start, stop)
        last = tokens.pop()
        try:
            instructions += map(_decoded.__getitem__, tokens)
        except InvalidWasm:
            while True:  # one by one, up to the fault, for its offset
                read(cursor)
        cursor.offset = stop if last in _decoded else stop - len(last)
        instructions.append(_decoded[last] if last in _decoded else read(cursor))
    return instructions


def encode_stream(instructions: Iterable[Instruction]) -> bytes:
    """Encode instructions one after the other; errors are those of `write`."""
    return b"".join(map(_encoded.__getitem__, instructions))
