"""Device memory and memory of the host in one address window."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES, MAX_WINDOW_BYTES, WINDOW_BYTES
from tensorwasm.gpu.device.protocols import AddressWindow, AddressWindows, Pool, Stream
from tensorwasm.gpu.limits.accounts import Account
from tensorwasm.gpu.memory.suballocator import Chunk, FreeList
from tensorwasm.ptx.guarded import Width
from tensorwasm.values import MIB

HEAP_AT: Final = 64 * MIB
_MARGIN_BYTES: Final = 16 * MIB
"""Memory is mapped from `HEAP_AT` to so many bytes before the end of a window. What lies further out is never real
memory: accesses may be displaced by 8 MiB."""
_VARIABLES_END: Final = 1 << 30
"""Up to where variables of modules lie in a wide window, and nothing else: kernels find them in the first 4 GiB."""
HOST_BYTES: Final = 2 << 30
"""Addresses of a wide window that are meant for memory of the host: linear memory or a staging slot."""


def window_bytes(cap_bytes: int) -> int:
    """Return the size of the window of a session that may hold so much device memory.

    Up to 4 GiB it is the smallest window, in which kernels are fastest, although not quite 4 GiB of it are for device
    memory. A larger cap fits into its window, beside memory of the host, unless it is beyond the largest window.
    """
    if cap_bytes <= WINDOW_BYTES:
        return WINDOW_BYTES
    wanted_bytes = _VARIABLES_END + cap_bytes + HOST_BYTES + _MARGIN_BYTES
    return min(1 << (wanted_bytes - 1).bit_length(), MAX_WINDOW_BYTES)


def window_width(size_bytes: int) -> Width:
    """Return which kernels sessions have that have windows of a size."""
    return "wide" if size_bytes > WINDOW_BYTES else "narrow"


class MappedBytes:
    """What one tenant has mapped in all of its windows: the second lock on its quota, apart from its account.

    Args:
        account: says how much there may be.
    """

    __slots__ = ("_account", "_bytes", "_lock", "parts")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._bytes = self.parts = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        """Count memory before it is mapped; each suballocator may have a granule that is not full.

        Raises:
            QuotaExceeded: over the account's cap.
        """
        with self._lock:
            most_bytes = self._account.max_bytes + self.parts * GRANULE_BYTES
            if self._bytes + size_bytes > most_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes more would exceed the {most_bytes} that may be mapped")
            self._bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Take back one `add`."""
        with self._lock:
            self._bytes -= size_bytes

    def join(self, parts: int) -> None:
        """Add suballocators that the tenant's windows have, or remove some."""
        with self._lock:
            self.parts += parts


class _Span:
    """A part of a window, by offsets, which is handed out in granules."""

    __slots__ = ("_chunk", "_free", "end")

    def __init__(self, start: int, end: int) -> None:
        self.end = end
        self._chunk = Chunk(start, end - start)
        self._free = FreeList()
        self._free.add(self._chunk)

    def take(self, size_bytes: int) -> int | None:
        """Return the offset of free granules, None if there are not so many in one piece."""
        found = self._free.take(size_bytes)
        return None if found is None else found[0]

    def put(self, offset: int, size_bytes: int) -> None:
        """Take granules back."""
        self._free.put(self._chunk, offset, size_bytes)


class WindowHeap:
    """Device memory in one window, as the pools from which a `Suballocator` takes its chunks.

    Attributes:
        variables: where the chunks of variables of modules come from; None if they may lie anywhere.
        mapped: what the tenant has mapped in all of its windows.
        settle: waits until nothing that can reach the window is in flight; called before a mapping changes. What it
            raises leaves everything as it was.
        spare: gives up addresses that are only kept for later, when there is no room.
    """

    __slots__ = ("_low", "_sizes", "_span", "_window", "_windows", "mapped", "settle", "spare", "variables")

    def __init__(self, windows: AddressWindows, window: AddressWindow, mapped: MappedBytes) -> None:
        self._windows = windows
        self._window = window
        self._sizes: dict[int, int] = {}
        end = window.size_bytes - _MARGIN_BYTES
        wide = window_width(window.size_bytes) == "wide"
        self._span = _Span(_VARIABLES_END if wide else HEAP_AT, end)
        self._low = _Span(HEAP_AT, _VARIABLES_END) if wide else self._span
        self.variables = VariablePools(self) if wide else None
        self.mapped = mapped
        self.settle: Callable[[], None] = idle
        self.spare: Callable[[], None] = idle

    @property
    def parts(self) -> int:
        """How many suballocators take chunks from it."""
        return 1 if self.variables is None else 2

    @property
    def capped(self) -> bool:
        """See `Pools.capped`."""
        return True

    def open_pool(self, max_bytes: int) -> Pool:
        """See `Pools.open_pool`: the heap is the only pool, and its tenant's `MappedBytes` the cap."""
        return max_bytes

    def close_pool(self, pool: Pool) -> None:
        """See `Pools.close_pool`."""

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:  # noqa: ARG002 - there is one pool
        """Map whole granules; see `Pools.pool_allocate`."""
        return self._allocate(self._span, size_bytes)

    def allocate_variables(self, size_bytes: int) -> int:
        """Map whole granules where variables of modules lie; raises as `pool_allocate`."""
        return self._allocate(self._low, size_bytes)

    def _allocate(self, span: _Span, size_bytes: int) -> int:
        address = self._reserve(span, size_bytes)
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
        return self._reserve(self._span, size_bytes)

    def _reserve(self, span: _Span, size_bytes: int) -> int:
        found = span.take(size_bytes)
        if found is None:
            self.spare()
            found = span.take(size_bytes)
        if found is None:
            whole = str(self._window.size_bytes) if span is self._span else f"{span.end} for variables of modules"
            raise QuotaExceeded(
                f"no {size_bytes} bytes in one piece are left of the {whole} that this session has under guarded "
                "isolation; the operator can give more with TENSOR_WASM_GPU_SESSION or with isolation='process'"
            )
        return self._window.address + found

    def unreserve(self, address: int, size_bytes: int) -> None:
        """Give granules back, in which nothing is mapped."""
        offset = address - self._window.address
        (self._low if offset < self._low.end else self._span).put(offset, size_bytes)

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


class VariablePools:
    """The part of a wide window's heap in which variables of modules lie, as the pools of a `Suballocator`."""

    capped: Final = True

    def __init__(self, heap: WindowHeap) -> None:
        self._heap = heap

    def open_pool(self, max_bytes: int) -> Pool:
        """See `WindowHeap.open_pool`."""
        return self._heap.open_pool(max_bytes)

    def close_pool(self, pool: Pool) -> None:
        """See `Pools.close_pool`."""

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:  # noqa: ARG002 - there is one pool
        """See `WindowHeap.allocate_variables`."""
        return self._heap.allocate_variables(size_bytes)

    def pool_free(self, pool: Pool, address: int) -> None:
        """See `WindowHeap.pool_free`."""
        self._heap.pool_free(pool, address)


def idle() -> None:
    """Wait for nothing: no session has the window."""
