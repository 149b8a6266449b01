"""Says when Python's cyclic garbage collector runs: not while large trees are built, seldom in processes that serve."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SELDOM: Final = (20_000, 20, 50)
"""Thresholds of processes that serve."""

_pausing: Final = threading.Lock()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Let no collection begin until the end of the block, on any thread.

    Reading PTX and building its kernels makes a hundred thousand objects a megabyte, and every collection on the way
    visits all of them: half of the time that it takes. One block pauses at a time, and one that begins meanwhile does
    not make the pause longer: however many there are, collections go on between them.
    """
    if not gc.isenabled() or not _pausing.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.release()


def collect_seldom() -> None:
    """Collect once, never visit again what is left, and from now on look for cycles less often.

    For a process that begins to serve: calls leave no cycles, and a full collection stops all threads while it visits
    what is kept for every function and kernel, tens of milliseconds with some thousands of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_SELDOM)
