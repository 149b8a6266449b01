"""Long work on the event loop in pieces, with rests, so that requests that are answered at once do not wait for it.

All requests together have one piece done in each round of the loop. That alone is not enough: a loop that is never idle
gives the GIL back for moments only, in which no other thread wakes up, so the threads that take requests in would wait
for it as long as CPython's switch interval, again and again, and behind each other. So after a millisecond of pieces
there are none for another: a neighbour's p99 beside eight answers of 64 MiB is 5 ms, not 20, and they take half as long
again.

Source: CPython, Python/ceval_gil.h, "forced switching"; libuv's timers count milliseconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

WORK_NS: Final = 1_000_000
REST_NS: Final = 1_000_000

_Value = TypeVar("_Value")


class _Line:
    """Who does pieces on one event loop, in the order in which they asked.

    Attributes:
        lock: held by what does its next piece.
        began_ns: when the pieces began that follow one another without a rest.
        ended_ns: when the last of them ended.
    """

    __slots__ = ("began_ns", "ended_ns", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.began_ns = self.ended_ns = 0


_lines: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _Line]()


async def do_piece(work: Callable[[], _Value]) -> _Value:
    """Call a function that takes some tenths of a millisecond, when it is its turn; return its value a round later."""
    line = _lines.setdefault(asyncio.get_running_loop(), _Line())
    async with line.lock:
        now_ns = time.monotonic_ns()
        if now_ns - line.ended_ns > REST_NS:
            line.began_ns = now_ns  # there was a rest
        value = work()
        line.ended_ns = time.monotonic_ns()
        await asyncio.sleep(REST_NS / 1e9 if line.ended_ns - line.began_ns > WORK_NS else 0)
        return value
