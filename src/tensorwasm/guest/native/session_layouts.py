"""Launch pads for sandboxes, and scratch memory for the threads that run them. A fresh sandbox pays microseconds."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from contextlib import suppress
from typing import Final

from tensorwasm.gpu.native.layout import Scratch, SessionLayout

KEPT: Final = 256
"""Pads that are kept for later sandboxes with their memory; beyond, only their addresses are."""
CHUNK_PADS: Final = 256
"""Pads that are made at once."""

_STRIDE_BYTES: Final = -(-ctypes.sizeof(SessionLayout) // mmap.PAGESIZE) * mmap.PAGESIZE
_RETURN: Final = 4  # MADV_DONTNEED: the pages go, and read as zeros
_SMALL_PAGES: Final = 15  # MADV_NOHUGEPAGE: a pad that is touched costs a page, not all pads of its chunk
_madvise: Final = ctypes.PyDLL(None).madvise if sys.platform == "linux" else None

_free: Final[list[SessionLayout]] = []
_bare: Final[list[SessionLayout]] = []
_chunks: Final[list[mmap.mmap]] = []
_threads = threading.local()


def draw_pad() -> SessionLayout:
    """Return a pad of zeros, the caller's own until `recycle_pad`.

    Only the pages of it that are used take memory: one for each of the thousands of guests that wait as fibers.
    """
    for pads in (_free, _bare):
        with suppress(IndexError):
            return pads.pop()
    made = _make_pads()
    pad = made.pop()
    _bare.extend(made)
    return pad


def recycle_pad(pad: SessionLayout) -> None:
    """Take a pad back that nothing will read or write any more: no sandbox, no session and no driver."""
    address = ctypes.addressof(pad)
    if len(_free) < KEPT or _madvise is None:
        ctypes.memset(address, 0, ctypes.sizeof(SessionLayout))
        _free.append(pad)
    elif not _madvise(ctypes.c_void_p(address), ctypes.c_size_t(_STRIDE_BYTES), _RETURN):
        _bare.append(pad)


def _make_pads() -> list[SessionLayout]:
    """Return pads on pages of their own that have not been touched yet; the address space is never given back."""
    size_bytes = CHUNK_PADS * _STRIDE_BYTES
    chunk = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _chunks.append(chunk)
    start = ctypes.addressof(ctypes.c_char.from_buffer(chunk))
    if _madvise is not None:
        _madvise(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), _SMALL_PAGES)
    return [SessionLayout.from_address(start + index * _STRIDE_BYTES) for index in range(CHUNK_PADS)]


def scratch_address() -> int:
    """Return the address of this thread's scratch, which lives as long as the thread."""
    try:
        address: int = _threads.address
    except AttributeError:
        _threads.scratch = Scratch()
        address = _threads.address = ctypes.addressof(_threads.scratch)
    return address
