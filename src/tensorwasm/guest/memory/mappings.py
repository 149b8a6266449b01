"""Address space for linear memories that are not wasmtime's own: reserved, mapped, given back.

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
"""From here on, returning pages may take long enough for others to have the GIL meanwhile."""

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

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "mmap": (
        ctypes.c_size_t,
        (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ),
    "munmap": (ctypes.c_int, (ctypes.c_size_t, ctypes.c_size_t)),
    "mprotect": (ctypes.c_int, (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)),
    "madvise": (ctypes.c_int, (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)),
}


def make_file(name: str, size_bytes: int) -> int:
    """Return the descriptor of a new file in memory, of zeros, that can be sealed.

    Raises:
        NotSupported: this system has no such files.
        CapacityExhausted: the process may open no more files.
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
    """Let nobody write to a file any more, this process included; it is mapped nowhere where one could."""
    import fcntl  # noqa: PLC0415 - there is none on Windows

    fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)


def reserve(size_bytes: int) -> int:
    """Return the address of a range that nobody may touch yet, the caller's until `release`.

    Raises:
        CapacityExhausted: there is no such range, or no mapping left.
    """
    flags = _PRIVATE | _ANONYMOUS | _NO_RESERVE
    address: int = _call("mmap")(0, size_bytes, _NO_ACCESS, flags, -1, 0)
    if address == _FAILED:
        raise CapacityExhausted("the system has no address space, or this process no mappings left; try again later")
    return address


def map_privately(address: int, size_bytes: int, descriptor: int, offset_bytes: int) -> None:
    """Show part of a file in a reserved range; what is written there stays there.

    Args:
        address: in the range, page-aligned.
        size_bytes: whole pages.
        descriptor: of the file, which may be closed afterwards.
        offset_bytes: in the file, page-aligned.

    Raises:
        CapacityExhausted: no mapping is left.
    """
    flags = _PRIVATE | _FIXED | _NO_RESERVE
    if _call("mmap")(address, size_bytes, _READ_WRITE, flags, descriptor, offset_bytes) != address:
        raise CapacityExhausted("this process has no mappings left (vm.max_map_count); try again later")


def make_accessible(address: int, size_bytes: int) -> None:
    """Let part of a reserved range be used; it is zeros.

    Raises:
        CapacityExhausted: no mapping is left.
    """
    if size_bytes and _call("mprotect")(address, size_bytes, _READ_WRITE):
        raise CapacityExhausted("this process has no mappings left (vm.max_map_count); try again later")


def rewind(address: int, size_bytes: int) -> bool:
    """Forget what was written: a private mapping shows its file again, anonymous memory zeros. Return whether it did.

    Args:
        address: page-aligned.
        size_bytes: whole pages.
    """
    return not _call("madvise", size_bytes)(address, size_bytes, _RETURN)


def populate(address: int, extents: Iterable[tuple[int, int]]) -> None:
    """Have pages that are about to be written to made now, on as many threads as there are processors. Blocks.

    Args:
        address: of a mapping.
        extents: pairs of offset and length in it, page-aligned.

    Raises:
        CapacityExhausted: the system has no memory for them.
    """
    parts = [
        (address + offset + done, min(LARGE_BYTES, length - done))
        for offset, length in extents
        for done in range(0, length, LARGE_BYTES)
    ]
    advise = _bind("madvise", releasing=True)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for large memories only

    with ThreadPoolExecutor(min(len(parts), os.cpu_count() or 1) or 1) as threads:
        failures = list(threads.map(lambda part: advise(*part, _POPULATE) and ctypes.get_errno(), parts))
    if errno.ENOMEM in failures:
        raise CapacityExhausted("the system has no memory for an image")


def release(address: int, size_bytes: int, touched_bytes: int = 0) -> None:
    """Give a range back.

    Args:
        address: what `reserve` returned.
        size_bytes: what it was given.
        touched_bytes: most that somebody may have written there.
    """
    _call("munmap", touched_bytes)(address, size_bytes)


def _call(name: str, size_bytes: int = 0) -> Callable[..., int]:
    return _bind(name, releasing=size_bytes >= LARGE_BYTES)


@cache
def _bind(name: str, *, releasing: bool) -> Callable[..., int]:
    library = ctypes.CDLL(None, use_errno=True) if releasing else ctypes.PyDLL(None)
    function = library[name]
    function.restype, function.argtypes = _SIGNATURES[name][0], list(_SIGNATURES[name][1])
    call: Callable[..., int] = function
    return call
