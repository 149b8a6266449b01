"""What all sessions of a process share: the device-memory ledger and the gate on concurrent GPU work."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tensorwasm.errors import CapacityExhausted, QuotaExceeded
from tensorwasm.gpu.device.limits import (
    DEADLINE_NEAR_S,
    MAX_CONCURRENT_OPERATIONS,
    MAX_PROCESS_ALLOCATIONS,
    MAX_PROCESS_DEVICE_BYTES,
)
from tensorwasm.values import Deadline

_ASK_S: Final = 0.005
"""How often a full gate asks the holders of its permits."""


@dataclass(frozen=True, slots=True)
class MemoryLedgerStatistics:
    """Live allocations and their bytes."""

    allocations: int
    device_bytes: int


class MemoryLedger:
    """Counts device memory over many sessions, up to a number of bytes and of allocations. Thread-safe."""

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

    def statistics(self) -> MemoryLedgerStatistics:
        """Return what is charged now."""
        with self._lock:
            return MemoryLedgerStatistics(self._allocations, self._bytes)


class Holder(Protocol):
    """What has or wants a permit. Compared by identity."""

    def vacate(self) -> bool:
        """Give the permit up unless it is needed now. Called by the gate, on any thread, at any time; must not wait."""


class Gate:
    """Lets a fixed number of sessions have work on the GPU at a time. Thread-safe.

    Holders queue for permits, first in, first out. A permit that comes free belongs to the first one from that moment
    on, and only that one is notified. A holder that gives up leaves the queue, but keeps a permit that came before.

    A holder keeps its permit between two pieces of work, which compiled code gives to the GPU without asking here;
    their end is not notified. So while there is a queue, one thread asks the holders every few milliseconds, and those
    that have nothing on the GPU lose their permits. Compiled code looks at its permit without a lock: a permit may be
    used twice for the length of one launch, if it is taken back at that very moment.

    Args:
        capacity: how many; 0 refuses all.
        start: has `ask` called now and then, until that returns that the queue is empty. Returns whether it could.
    """

    def __init__(self, capacity: int = MAX_CONCURRENT_OPERATIONS, start: Callable[[Gate], bool] | None = None) -> None:
        self._capacity = capacity
        self._start = start or _start_asking
        self._asked = False
        self._holders: dict[Holder, None] = {}
        self._queue: OrderedDict[Holder, Callable[[], object]] = OrderedDict()
        # Reentrant: garbage may be collected while it is held, and that may end a session.
        self._lock = threading.RLock()

    @property
    def in_use(self) -> int:
        """Permits taken now."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """Holders in the queue."""
        return len(self._queue)

    def enter(self, deadline: Deadline, holder: Holder) -> None:
        """Take a permit, or keep the one there is; wait for one until 50 ms before the deadline of the work.

        Raises:
            CapacityExhausted: none came free in time, or the capacity is 0.
        """
        if self.request(holder):
            return
        came, until = threading.Event(), patience(deadline)
        try:
            if not self.join(holder, came.set, until):
                return
            came.wait(min(until.remaining_s(), threading.TIMEOUT_MAX))
        except BaseException:  # a signal
            self.leave(holder)
            raise
        self.give_up(holder)

    def request(self, holder: Holder) -> bool:
        """Take a permit if one is free, or idle with another; return whether the holder has one. Never waits."""
        with self._lock:
            return self._admit(holder, asking=True)

    def offer(self, holder: Holder) -> bool:
        """Take a free permit; return whether the holder has one. Never waits."""
        with self._lock:
            return self._admit(holder, asking=False)

    def join(self, holder: Holder, tell: Callable[[], object], until: Deadline) -> bool:
        """Take a permit, or queue for one. Never waits.

        Args:
            holder: not in the queue.
            tell: called once if the permit comes later, on any thread, perhaps before this returns. Must not wait, call
                the gate or raise.
            until: when the holder will give up; see `patience`.

        Returns:
            Whether the holder is in the queue, without a permit.

        Raises:
            CapacityExhausted: there is no time to wait, or the capacity is 0.
        """
        with self._lock:
            if self._admit(holder, asking=True):
                return False
            if self._capacity == 0 or until.expired():
                raise self._refusal()
            self._asked = self._asked or self._start(self)
            self._queue[holder] = tell
            return True

    def give_up(self, holder: Holder) -> None:
        """Leave the queue; raises `CapacityExhausted` unless the permit came before."""
        with self._lock:
            if self._queue.pop(holder, None) is not None:
                raise self._refusal()

    def leave(self, holder: Holder) -> None:
        """Give a permit back, or leave the queue. Does nothing if the holder has lost the permit already."""
        with self._lock:
            self._queue.pop(holder, None)
            self._holders.pop(holder, None)
            admitted = self._hand_over()
        for tell in admitted:
            tell()

    def ask(self) -> bool:
        """Ask the holders for as many permits as are queued for; return whether there still is a queue."""
        with self._lock:
            admitted = self._hand_over()
            for holder in tuple(self._holders):
                if not self._queue:
                    break
                if holder.vacate():
                    self._holders.pop(holder, None)
                    admitted += self._hand_over()
            self._asked = goes_on = bool(self._queue)
        for tell in admitted:
            tell()
        return goes_on

    def _admit(self, holder: Holder, *, asking: bool) -> bool:
        if holder in self._holders:
            return True
        if self._queue or not (len(self._holders) < self._capacity or (asking and self._take_back())):
            return False
        self._holders[holder] = None
        return True

    def _take_back(self) -> bool:
        for holder in tuple(self._holders):
            if holder.vacate():
                self._holders.pop(holder, None)
                return True
        return False

    def _hand_over(self) -> list[Callable[[], object]]:
        """Give free permits to the first of the queue; return what notifies them."""
        admitted = []
        while self._queue and len(self._holders) < self._capacity:
            holder, tell = self._queue.popitem(last=False)
            self._holders[holder] = None
            admitted.append(tell)
        return admitted

    def _refusal(self) -> CapacityExhausted:
        return CapacityExhausted(f"all {self._capacity} permits for concurrent GPU work are taken")


def patience(deadline: Deadline) -> Deadline:
    """Return until when work that must end by a deadline may wait for its permit: 50 ms before."""
    return deadline if deadline.at_ns is None else Deadline(deadline.at_ns - int(DEADLINE_NEAR_S * 1e9))


def _start_asking(gate: Gate) -> bool:
    try:
        threading.Thread(target=_keep_asking, args=(gate,), name="tensorwasm-gate", daemon=True).start()
    except RuntimeError:  # the system has no thread to spare: the next `join` tries again
        return False
    return True


def _keep_asking(gate: Gate) -> None:
    pause = threading.Event()
    while True:
        pause.wait(_ASK_S)
        if not gate.ask():
            return


PROCESS_LEDGER: Final = MemoryLedger()
PROCESS_GATE: Final = Gate()
