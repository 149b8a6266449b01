"""Device memory under a cap."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool
from tensorwasm.gpu.emulator.allocations import ALIGN_BYTES, Allocations

GRANULARITY_BYTES: Final = 2 << 20
"""A cap is rounded up to a multiple of it, as hardware does."""
PATTERN: Final = 0xA5
"""What memory of a pool is filled with, so that nobody can mistake it for cleared."""


@dataclass(slots=True, eq=False)
class EmulatedPool:
    """A cap, and what has been allocated under it, in bytes by address."""

    cap_bytes: int
    used_bytes: int = 0
    pieces: dict[int, int] = field(default_factory=dict)


class EmulatedPools:
    """The pools of a device.

    Args:
        allocations: its memory.
    """

    capped: Final = True

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations
        self._lock = threading.Lock()
        self._pools: set[EmulatedPool] = set()

    def __len__(self) -> int:
        """Return how many pools are open."""
        return len(self._pools)

    def open_pool(self, max_bytes: int) -> Pool:
        """Return a pool that holds at most that many bytes, rounded up to `GRANULARITY_BYTES`."""
        pool = EmulatedPool(-(-max_bytes // GRANULARITY_BYTES) * GRANULARITY_BYTES)
        with self._lock:
            self._pools.add(pool)
        return pool

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """Return the address of memory of the pool, 256-byte aligned and full of `PATTERN`.

        Raises:
            InvalidHandle: no such pool.
            QuotaExceeded: over the pool's cap, or the device has no memory left.
        """
        own = self._own(pool)
        charged_bytes = -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        with self._lock:
            if charged_bytes > own.cap_bytes - own.used_bytes:
                raise QuotaExceeded(
                    f"{size_bytes} bytes of a pool asked, {own.cap_bytes - own.used_bytes} of {own.cap_bytes} left"
                )
            own.used_bytes += charged_bytes
        try:
            address = self._allocations.allocate(size_bytes, PATTERN).base
        except BaseException:
            with self._lock:
                own.used_bytes -= charged_bytes
            raise
        with self._lock:
            own.pieces[address] = charged_bytes
        return address

    def pool_free(self, pool: Pool, address: int) -> None:
        """Give memory back to the pool.

        Raises:
            InvalidHandle: no such pool.
            LaunchRefused: nothing of the pool begins there.
        """
        own = self._own(pool)
        with self._lock:
            charged_bytes = own.pieces.pop(address, None)
        if charged_bytes is None:
            raise LaunchRefused(f"the pool has no memory at {address:#x}")
        self._allocations.free(address)
        with self._lock:
            own.used_bytes -= charged_bytes

    def close_pool(self, pool: Pool) -> None:
        """Release a pool.

        Raises:
            LaunchRefused: something is allocated from it.
        """
        if not isinstance(pool, EmulatedPool):
            return
        if pool.used_bytes:
            raise LaunchRefused(f"{pool.used_bytes} bytes are still allocated from the pool")
        with self._lock:
            self._pools.discard(pool)

    def clear(self) -> None:
        """Release every pool."""
        with self._lock:
            self._pools.clear()

    def _own(self, pool: Pool) -> EmulatedPool:
        if not isinstance(pool, EmulatedPool) or pool not in self._pools:
            raise InvalidHandle("the pool is not open on this device")
        return pool
