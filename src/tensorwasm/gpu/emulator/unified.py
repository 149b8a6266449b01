"""Memory that host and emulated kernels reach under one address: managed, and ranges that are mapped in parts."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Advice, Stream
from tensorwasm.gpu.emulator import pages
from tensorwasm.gpu.emulator.allocations import Allocations
from tensorwasm.gpu.emulator.queues import Queues
from tensorwasm.gpu.memory.pages import clear

GRANULARITY_BYTES: Final = 64 << 10
"""What is mapped at a time: a page of WebAssembly, and a multiple of every system's pages."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Range:
    """A reserved range, and the bytes of what is mapped in it, by address."""

    size_bytes: int
    mapped: dict[int, int] = field(default_factory=dict)


class EmulatedMemory:
    """The unified memory of a device. Both kinds are ordinary pages of this process.

    Args:
        allocations: the device's memory.
        queues: its streams.
    """

    managed: Final = pages.AVAILABLE
    growable: Final = pages.AVAILABLE
    granularity_bytes: Final = GRANULARITY_BYTES if pages.AVAILABLE else 0

    def __init__(self, allocations: Allocations, queues: Queues) -> None:
        self._allocations, self._queues = allocations, queues
        self._lock = threading.RLock()
        self._managed: dict[int, int] = {}
        self._ranges: dict[int, _Range] = {}
        self.release_failures = 0

    def free_bytes(self) -> int:
        """Return device memory that is free now: managed memory is charged to it, mapped memory is not."""
        return self._allocations.free_bytes()

    # --------------------------------------------------------------------------------------------- managed

    def allocate_managed(self, size_bytes: int, zero_bytes: int | None = None) -> int:
        """Return the address of zeroed managed memory, page-aligned; new pages are zero, however much was asked for.

        Raises:
            QuotaExceeded: more than the device or this machine has free.
            LaunchRefused: this system has no such memory, or the size is 0.
        """
        del zero_bytes
        if size_bytes < 1:
            raise LaunchRefused("managed memory has at least 1 byte")
        try:
            address = pages.acquire(size_bytes)
        except OSError as error:
            raise QuotaExceeded(f"{size_bytes} bytes of managed memory: {error}") from None
        try:
            self._allocations.admit(address, size_bytes, "managed")
        except BaseException:
            pages.give_back(address, size_bytes)
            raise
        with self._lock:
            self._managed[address] = size_bytes
        return address

    def clear_managed(self, address: int, size_bytes: int) -> None:
        """Fill a part of managed memory with zeros.

        Raises:
            LaunchRefused: the range is not managed memory.
        """
        self._check_managed(address, size_bytes)
        clear(address, size_bytes)

    def free_managed(self, address: int) -> None:
        """Release managed memory.

        Raises:
            LaunchRefused: there is none at that address.
        """
        size_bytes = self._allocations.dismiss(address, "managed")
        with self._lock:
            del self._managed[address]
            self._give_back(address, size_bytes)

    def advise(self, address: int, size_bytes: int, advice: Advice) -> bool:
        """Return False: there is one memory, so a hint has no effect.

        Raises:
            LaunchRefused: the range is not managed memory.
        """
        del advice
        self._check_managed(address, size_bytes)
        return False

    def prefetch(self, address: int, size_bytes: int, stream: Stream, *, to_host: bool) -> bool:
        """Return False: there is one memory, so there is nothing to move.

        Raises:
            LaunchRefused: the range is not managed memory.
            InvalidHandle: no such stream.
        """
        del to_host
        self._queues.own(stream)
        self._check_managed(address, size_bytes)
        return False

    def _check_managed(self, address: int, size_bytes: int) -> None:
        found = self._allocations.span(address, size_bytes)
        if found is None or found.segments[0].owner.kind != "managed":
            raise LaunchRefused(f"{size_bytes} bytes that are not managed memory")

    # ---------------------------------------------------------------------------------------------- ranges

    def reserve(self, size_bytes: int) -> int:
        """Return the address of a reserved range in which nothing is mapped: every access faults.

        Raises:
            LaunchRefused: this system has no such ranges, or no room for this one.
        """
        try:
            address = pages.reserve(size_bytes)
        except OSError as error:
            raise LaunchRefused(f"a range of {size_bytes} bytes: {error}") from None
        with self._lock:
            self._ranges[address] = _Range(size_bytes)
            self._allocations.fence(address, size_bytes)
        return address

    def map(self, address: int, size_bytes: int) -> None:
        """Put zeroed memory behind a part of a reserved range.

        Raises:
            LaunchRefused: the part is not inside a range, not whole granules, or mapped already.
            QuotaExceeded: there is no memory for it; nothing is mapped.
        """
        with self._lock:
            found = self._range_of(address, size_bytes)
            if any(base < address + size_bytes and address < base + size for base, size in found.mapped.items()):
                raise LaunchRefused(f"some of the {size_bytes} bytes are mapped already")
            try:
                pages.open_part(address, size_bytes)
            except OSError as error:
                raise QuotaExceeded(f"{size_bytes} bytes to be mapped: {error}") from None
            self._allocations.admit(address, size_bytes, "mapped")
            found.mapped[address] = size_bytes

    def unmap(self, address: int, size_bytes: int) -> None:
        """Take away what exactly one `map` mapped, and what was in it.

        Raises:
            LaunchRefused: no `map` mapped exactly that.
        """
        with self._lock:
            found = self._range_of(address, size_bytes)
            if found.mapped.get(address) != size_bytes:
                raise LaunchRefused(f"no {size_bytes} bytes were mapped there at once")
            self._allocations.dismiss(address, "mapped")
            try:
                pages.close_part(address, size_bytes)
            except OSError as error:
                self._allocations.admit(address, size_bytes, "mapped")
                raise LaunchRefused(f"{size_bytes} bytes cannot be taken away: {error}") from None
            del found.mapped[address]

    def unreserve(self, address: int, size_bytes: int) -> None:
        """Give a range back.

        Raises:
            LaunchRefused: it is no range of that size, or something is mapped in it.
        """
        with self._lock:
            found = self._ranges.get(address)
            if found is None or found.size_bytes != size_bytes or found.mapped:
                raise LaunchRefused(f"no range of {size_bytes} bytes in which nothing is mapped is reserved there")
            del self._ranges[address]
            self._allocations.unfence(address)
            self._give_back(address, size_bytes)

    def _range_of(self, address: int, size_bytes: int) -> _Range:
        for base, found in self._ranges.items():
            if base <= address and address + size_bytes <= base + found.size_bytes and size_bytes > 0:
                if (address - base) % GRANULARITY_BYTES or size_bytes % GRANULARITY_BYTES:
                    raise LaunchRefused(f"{size_bytes} bytes that are not whole granules of {GRANULARITY_BYTES} bytes")
                return found
        raise LaunchRefused(f"{size_bytes} bytes that are not inside a reserved range")

    def clear(self) -> None:
        """Give everything back. The table must have let go of it already."""
        with self._lock:
            for address, size_bytes in self._managed.items():
                self._give_back(address, size_bytes)
            for address, found in self._ranges.items():
                self._give_back(address, found.size_bytes)
            self._managed.clear()
            self._ranges.clear()

    def _give_back(self, address: int, size_bytes: int) -> None:
        try:
            pages.give_back(address, size_bytes)
        except OSError:
            self.release_failures += 1
            _log.exception("%d bytes of host memory were not given back", size_bytes)
