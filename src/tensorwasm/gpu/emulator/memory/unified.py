"""Memory that host and emulated kernels reach under one address: managed, and ranges that are mapped in parts.

Both are ordinary pages of this process. Source: POSIX.1-2017, mmap, mprotect, munmap; Linux mmap(2) for anonymous
memory.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NoReturn

from tensorwasm.errors import LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Advice, Stream
from tensorwasm.gpu.emulator.handles import OpenObjects
from tensorwasm.gpu.emulator.memory.allocations import AllocationTable
from tensorwasm.gpu.memory.pages import clear

GRANULARITY_BYTES: Final = 64 << 10
"""What is mapped at a time: a page of WebAssembly, and a multiple of every system's pages."""
AVAILABLE: Final = sys.platform != "win32"
"""Whether this system has the calls for pages."""
READ_WRITE: Final = 3  # PROT_READ | PROT_WRITE
NO_ACCESS: Final = 0
FIXED: Final = 0x10  # MAP_FIXED of Linux and macOS, which the mmap module does not name
_REMOVE: Final = 9  # MADV_REMOVE of Linux
_FAILED: Final = ctypes.c_void_p(-1).value
_MAX_BYTES: Final = 1 << 46

_log: Final = logging.getLogger(__name__)


@cache
def _libc() -> Any:
    if not AVAILABLE:
        raise LaunchRefused("this system has no pages that the emulator could map: mmap of POSIX is missing")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _raise_errno() -> NoReturn:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def map_pages(
    size_bytes: int, access: int, address: int | None = None, flags: int = 0, file: int | None = None, at: int = 0
) -> int:
    """Return the address of zeroed pages; with ``MAP_FIXED`` they replace others at an address.

    With a descriptor of a file, they are its pages from an offset on. Raises `OSError` if there is no room or memory
    for them, `LaunchRefused` if this system has no such pages.
    """
    flags |= mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if file is None else mmap.MAP_SHARED
    if not 0 < size_bytes <= _MAX_BYTES:
        raise OSError(f"{size_bytes} bytes cannot be mapped")
    found: int | None = _libc().mmap(address, size_bytes, access, flags, -1 if file is None else file, at)
    if found is None or found == _FAILED:
        _raise_errno()
    return found


def open_pages(address: int, size_bytes: int) -> None:
    """Make reserved pages readable and writable. Raises `OSError` if there is no memory for them."""
    if _libc().mprotect(address, size_bytes, READ_WRITE):
        _raise_errno()


def close_pages(address: int, size_bytes: int) -> None:
    """Discard the content of pages and make them inaccessible, in one step. Raises `OSError` if the system refuses."""
    map_pages(size_bytes, NO_ACCESS, address, FIXED)


def discard_pages(address: int, size_bytes: int) -> None:
    """Fill a file's pages with zeros, wherever they are mapped. Raises `OSError` if the system refuses."""
    if _libc().madvise(address, size_bytes, _REMOVE):
        _raise_errno()


def release_pages(address: int, size_bytes: int) -> None:
    """Give pages back to the system. Raises `OSError` if it refuses."""
    if _libc().munmap(address, size_bytes):
        _raise_errno()


@dataclass(slots=True)
class _Range:
    """A reserved range, and the bytes of what is mapped in it, by address."""

    size_bytes: int
    mapped: dict[int, int] = field(default_factory=dict)


