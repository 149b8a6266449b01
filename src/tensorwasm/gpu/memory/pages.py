"""Pages of the host, and bytes at an address."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Final

from tensorwasm.errors import QuotaExceeded

PAGE_BYTES: Final = mmap.PAGESIZE
_FLAGS: Final = (
    {}
    if sys.platform == "win32"
    # Without a reservation in swap: a buffer may have capacity that it never uses.
    else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)}
)
_memset: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(
    ctypes.cast(ctypes.memset, ctypes.c_void_p).value or 0
)
"""C's memset without the GIL, which `ctypes.memset` holds."""
# A mapping ends with its object, and a device may still reach the pages of a buffer that was merely forgotten.
_live: Final[dict[int, mmap.mmap]] = {}


def acquire(size_bytes: int) -> int:
    """Return the address of new zeroed pages, which stay until `give_back`. The size is a multiple of the page size.

    Raises:
        QuotaExceeded: the system has no room for them.
    """
    try:
        pages = mmap.mmap(-1, size_bytes, **_FLAGS)
    except (OSError, ValueError, OverflowError) as error:
        raise QuotaExceeded(f"{size_bytes} bytes of host memory: {error}") from None
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    _live[address] = pages
    return address


def give_back(address: int) -> None:
    """Give back pages from `acquire`, which neither host nor device reaches any more."""
    _live.pop(address).close()


def clear(address: int, size_bytes: int) -> None:
    """Fill host memory with zeros. Blocks; other threads run meanwhile."""
    _memset(address, 0, size_bytes)


def array_at(address: int, size_bytes: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Return host memory as an array of bytes, which keeps nothing alive. The range is not checked."""
    return (ctypes.c_ubyte * size_bytes).from_address(address)


def rounded(size_bytes: int, grain_bytes: int) -> int:
    """Return the next multiple of the grain."""
    return -(-size_bytes // grain_bytes) * grain_bytes
