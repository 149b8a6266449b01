"""Instruction streams: bytes to tuples and back.

An instruction is a tuple: its name, then one value for each immediate. Most of a stream is cut into instructions by one
regular expression and translated by a dictionary of what was seen before, both at the speed of C. The rest goes through
`read`: it is the only definition of the format, and reports what is wrong and where.

Source: Wasm core 2.0, 5.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from typing import Any, Final, TypeVar

from tensorwasm.errors import InvalidWasm
from tensorwasm.wasm.binary import Cursor, unsigned
from tensorwasm.wasm.immediates import IMMEDIATES
from tensorwasm.wasm.opcodes import BY_NAME, OPCODES, PREFIXES, Opcode
from tensorwasm.wasm.proposals import OPCODES as PROPOSALS
from tensorwasm.wasm.proposals import refuse

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
        proposal = PROPOSALS.get((prefix, code))
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
