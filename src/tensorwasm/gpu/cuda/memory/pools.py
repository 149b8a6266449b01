"""What a GPU and its driver can do with memory, and device memory from pools of the driver.

The pools are the device's own, and those of tenants, whose cap the driver enforces. ``cuMemFree`` waits for every
kernel on the device, other tenants' included. Memory of a pool is freed in the order of a stream instead: the one on
which memory is cleared, or the one on which tenants' pools work. No kernel is ever in front of either, so a free waits
for nothing, and an allocation is there as soon as the stream has drained, which is at once.

Source: CUDA Driver API, "Device Management", CUdevice_attribute; "Virtual Memory Management"; "Memory Management";
"Stream Ordered Memory Allocator". CUmemPoolProps.maxSize, host locations and hints by location came with CUDA 12.2.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.driver.calls import OUT_OF_MEMORY, SUCCESS, Driver, DriverFailure
from tensorwasm.gpu.cuda.handles import CudaPool, CudaStream
from tensorwasm.gpu.device.address_windows import GRANULE_BYTES
from tensorwasm.gpu.device.protocols import Pool
from tensorwasm.gpu.memory import pages
from tensorwasm.values import MIB, Deadline

_LOCATIONS_CUDA: Final = (12, 2)
"""First release with caps for pools, host locations, and hints that take a location."""

_HOSTS: Final = {
    "HOST_NUMA": "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "HOST": "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
}
"""Where host memory behind a reserved range may lie, the first that the device supports, with its attribute."""


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """A location of memory, as the driver names it.

    Attributes:
        kind: ``DEVICE``, ``HOST``, ``HOST_NUMA``.
        number: the device's ordinal or the host's NUMA node.
    """

    kind: str
    number: int

    def spell(self, api: Any) -> Any:
        """Return the driver's structure."""
        location = api.CUmemLocation()
        location.type = getattr(api.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{self.kind}")
        location.id = self.number
        return location


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """What can be done with memory.

    Attributes:
        device: the device's own memory.
        pools: whether there are memory pools.
        capped: whether they enforce a cap.
        managed: whether there is managed memory.
        hints: how advice and prefetches name a location; None where they have no effect.
        host: where memory behind reserved ranges lies; None where host and device cannot share it.
        granularity_bytes: what is mapped there at a time; 0 without `host`.
        windows: whether device memory and such host memory can be mapped side by side, in granules of a window.
    """

    device: MemoryLocation
    pools: bool
    capped: bool
    managed: bool
    hints: Literal["ordinal", "location"] | None
    host: MemoryLocation | None
    granularity_bytes: int
    windows: bool


def describe_memory(driver: Driver, device: Any, ordinal: int, cuda: tuple[int, int]) -> MemoryTraits:
    """Return what a device can do with memory. Its context must be bound."""
    located = cuda >= _LOCATIONS_CUDA
    own = MemoryLocation("DEVICE", ordinal)
    host = _host_location(driver, device) if located else None
    granularity_bytes = 0 if host is None else _granularity(driver, host)  # 0: there is no such memory after all
    own_granularity_bytes = _granularity(driver, own) if granularity_bytes else 0
    hints: Literal["ordinal", "location"] | None = None
    if driver.supports(device, "CONCURRENT_MANAGED_ACCESS"):
        if located:
            hints = "location"
        elif hasattr(driver.api, "cuMemAdvise_v2"):  # bindings 13 know locations only
            hints = "ordinal"
    pools = driver.supports(device, "MEMORY_POOLS_SUPPORTED")
    return MemoryTraits(
        device=own,
        pools=pools,
        capped=pools and located,
        managed=driver.supports(device, "MANAGED_MEMORY"),
        hints=hints,
        host=host if granularity_bytes else None,
        granularity_bytes=granularity_bytes,
        windows=own_granularity_bytes > 0 and GRANULE_BYTES % max(granularity_bytes, own_granularity_bytes) == 0,
    )


def mappable(driver: Driver, location: MemoryLocation) -> Any:
    """Return the driver's description of memory that can be mapped."""
    wanted = driver.api.CUmemAllocationProp()
    wanted.type = driver.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = location.spell(driver.api)
    return wanted


def access_from(driver: Driver, location: MemoryLocation) -> Any:
    """Return the driver's description of a location's right to read and write what is mapped."""
    access = driver.api.CUmemAccessDesc()
    access.location = location.spell(driver.api)
    access.flags = driver.api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _granularity(driver: Driver, location: MemoryLocation) -> int:
    """Return what is mapped at a time of memory there, 0 if the driver has no such memory."""
    option = driver.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    code, size_bytes = driver.attempt("cuMemGetAllocationGranularity", mappable(driver, location), option)
    return int(size_bytes) if code == SUCCESS else 0


def _host_location(driver: Driver, device: Any) -> MemoryLocation | None:
    if driver.supports(device, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        for kind, attribute in _HOSTS.items():
            if driver.supports(device, attribute):
                node = driver.attribute(device, "HOST_NUMA_ID") if kind == "HOST_NUMA" else 0
                return MemoryLocation(kind, max(0, node))  # the driver says -1 on a host that is one node
    return None


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
            streams = self._core.streams
            streams.finish(streams.own("clearing"), Deadline.after(_TRIM_LIMIT_S))
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
        cap_bytes = pages.rounded(min(max(max_bytes, 1), self._device_bytes), _GRAIN_BYTES) if self.capped else 0
        with core.calling:
            return core.live.pools.enter(CudaPool(_create_pool(core.driver, self._traits, cap_bytes)))

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
