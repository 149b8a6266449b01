"""What all sessions of a process share: the device-memory ledger and the gate on concurrent GPU work."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Protocol

from tensorwasm.errors import CapacityExhausted, QuotaExceeded
from tensorwasm.gpu.limits import (
    DEADLINE_NEAR_S,
    MAX_CONCURRENT_OPERATIONS,
    MAX_PROCESS_ALLOCATIONS,
    MAX_PROCESS_DEVICE_BYTES,
)
from tensorwasm.values import Deadline

_ASK_S: Final = 0.005
"""How long a full gate waits between two looks at the holders of its places."""


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


class Holder(Protocol):
    """Who keeps a place at the gate while nothing of it is on the GPU."""

    def vacate(self) -> bool:
        """Give the place up unless it is needed now. Called by the gate, on any thread, at any time; must not wait."""


class Gate:
    """Lets a fixed number of sessions have work on the GPU at a time; every method is safe from any thread.

    A holder keeps its place between two pieces of work, which compiled code gives to the GPU without asking here. When
    all places are taken, those of holders that have nothing on the GPU are taken back. Compiled code looks at its place
    without a lock: a place may be used twice for the length of one launch, if it is taken back at that very moment.

    Args:
        capacity: how many; 0 refuses everybody.
    """

    def __init__(self, capacity: int = MAX_CONCURRENT_OPERATIONS) -> None:
        self._capacity = capacity
        self._in_use = 0
        self._holders: dict[Holder, None] = {}
        self._freed = threading.Condition()

    def enter(self, deadline: Deadline, holder: Holder | None = None) -> None:
        """Take a place, waiting for one until 50 ms before the deadline; every `enter` needs one `leave`.

        Args:
            deadline: when the work has to have ended.
            holder: who may be asked for the place again; one that still has its place keeps it.

        Raises:
            CapacityExhausted: none came free in time, or the capacity is 0.
        """
        with self._freed:
            if holder is not None and holder in self._holders:
                return
            if not self._free() and not self._wait(deadline):
                raise CapacityExhausted(f"all {self._capacity} places for concurrent GPU work are taken")
            self._in_use += 1
            if holder is not None:
                self._holders[holder] = None

    def offer(self, holder: Holder) -> bool:
        """Give a holder a place if one is free that nobody has; return whether it has one now. Never waits."""
        with self._freed:
            if holder in self._holders:
                return True
            if self._in_use >= self._capacity:
                return False
            self._in_use += 1
            self._holders[holder] = None
            return True

    def leave(self, holder: Holder | None = None) -> None:
        """Give a place back; nothing if it was taken back from its holder before."""
        with self._freed:
            if holder is not None:
                if holder not in self._holders:
                    return
                del self._holders[holder]
            self._in_use -= 1
            self._freed.notify()

    @property
    def in_use(self) -> int:
        """Places taken now."""
        return self._in_use

    def _free(self) -> bool:
        return self._in_use < self._capacity or self._take_back()

    def _take_back(self) -> bool:
        for holder in self._holders:
            if holder.vacate():
                del self._holders[holder]
                self._in_use -= 1
                return True
        return False

    def _wait(self, deadline: Deadline) -> bool:
        wait_s = deadline.remaining_s() - DEADLINE_NEAR_S
        if self._capacity == 0 or wait_s <= 0:
            return False
        limit = Deadline.after(wait_s)
        while not self._free():
            left_s = limit.remaining_s()
            if left_s <= 0:
                return False
            # Compiled code tells nobody when its work has ended, so holders are asked now and then.
            self._freed.wait(min(left_s, _ASK_S) if self._holders else min(left_s, threading.TIMEOUT_MAX))
        return True


PROCESS_LEDGER: Final = Ledger()
PROCESS_GATE: Final = Gate()
