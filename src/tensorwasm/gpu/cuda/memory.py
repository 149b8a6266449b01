"""Device memory of a device's own: from a pool that only it uses, zeroed, and given back without waiting for anyone.

``cuMemFree`` waits for every kernel on the device, other tenants' included. Memory of a pool is freed in the order of a
stream instead: the stream on which it was cleared, which no kernel is ever in front of.

Source: CUDA Driver API, "Stream Ordered Memory Allocator", "Memory Management".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from tensorwasm.gpu.cuda.binding import Driver
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.handles import CudaStream
from tensorwasm.gpu.cuda.results import OUT_OF_MEMORY, DriverFailure
from tensorwasm.gpu.cuda.traits import MemoryTraits
from tensorwasm.values import Deadline

_KEEP_ALL: Final = (1 << 64) - 1
_TRIM_LIMIT_S: Final = 0.1
"""How long a trim waits for frees under way; what has not ended then is not given back."""


def create_pool(driver: Driver, traits: MemoryTraits, max_bytes: int = 0) -> Any:
    """Return a new pool of the driver that keeps what is freed. A context must be bound.

    Args:
        driver: the driver API.
        traits: of the device.
        max_bytes: what it holds at most, 0 for no cap.

    Raises:
        DriverFailure: there is none; nothing was made.
    """
    api = driver.api
    wanted = api.CUmemPoolProps()
    wanted.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = api.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    wanted.location = traits.device.spell(api)
    if max_bytes:
        wanted.maxSize = max_bytes
    pool = driver.call("cuMemPoolCreate", wanted)
    try:
        threshold = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        driver.call("cuMemPoolSetAttribute", pool, threshold, api.cuuint64_t(_KEEP_ALL))
    except Exception:
        driver.attempt("cuMemPoolDestroy", pool)
        raise
    return pool


class DeviceMemory:
    """Allocates and frees. Safe from any thread."""

    def __init__(self, core: Core, traits: MemoryTraits) -> None:
        """Hold nothing yet."""
        self._core = core
        self._traits = traits
        self._pool: Any = None
        self._lock = threading.Lock()

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory whose clearing has been started. The context must be bound.

        Raises:
            DriverFailure: there is none; nothing was allocated.
        """
        core = self._core
        address = self._take(size_bytes)
        try:
            core.streams.clear(address, size_bytes)
        except Exception:
            self._drop(core.undo, address)
            raise
        core.ledger.allocations.add(address, size_bytes)
        return address

    def free(self, address: int) -> None:
        """Give memory back.

        Raises:
            InvalidHandle: no live allocation begins there.
            DeviceLost: the device does not answer; the memory stays.
        """
        self._core.give_back(self._core.ledger.allocations, address, self.release)

    def release(self, address: int) -> None:
        """Give memory back. The context must be bound.

        Raises:
            DriverFailure: it is still allocated.
        """
        self._drop(self._core.release, address)

    def take(self, pool: Any, size_bytes: int, stream: CudaStream) -> int:
        """Return the address of memory of a pool, as soon as the stream gets there. The context must be bound.

        Raises:
            DriverFailure: there is none, even after a trim.
        """
        arguments = (size_bytes, pool, stream.handle)
        code, pointer = self._core.driver.attempt("cuMemAllocFromPoolAsync", *arguments)
        if code == OUT_OF_MEMORY:
            self.trim()
            pointer = self._core.driver.call("cuMemAllocFromPoolAsync", *arguments)
        elif code:
            raise DriverFailure("cuMemAllocFromPoolAsync", code)
        return int(pointer)

    def trim(self) -> None:
        """Hand what the pool keeps, and nobody uses, back to the driver. The context must be bound.

        Raises:
            DriverFailure: work in the device's own streams failed.
        """
        if self._pool is not None:
            self._core.streams.wait_for_own(Deadline.after(_TRIM_LIMIT_S))
            self._core.driver.attempt("cuMemPoolTrimTo", self._pool, 0)

    def forget(self) -> None:
        """Forget what an earlier context took with it."""
        self._pool = None

    def close(self) -> None:
        """Release the pool, from which nothing is allocated. The context must be bound.

        Raises:
            DriverFailure: it still exists.
        """
        if self._pool is not None:
            self._core.release("cuMemPoolDestroy", self._pool)
            self._pool = None

    def _take(self, size_bytes: int) -> int:
        core = self._core
        if not self._traits.pools:
            return int(core.driver.call("cuMemAlloc", size_bytes))
        with self._lock:
            if self._pool is None:
                self._pool = create_pool(core.driver, self._traits)
        return self.take(self._pool, size_bytes, core.streams.clearing())

    def _drop(self, give: Callable[..., object], address: int) -> None:
        if self._traits.pools:
            give("cuMemFreeAsync", address, self._core.streams.clearing().handle)
        else:
            give("cuMemFree", address)
