"""Gives memory back to the system that was freed and that the C library keeps.

A large block goes at once, the rest when no long answer has ended for a while: after eight answers of 64 MiB a server
kept 900 MiB without this.

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
"""How long no long answer must have ended: giving back takes 0.1 ms for each MiB, and blocks who allocates."""

LARGE_BYTES: Final = 1 << 20
"""Size of a block from which on it is given back when it is freed; glibc keeps those of up to 32 MiB otherwise."""

_M_MMAP_THRESHOLD: Final = -3
_timers: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle]()


def return_large_blocks() -> None:
    """Have large blocks given back when they are freed, from now on, in all of this process."""
    library = _library()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def return_rest_soon() -> None:
    """Have all that is free given back, by another thread, once this was not called for `QUIET_S`; on an event loop."""
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
    """Return the C library where it is glibc, else None."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None
