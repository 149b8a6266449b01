"""Device memory under a cap."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Pool
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.memory.allocations import ALIGN_BYTES, AllocationTable

GRANULARITY_BYTES: Final = 2 << 20
"""A cap is rounded up to a multiple of it, as hardware does."""
PATTERN: Final = 0xA5
"""What memory of a pool is filled with, so that no test can take it for cleared."""


@dataclass(slots=True, eq=False)
class EmulatedPool:
    """A cap, and what has been allocated under it, in bytes by address."""

    cap_bytes: int
    used_bytes: int = 0
    allocated: dict[int, int] = field(default_factory=dict)


class EmulatedPools:
    """The open pools of a device; others are refused with `InvalidHandle`."""

    capped: Final = True

    def __init__(self, allocations: AllocationTable) -> None:
        self._allocations = allocations
        self._lock = threading.Lock()
        self.open: Final = OpenObjects(EmulatedPool, "the pool is not open on this device")

    def open_pool(self, max_bytes: int) -> Pool:
        """Return a pool that holds at most that many bytes, rounded up to `GRANULARITY_BYTES`."""
        return self.open.add(EmulatedPool(-(-max_bytes // GRANULARITY_BYTES) * GRANULARITY_BYTES))

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """Return the address of memory of the pool, 256-byte aligned and full of `PATTERN`."""
        own = self.open.require(pool)
        charged_bytes = -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        with self._lock:
            left_bytes = own.cap_bytes - own.used_bytes
            if charged_bytes > left_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes of a pool requested, {left_bytes} of {own.cap_bytes} left")
            own.used_bytes += charged_bytes
        try:
            address = self._allocations.allocate(size_bytes, PATTERN)
        except BaseException:
            with self._lock:
                own.used_bytes -= charged_bytes
            raise
        with self._lock:
            own.allocated[address] = charged_bytes
        return address

    def pool_free(self, pool: Pool, address: int) -> None:
        """Return memory to the pool."""
        own = self.open.require(pool)
        with self._lock:
            charged_bytes = own.allocated.pop(address, None)
        if charged_bytes is None:
            raise LaunchRefused(f"the pool has no memory at {address:#x}")
        self._allocations.free(address)
        with self._lock:
            own.used_bytes -= charged_bytes

    def close_pool(self, pool: Pool) -> None:
        """Release a pool."""
        if isinstance(pool, EmulatedPool) and pool.used_bytes:
            raise LaunchRefused(f"{pool.used_bytes} bytes are still allocated from the pool")
        self.open.discard(pool)
