"""What a GPU and its driver can do with memory, queried once when it is opened.

Source: CUDA Driver API, "Device Management", CUdevice_attribute; "Virtual Memory Management". CUmemPoolProps.maxSize,
host locations and hints by location came with CUDA 12.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from tensorwasm.gpu.cuda.driver.binding import Driver
from tensorwasm.gpu.cuda.driver.results import SUCCESS

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
    """

    device: MemoryLocation
    pools: bool
    capped: bool
    managed: bool
    hints: Literal["ordinal", "location"] | None
    host: MemoryLocation | None
    granularity_bytes: int


def describe_memory(driver: Driver, device: Any, ordinal: int, cuda: tuple[int, int]) -> MemoryTraits:
    """Return what a device can do with memory. Its context must be bound."""
    located = cuda >= _LOCATIONS_CUDA
    host = _host_location(driver, device) if located else None
    granularity_bytes = 0
    if host is not None:
        option = driver.api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        code, size_bytes = driver.attempt("cuMemGetAllocationGranularity", host_property(driver, host), option)
        granularity_bytes = int(size_bytes) if code == SUCCESS else 0  # else there is no such memory after all
    hints: Literal["ordinal", "location"] | None = None
    if driver.supports(device, "CONCURRENT_MANAGED_ACCESS"):
        if located:
            hints = "location"
        elif hasattr(driver.api, "cuMemAdvise_v2"):  # bindings 13 know locations only
            hints = "ordinal"
    pools = driver.supports(device, "MEMORY_POOLS_SUPPORTED")
    return MemoryTraits(
        device=MemoryLocation("DEVICE", ordinal),
        pools=pools,
        capped=pools and located,
        managed=driver.supports(device, "MANAGED_MEMORY"),
        hints=hints,
        host=host if granularity_bytes else None,
        granularity_bytes=granularity_bytes,
    )


def host_property(driver: Driver, host: MemoryLocation) -> Any:
    """Return the driver's description of host memory that can be mapped."""
    wanted = driver.api.CUmemAllocationProp()
    wanted.type = driver.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = host.spell(driver.api)
    return wanted


def _host_location(driver: Driver, device: Any) -> MemoryLocation | None:
    if driver.supports(device, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        for kind, attribute in _HOSTS.items():
            if driver.supports(device, attribute):
                node = driver.attribute(device, "HOST_NUMA_ID") if kind == "HOST_NUMA" else 0
                return MemoryLocation(kind, max(0, node))  # the driver says -1 on a host that is one node
    return None
