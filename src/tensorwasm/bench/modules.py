"""Modules of any size, of functions such as compilers write: arithmetic, loads and stores, calls, loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from tensorwasm.wasm.sections import HEADER

FUNCTION_BYTES: Final = 230
"""About what a function has."""

_LOCALS: Final = 6
_ARITHMETIC: Final = b"\x6a\x6b\x6c\x71\x72\x73\x74"  # i32.add to i32.shl
_PAGE_MASK: Final = 0xFFFF


def make_module(code_bytes: int, seed: int = 0, distinct: int | None = None) -> bytes:
    """Return a valid module with about so many bytes of code and one export, ``f``, which nobody should call.

    Args:
        code_bytes: about how much.
        seed: of the same module every time.
        distinct: bodies that differ, over and over again, which is quicker to make; None for all.
    """
    source = random.Random(seed)  # noqa: S311 - the same module every time, no secret
    count = max(1, code_bytes // FUNCTION_BYTES)
    made = [_function(source, count) for _ in range(min(count, distinct or count))]
    bodies = [made[index % len(made)] for index in range(count)]
    return HEADER + b"".join(
        (
            _section(1, b"\x01\x60\x02\x7f\x7f\x01\x7f"),
            _section(3, _unsigned(count) + bytes(count)),
            _section(5, b"\x01\x00\x02"),
            _section(7, b"\x01\x01f\x00\x00"),
            _section(10, _unsigned(count) + b"".join(bodies)),
        )
    )


def _function(source: random.Random, count: int) -> bytes:
    code = bytearray(b"\x01\x04\x7f")
    for _ in range(source.randint(6, 30)):
        code += source.choice(_STATEMENTS)(source, count)
    code += b"\x20\x00\x0b"
    return _unsigned(len(code)) + bytes(code)


def _compute(source: random.Random, _count: int) -> bytes:
    return _get(source) + _get(source) + bytes([source.choice(_ARITHMETIC)]) + _set(source)


def _load(source: random.Random, _count: int) -> bytes:
    return _address(source) + b"\x28\x02" + _unsigned(source.randrange(4096)) + _set(source)


def _store(source: random.Random, _count: int) -> bytes:
    return _address(source) + _get(source) + b"\x36\x02" + _unsigned(source.randrange(4096))


def _call(source: random.Random, count: int) -> bytes:
    return _get(source) + _get(source) + b"\x10" + _unsigned(source.randrange(count)) + _set(source)


def _loop(source: random.Random, _count: int) -> bytes:
    index = _unsigned(source.randrange(_LOCALS))
    step, end = _signed(source.randrange(1, 1000)), _signed(source.randrange(1 << 30))
    return b"\x03\x40\x20" + index + b"\x41" + step + b"\x6a\x22" + index + b"\x41" + end + b"\x48\x0d\x00\x0b"


_STATEMENTS: Final[tuple[Callable[[random.Random, int], bytes], ...]] = (_compute, _load, _store, _call, _loop)


def _get(source: random.Random) -> bytes:
    return b"\x20" + _unsigned(source.randrange(_LOCALS))


def _set(source: random.Random) -> bytes:
    return b"\x21" + _unsigned(source.randrange(_LOCALS))


def _address(source: random.Random) -> bytes:
    return _get(source) + b"\x41" + _signed(_PAGE_MASK) + b"\x71"


def _section(number: int, body: bytes) -> bytes:
    return bytes([number]) + _unsigned(len(body)) + body


def _unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _signed(value: int) -> bytes:
    """Return a number that is not negative as signed LEB128."""
    encoded = bytearray()
    while value > 0x3F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
