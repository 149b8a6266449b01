"""Device memory and memory of the host in one address window."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, WINDOW_BYTES
from tensorwasm.gpu.device.protocols import AddressWindow, AddressWindows, Pool, Stream
from tensorwasm.gpu.limits.accounts import Account
from tensorwasm.gpu.memory.suballocator import Chunk, FreeList
from tensorwasm.values import MIB

HEAP_AT: Final = 64 * MIB
HEAP_END: Final = WINDOW_BYTES - 16 * MIB
"""Where memory is mapped. What lies further out is never real memory: accesses may be displaced by 8 MiB."""


class MappedBytes:
    """What one tenant has mapped in all of its windows: the second lock on its quota, apart from its account.

    Args:
        account: says how much there may be.
    """

    __slots__ = ("_account", "_bytes", "_lock", "windows")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._bytes = self.windows = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Count memory before it is mapped; each window may have a granule that is not full.

        Raises:
            QuotaExceeded: over the account's cap.
        """
        with self._lock:
            most_bytes = self._account.max_bytes + self.windows * GRANULE_BYTES
            if self._bytes + size_bytes > most_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes more would exceed the {most_bytes} that may be mapped")
            self._bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Take back one `add`."""
        with self._lock:
            self._bytes -= size_bytes

    def join(self, windows: int) -> None:
        """Add windows that the tenant has, or remove some."""
        with self._lock:
            self.windows += windows


class WindowHeap:
    """Device memory in one window, as the pools from which a `Suballocator` takes its chunks.

    Attributes:
        mapped: what the tenant has mapped in all of its windows.
        settle: waits until nothing that can reach the window is in flight; called before a mapping changes. What it
            raises leaves everything as it was.
        spare: gives up addresses that are only kept for later, when there is no room.
    """

    __slots__ = ("_free", "_range", "_sizes", "_window", "_windows", "mapped", "settle", "spare")

    def __init__(self, windows: AddressWindows, window: AddressWindow, mapped: MappedBytes) -> None:
        self._windows = windows
        self._window = window
        self._sizes: dict[int, int] = {}
        self._free = FreeList()
        self._range = Chunk(HEAP_AT, HEAP_END - HEAP_AT)
        self._free.add(self._range)
        self.mapped = mapped
        self.settle: Callable[[], None] = idle
        self.spare: Callable[[], None] = idle

    @property
    def capped(self) -> bool:
        """See `Pools.capped`."""
        return True

    def open_pool(self, max_bytes: int) -> Pool:
        """See `Pools.open_pool`: the window is the only pool, and its tenant's `MappedBytes` the cap."""
        return max_bytes

    def close_pool(self, pool: Pool) -> None:
        """See `Pools.close_pool`."""

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:  # noqa: ARG002 - there is one pool
        """Map whole granules; see `Pools.pool_allocate`."""
        address = self.reserve(size_bytes)
        try:
            self.mapped.add(size_bytes)
            try:
                self.settle()
                self._windows.map_device(self._window, address - self._window.address, size_bytes)
            except BaseException:
                self.mapped.remove(size_bytes)
                raise
        except BaseException:
            self.unreserve(address, size_bytes)
            raise
        self._sizes[address] = size_bytes
        return address

    def pool_free(self, pool: Pool, address: int) -> None:  # noqa: ARG002 - there is one pool
        """Unmap what one `pool_allocate` has mapped."""
        self.unmap(address)
        size_bytes = self._sizes.pop(address)
        self.mapped.remove(size_bytes)
        self.unreserve(address, size_bytes)

    def reserve(self, size_bytes: int) -> int:
        """Return the address of free granules, which are the caller's until `unreserve`; nothing is mapped in them.

        Raises:
            QuotaExceeded: the window has no room for them.
        """
        found = self._free.take(size_bytes)
        if found is None:
            self.spare()
            found = self._free.take(size_bytes)
        if found is None:
            raise QuotaExceeded(
                f"no {size_bytes} bytes in one piece are left of the {WINDOW_BYTES} that a session has under guarded "
                "isolation; the operator can give more with isolation='process'"
            )
        return self._window.address + found[0]

    def unreserve(self, address: int, size_bytes: int) -> None:
        """Give granules back, in which nothing is mapped."""
        self._free.put(self._range, address - self._window.address, size_bytes)

    def map_host(self, address: int, size_bytes: int, view: int | None = None) -> int:
        """Map memory of the host in reserved granules; see `AddressWindows.map_host`."""
        self.settle()
        return self._windows.map_host(self._window, address - self._window.address, size_bytes, view)

    def unmap(self, address: int) -> None:
        """Unmap what was mapped at an address at once."""
        self.settle()
        self._windows.unmap(self._window, address - self._window.address)

    def clear_host(self, address: int, size_bytes: int, stream: Stream) -> None:
        """Start filling memory that one `map_host` has mapped with zeros, behind the work already in the stream."""
        self._windows.clear(self._window, address - self._window.address, size_bytes, stream)

    @property
    def held_bytes(self) -> int:
        """Device memory that is mapped."""
        return sum(self._sizes.values())

    def mapped_parts(self) -> list[tuple[int, int]]:
        """Return offset and size of all device memory that is mapped."""
        return [(address - self._window.address, size_bytes) for address, size_bytes in self._sizes.items()]


def idle() -> None:
    """Wait for nothing: no session has the window."""
