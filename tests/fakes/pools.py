"""Pools that count: every broken rule of the port is recorded, and any call can be made to fail."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tensorwasm.errors import QuotaExceeded

FIRST_ADDRESS = 1 << 40
ALIGN_BYTES = 256


@dataclass(eq=False)
class FakePool:
    """A pool and its allocations."""

    max_bytes: int
    live: dict[int, int] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(self.live.values())


@dataclass
class FakePools:
    """Implements the `Pools` protocol.

    Attributes:
        granularity_bytes: caps are rounded up to it.
        device_bytes: most that all pools hold together.
        failures: error that the next call of that method raises, once.
        broken: rules of the port that the caller broke; tests assert that there are none.
        live: pools that are open.
        calls: names of the methods called.
    """

    granularity_bytes: int = 1
    device_bytes: int = 1 << 60
    failures: dict[str, BaseException] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    live: list[FakePool] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    next_address: int = FIRST_ADDRESS
    capped: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def held_bytes(self) -> int:
        """Bytes that all pools hold."""
        return sum(pool.held_bytes for pool in self.live)

    def _begin(self, name: str) -> None:
        self.calls.append(name)
        if error := self.failures.pop(name, None):
            raise error

    def open_pool(self, max_bytes: int) -> FakePool:
        with self.lock:
            self._begin("open_pool")
            if max_bytes < 1:
                self.broken.append("a pool without room")
            pool = FakePool(-(-max_bytes // self.granularity_bytes) * self.granularity_bytes)
            self.live.append(pool)
            return pool

    def pool_allocate(self, pool: FakePool, size_bytes: int) -> int:
        with self.lock:
            self._begin("pool_allocate")
            if pool not in self.live or size_bytes < 1:
                self.broken.append("an allocation of nothing or from what is not open")
            if pool.held_bytes + size_bytes > pool.max_bytes or self.held_bytes + size_bytes > self.device_bytes:
                raise QuotaExceeded("the device refuses")
            address = self.next_address
            # Chunks are adjacent: joining spans over their borders is detected.
            self.next_address += -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
            pool.live[address] = size_bytes
            return address

    def pool_free(self, pool: FakePool, address: int) -> None:
        with self.lock:
            self._begin("pool_free")
            if pool not in self.live or address not in pool.live:
                self.broken.append("a free of what is not there")
                return
            del pool.live[address]

    def close_pool(self, pool: FakePool) -> None:
        with self.lock:
            self._begin("close_pool")
            if pool.live:
                self.broken.append("a pool closed with memory in it")
            self.live.remove(pool)
