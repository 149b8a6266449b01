"""What all sessions of a process share: the device-memory ledger and the gate on concurrent GPU work."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import CapacityExhausted, QuotaExceeded
from tensorwasm.gpu.limits import (
    DEADLINE_NEAR_S,
    MAX_CONCURRENT_OPERATIONS,
    MAX_PROCESS_ALLOCATIONS,
    MAX_PROCESS_DEVICE_BYTES,
)
from tensorwasm.values import Deadline


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    """What is charged now: live allocations and their bytes."""

    allocations: int
    device_bytes: int


class Ledger:
    """Counts device memory over many sessions; every method is safe from any thread.

    Args:
        max_bytes: most bytes charged at a time.
        max_allocations: most allocations charged at a time.
    """

    def __init__(
        self, max_bytes: int = MAX_PROCESS_DEVICE_BYTES, max_allocations: int = MAX_PROCESS_ALLOCATIONS
    ) -> None:
        self._max_bytes = max_bytes
        self._max_allocations = max_allocations
        self._bytes = 0
        self._allocations = 0
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, allocations: int = 1) -> None:
        """Charge memory before it is allocated.

        Raises:
            QuotaExceeded: over a limit; nothing is charged.
        """
        with self._lock:
            if self._bytes + size_bytes > self._max_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes more would exceed this process's {self._max_bytes} bytes")
            if self._allocations + allocations > self._max_allocations:
                raise QuotaExceeded(f"this process already holds {self._allocations} device allocations")
            self._bytes += size_bytes
            self._allocations += allocations

    def release(self, size_bytes: int, allocations: int = 1) -> None:
        """Refund exactly what one `reserve` charged."""
        with self._lock:
            self._bytes -= size_bytes
            self._allocations -= allocations

    def statistics(self) -> LedgerStatistics:
        """Return what is charged now."""
        with self._lock:
            return LedgerStatistics(self._allocations, self._bytes)


class Gate:
    """Lets a fixed number of sessions have work on the GPU at a time; every method is safe from any thread.

    Args:
        capacity: how many; 0 refuses everybody.
    """

    def __init__(self, capacity: int = MAX_CONCURRENT_OPERATIONS) -> None:
        self._capacity = capacity
        self._in_use = 0
        self._freed = threading.Condition()

    def enter(self, deadline: Deadline) -> None:
        """Take a place, waiting for one until 50 ms before the deadline; every `enter` needs one `leave`.

        Raises:
            CapacityExhausted: none came free in time, or the capacity is 0.
        """
        with self._freed:
            if not self._free() and not self._wait(deadline):
                raise CapacityExhausted(f"all {self._capacity} places for concurrent GPU work are taken")
            self._in_use += 1

    def leave(self) -> None:
        """Give a place back."""
        with self._freed:
            self._in_use -= 1
            self._freed.notify()

    @property
    def in_use(self) -> int:
        """Places taken now."""
        return self._in_use

    def _free(self) -> bool:
        return self._in_use < self._capacity

    def _wait(self, deadline: Deadline) -> bool:
        wait_s = deadline.remaining_s() - DEADLINE_NEAR_S
        if self._capacity == 0 or wait_s <= 0:
            return False
        return self._freed.wait_for(self._free, timeout=min(wait_s, threading.TIMEOUT_MAX))


PROCESS_LEDGER: Final = Ledger()
PROCESS_GATE: Final = Gate()
