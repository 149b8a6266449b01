"""Free space inside chunks of memory: best fit, joined again when pieces come back."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Chunk:
    """A range of addresses that is handed out in pieces.

    Attributes:
        address: first byte.
        size_bytes: length.
        used_bytes: handed out.
        sizes: free spans, start to size.
        starts: free spans, end to start.
    """

    address: int
    size_bytes: int
    used_bytes: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)


class FreeList:
    """The free spans of some chunks. Not safe from several threads.

    Chunks may lie side by side: spans are joined within a chunk only. A search takes log n steps; adding and removing a
    span moves the n pointers behind it, which is less than the search for any n that limits allow.
    """

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int, Chunk]] = []

    def add(self, chunk: Chunk) -> None:
        """Add a chunk, all of it free."""
        self._insert(chunk, chunk.address, chunk.size_bytes)

    def remove(self, chunk: Chunk) -> None:
        """Remove a chunk, all of which is free."""
        self._extract(chunk, chunk.address)

    def take(self, size_bytes: int) -> tuple[int, Chunk] | None:
        """Return the start of the smallest span that is long enough, of several the lowest, and its chunk; or None."""
        at = bisect_left(self._by_size, (size_bytes,))
        if at == len(self._by_size):
            return None
        span_bytes, address, chunk = self._by_size[at]
        self._extract(chunk, address)
        if span_bytes > size_bytes:
            self._insert(chunk, address + size_bytes, span_bytes - size_bytes)
        chunk.used_bytes += size_bytes
        return address, chunk

    def put(self, chunk: Chunk, address: int, size_bytes: int) -> None:
        """Take back a piece from `take`, all of it."""
        chunk.used_bytes -= size_bytes
        end = address + size_bytes
        if end in chunk.sizes:
            size_bytes += self._extract(chunk, end)
        if address in chunk.starts:
            before = chunk.starts[address]
            size_bytes += self._extract(chunk, before)
            address = before
        self._insert(chunk, address, size_bytes)

    def longest_bytes(self) -> int:
        """Return the bytes of the longest span, 0 without any."""
        return self._by_size[-1][0] if self._by_size else 0

    def _insert(self, chunk: Chunk, address: int, size_bytes: int) -> None:
        chunk.sizes[address] = size_bytes
        chunk.starts[address + size_bytes] = address
        insort(self._by_size, (size_bytes, address, chunk))

    def _extract(self, chunk: Chunk, address: int) -> int:
        size_bytes = chunk.sizes.pop(address)
        del chunk.starts[address + size_bytes]
        del self._by_size[bisect_left(self._by_size, (size_bytes, address))]
        return size_bytes
