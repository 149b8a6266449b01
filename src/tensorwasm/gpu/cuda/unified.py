"""Memory under one address for host and GPU: `tensorwasm.gpu.device.protocols.UnifiedMemory`.

Source: CUDA Driver API, "Unified Addressing", "Memory Management" (cuMemAllocManaged).
"""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import DeviceUnavailable, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.memory import DeviceMemory
from tensorwasm.gpu.cuda.ranges import GrowableRanges
from tensorwasm.gpu.cuda.traits import MemoryTraits, Place
from tensorwasm.gpu.device.protocols import Advice, Stream
from tensorwasm.gpu.memory import pages

_ADVICE: Final[dict[Advice, str]] = {
    Advice.READ_MOSTLY: "SET_READ_MOSTLY",
    Advice.UNSET_READ_MOSTLY: "UNSET_READ_MOSTLY",
    Advice.PREFERRED_LOCATION: "SET_PREFERRED_LOCATION",
    Advice.UNSET_PREFERRED_LOCATION: "UNSET_PREFERRED_LOCATION",
    Advice.ACCESSED_BY: "SET_ACCESSED_BY",
    Advice.UNSET_ACCESSED_BY: "UNSET_ACCESSED_BY",
}

_HOST: Final = Place("HOST", 0)
_HOST_ORDINAL: Final = -1
"""The host, where a hint takes the ordinal of a device (CU_DEVICE_CPU)."""


class CudaUnified:
    """Managed memory and ranges that grow in place."""

    def __init__(self, core: Core, traits: MemoryTraits, memory: DeviceMemory) -> None:
        """Hold nothing yet."""
        self._core = core
        self._traits = traits
        self._memory = memory
        self._ranges = GrowableRanges(core, traits)
        self._suffix = "_v2" if core.driver.has("cuMemAdvise_v2") else ""  # bindings 13 have one spelling only
        self.reserve = self._ranges.reserve
        self.unreserve = self._ranges.unreserve
        self.map = self._ranges.map
        self.unmap = self._ranges.unmap

    @property
    def managed(self) -> bool:
        """Whether the device has managed memory."""
        return self._traits.managed

    @property
    def growable(self) -> bool:
        """Whether the device has virtual ranges that the host reaches too."""
        return self._traits.host is not None

    @property
    def granularity_bytes(self) -> int:
        """Bytes that `map` maps at a time, 0 without `growable`."""
        return self._traits.granularity_bytes

    def free_bytes(self) -> int:
        """See `UnifiedMemory.free_bytes`.

        Raises:
            DeviceLost: the device does not answer.
        """
        with self._core.calling:
            return self._free_bytes()

    def allocate_managed(self, size_bytes: int, zero_bytes: int | None = None) -> int:
        """See `UnifiedMemory.allocate_managed`. The driver does not promise zeros, so they are written here.

        Raises:
            QuotaExceeded: more than the device has free.
            LaunchRefused: the device has no managed memory.
            DeviceLost: the device does not answer.
        """
        core = self._core
        if not self._traits.managed:
            raise LaunchRefused("this device has no managed memory")
        with core.calling:
            self._require_free(size_bytes)
            flags = core.driver.api.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
            address = int(core.driver.call("cuMemAllocManaged", size_bytes, flags))
            try:
                self._clear(address, size_bytes if zero_bytes is None else zero_bytes)
            except Exception:
                core.undo("cuMemFree", address)
                raise
            core.ledger.managed.add(address, size_bytes)
            return address

    def clear_managed(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.clear_managed`.

        Raises:
            InvalidPointer: the range is not inside one managed allocation.
            DeviceLost: the device does not answer.
        """
        self._core.ledger.require_managed(address, size_bytes)
        with self._core.calling:
            self._clear(address, size_bytes)

    def free_managed(self, address: int) -> None:
        """See `UnifiedMemory.free_managed`. Blocks while any kernel runs on the device: so the driver frees it.

        Raises:
            InvalidHandle: no managed memory begins there.
            DeviceLost: the device does not answer; the memory stays.
        """
        core = self._core
        core.give_back(core.ledger.managed, address, lambda start: core.release("cuMemFree", start))

    def advise(self, address: int, size_bytes: int, advice: Advice) -> bool:
        """See `UnifiedMemory.advise`.

        Raises:
            InvalidPointer: the range is not inside one managed allocation.
            DeviceLost: the device does not answer.
        """
        self._core.ledger.require_managed(address, size_bytes)
        kind = getattr(self._core.driver.api.CUmem_advise, f"CU_MEM_ADVISE_{_ADVICE[advice]}")
        return self._hint("cuMemAdvise", (address, size_bytes, kind), self._traits.device)

    def prefetch(self, address: int, size_bytes: int, stream: Stream, *, to_host: bool) -> bool:
        """See `UnifiedMemory.prefetch`.

        Raises:
            InvalidPointer: the range is not inside one managed allocation.
            InvalidHandle: the stream is not open here.
            LaunchRefused: the stream records.
            DeviceLost: the device does not answer.
        """
        own = self._core.running(stream)
        self._core.ledger.require_managed(address, size_bytes)
        target = _HOST if to_host else self._traits.device
        flags = (0,) if self._traits.hints == "location" else ()
        return self._hint("cuMemPrefetchAsync", (address, size_bytes), target, *flags, own.handle)

    def _hint(self, function: str, before: tuple[Any, ...], place: Place, *after: Any) -> bool:
        """Give a hint; returns whether it can have an effect."""
        core, style = self._core, self._traits.hints
        if style is None:
            return False
        if style == "ordinal":
            named: Any = _HOST_ORDINAL if place is _HOST else place.number
        else:
            function, named = function + self._suffix, place.spell(core.driver.api)
        with core.calling:
            try:
                core.driver.call(function, *before, named, *after)
            except DeviceUnavailable:  # a driver older than the bindings: what was hinted at happens on access
                return False
        return True

    def _clear(self, address: int, size_bytes: int) -> None:
        """Write zeros to managed memory, and touch nothing beside them.

        The host does it where it may touch managed memory at any time. The device would clear faster what is large, but
        in a stream: behind whatever fills the GPU, which may be a kernel that never ends, and nobody's memory may wait
        for somebody else's kernel. And a page begins where it is first touched: what is new is written by the host
        first, by the copy of a module's data or by the guest that asked for it.
        """
        core = self._core
        if not size_bytes:
            return
        if self._traits.hints is not None:
            pages.clear(address, size_bytes)
            return
        stream = core.streams.pooling()
        core.driver.call("cuMemsetD8Async", address, 0, size_bytes, stream.handle)
        core.drain_pools()

    def _require_free(self, size_bytes: int) -> None:
        """Check that there is as much, after the device's own pool has given back what it keeps.

        Raises:
            QuotaExceeded: there is not.
            DriverFailure: the driver does not say.
        """
        if size_bytes > self._free_bytes():
            self._memory.trim()
            free_bytes = self._free_bytes()
            if size_bytes > free_bytes:
                raise QuotaExceeded(f"{size_bytes} bytes of managed memory: the device has {free_bytes} free")

    def _free_bytes(self) -> int:
        free, _ = self._core.driver.call("cuMemGetInfo")
        return int(free)
