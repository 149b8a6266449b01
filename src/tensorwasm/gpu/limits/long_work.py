"""Which tenants' kernels run long, found from how long their sessions wait for the GPU.

A session waits for its own work and for what the GPU has before that. So while several tenants wait, the time is laid
to the one whose wait began first; that of the others counts from when no earlier one is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

LONG_NS: Final = 20_000_000
"""A wait of so long for a tenant's own work is long: as long nobody can load code in the same context."""


class WorkWait:
    """One session's wait for its work, and since when no other tenant's is earlier."""

    __slots__ = ("began_ns", "since_ns", "tenant")

    def __init__(self, tenant: str, since_ns: int) -> None:
        self.tenant = tenant
        self.began_ns = self.since_ns = since_ns


class Waiter(Protocol):
    """What a session waits for, and the wait."""

    wait: WorkWait | None


class WaitCounter(Protocol):
    """Where the time of waits is added up."""

    waited_ns: int


class LongWork:
    """The waits of all sessions of a device. Thread-safe.

    Args:
        clock: in ns.

    Attributes:
        notice: called with the name of a tenant whose work was found to be long, on the thread that waited; must
            neither wait nor raise.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.notice: Callable[[str], object] | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._waits: dict[WorkWait, None] = {}

    def begin(self, tenant: str) -> WorkWait:
        """Note that a session waits."""
        with self._lock:
            wait = WorkWait(tenant, self._clock())
            self._waits[wait] = None
            return wait

    def begin_for(self, waiter: Waiter, tenant: str) -> None:
        """Note that a session waits for a stream, unless it does already."""
        if waiter.wait is None:
            waiter.wait = self.begin(tenant)

    def end_for(self, waiter: Waiter) -> int:
        """Note that a session's wait for a stream has ended, if there was one; return its nanoseconds."""
        wait, waiter.wait = waiter.wait, None
        return self.end(wait) if wait is not None else 0

    @contextmanager
    def waiting(self, waiter: Waiter, tenant: str, counter: WaitCounter) -> Iterator[None]:
        """Note a wait for a stream that lasts as long as a ``with``, and count its time."""
        self.begin_for(waiter, tenant)
        try:
            yield
        finally:
            counter.waited_ns += self.end_for(waiter)

    def end(self, wait: WorkWait) -> int:
        """Note that a wait has ended, and tell if it was long. Once for each wait. Return its nanoseconds."""
        with self._lock:
            now_ns, first, earlier = self._clock(), True, True
            for each in self._waits:
                if each is wait:
                    earlier = False
                elif each.tenant != wait.tenant:
                    if earlier:
                        first = False
                    else:
                        each.since_ns = now_ns
            del self._waits[wait]
            found = first and now_ns - wait.since_ns >= LONG_NS
        if found and self.notice is not None:
            self.notice(wait.tenant)
        return now_ns - wait.began_ns