class EmulatedMemory:
    """The unified memory of a device.

    A method raises `LaunchRefused` for a range that is not what it takes: managed, inside a reserved range, whole
    granules, not mapped yet, or mapped by one call.
    """

    managed: Final = AVAILABLE
    growable: Final = AVAILABLE
    granularity_bytes: Final = GRANULARITY_BYTES if AVAILABLE else 0

    def __init__(self, allocations: AllocationTable, streams: OpenObjects[Any]) -> None:
        self._allocations, self._streams = allocations, streams
        self._lock = threading.RLock()
        self._managed: dict[int, int] = {}
        self._ranges: dict[int, _Range] = {}
        self.release_failures = 0

    def free_bytes(self) -> int:
        """Return device memory that is free now: managed memory is charged to it, mapped memory is not."""
        return self._allocations.free_bytes()

    # --------------------------------------------------------------------------------------------- managed

    def allocate_managed(self, size_bytes: int, zero_bytes: int | None = None) -> int:
        """Return the address of managed memory; new pages are zero, whatever ``zero_bytes`` is."""
        del zero_bytes
        if size_bytes < 1:
            raise LaunchRefused("managed memory has at least 1 byte")
        try:
            address = map_pages(size_bytes, READ_WRITE)
        except OSError as error:
            raise QuotaExceeded(f"{size_bytes} bytes of managed memory: {error}") from None
        try:
            self._allocations.add_host(address, size_bytes, "managed")
        except BaseException:
            release_pages(address, size_bytes)
            raise
        with self._lock:
            self._managed[address] = size_bytes
        return address

    def clear_managed(self, address: int, size_bytes: int) -> None:
        """Fill a part of managed memory with zeros."""
        self._check_managed(address, size_bytes)
        clear(address, size_bytes)

    def free_managed(self, address: int) -> None:
        """Release managed memory."""
        size_bytes = self._allocations.remove_host(address, "managed")
        with self._lock:
            del self._managed[address]
            self._release(address, size_bytes)

    def advise(self, address: int, size_bytes: int, advice: Advice) -> bool:
        """Return False: host and device share one memory, so a hint has no effect."""
        del advice
        self._check_managed(address, size_bytes)
        return False

    def prefetch(self, address: int, size_bytes: int, stream: Stream, *, to_host: bool) -> bool:
        """Return False: host and device share one memory, so there is nothing to move."""
        del to_host
        self._streams.require(stream)
        self._check_managed(address, size_bytes)
        return False

    def _check_managed(self, address: int, size_bytes: int) -> None:
        found = self._allocations.span(address, size_bytes)
        if found is None or found.segments[0].allocation.kind != "managed":
            raise LaunchRefused(f"{size_bytes} bytes that are not managed memory")

    # ---------------------------------------------------------------------------------------------- ranges

    def reserve(self, size_bytes: int) -> int:
        """Return the address of inaccessible pages."""
        try:
            address = map_pages(size_bytes, NO_ACCESS)
        except OSError as error:
            raise LaunchRefused(f"a range of {size_bytes} bytes: {error}") from None
        with self._lock:
            self._ranges[address] = _Range(size_bytes)
            self._allocations.add_reserved(address, size_bytes)
        return address

    def map(self, address: int, size_bytes: int) -> None:
        """Make a part of a reserved range accessible."""
        self._map(address, size_bytes, None)

    def show(self, address: int, size_bytes: int, file: int) -> None:
        """Show the first pages of a file in a part of a reserved range, as if `map` had mapped them there."""
        self._map(address, size_bytes, file)

    def _map(self, address: int, size_bytes: int, file: int | None) -> None:
        with self._lock:
            found = self._range_of(address, size_bytes)
            if any(base < address + size_bytes and address < base + size for base, size in found.mapped.items()):
                raise LaunchRefused(f"some of the {size_bytes} bytes are mapped already")
            try:
                if file is None:
                    open_pages(address, size_bytes)
                else:
                    map_pages(size_bytes, READ_WRITE, address, FIXED, file)
            except OSError as error:
                raise QuotaExceeded(f"{size_bytes} bytes to be mapped: {error}") from None
            self._allocations.add_host(address, size_bytes, "mapped")
            found.mapped[address] = size_bytes

    def unmap(self, address: int, size_bytes: int) -> None:
        """Discard the memory that exactly one `map` mapped."""
        with self._lock:
            found = self._range_of(address, size_bytes)
            if found.mapped.get(address) != size_bytes:
                raise LaunchRefused(f"no {size_bytes} bytes were mapped there at once")
            self._allocations.remove_host(address, "mapped")
            try:
                close_pages(address, size_bytes)
            except OSError as error:
                self._allocations.add_host(address, size_bytes, "mapped")
                raise LaunchRefused(f"{size_bytes} bytes cannot be taken away: {error}") from None
            del found.mapped[address]

    def unreserve(self, address: int, size_bytes: int) -> None:
        """Release a range."""
        with self._lock:
            found = self._ranges.get(address)
            if found is None or found.size_bytes != size_bytes or found.mapped:
                raise LaunchRefused(f"no range of {size_bytes} bytes in which nothing is mapped is reserved there")
            del self._ranges[address]
            self._allocations.remove_reserved(address)
            self._release(address, size_bytes)

    def _range_of(self, address: int, size_bytes: int) -> _Range:
        for base, found in self._ranges.items():
            if base <= address and address + size_bytes <= base + found.size_bytes and size_bytes > 0:
                if (address - base) % GRANULARITY_BYTES or size_bytes % GRANULARITY_BYTES:
                    raise LaunchRefused(f"{size_bytes} bytes that are not whole granules of {GRANULARITY_BYTES} bytes")
                return found
        raise LaunchRefused(f"{size_bytes} bytes that are not inside a reserved range")

    def clear(self) -> None:
        """Release everything. The allocation table must have been cleared before."""
        with self._lock:
            for address, size_bytes in self._managed.items():
                self._release(address, size_bytes)
            for address, found in self._ranges.items():
                self._release(address, found.size_bytes)
            self._managed.clear()
            self._ranges.clear()

    def _release(self, address: int, size_bytes: int) -> None:
        try:
            release_pages(address, size_bytes)
        except OSError:
            self.release_failures += 1
            _log.exception("%d bytes of host memory were not given back", size_bytes)
