"""Pools of a GPU whose cap the driver enforces: `tensorwasm.gpu.device.protocols.Pools`.

They allocate and free on a stream of the device's own, on which nothing else happens: so an allocation is there as soon
as that stream has drained, which is at once, and a free waits for nobody.

Source: CUDA Driver API, "Stream Ordered Memory Allocator", CUmemPoolProps.maxSize (CUDA 12.2).
"""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.handles import CudaPool
from tensorwasm.gpu.cuda.memory import DeviceMemory, create_pool
from tensorwasm.gpu.cuda.results import DriverFailure
from tensorwasm.gpu.cuda.traits import MemoryTraits
from tensorwasm.gpu.device.protocols import Pool
from tensorwasm.values import MIB

_GRAIN_BYTES: Final = 32 * MIB
"""What a pool of the driver grows by: a cap that is no multiple would leave its last part out of reach."""


class CudaPools:
    """Device memory under caps."""

    def __init__(self, core: Core, traits: MemoryTraits, memory: DeviceMemory, device_bytes: int) -> None:
        """Hold nothing yet.

        Args:
            core: of the device.
            traits: what it can do with memory.
            memory: the device's own, asked to give back what it keeps when there is no more.
            device_bytes: the device's memory.
        """
        self._core = core
        self._traits = traits
        self._memory = memory
        self._device_bytes = device_bytes

    @property
    def capped(self) -> bool:
        """Whether the device enforces the cap."""
        return self._traits.capped

    def open_pool(self, max_bytes: int) -> Pool:
        """See `Pools.open_pool`. The cap is rounded up to 32 MiB, and to the device's memory down.

        Raises:
            LaunchRefused: the device has no pools.
            QuotaExceeded: the driver has no memory for it.
            DeviceLost: the device does not answer.
        """
        core = self._core
        if not self._traits.pools:
            raise LaunchRefused("this device has no memory pools")
        cap_bytes = -(-max(max_bytes, 1) // _GRAIN_BYTES) * _GRAIN_BYTES
        with core.calling:
            most = min(cap_bytes, -(-self._device_bytes // _GRAIN_BYTES) * _GRAIN_BYTES)
            pool = CudaPool(create_pool(core.driver, self._traits, most if self.capped else 0))
            core.ledger.pools.add(pool)
            return pool

    def pool_allocate(self, pool: Pool, size_bytes: int) -> int:
        """See `Pools.pool_allocate`.

        Raises:
            InvalidHandle: the pool is not open here.
            QuotaExceeded: over the pool's cap, or the device has no memory left.
            CapacityExhausted: the driver did not come to it in `POOL_LIMIT_S`; nothing is allocated.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._own(pool)
        if size_bytes > self._device_bytes:  # a number of any size, which the bindings need not be able to pass on
            raise QuotaExceeded(f"{size_bytes} bytes: the device has {self._device_bytes}")
        with core.calling:
            address = self._take(own, size_bytes)
            core.ledger.pooled.add(address, size_bytes)
            own.addresses.add(address)
            return address

    def pool_free(self, pool: Pool, address: int) -> None:
        """See `Pools.pool_free`.

        Raises:
            InvalidHandle: the pool is not open here, or nothing of it begins there.
            DeviceLost: the device does not answer; the memory stays.
        """
        core, own = self._core, self._own(pool)
        if address not in own.addresses:
            raise InvalidHandle(f"nothing of the pool begins at {address:#x}")
        core.give_back(core.ledger.pooled, address, self.release)
        own.addresses.discard(address)

    def release(self, address: int) -> None:
        """Free memory of a pool. The context must be bound.

        Raises:
            DriverFailure: it is still allocated.
        """
        self._core.release("cuMemFreeAsync", address, self._core.streams.pooling().handle)

    def close_pool(self, pool: Pool) -> None:
        """See `Pools.close_pool`.

        Raises:
            InvalidHandle: the pool is not open here, or memory of it is still allocated.
            CapacityExhausted: the driver did not come to its frees in `POOL_LIMIT_S`; it is still open.
            DeviceLost: the device does not answer.
        """
        core, own = self._core, self._own(pool)
        if own.addresses:
            raise InvalidHandle("memory of the pool is still allocated")
        core.retire(core.ledger.pools, own, self.destroy)

    def destroy(self, pool: CudaPool) -> None:
        """Release a pool from which nothing is allocated. The context must be bound.

        Raises:
            DriverFailure: it still exists.
            CapacityExhausted: likewise, because the driver did not come to its frees in time.
        """
        core = self._core
        try:
            core.drain_pools()  # frees under way: the driver would keep the pool for them
        except DriverFailure as failure:
            core.note_kept(failure)
            raise
        core.driver.attempt("cuMemPoolTrimTo", pool.handle, 0)
        core.release("cuMemPoolDestroy", pool.handle)

    def _take(self, pool: CudaPool, size_bytes: int) -> int:
        core = self._core
        stream = core.streams.pooling()
        address = self._memory.take(pool.handle, size_bytes, stream)
        try:
            core.drain_pools()
        except Exception:
            core.undo("cuMemFreeAsync", address, stream.handle)
            raise
        return address

    def _own(self, pool: Pool) -> CudaPool:
        if not isinstance(pool, CudaPool) or pool not in self._core.ledger.pools:
            raise InvalidHandle("the pool is not open on this device")
        return pool
