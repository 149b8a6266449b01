"""The books of a device: what is live, exactly. Thread-safe."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort

from tensorwasm.errors import InvalidHandle, InvalidPointer
from tensorwasm.gpu.cuda.functions import LoadedKernels
from tensorwasm.gpu.cuda.handles import CudaEvent, CudaGraph, CudaPool, CudaStream
from tensorwasm.gpu.device.port import DeviceStatistics


class Ranges:
    """Live address ranges of one kind, none overlapping."""

    def __init__(self) -> None:
        """Start empty."""
        self._sizes: dict[int, int] = {}
        self._starts: list[int] = []
        self._lock = threading.Lock()

    def add(self, address: int, size_bytes: int) -> None:
        """Enter a range."""
        with self._lock:
            self._sizes[address] = size_bytes
            insort(self._starts, address)

    def take(self, address: int) -> int:
        """Strike the range that begins at ``address`` and return its size: of two calls, one succeeds.

        Raises:
            InvalidHandle: no live range begins there.
        """
        with self._lock:
            if address not in self._sizes:
                raise InvalidHandle(f"nothing live begins at {address:#x}")
            self._starts.remove(address)
            return self._sizes.pop(address)

    def holds(self, address: int, size_bytes: int) -> bool:
        """Return whether ``size_bytes`` bytes at ``address`` lie inside one live range."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            start = self._starts[at] if at >= 0 else 0
            return at >= 0 and address + size_bytes <= start + self._sizes[start]

    def size(self, address: int) -> int:
        """Return the size of the range that begins at ``address``, 0 if none does."""
        with self._lock:
            return self._sizes.get(address, 0)

    def live(self) -> list[int]:
        """Return where the live ranges begin, ascending."""
        with self._lock:
            return list(self._starts)

    def totals(self) -> tuple[int, int]:
        """Return the number of live ranges and their bytes."""
        with self._lock:
            return len(self._sizes), sum(self._sizes.values())


class Ledger:
    """Everything a device holds.

    Attributes:
        allocations: device memory of the device's own.
        pooled: device memory of tenants' pools.
        managed: managed memory.
        reserved: ranges in which memory may be mapped.
        mapped: memory that is mapped in them.
        registrations: host memory that kernels reach.
        modules: live modules.
        streams: live streams.
        events: live events.
        graphs: live graphs.
        pools: open pools.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.allocations = Ranges()
        self.pooled = Ranges()
        self.managed = Ranges()
        self.reserved = Ranges()
        self.mapped = Ranges()
        self.registrations = Ranges()
        self.modules: set[LoadedKernels] = set()
        self.streams: set[CudaStream] = set()
        self.events: set[CudaEvent] = set()
        self.graphs: set[CudaGraph] = set()
        self.pools: set[CudaPool] = set()
        self._launches = 0
        self._release_failures = 0
        self._lock = threading.Lock()

    def count_launch(self) -> None:
        """Count one launch."""
        with self._lock:
            self._launches += 1

    def count_release_failure(self) -> None:
        """Count one release that the driver did not do."""
        with self._lock:
            self._release_failures += 1

    def require(self, address: int, size_bytes: int) -> None:
        """Check that a range on the device lies inside one piece of memory that is ours.

        Raises:
            InvalidPointer: it does not.
        """
        memory = (self.allocations, self.pooled, self.managed, self.mapped)
        if not any(ranges.holds(address, size_bytes) for ranges in memory):
            raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not inside one live allocation")

    def require_managed(self, address: int, size_bytes: int) -> None:
        """Check that a range lies inside one piece of managed memory.

        Raises:
            InvalidPointer: it does not.
        """
        if not self.managed.holds(address, size_bytes):
            raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not inside one managed allocation")

    def empty(self) -> bool:
        """Return whether nothing is live."""
        handles = (self.modules, self.streams, self.events, self.graphs, self.pools)
        memory = (self.allocations, self.pooled, self.managed, self.reserved, self.mapped, self.registrations)
        return not (any(handles) or any(ranges.live() for ranges in memory))

    def statistics(self) -> DeviceStatistics:
        """Return the totals."""
        own, pooled, registered = (each.totals() for each in (self.allocations, self.pooled, self.registrations))
        return DeviceStatistics(
            allocations=own[0] + pooled[0],
            allocated_bytes=own[1] + pooled[1],
            registrations=registered[0],
            registered_bytes=registered[1],
            modules=len(self.modules),
            streams=len(self.streams),
            launches=self._launches,
            events=len(self.events),
            graphs=len(self.graphs),
            pools=len(self.pools),
            unified_bytes=self.managed.totals()[1] + self.mapped.totals()[1],
            release_failures=self._release_failures,
        )
