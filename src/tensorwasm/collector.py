"""Python's collector of cycles, kept from looking at what is being built: large trees of objects that have none."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_pausing: Final = threading.Lock()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Have no collection begin until the end of the block, whatever thread makes objects.

    Reading PTX and building its kernels makes a hundred thousand objects a megabyte, and every collection on the way
    looks at all of them: half of the time that it takes. One block pauses at a time, and one that begins meanwhile does
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
