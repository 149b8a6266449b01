"""Bounds how much longer the guard makes a kernel."""

from __future__ import annotations

from typing import Final

from tensorwasm.errors import UnsupportedPtx

MAX_ADDED: Final = 1 << 18
"""Statements that are written in the place of a few: choices of functions, reductions, arguments that are cleared."""


class Growth:
    """Statements that the guard has added to the functions of a kernel where one becomes many."""

    def __init__(self) -> None:
        self._added = 0

    def add(self, count: int) -> None:
        """Count statements; raise `UnsupportedPtx` beyond `MAX_ADDED`."""
        self._added += count
        if self._added > MAX_ADDED:
            raise UnsupportedPtx("too many calls through pointers, reductions of some threads, or unwritten arguments")
