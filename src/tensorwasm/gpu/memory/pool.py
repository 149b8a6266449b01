"""Slices of one buffer, one after the other: the quickest allocator there is, which takes back everything at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Self

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.limits import GIB
from tensorwasm.gpu.memory.buffer import UnifiedBuffer
from tensorwasm.values import Region

MAX_ALIGN_BYTES: Final = GIB
DEFAULT_ALIGN_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot of a pool.

    Attributes:
        live: slices that were not released.
        issued_total: slices handed out ever; a reset does not change it.
        used_bytes: bytes of the buffer up to the end of the last slice.
        capacity_bytes: bytes of the buffer.
    """

    live: int
    issued_total: int
    used_bytes: int
    capacity_bytes: int


class Slice:
    """A part of a pool's buffer, until it is released. A context manager.

    Attributes:
        region: where it is.
        offset_bytes: of its first byte in the buffer.
    """

    __slots__ = ("_pool", "_released", "offset_bytes", "region")

    def __init__(self, pool: BufferPool, region: Region, offset_bytes: int) -> None:
        self._pool = pool
        self._released = False
        self.region = region
        self.offset_bytes = offset_bytes

    def release(self) -> None:
        """Say that nobody, no stream either, uses the slice any more. Its bytes come back with the pool's next reset.

        Raises:
            InternalError: it was released before.
        """
        with self._pool.turn:
            if self._released:
                raise InternalError("a slice of a pool is released once")
            self._released = True
            self._pool.live -= 1

    def __enter__(self) -> Self:
        """Return the slice."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the slice, unless that was done inside the ``with``."""
        with self._pool.turn:
            if not self._released:
                self.release()


class BufferPool:
    """Hands out slices of a buffer, never the same bytes twice between two resets. Safe from any thread.

    Args:
        buffer: of any kind; it belongs to the caller, outlives the pool's slices and is used by nobody else.

    Attributes:
        turn: held while books change.
        live: slices that were not released.
    """

    def __init__(self, buffer: UnifiedBuffer) -> None:
        self._buffer = buffer
        self._next_bytes = 0
        self._issued = 0
        self.turn = threading.RLock()
        self.live = 0

    def allocate(self, size_bytes: int, align_bytes: int = DEFAULT_ALIGN_BYTES) -> Slice:
        """Return a slice of zeros. Blocks until they are there.

        Args:
            size_bytes: at least 1.
            align_bytes: of its address: a power of two, at most 1 GiB.

        Raises:
            InvalidArgs: no such size or alignment.
            QuotaExceeded: the buffer has not so many bytes left.
            DeviceLost: the device does not answer.
            InternalError: the buffer is closed.
        """
        if size_bytes < 1:
            raise InvalidArgs("a slice of a pool has at least 1 byte")
        if not 1 <= align_bytes <= MAX_ALIGN_BYTES or align_bytes & (align_bytes - 1):
            raise InvalidArgs(f"an alignment is a power of two up to {MAX_ALIGN_BYTES}, not {align_bytes}")
        with self.turn:
            address = self._buffer.address
            start = -(-(address + self._next_bytes) // align_bytes) * align_bytes - address
            if start + size_bytes > len(self._buffer):
                raise QuotaExceeded(f"{size_bytes} bytes more do not fit a pool of {len(self._buffer)} bytes")
            self._buffer.clear(start, size_bytes)
            self._next_bytes = start + size_bytes
            self._issued += 1
            self.live += 1
            host = self._buffer.capabilities.host
            return Slice(self, Region(address + start, size_bytes, host=host), start)

    def reset(self) -> None:
        """Take back every byte at once.

        Raises:
            InternalError: a slice is still live; nothing has changed.
        """
        with self.turn:
            if self.live:
                raise InternalError(f"a pool of which {self.live} slices are live was reset")
            self._next_bytes = 0

    def statistics(self) -> PoolStatistics:
        """Return a snapshot."""
        with self.turn:
            return PoolStatistics(self.live, self._issued, self._next_bytes, len(self._buffer))
