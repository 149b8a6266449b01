"""`BlockingGate`: the fair gate for threads, which block until their turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol

from tensorwasm.tenancy.fairness import FairGate, GateStatistics


class Cancellation(Protocol):
    """Says that a piece of work is not wanted any more."""

    stopped: bool

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Set the function to call when it is stopped; call it now if it was."""

    def forget(self) -> None:
        """Remove that function."""


class BlockingGate:
    """Slots that tenants share as in a `FairGate` that yields. Thread-safe.

    Args:
        slots: turns at a time.
        queue_per_tenant: requests of one tenant that may wait.
    """

    def __init__(self, slots: int, *, queue_per_tenant: int = 1024) -> None:
        self._gate = FairGate(slots, queue_per_tenant=queue_per_tenant, yields=True)
        self._lock = threading.Lock()

    @contextmanager
    def hold(
        self, tenant: str, weight: float = 1.0, cost: float = 1.0, stop: Cancellation | None = None
    ) -> Iterator[None]:
        """Hold a slot, once it is the tenant's turn. A cost is in seconds: that which is expected.

        Raises:
            RateLimited: too many of the tenant's requests wait already.
            CancelledError: it was stopped while it waited.
        """
        self._enter(tenant, weight, cost, stop)
        began_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._gate.leave(tenant, time.monotonic() - began_s, cost)

    def statistics(self) -> GateStatistics:
        """Return the numbers of slots and waiters."""
        return self._gate.statistics()

    def _enter(self, tenant: str, weight: float, cost: float, stop: Cancellation | None) -> None:
        slot: Future[None] = Future()
        with self._lock:
            if self._gate.try_enter(tenant, weight, cost):
                return
            self._gate.enqueue(slot, tenant, weight, cost)
        try:
            if stop is not None:
                stop.stop_with(lambda: self._cancel(slot))
            slot.result()
        except BaseException:
            with self._lock:
                self._gate.withdraw(slot, tenant, cost)
            raise

    def _cancel(self, slot: Future[None]) -> None:
        with self._lock:  # so that the gate does not give a slot to what is cancelled at this moment
            slot.cancel()
