"""A bounded reader over the bytes of a module."""

from __future__ import annotations

from tensorwasm.errors import InvalidWasm, ModuleTooLarge

_MAX_NAME_BYTES = 100_000


class Cursor:
    """Reads numbers and names between two offsets and never past the second.

    Attributes:
        data: the whole module, or a part of it.
        offset: next byte to read, counted from the start of the data.
        end: one past the last byte that may be read.
        base: where the data starts in the module; errors count from the module's start.
    """

    __slots__ = ("base", "data", "end", "offset")

    def __init__(self, data: bytes, offset: int, end: int, base: int = 0) -> None:
        self.data = data
        self.offset = offset
        self.end = end
        self.base = base

    def fail(self, message: str, at: int | None = None) -> InvalidWasm:
        """Return the error for a fault at an offset, the current one if none is given."""
        at = self.base + (self.offset if at is None else at)
        return InvalidWasm(f"not a valid WebAssembly module: {message} (at byte {at})")

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
        value = self.byte()
        if value < 0x80:
            return value
        value, _ = self._continue(value, bits, start)
        if value >> bits:
            raise self.fail("integer too large", start)
        return value

    def signed(self, bits: int) -> int:
        """Read a signed LEB128 number of at most ``bits`` bits.

        Raises:
            InvalidWasm: it is cut off, has more bytes than its width allows, or does not fit.

        Source: Wasm core 2.0, 5.2.2.
        """
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
            InvalidWasm: more than there are bytes left.
            ModuleTooLarge: more than ``maximum``.
        """
        start = self.offset
        value = self.unsigned()
        if value > self.end - self.offset:
            raise self.fail("unexpected end", start)
        if value > maximum:
            raise ModuleTooLarge(f"the module has {value} {what}; the limit is {maximum} (at byte {self.base + start})")
        return value

    def indices(self, maximum: int, what: str) -> tuple[int, ...]:
        """Read a vector of indices.

        Raises:
            InvalidWasm: more than ``maximum``, or one of them is not an index.
        """
        count = self.count(maximum, what)
        codes = self.data[self.offset : self.offset + count]
        if codes.isascii():  # all have one byte
            self.offset += count
            return tuple(codes)
        return tuple([self.unsigned() for _ in range(count)])
