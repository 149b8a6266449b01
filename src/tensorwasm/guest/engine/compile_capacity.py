"""What all compilations of a process share, and how tenants share it: slots in turns, and memory."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tensorwasm import machine_memory
from tensorwasm.tenancy.blocking_gate import BlockingGate, Cancellation
from tensorwasm.values import MIB

MACHINE_SHARE: Final = 4
"""Compilations may use one part of so many of the process's memory, unless the operator sets a size."""

LEAST_BYTES: Final = 512 * MIB
"""Memory for compilations on the smallest machine: with less only tiny modules compile."""

SLOTS_PER_PROCESSOR: Final = 2
LEAST_SLOTS: Final = 4
"""With fewer there would be none left for others beside one tenant's half."""

_opening: Final = threading.Lock()
_capacities: Final[dict[tuple[int | None, int], CompileCapacity]] = {}


@dataclass(frozen=True, slots=True)
class Share:
    """Whose compilation something is, and that tenant's share relative to others'."""

    tenant: str = ""
    weight: float = 1.0


ALONE: Final = Share()


class CompileCapacity:
    """The processors and the memory that compilations of this process share. Thread-safe.

    Tenants take turns (`tensorwasm.tenancy.blocking_gate`), by the time that their compilations take. None has more
    than half of the slots, and the last quarter is for tenants without any: a small module of one is compiled at once,
    beside those of another.

    Cranelift takes about forty bytes for each byte of a module, and hundreds for a byte of one long function. So each
    compilation holds the most that it may use. Of those whose turn it is, that of the tenant which holds the least
    memory gets it first, and then they come in order of arrival, so a large one is not delayed for ever.

    Attributes:
        whole_bytes: the memory.
    """

    def __init__(self, whole_bytes: int, slots: int) -> None:
        self.whole_bytes = whole_bytes
        self.gate = BlockingGate(slots)
        self._free_bytes = whole_bytes
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._changed = threading.Condition()

    @contextmanager
    def hold(
        self, size_bytes: int, share: Share = ALONE, cost_s: float = 1.0, stop: Cancellation | None = None
    ) -> Iterator[None]:
        """Hold a slot and memory, at most the whole, in turn. The cost is the seconds that are expected.

        Raises:
            RateLimited: too many of the tenant's compilations wait.
            CancelledError: it was stopped meanwhile.
        """
        with self.gate.hold(share.tenant, share.weight, cost_s, stop), self._hold_memory(size_bytes, share, stop):
            yield

    @contextmanager
    def _hold_memory(self, size_bytes: int, share: Share, stop: Cancellation | None) -> Iterator[None]:
        mine = _Waiter(share.tenant, size_bytes)
        if stop is not None:
            stop.stop_with(self._wake)
        with self._changed:
            self._waiting.append(mine)
            try:
                self._changed.wait_for(lambda: _is_stopped(stop) or self._may_start(mine))
                if _is_stopped(stop):
                    raise CancelledError
                self._take(mine, 1)
            finally:
                self._waiting.remove(mine)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._take(mine, -1)
                self._changed.notify_all()

    def _may_start(self, mine: _Waiter) -> bool:
        first = min(self._waiting, key=lambda waiter: self._held[waiter.tenant])
        return first is mine and mine.size_bytes <= self._free_bytes

    def _take(self, waiter: _Waiter, sign: int) -> None:
        self._free_bytes -= sign * waiter.size_bytes
        self._held[waiter.tenant] += sign * waiter.size_bytes
        if not self._held[waiter.tenant]:
            del self._held[waiter.tenant]

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class _Waiter:
    """A compilation that waits for memory."""

    tenant: str
    size_bytes: int


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def slot_count(processor_count: int) -> int:
    """Return how many compilations may run at a time: one tenant's may use all processors, and others' get a share."""
    return max(LEAST_SLOTS, SLOTS_PER_PROCESSOR * processor_count)


def shared_capacity(whole_bytes: int | None, slots: int) -> CompileCapacity:
    """Return the capacity of this process, one object for equal arguments; None takes a quarter, 512 MiB at least."""
    with _opening:
        key = (whole_bytes, slots)
        if key not in _capacities:
            if whole_bytes is None:
                whole_bytes = max(LEAST_BYTES, machine_memory.limit_bytes() // MACHINE_SHARE)
            _capacities[key] = CompileCapacity(whole_bytes, slots)
        return _capacities[key]


def _is_stopped(stop: Cancellation | None) -> bool:
    return stop is not None and stop.stopped
