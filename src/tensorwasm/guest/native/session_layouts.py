"""The stock of session layouts for sandboxes, and scratch memory for the threads that run them."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from contextlib import suppress
from typing import Final

from tensorwasm.gpu.native.layout import Scratch, SessionLayout

KEPT: Final = 256
"""Layouts that are kept with their memory for later sandboxes; the pages of others go back to the system."""
CHUNK_LAYOUTS: Final = 256
"""Layouts that are made at once."""

_STRIDE_BYTES: Final = -(-ctypes.sizeof(SessionLayout) // mmap.PAGESIZE) * mmap.PAGESIZE
_RETURN: Final = 4  # MADV_DONTNEED: the pages go, and read as zeros
_SMALL_PAGES: Final = 15  # MADV_NOHUGEPAGE: a touched layout costs its pages, not a huge page
_madvise: Final = ctypes.PyDLL(None).madvise if sys.platform == "linux" else None

_free: Final[list[SessionLayout]] = []
_bare: Final[list[SessionLayout]] = []
_chunks: Final[list[mmap.mmap]] = []


def take_layout() -> SessionLayout:
    """Return a layout of zeros, owned by the caller until `return_layout`.

    Only its used pages take memory: one for each of the thousands of guests that wait as fibers.
    """
    for layouts in (_free, _bare):
        with suppress(IndexError):
            return layouts.pop()
    made = _make_layouts()
    layout = made.pop()
    _bare.extend(made)
    return layout


def return_layout(layout: SessionLayout) -> None:
    """Take back a layout that no sandbox, session or driver will read or write any more."""
    address = ctypes.addressof(layout)
    if len(_free) < KEPT or _madvise is None:
        ctypes.memset(address, 0, ctypes.sizeof(SessionLayout))
        _free.append(layout)
    elif not _madvise(ctypes.c_void_p(address), ctypes.c_size_t(_STRIDE_BYTES), _RETURN):
        _bare.append(layout)


def _make_layouts() -> list[SessionLayout]:
    """Return layouts on untouched pages of their own; their address space is never given back."""
    size_bytes = CHUNK_LAYOUTS * _STRIDE_BYTES
    chunk = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _chunks.append(chunk)
    start = ctypes.addressof(ctypes.c_char.from_buffer(chunk))
    if _madvise is not None:
        _madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), _SMALL_PAGES)
    return [SessionLayout.from_address(start + index * _STRIDE_BYTES) for index in range(CHUNK_LAYOUTS)]


class _ThreadScratch(threading.local):
    """The scratch of the thread that reads `address`, which lives as long as the thread."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self.address = ctypes.addressof(self._scratch)


SCRATCH: Final = _ThreadScratch()
