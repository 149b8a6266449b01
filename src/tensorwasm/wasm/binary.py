"""Numbers, names and vectors of the binary format: a bounded reader, and functions that write their shortest form.

Source: Wasm core 2.0, 5.1.3 (vectors), 5.2.2 (LEB128 integers), 5.2.4 (names).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeVar

from tensorwasm.errors import InvalidWasm, ModuleTooLarge

_Item = TypeVar("_Item")
_MAX_NAME_BYTES: Final = 100_000
_BYTES: Final = tuple(bytes([value]) for value in range(0x80))


@dataclass(slots=True, eq=False)
class Cursor:
    """Reads numbers and names from a range of bytes and never past its end.

    Its methods raise `InvalidWasm`, with the offset in the module, where the bytes are cut off or not what they read.

    Attributes:
        data: the whole module, or a part of it.
        offset: next byte to read, counted from the start of the data.
        end: one past the last byte that may be read.
        base: offset of the data in the module.
    """

    data: bytes
    offset: int
    end: int
    base: int = 0

    def fail(self, message: str, at: int | None = None) -> InvalidWasm:
        """Return the error for a fault at an offset, by default the current one."""
        at = self.base + (self.offset if at is None else at)
        return InvalidWasm(f"not a valid WebAssembly module: {message} (at byte {at})")

    def done(self) -> bool:
        """Return whether every byte was read."""
        return self.offset >= self.end

    def byte(self) -> int:
        """Read one byte."""
        if self.offset >= self.end:
            raise self.fail("unexpected end")
        value = self.data[self.offset]
        self.offset += 1
        return value

    def take(self, length: int) -> bytes:
        """Read a run of bytes."""
        start = self.offset
        if length > self.end - start:
            raise self.fail("unexpected end")
        self.offset = start + length
        return self.data[start : self.offset]

    def unsigned(self, bits: int = 32) -> int:
        """Read an unsigned LEB128 number of at most ``bits`` bits."""
        start = self.offset
        value = self.byte()
        if value < 0x80:
            return value
        value, _ = self._continue(value, bits, start)
        if value >> bits:
            raise self.fail("integer too large", start)
        return value

    def signed(self, bits: int) -> int:
        """Read a signed LEB128 number of at most ``bits`` bits."""
        start = self.offset
        value, width = self.byte(), 7
        if value >= 0x80:
            value, width = self._continue(value, bits, start)
        if value >> (width - 1):
            value -= 1 << width
        if not -1 << (bits - 1) <= value < 1 << (bits - 1):
            raise self.fail("integer too large", start)
        return value

    def _continue(self, first: int, bits: int, start: int) -> tuple[int, int]:
        value, width = first & 0x7F, 7
        while width < bits:
            byte = self.byte()
            value |= (byte & 0x7F) << width
            width += 7
            if byte < 0x80:
                return value, width
        raise self.fail("integer representation too long", start)

    def name(self) -> str:
        """Read a length-prefixed UTF-8 name, no longer than engines accept."""
        start = self.offset
        length = self.unsigned()
        if length > _MAX_NAME_BYTES:
            raise self.fail("name too long", start)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail("malformed UTF-8 encoding", start) from None

    def count(self, maximum: int, what: str) -> int:
        """Read a vector's length; no vector has more items than there are bytes left.

        Raises:
            ModuleTooLarge: more than ``maximum``.
        """
        start = self.offset
        value = self.unsigned()
        if value > self.end - self.offset:
            raise self.fail("unexpected end", start)
        if value > maximum:
            raise ModuleTooLarge(f"the module has {value} {what}; the limit is {maximum} (at byte {self.base + start})")
        return value

    def vector(self, read: Callable[[Cursor], _Item], maximum: int, what: str) -> tuple[_Item, ...]:
        """Read a vector of items; limits are those of `count`."""
        return tuple([read(self) for _ in range(self.count(maximum, what))])

    def indices(self, maximum: int, what: str) -> tuple[int, ...]:
        """Read a vector of indices; limits are those of `count`."""
        count = self.count(maximum, what)
        codes = self.data[self.offset : self.offset + count]
        if codes.isascii():  # all have one byte
            self.offset += count
            return tuple(codes)
        return tuple([self.unsigned() for _ in range(count)])


def unsigned(value: int) -> bytes:
    """Encode an unsigned LEB128 number.

    Raises:
        ValueError: it is negative.
    """
    if 0 <= value < 0x80:
        return _BYTES[value]
    if value < 0:
        raise ValueError(f"{value} is negative")
    return _leb128(value, 0, 0x80)


def signed(value: int) -> bytes:
    """Encode a signed LEB128 number."""
    return _leb128(value, -0x40, 0x40)


def _leb128(value: int, low: int, high: int) -> bytes:
    """Encode a number whose last byte holds what is at least ``low`` and less than ``high``."""
    out = bytearray()
    while not low <= value < high:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def sized(data: bytes) -> bytes:
    """Encode bytes behind their length."""
    return unsigned(len(data)) + data


def name(text: str) -> bytes:
    """Encode a name."""
    return sized(text.encode())


def vector(items: Collection[bytes]) -> bytes:
    """Encode a vector of encoded items."""
    return unsigned(len(items)) + b"".join(items)
