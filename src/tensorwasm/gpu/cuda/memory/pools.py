"""Device memory from pools of the driver: the device's own, and those of tenants, whose cap the driver enforces.

``cuMemFree`` waits for every kernel on the device, other tenants' included. Memory of a pool is freed in the order of a
stream instead: the one on which memory is cleared, or the one on which tenants' pools work. No kernel is ever in front
of either, so a free waits for nothing, and an allocation is there as soon as the stream has drained, which is at once.

Source: CUDA Driver API, "Stream Ordered Memory Allocator", CUmemPoolProps.maxSize (CUDA 12.2); "Memory Management".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final

from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.driver.binding import Driver
from tensorwasm.gpu.cuda.driver.results import OUT_OF_MEMORY, DriverFailure
from tensorwasm.gpu.cuda.handles import CudaPool, CudaStream
from tensorwasm.gpu.cuda.memory.traits import MemoryTraits
from tensorwasm.gpu.device.protocols import Pool
from tensorwasm.values import MIB, Deadline

_KEEP_ALL: Final = (1 << 64) - 1
_TRIM_LIMIT_S: Final = 0.1
"""How long a trim waits for frees under way; what has not ended then is not given back."""
_GRAIN_BYTES: Final = 32 * MIB
"""What a pool of the driver grows by: a cap that is no multiple would leave its last part out of reach."""


def _create_pool(driver: Driver, traits: MemoryTraits, max_bytes: int = 0) -> Any:
    """Return a new pool of the driver that keeps what is freed; a cap of 0 is none. A context must be bound."""
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


@dataclass(slots=True, eq=False)
class DeviceAllocator:
    """Device memory outside of tenants' pools, zeroed. The context must be bound. Safe from any thread."""

    _core: Core
    _traits: MemoryTraits
    _pool: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory whose clearing has been started."""
        core = self._core
        if self._traits.pools:
            with self._lock:
                if self._pool is None:
                    self._pool = _create_pool(core.driver, self._traits)
            address = self.take(self._pool, size_bytes, core.streams.own("clearing"))
        else:
            address = int(core.driver.call("cuMemAlloc", size_bytes))
        with core.undoing(*self._freeing(address)):
            core.streams.clear(address, size_bytes)
        return core.live.allocations.enter(address, size_bytes)

    def release(self, address: int, _size_bytes: int) -> None:
        """Give memory back."""
        self._core.release(*self._freeing(address))

    def take(self, pool: Any, size_bytes: int, stream: CudaStream) -> int:
        """Return the address of memory of a pool, which is there as soon as the stream gets to the allocation."""
        arguments = (size_bytes, pool, stream.handle)
        code, pointer = self._core.driver.attempt("cuMemAllocFromPoolAsync", *arguments)
        if code == OUT_OF_MEMORY:
            self.trim()
            pointer = self._core.driver.call("cuMemAllocFromPoolAsync", *arguments)
        elif code:
            raise DriverFailure("cuMemAllocFromPoolAsync", code)
        return int(pointer)

    def trim(self) -> None:
        """Hand unused memory that the pool keeps back to the driver."""
        if self._pool is not None:
            self._core.streams.wait_for_own(Deadline.after(_TRIM_LIMIT_S))
            self._core.driver.attempt("cuMemPoolTrimTo", self._pool, 0)

    def forget(self) -> None:
        """Drop the pool, which went with a context that was reset."""
        self._pool = None

    def close(self) -> None:
        """Release the pool, from which nothing is allocated."""
        if self._pool is not None:
            self._core.release("cuMemPoolDestroy", self._pool)
            self._pool = None

    def _freeing(self, address: int) -> tuple[Any, ...]:
        if self._traits.pools:
            return "cuMemFreeAsync", address, self._core.streams.own("clearing").handle
        return "cuMemFree", address


class CudaPools:
    """Device memory under caps: `tensorwasm.gpu.device.protocols.Pools`; see `CudaDevice` for what every method raises.

    Args:
        core: of the device.
        traits: what it can do with memory.
        allocator: the device's own, asked to give back what it keeps when there is no more.
        device_bytes: the device's memory.

    Attributes:
        capped: whether the device enforces the cap.
    """

    def __init__(self, core: Core, traits: MemoryTraits, allocator: DeviceAllocator, device_bytes: int) -> None:
        self.capped = traits.capped
        self._core = core
        self._traits = traits
        self._allocator = allocator
        self._device_bytes = device_bytes

    def open_pool(self, max_bytes: int) -> Pool:
        """See `Pools.open_pool`. The cap is rounded up to 32 MiB, and limited to the device's memory.

        Raises:
            LaunchRefused: the device has no pools.
        """
        core = self._core
        if not self._traits.pools:
            raise LaunchRefused("this device has no memory pools")
        grains = -(-min(max(max_bytes, 1), self._device_bytes) // _GRAIN_BYTES)
        with core.calling:
            handle = _create_pool(core.driver, self._traits, grains * _GRAIN_BYTES if self.capped else 0)
            return core.live.pools.enter(CudaPool(handle))

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """See `Pools.pool_allocate`.

        Raises:
            CapacityExhausted: the driver did not come to it in `POOL_LIMIT_S`; nothing is allocated.
        """
        core, own = self._core, self._core.live.pools.require(pool)
        if size_bytes > self._device_bytes:  # a number of any size, which the bindings need not be able to pass on
            raise QuotaExceeded(f"{size_bytes} bytes: the device has {self._device_bytes}")
        with core.calling:
            stream = core.streams.own("pooling")
            address = self._allocator.take(own.handle, size_bytes, stream)
            with core.undoing("cuMemFreeAsync", address, stream.handle):
                core.drain_pools()
            own.addresses.add(address)
            return core.live.pooled.enter(address, size_bytes)

    def pool_free(self, pool: Pool, address: int) -> None:
        """See `Pools.pool_free`."""
        core, own = self._core, self._core.live.pools.require(pool)
        if address not in own.addresses:
            raise InvalidHandle(f"nothing of the pool begins at {address:#x}")
        core.retire(core.live.pooled, address, self.release)
        own.addresses.discard(address)

    def release(self, address: int, _size_bytes: int) -> None:
        """Free memory of a pool. The context must be bound."""
        self._core.release("cuMemFreeAsync", address, self._core.streams.own("pooling").handle)

    def close_pool(self, pool: Pool) -> None:
        """See `Pools.close_pool`.

        Raises:
            InvalidHandle: memory of the pool is still allocated.
            CapacityExhausted: the driver did not come to its frees in `POOL_LIMIT_S`; it is still open.
        """
        core, own = self._core, self._core.live.pools.require(pool)
        if own.addresses:
            raise InvalidHandle("memory of the pool is still allocated")
        core.retire(core.live.pools, own, self.destroy)

    def destroy(self, pool: CudaPool) -> None:
        """Release a pool from which nothing is allocated. The context must be bound.

        Raises:
            CapacityExhausted: the driver did not come to its frees in time; it still exists.
        """
        core = self._core
        try:
            core.drain_pools()  # frees under way: the driver would keep the pool for them
        except DriverFailure as failure:
            core.note_kept(failure)
            raise
        core.driver.attempt("cuMemPoolTrimTo", pool.handle, 0)
        core.release("cuMemPoolDestroy", pool.handle)
