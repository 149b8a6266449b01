"""Reserved ranges that grow in place: addresses first, host memory behind parts of them later.

Source: CUDA Driver API, "Virtual Memory Management".
"""

from __future__ import annotations

from typing import Any, Final

from tensorwasm.errors import InvalidPointer, LaunchRefused
from tensorwasm.gpu.cuda.core import Core
from tensorwasm.gpu.cuda.traits import MemoryTraits, Place, host_property
from tensorwasm.gpu.memory import pages

_ADDRESSES: Final = 1 << 47
"""Bytes that a process can address."""


class GrowableRanges:
    """Reserves, maps and gives back. Safe from any thread."""

    def __init__(self, core: Core, traits: MemoryTraits) -> None:
        """Reserve nothing yet."""
        self._core = core
        self._traits = traits

    def reserve(self, size_bytes: int) -> int:
        """See `UnifiedMemory.reserve`. The size is rounded up to the granularity.

        Raises:
            LaunchRefused: the device has no such ranges, or no room for this one.
            DeviceLost: the device does not answer.
        """
        core, grain = self._core, self._traits.granularity_bytes
        self._require_host()
        if not 0 < size_bytes < _ADDRESSES:
            raise LaunchRefused(f"there is no room for a range of {size_bytes} bytes")
        whole_bytes = self._whole(size_bytes)
        with core.calling:
            address = int(core.driver.call("cuMemAddressReserve", whole_bytes, grain, 0, 0))
            core.ledger.reserved.add(address, whole_bytes)
            return address

    def unreserve(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.unreserve`.

        Raises:
            InvalidPointer: no such range was reserved, or something is mapped in it.
            DeviceLost: the device does not answer.
        """
        core = self._core
        whole_bytes = self._whole(size_bytes)
        if core.ledger.reserved.size(address) != whole_bytes:
            raise InvalidPointer(f"no range of {size_bytes} bytes was reserved at {address:#x}")
        if any(address <= start < address + whole_bytes for start in core.ledger.mapped.live()):
            raise InvalidPointer(f"memory is mapped in the range at {address:#x}")
        core.give_back(
            core.ledger.reserved, address, lambda start: core.release("cuMemAddressFree", start, whole_bytes)
        )

    def map(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.map`. Takes about 0.2 ms a MiB: the pages are pinned and cleared.

        Raises:
            InvalidPointer: not a part of a reserved range, in whole granules.
            QuotaExceeded: there is no memory for it; nothing is mapped.
            LaunchRefused: the driver refuses; nothing is mapped.
            DeviceLost: the device does not answer.
        """
        core, host = self._core, self._require_host()
        grain = self._traits.granularity_bytes
        aligned = size_bytes > 0 and address % grain == 0 and size_bytes % grain == 0
        if not (aligned and core.ledger.reserved.holds(address, size_bytes)):
            raise InvalidPointer(f"{size_bytes} bytes at {address:#x} are not whole granules of a reserved range")
        with core.calling:
            handle = core.driver.call("cuMemCreate", size_bytes, host_property(core.driver, host), 0)
            try:
                self._put(address, size_bytes, handle, host)
            finally:
                core.undo("cuMemRelease", handle)  # a mapping keeps the memory by itself
            core.ledger.mapped.add(address, size_bytes)

    def _put(self, address: int, size_bytes: int, handle: Any, host: Place) -> None:
        """Map memory, let device and host reach it, and clear it.

        Raises:
            DriverFailure: nothing is mapped.
        """
        core = self._core
        core.driver.call("cuMemMap", address, size_bytes, 0, handle, 0)
        try:
            users = [self._access(self._traits.device), self._access(host)]
            core.driver.call("cuMemSetAccess", address, size_bytes, users, len(users))
        except Exception:
            core.undo("cuMemUnmap", address, size_bytes)
            raise
        pages.clear(address, size_bytes)

    def _access(self, place: Place) -> Any:
        api = self._core.driver.api
        access = api.CUmemAccessDesc()
        access.location = place.spell(api)
        access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return access

    def unmap(self, address: int, size_bytes: int) -> None:
        """See `UnifiedMemory.unmap`.

        Raises:
            InvalidPointer: no such mapping begins there.
            DeviceLost: the device does not answer; it is still mapped.
        """
        core = self._core
        mapped = core.ledger.mapped
        if mapped.size(address) != size_bytes:
            raise InvalidPointer(f"no mapping of {size_bytes} bytes begins at {address:#x}")
        core.give_back(mapped, address, lambda start: core.release("cuMemUnmap", start, size_bytes))

    def _whole(self, size_bytes: int) -> int:
        grain = self._traits.granularity_bytes or 1
        return -(-size_bytes // grain) * grain

    def _require_host(self) -> Place:
        if self._traits.host is None:
            raise LaunchRefused("this device has no ranges that grow and that the host reaches too")
        return self._traits.host
