"""The books of a device: what is live, exactly. Thread-safe."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort

from tensorwasm.errors import InvalidHandle, InvalidPointer
from tensorwasm.gpu.cuda.functions import LoadedKernels
from tensorwasm.gpu.cuda.streams import CudaStream
from tensorwasm.gpu.device import DeviceStatistics


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

    def require(self, address: int, size_bytes: int) -> None:
        """Check that ``size_bytes`` bytes at ``address`` lie inside one live range.

        Raises:
            InvalidPointer: they do not.
        """
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            start = self._starts[at] if at >= 0 else 0
            if at < 0 or address + size_bytes > start + self._sizes[start]:
                raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not inside one live allocation")

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
        allocations: device memory.
        registrations: host memory that kernels reach.
        modules: live modules.
        streams: live streams.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.allocations = Ranges()
        self.registrations = Ranges()
        self.modules: set[LoadedKernels] = set()
        self.streams: set[CudaStream] = set()
        self._launches = 0
        self._lock = threading.Lock()

    def count_launch(self) -> None:
        """Count one launch."""
        with self._lock:
            self._launches += 1

    def empty(self) -> bool:
        """Return whether nothing is live."""
        return not (self.modules or self.streams or self.allocations.live() or self.registrations.live())

    def statistics(self) -> DeviceStatistics:
        """Return the totals."""
        allocations, allocated_bytes = self.allocations.totals()
        registrations, registered_bytes = self.registrations.totals()
        return DeviceStatistics(
            allocations,
            allocated_bytes,
            registrations,
            registered_bytes,
            len(self.modules),
            len(self.streams),
            self._launches,
        )
