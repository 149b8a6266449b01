"""Numbers, names and vectors as bytes: what `Cursor` reads, written in the shortest form."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_BYTES: Final = tuple(bytes([value]) for value in range(0x80))


def unsigned(value: int) -> bytes:
    """Encode an unsigned LEB128 number.

    Raises:
        ValueError: it is negative, which this form cannot say.

    Source: Wasm core 2.0, 5.2.2.
    """
    if 0 <= value < 0x80:
        return _BYTES[value]
    if value < 0:
        raise ValueError(f"{value} is negative")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """Encode a signed LEB128 number.

    Source: Wasm core 2.0, 5.2.2.
    """
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def sized(data: bytes) -> bytes:
    """Put the length of some bytes before them."""
    return unsigned(len(data)) + data


def name(text: str) -> bytes:
    """Encode a name.

    Source: Wasm core 2.0, 5.2.4.
    """
    return sized(text.encode())


def vector(items: Collection[bytes]) -> bytes:
    """Put the number of encoded items before them.

    Source: Wasm core 2.0, 5.1.3.
    """
    return unsigned(len(items)) + b"".join(items)
