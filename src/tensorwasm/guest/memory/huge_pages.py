"""Huge pages for linear memory that a GPU streams over: they cost the device fewer address translations.

Source: madvise(2), MADV_HUGEPAGE, MADV_NOHUGEPAGE; Linux admin guide, "Transparent Hugepage Support".
"""

from __future__ import annotations

import sys
from typing import Final

from tensorwasm.guest.memory import mappings

_HUGEPAGE: Final = 14
_NOHUGEPAGE: Final = 15


def prefer_huge(address: int, size_bytes: int) -> bool:
    """Ask for huge pages in a page-aligned range of a mapping. Returns whether the system takes the hint."""
    return sys.platform == "linux" and mappings.bind("madvise")(address, size_bytes, _HUGEPAGE) == 0


def prefer_small(address: int, size_bytes: int) -> bool:
    """Undo `prefer_huge`, before the range serves a guest that touches little of it."""
    return sys.platform == "linux" and mappings.bind("madvise")(address, size_bytes, _NOHUGEPAGE) == 0
