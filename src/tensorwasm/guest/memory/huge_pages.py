"""Huge pages for linear memory that a GPU streams over: fewer, larger pages cost the device fewer translations.

Source: madvise(2), MADV_HUGEPAGE, MADV_NOHUGEPAGE; Linux admin guide, "Transparent Hugepage Support".
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

_HUGEPAGE: Final = 14
_NOHUGEPAGE: Final = 15


def prefer_huge(address: int, size_bytes: int) -> bool:
    """Ask for huge pages where memory is touched from now on. Returns whether the system takes the hint.

    Args:
        address: page-aligned start of a mapping of this process, or of a part of one.
        size_bytes: whole pages.
    """
    return _advise(address, size_bytes, _HUGEPAGE)


def prefer_small(address: int, size_bytes: int) -> bool:
    """Undo `prefer_huge`, before a range serves somebody who touches little of it."""
    return _advise(address, size_bytes, _NOHUGEPAGE)


def _advise(address: int, size_bytes: int, advice: int) -> bool:
    madvise = _madvise()
    return madvise is not None and madvise(address, size_bytes, advice) == 0


@cache
def _madvise() -> Callable[..., Any] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.PyDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function
