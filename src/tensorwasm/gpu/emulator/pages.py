"""Pages of this process: reserved without being accessible, opened, emptied and given back.

Source: POSIX.1-2017, mmap, mprotect, munmap; Linux mmap(2) for anonymous memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache
from typing import Any, Final

from tensorwasm.errors import LaunchRefused

PAGE_BYTES: Final = mmap.PAGESIZE
AVAILABLE: Final = sys.platform != "win32"
"""Whether this system has these calls."""
_CLOSED: Final = 0
_FIXED: Final = 0x10  # MAP_FIXED of Linux and macOS, which the mmap module does not name
_FAILED: Final = ctypes.c_void_p(-1).value
_MOST_BYTES: Final = 1 << 46


@cache
def _libc() -> Any:
    if not AVAILABLE:
        raise LaunchRefused("this system has no pages that the emulator could map: mmap of POSIX is missing")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _map(address: int | None, size_bytes: int, access: int, flags: int = 0) -> int:
    flags |= mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if not 0 < size_bytes <= _MOST_BYTES:
        raise OSError(f"{size_bytes} bytes cannot be mapped")
    found: int | None = _libc().mmap(address, size_bytes, access, flags, -1, 0)
    if found is None or found == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def reserve(size_bytes: int) -> int:
    """Return the address of pages that nobody can touch.

    Raises:
        OSError: there is no room for them.
        LaunchRefused: this system has no such pages.
    """
    return _map(None, size_bytes, _CLOSED)


def acquire(size_bytes: int) -> int:
    """Return the address of zeroed pages.

    Raises:
        OSError: there is no memory for them.
        LaunchRefused: this system has no such pages.
    """
    return _map(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)


def open_part(address: int, size_bytes: int) -> None:
    """Make a part of reserved pages readable and writable; it is zero.

    Raises:
        OSError: there is no memory for it.
    """
    if _libc().mprotect(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def close_part(address: int, size_bytes: int) -> None:
    """Throw away what is in a part of reserved pages and let nobody touch it, in one step.

    Raises:
        OSError: the system refused.
    """
    _map(address, size_bytes, _CLOSED, _FIXED)


def give_back(address: int, size_bytes: int) -> None:
    """Give pages back to the system.

    Raises:
        OSError: the system refused.
    """
    if _libc().munmap(address, size_bytes):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
