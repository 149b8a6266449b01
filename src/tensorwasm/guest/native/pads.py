"""Launch pads for sandboxes, and scratch memory for the threads that run them. A fresh sandbox pays microseconds."""

from __future__ import annotations

import ctypes
import threading
from typing import Final

from tensorwasm.gpu.pad import PadLayout, Scratch

KEPT: Final = 256
"""Pads that are kept for later sandboxes."""

_free: Final[list[PadLayout]] = []
_threads = threading.local()


def draw_pad() -> PadLayout:
    """Return a pad of zeros, the caller's own until `recycle_pad`."""
    try:
        return _free.pop()
    except IndexError:
        return PadLayout()


def recycle_pad(pad: PadLayout) -> None:
    """Take a pad back that nothing will read or write any more: no sandbox, no session and no driver."""
    ctypes.memset(ctypes.addressof(pad), 0, ctypes.sizeof(PadLayout))
    if len(_free) < KEPT:
        _free.append(pad)


def scratch_address() -> int:
    """Return the address of this thread's scratch, which lives as long as the thread."""
    try:
        address: int = _threads.address
    except AttributeError:
        _threads.scratch = Scratch()
        address = _threads.address = ctypes.addressof(_threads.scratch)
    return address
