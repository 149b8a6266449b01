"""Returns freed memory that the C library keeps to the system.

Large blocks are returned at once, the rest once no long reply has ended for a while: after eight replies of 64 MiB a
server would otherwise keep 900 MiB.

Source: Linux man-pages, mallopt(3) M_MMAP_THRESHOLD, malloc_trim(3).
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from functools import cache
from typing import Any, Final
from weakref import WeakKeyDictionary

QUIET_S: Final = 2.0
"""Seconds after the last long reply: trimming takes 0.1 ms for each MiB, and blocks all allocations."""

LARGE_BYTES: Final = 1 << 20
"""Size from which a block is returned when it is freed; by default glibc keeps blocks of up to 32 MiB."""

_M_MMAP_THRESHOLD: Final = -3
_timers: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle]()


def return_large_blocks() -> None:
    """Make this process return large blocks when they are freed."""
    library = _library()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def return_rest_soon() -> None:
    """Return all free memory, on another thread, `QUIET_S` after the last call; on an event loop."""
    loop = asyncio.get_running_loop()
    before = _timers.pop(loop, None)
    if before is not None:
        before.cancel()
    _timers[loop] = loop.call_later(QUIET_S, _return_rest, loop)


def _return_rest(loop: asyncio.AbstractEventLoop) -> None:
    library = _library()
    if library is not None:
        loop.run_in_executor(None, library.malloc_trim, 0)


@cache
def _library() -> Any:
    """Return the C library if it is glibc, else None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
