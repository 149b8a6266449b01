"""Memory under one address for host and GPU: `tensorwasm.gpu.device.protocols.UnifiedMemory`.

Managed memory moves between the two. Reserved ranges grow in place: addresses first, host memory behind parts of them
later.

Source: CUDA Driver API, "Unified Addressing", "Memory Management" (cuMemAllocManaged), "Virtual Memory Management".
"""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable, InvalidPointer, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.memory.pools import DeviceAllocator, MemoryLocation, MemoryTraits, access_from, mappable
from tensorwasm.gpu.device.protocols import Advice, Stream
from tensorwasm.gpu.memory import pages

_HOST: Final = MemoryLocation("HOST", 0)
_HOST_ORDINAL: Final = -1
"""The host, where a hint takes the ordinal of a device (CU_DEVICE_CPU)."""
_ADDRESSES: Final = 1 << 47
"""Bytes that a process can address."""


class CudaUnified:
    """Managed memory and ranges that grow in place; see `CudaDevice` for what every method raises.

    Attributes:
        managed: whether the device has managed memory.
        growable: whether the device has virtual ranges that the host reaches too.
        granularity_bytes: bytes that `map` maps at a time, 0 without `growable`.
    """

    def __init__(self, core: Core, traits: MemoryTraits, allocator: DeviceAllocator) -> None:
        self.managed = traits.managed
        self.growable = traits.host is not None
        self.granularity_bytes = traits.granularity_bytes
        self._core = core
        self._traits = traits
        self._allocator = allocator
        self._suffix = "_v2" if hasattr(core.driver.api, "cuMemAdvise_v2") else ""  # bindings 13 have one spelling only

    # ------------------------------------------------------------------------------------ managed memory

    def free_bytes(self) -> int:
        """See `UnifiedMemory.free_bytes`."""
        with self._core.calling:
            return self._free_bytes()

    def allocate_managed(self, size_bytes: int, zero_bytes: int | None = None) -> int:
        """See `UnifiedMemory.allocate_managed`. The driver does not promise zeros, so they are written here."""
        core = self._core
        if not self.managed:
            raise LaunchRefused("this device has no managed memory")
        with core.calling:
            if size_bytes > self._free_bytes():
                self._allocator.trim()
                free_bytes = self._free_bytes()
                if size_bytes > free_bytes:
                    raise QuotaExceeded(f"{size_bytes} bytes of managed memory: the device has {free_bytes} free")
            flags = core.driver.api.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
            address = int(core.driver.call("cuMemAllocManaged", size_bytes, flags))
            with core.undoing("cuMemFree", address):
                self._clear(address, size_bytes if zero_bytes is None else zero_bytes)
            return core.live.managed.enter(address, size_bytes)

    def clear_managed(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.clear_managed`."""
        self._require_managed(address, size_bytes)
        with self._core.calling:
            self._clear(address, size_bytes)

    def free_managed(self, address: int) -> None:
        """See `UnifiedMemory.free_managed`. Blocks while any kernel runs on the device, as ``cuMemFree`` does."""
        core = self._core
        core.retire(core.live.managed, address, lambda start, _: core.release("cuMemFree", start))

    def advise(self, address: int, size_bytes: int, advice: Advice) -> bool:
        """See `UnifiedMemory.advise`."""
        self._require_managed(address, size_bytes)
        name = advice.name if advice.name.startswith("UNSET_") else f"SET_{advice.name}"
        kind = getattr(self._core.driver.api.CUmem_advise, f"CU_MEM_ADVISE_{name}")
        return self._hint("cuMemAdvise", (address, size_bytes, kind), self._traits.device)

    def prefetch(self, address: int, size_bytes: int, stream: Stream, *, to_host: bool) -> bool:
        """See `UnifiedMemory.prefetch`."""
        own = self._core.require_running(stream)
        self._require_managed(address, size_bytes)
        target = _HOST if to_host else self._traits.device
        flags = (0,) if self._traits.hints == "location" else ()
        return self._hint("cuMemPrefetchAsync", (address, size_bytes), target, *flags, own.handle)

    def _hint(self, function: str, before: tuple[Any, ...], location: MemoryLocation, *after: Any) -> bool:
        """Give a hint; return whether it can have an effect."""
        core, style = self._core, self._traits.hints
        if style is None:
            return False
        if style == "ordinal":
            named: Any = _HOST_ORDINAL if location is _HOST else location.number
        else:
            function, named = function + self._suffix, location.spell(core.driver.api)
        with core.calling:
            try:
                core.driver.call(function, *before, named, *after)
            except DeviceUnavailable:  # a driver older than the bindings: the pages move on access
                return False
        return True

    def _clear(self, address: int, size_bytes: int) -> None:
        """Write zeros to managed memory, and touch nothing beside them.

        The host does it where it may touch managed memory at any time. The device would clear large ranges faster, but
        in a stream, behind a kernel that fills the GPU and may never end: one tenant's memory must not wait for
        another's kernel. And a page is placed where it is first touched: new memory is written by the host first, by
        the copy of a module's data or by the guest that asked for it.
        """
        core = self._core
        if self._traits.hints is not None:
            pages.clear(address, size_bytes)
        elif size_bytes:
            core.driver.call("cuMemsetD8Async", address, 0, size_bytes, core.streams.own("pooling").handle)
            core.drain_pools()

    def _require_managed(self, address: int, size_bytes: int) -> None:
        if not self._core.live.managed.holds(address, size_bytes):
            raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not inside one managed allocation")

    def _free_bytes(self) -> int:
        free, _ = self._core.driver.call("cuMemGetInfo")
        return int(free)

    # ------------------------------------------------------------------------- ranges that grow in place

    def reserve(self, size_bytes: int) -> int:
        """See `UnifiedMemory.reserve`. The size is rounded up to the granularity."""
        core = self._core
        self._require_host()
        if not 0 < size_bytes < _ADDRESSES:
            raise LaunchRefused(f"there is no room for a range of {size_bytes} bytes")
        whole_bytes = self._whole(size_bytes)
        with core.calling:
            address = int(core.driver.call("cuMemAddressReserve", whole_bytes, self.granularity_bytes, 0, 0))
            return core.live.reserved.enter(address, whole_bytes)

    def unreserve(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.unreserve`.

        Raises:
            InvalidPointer: no such range was reserved, or something is mapped in it.
        """
        core, whole_bytes = self._core, self._whole(size_bytes)
        if core.live.reserved.size(address) != whole_bytes:
            raise InvalidPointer(f"no range of {size_bytes} bytes was reserved at {address:#x}")
        if any(address <= start < address + whole_bytes for start, _ in core.live.mapped.entries()):
            raise InvalidPointer(f"memory is mapped in the range at {address:#x}")
        core.retire(core.live.reserved, address, lambda start, size: core.release("cuMemAddressFree", start, size))

    def map(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.map`. Takes about 0.2 ms a MiB: the pages are pinned and cleared.

        Raises:
            InvalidPointer: not a part of a reserved range, in whole granules.
            LaunchRefused: the driver refuses; nothing is mapped.
        """
        core, host = self._core, self._require_host()
        self._require_reserved(address, size_bytes)
        with core.calling:
            handle = core.driver.call("cuMemCreate", size_bytes, mappable(core.driver, host), 0)
            try:
                self.map_handle(address, size_bytes, handle)
            finally:
                core.undo("cuMemRelease", handle)  # a mapping keeps the memory by itself

    def map_handle(self, address: int, size_bytes: int, handle: Any) -> None:
        """Map host memory of the driver, filled with zeros, as `map` does."""
        core, host = self._core, self._require_host()
        self._require_reserved(address, size_bytes)
        with core.calling:
            core.driver.call("cuMemMap", address, size_bytes, 0, handle, 0)
            with core.undoing("cuMemUnmap", address, size_bytes):
                users = [access_from(core.driver, self._traits.device), access_from(core.driver, host)]
                core.driver.call("cuMemSetAccess", address, size_bytes, users, len(users))
            pages.clear(address, size_bytes)
            core.live.mapped.enter(address, size_bytes)

    def unmap(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.unmap`."""
        core, mapped = self._core, self._core.live.mapped
        if mapped.size(address) != size_bytes:
            raise InvalidPointer(f"no mapping of {size_bytes} bytes begins at {address:#x}")
        core.retire(mapped, address, lambda start, size: core.release("cuMemUnmap", start, size))

    def _require_reserved(self, address: int, size_bytes: int) -> None:
        aligned = size_bytes > 0 and address % self.granularity_bytes == 0 and size_bytes % self.granularity_bytes == 0
        if not (aligned and self._core.live.reserved.holds(address, size_bytes)):
            raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not whole granules of a reserved range")

    def _whole(self, size_bytes: int) -> int:
        return pages.rounded(size_bytes, self.granularity_bytes or 1)

    def _require_host(self) -> MemoryLocation:
        if self._traits.host is None:
            raise LaunchRefused("this device has no ranges that grow and that the host reaches too")
        return self._traits.host
