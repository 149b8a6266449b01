"""Address space for linear memories that are not wasmtime's own.

Source: mmap(2), mprotect(2), madvise(2), munmap(2), memfd_create(2), "File sealing" in fcntl(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from tensorwasm.errors import CapacityExhausted, NotSupported

SUPPORTED: Final = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether this system can map a sealed file privately, again and again."""

LARGE_BYTES: Final = 8 << 20
"""From this size on, the GIL is released while pages are returned."""

# Linux's own numbers: other systems have neither all of them nor any use for them here.
_NO_ACCESS: Final = 0
_READ_WRITE: Final = 3
_PRIVATE: Final = 2
_ANONYMOUS: Final = 0x20
_FIXED: Final = 0x10
_NO_RESERVE: Final = 0x4000
_RETURN: Final = 4  # MADV_DONTNEED: what was written is gone; a private mapping shows its file again
_POPULATE: Final = 23  # MADV_POPULATE_WRITE; before Linux 5.14 there is none, and pages come one by one
_ADD_SEALS: Final = 1033
_SEALS: Final = 0xF  # that there be no more, no shrinking, no growing, no writing
_FAILED: Final = ctypes.c_size_t(-1).value

_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "mmap": (ctypes.c_size_t, [*[ctypes.c_size_t] * 2, *[ctypes.c_int] * 3, ctypes.c_long]),
    "munmap": (ctypes.c_int, [ctypes.c_size_t] * 2),
    "mprotect": (ctypes.c_int, [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]),
    "madvise": (ctypes.c_int, [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]),
}


def make_file(name: str, size_bytes: int) -> int:
    """Return the descriptor of a new sealable file of zeros in memory.

    Raises `NotSupported` if the system has none, and `CapacityExhausted` if the process may open no more files.
    """
    if sys.platform != "linux" or not SUPPORTED:
        raise NotSupported("memory is restored on Linux only, where a file in memory can be sealed and mapped")
    descriptor = -1
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size_bytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise CapacityExhausted(f"no image of a memory can be made: {error.strerror}") from None
    return descriptor


def seal(descriptor: int) -> None:
    """Forbid all writes to a file, also by this process; no writable mapping of it may exist."""
    import fcntl  # noqa: PLC0415 - there is none on Windows

    fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)


def reserve(size_bytes: int) -> int:
    """Return the address of an inaccessible range, owned until `release`, or raise `CapacityExhausted`."""
    flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE
    address: int = bind("mmap")(0, size_bytes, _NO_ACCESS, flags, -1, 0)
    if address == _FAILED:
        raise CapacityExhausted("the system has no address space, or this process no mappings left; try again later")
    return address


def map_privately(address: int, size_bytes: int, descriptor: int, offset_bytes: int) -> None:
    """Map part of a file into a reserved range, copy-on-write; sizes and offsets are of whole pages.

    The descriptor may be closed afterwards. Raises `CapacityExhausted` if no mapping is left.
    """
    flags = _PRIVATE | _FIXED | _NO_RESERVE
    if bind("mmap")(address, size_bytes, _READ_WRITE, flags, descriptor, offset_bytes) != address:
        raise CapacityExhausted("this process has no mappings left (vm.max_map_count); try again later")


def make_accessible(address: int, size_bytes: int) -> None:
    """Make part of a reserved range usable; it is zeros. Raises `CapacityExhausted` if no mapping is left."""
    if size_bytes and bind("mprotect")(address, size_bytes, _READ_WRITE):
        raise CapacityExhausted("this process has no mappings left (vm.max_map_count); try again later")


def rewind(address: int, size_bytes: int) -> bool:
    """Discard changes: a private mapping shows its file again, anonymous memory zeros. Return success."""
    return not bind("madvise", releasing=size_bytes >= LARGE_BYTES)(address, size_bytes, _RETURN)


def populate(address: int, extents: Iterable[tuple[int, int]]) -> None:
    """Allocate pages that will be written to, on as many threads as there are processors. Blocks.

    Extents are page-aligned pairs of offset and length. Raises `CapacityExhausted` if the system has no memory for
    them.
    """
    parts = [
        (address + offset + done, min(LARGE_BYTES, length - done))
        for offset, length in extents
        for done in range(0, length, LARGE_BYTES)
    ]
    advise = bind("madvise", releasing=True)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for large memories only

    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1) or 1) as threads:
        failures = list(threads.map(lambda part: advise(*part, _POPULATE) and ctypes.get_errno(), parts))
    if errno.ENOMEM in failures:
        raise CapacityExhausted("the system has no memory for an image")


def release(address: int, size_bytes: int, touched_bytes: int = 0) -> None:
    """Unmap what `reserve` returned; ``touched_bytes`` is the most that may have been written there."""
    bind("munmap", releasing=touched_bytes >= LARGE_BYTES)(address, size_bytes)


@cache
def bind(name: str, *, releasing: bool = False) -> Callable[..., int]:
    """Return a function of the C library, which keeps the GIL unless ``releasing``."""
    library = ctypes.CDLL(None, use_errno=True) if releasing else ctypes.PyDLL(None)
    function = library[name]
    function.restype, function.argtypes = _SIGNATURES[name]
    return function
