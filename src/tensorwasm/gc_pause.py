"""Pauses Python's cyclic garbage collector while large trees of objects without cycles are built."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
