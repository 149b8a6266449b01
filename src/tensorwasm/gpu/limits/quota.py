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
"""How long a full gate waits between two times that it asks the holders of its places."""


@dataclass(frozen=True, slots=True)
class MemoryLedgerStatistics:
    """What is charged now: live allocations and their bytes."""

    allocations: int
    device_bytes: int


class MemoryLedger:
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

    def statistics(self) -> MemoryLedgerStatistics:
        """Return what is charged now."""
        with self._lock:
            return MemoryLedgerStatistics(self._allocations, self._bytes)


class Holder(Protocol):
    """Who keeps a place at the gate while nothing of it is on the GPU. A thing of its own: equal to nothing else."""

    def vacate(self) -> bool:
        """Give the place up unless it is needed now. Called by the gate, on any thread, at any time; must not wait."""


class Gate:
    """Lets a fixed number of sessions have work on the GPU at a time; every method is safe from any thread.

    Who finds no place stands in one line with all others. A place that comes free is the first one's from that moment
    on, and only that one is told. Whoever gives up leaves the line, but keeps a place that came before that.

    A holder keeps its place between two pieces of work, which compiled code gives to the GPU without asking here, and
    nobody is told when they have ended. So while there is a line, one thread asks the holders now and then, and those
    that have nothing on the GPU lose their places. Compiled code looks at its place without a lock: a place may be used
    twice for the length of one launch, if it is taken back at that very moment.

    Args:
        capacity: how many; 0 refuses everybody.
        start: has `ask` called now and then, until that says that there is no line any more. Returns whether it could.
    """

    def __init__(self, capacity: int = MAX_CONCURRENT_OPERATIONS, start: Callable[[Gate], bool] | None = None) -> None:
        self._capacity = capacity
        self._start = start or _start_asking
        self._asked = False
        self._holders: dict[Holder, None] = {}
        self._line: OrderedDict[Holder, Callable[[], object]] = OrderedDict()
        # Whatever Python does while it is held may collect garbage, and so end a session.
        self._lock = threading.RLock()

    @property
    def in_use(self) -> int:
        """Places taken now."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    def enter(self, deadline: Deadline, holder: Holder) -> None:
        """Take a place, waiting for one until 50 ms before the deadline.

        Args:
            deadline: when the work has to have ended.
            holder: gets it; one that still has its place keeps it.

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
        """Take a place if one can be had now; return whether the holder has one. Never waits."""
        with self._lock:
            return self._admit(holder, asking=True)

    def offer(self, holder: Holder) -> bool:
        """Do what `request` does, but take the place of nobody."""
        with self._lock:
            return self._admit(holder, asking=False)

    def join(self, holder: Holder, tell: Callable[[], object], until: Deadline) -> bool:
        """Take a place, or stand in line for one. Never waits.

        Args:
            holder: not in line.
            tell: called once if the place comes later, on any thread, perhaps before this returns. Must not wait, call
                the gate or raise.
            until: when the holder will give up; see `patience`.

        Returns:
            Whether the holder stands in line, and not at its place.

        Raises:
            CapacityExhausted: there is no time to wait, or the capacity is 0.
        """
        with self._lock:
            if self._admit(holder, asking=True):
                return False
            if self._capacity == 0 or until.expired():
                raise self._refusal()
            self._asked = self._asked or self._start(self)
            self._line[holder] = tell
            return True

    def give_up(self, holder: Holder) -> None:
        """Leave the line, unless the place came before.

        Raises:
            CapacityExhausted: it did not come.
        """
        with self._lock:
            if self._line.pop(holder, None) is not None:
                raise self._refusal()

    def leave(self, holder: Holder) -> None:
        """Give a place back, or leave the line; nothing if neither is the holder's, for it was asked before."""
        with self._lock:
            self._line.pop(holder, None)
            self._holders.pop(holder, None)
            told = self._hand_over()
        _tell(told)

    def ask(self) -> bool:
        """Ask the holders for as many places as are waited for; return whether there still is a line."""
        with self._lock:
            told = self._hand_over()
            for holder in tuple(self._holders):
                if not self._line:
                    break
                if holder.vacate():
                    self._holders.pop(holder, None)
                    told += self._hand_over()
            self._asked = goes_on = bool(self._line)
        _tell(told)
        return goes_on

    def _admit(self, holder: Holder, *, asking: bool) -> bool:
        if holder in self._holders:
            return True
        if self._line or not (len(self._holders) < self._capacity or (asking and self._take_back())):
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
        told = []
        while self._line and len(self._holders) < self._capacity:
            holder, tell = self._line.popitem(last=False)
            self._holders[holder] = None
            told.append(tell)
        return told

    def _refusal(self) -> CapacityExhausted:
        return CapacityExhausted(f"all {self._capacity} places for concurrent GPU work are taken")


def patience(deadline: Deadline) -> Deadline:
    """Return until when work that has to end by a deadline may wait for its place: 50 ms before."""
    return deadline if deadline.at_ns is None else Deadline(deadline.at_ns - int(DEADLINE_NEAR_S * 1e9))


def _tell(told: list[Callable[[], object]]) -> None:
    for tell in told:
        tell()


def _start_asking(gate: Gate) -> bool:
    try:
        threading.Thread(target=_keep_asking, args=(gate,), name="tensorwasm-gate", daemon=True).start()
    except RuntimeError:  # the system has no thread to spare: whoever joins the line next tries again
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
