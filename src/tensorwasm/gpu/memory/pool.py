"""A bump allocator over one buffer: slices one after the other, taken back all at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Self

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.limits import GIB
from tensorwasm.gpu.memory import pages
from tensorwasm.gpu.memory.buffer import UnifiedBuffer
from tensorwasm.values import Region

MAX_ALIGN_BYTES: Final = GIB
DEFAULT_ALIGN_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot: slices not released and ever issued, and bytes of the buffer up to the last slice and in all."""

    live: int
    issued_total: int
    used_bytes: int
    capacity_bytes: int


@dataclass(eq=False, slots=True)
class Slice:
    """A part of a pool's buffer, at an offset from the buffer's first byte, until it is released. A context manager."""

    _pool: BufferPool
    region: Region
    offset_bytes: int
    _released: bool = False

    def release(self) -> None:
        """End the use of the slice, once, by streams too. Its bytes come back with the pool's next reset."""
        with self._pool.lock:
            if self._released:
                raise InternalError("a slice of a pool is released once")
            self._released = True
            self._pool.live -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._pool.lock:
            if not self._released:
                self.release()


class BufferPool:
    """Hands out slices of a buffer, never the same bytes twice between two resets. Safe from any thread.

    The buffer, of any kind, belongs to the caller, outlives the pool's slices and has no other user. The lock is held
    while ``live``, the number of slices not released, and the pool's end change.
    """

    def __init__(self, buffer: UnifiedBuffer) -> None:
        self._buffer = buffer
        self._next_bytes = self._issued = self.live = 0
        self.lock = threading.RLock()

    def allocate(self, size_bytes: int, align_bytes: int = DEFAULT_ALIGN_BYTES) -> Slice:
        """Return a slice of zeros. Blocks until they are there.

        Raises:
            InvalidArgs: a size below 1, or an alignment that is no power of two up to 1 GiB.
            QuotaExceeded: the buffer has not so many bytes left.
        """
        if size_bytes < 1:
            raise InvalidArgs("a slice of a pool has at least 1 byte")
        if not 1 <= align_bytes <= MAX_ALIGN_BYTES or align_bytes & (align_bytes - 1):
            raise InvalidArgs(f"an alignment is a power of two up to {MAX_ALIGN_BYTES}, not {align_bytes}")
        with self.lock:
            address = self._buffer.address
            start = pages.rounded(address + self._next_bytes, align_bytes) - address
            if start + size_bytes > len(self._buffer):
                raise QuotaExceeded(f"{size_bytes} bytes more do not fit a pool of {len(self._buffer)} bytes")
            self._buffer.clear(start, size_bytes)
            self._next_bytes = start + size_bytes
            self._issued += 1
            self.live += 1
            return Slice(self, Region(address + start, size_bytes, host=self._buffer.capabilities.host), start)

    def reset(self) -> None:
        """Take back every byte at once; refused with `InternalError` while a slice is live."""
        with self.lock:
            if self.live:
                raise InternalError(f"a pool of which {self.live} slices are live was reset")
            self._next_bytes = 0

    def statistics(self) -> PoolStatistics:
        """Return a snapshot."""
        with self.lock:
            return PoolStatistics(self.live, self._issued, self._next_bytes, len(self._buffer))
