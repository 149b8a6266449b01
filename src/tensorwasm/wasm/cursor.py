"""A bounded reader over the bytes of a module."""

from __future__ import annotations

from tensorwasm.errors import InvalidWasm

_MAX_NAME_BYTES = 100_000


def _unsigned_bytes(bits: int) -> int:
    return (bits + 6) // 7


class Cursor:
    """Reads numbers and names between two offsets and never past the second.

    Attributes:
        data: the whole module.
        offset: next byte to read, counted from the module's start.
        end: one past the last byte that may be read.
    """

    __slots__ = ("data", "end", "offset")

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data = data
        self.offset = offset
        self.end = end

    def fail(self, message: str, at: int | None = None) -> InvalidWasm:
        """Return the error for a fault at an offset, the current one if none is given."""
        return InvalidWasm(f"not a valid WebAssembly module: {message} (at byte {self.offset if at is None else at})")

    def done(self) -> bool:
        """Return whether every byte was read."""
        return self.offset >= self.end

    def byte(self) -> int:
        """Read one byte.

        Raises:
            InvalidWasm: there is none.
        """
        if self.offset >= self.end:
            raise self.fail("unexpected end")
        value = self.data[self.offset]
        self.offset += 1
        return value

    def take(self, length: int) -> bytes:
        """Read a run of bytes.

        Raises:
            InvalidWasm: there are fewer.
        """
        start = self.offset
        if length > self.end - start:
            raise self.fail("unexpected end")
        self.offset = start + length
        return self.data[start : self.offset]

    def unsigned(self, bits: int = 32) -> int:
        """Read an unsigned LEB128 number of at most ``bits`` bits.

        Raises:
            InvalidWasm: it is cut off, has more bytes than its width allows, or does not fit.

        Source: Wasm core 2.0, 5.2.2.
        """
        start = self.offset
        value = 0
        for index in range(_unsigned_bytes(bits)):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                break
        else:
            raise self.fail("integer representation too long", start)
        if value >> bits:
            raise self.fail("integer too large", start)
        return value

    def name(self) -> str:
        """Read a length-prefixed UTF-8 name.

        Raises:
            InvalidWasm: it is cut off, longer than engines accept, or not UTF-8.

        Source: Wasm core 2.0, 5.2.4.
        """
        start = self.offset
        length = self.unsigned()
        if length > _MAX_NAME_BYTES:
            raise self.fail("name too long", start)
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail("malformed UTF-8 encoding", start) from None

    def count(self, maximum: int, what: str) -> int:
        """Read a vector's length.

        Raises:
            InvalidWasm: more than ``maximum``, or more than there are bytes left.
        """
        start = self.offset
        value = self.unsigned()
        if value > maximum:
            raise self.fail(f"{value} {what}, more than the {maximum} that are accepted", start)
        if value > self.end - self.offset:
            raise self.fail("unexpected end", start)
        return value
