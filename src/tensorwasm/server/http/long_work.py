"""Long work: done in slices with rests on the event loop, and its memory returned to the system afterwards.

All requests together run one slice in each round of the loop, so that short requests do not wait. That alone is not
enough: a loop that is never idle releases the GIL only for moments in which no other thread wakes up, so the threads
that accept requests would wait for CPython's switch interval again and again. So a millisecond of slices is
followed by a millisecond without any: a neighbour's p99 beside eight replies of 64 MiB is then 5 ms instead of 20, and
they take half as long again.

The C library keeps freed memory: after those replies a server would keep 900 MiB. Large blocks are returned at once,
the rest once no long reply has ended for a while.

Source: CPython, Python/ceval_gil.h, "forced switching"; libuv's timers count milliseconds; Linux man-pages, mallopt(3)
M_MMAP_THRESHOLD, malloc_trim(3).
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

WORK_NS: Final = 1_000_000
REST_NS: Final = 1_000_000

_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Slices:
    """The slices of one event loop: when those without a rest between them began, and when the last ended."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began_ns: int = 0
    ended_ns: int = 0


_slices: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _Slices]()


async def run_slice(work: Callable[[], _Value]) -> _Value:
    """Call a function of some tenths of a millisecond when its turn comes; return its value a round later."""
    slices = _slices.setdefault(asyncio.get_running_loop(), _Slices())
    async with slices.lock:
        now_ns = time.monotonic_ns()
        if now_ns - slices.ended_ns > REST_NS:
            slices.began_ns = now_ns  # there was a rest
        value = work()
        slices.ended_ns = time.monotonic_ns()
        await asyncio.sleep(REST_NS / 1e9 if slices.ended_ns - slices.began_ns > WORK_NS else 0)
        return value


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
