"""Work on blocks in threads: zstd and BLAKE3 drop Python's lock while they run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from tensorwasm.artifacts.sealed.blocks import BLOCK_BYTES

MAX_THREADS: Final = 16
_AHEAD: Final = 2
"""Blocks per thread that are ready before they are taken: what a save holds in memory beside what it saves."""

T = TypeVar("T")
R = TypeVar("R")


def count_threads(asked: int | None, content_bytes: int) -> int:
    """Return how many threads to use: as asked, or as many as this process has processors; at most `MAX_THREADS`.

    What would fit a block or two is not worth a thread.
    """
    if content_bytes <= BLOCK_BYTES:
        return 1
    if asked is None:
        asked = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked, MAX_THREADS))


def map_in_order(work: Callable[[T], R], items: Sequence[T], threads: int) -> Iterator[R]:
    """Yield the results of work on each item, in order; the work is done by threads, a little ahead.

    Whoever stops early, or meets an error of the work's, waits for what has begun and starts nothing more.
    """
    if threads == 1 or len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(threads, len(items)), thread_name_prefix="seal") as pool:
        pending: deque[Future[R]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > _AHEAD * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
