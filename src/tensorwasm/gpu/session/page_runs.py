"""What of a buffer is worth keeping: its pages that are not what they would be without."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Final

from tensorwasm.saved import PAGE_BYTES, SavedRun

_BLOCK_BYTES: Final = 16 * PAGE_BYTES
"""Compared at once, before its pages are."""
_ZEROS: Final = bytes(_BLOCK_BYTES)


class Collector:
    """The runs of one buffer, collected from its beginning to its end.

    Args:
        base: the runs of the same buffer in the snapshot that this one adds to, ascending and apart; none for one that
            is whole.
    """

    __slots__ = ("_base", "_end", "_offset", "_open", "_runs")

    def __init__(self, base: Sequence[SavedRun] = ()) -> None:
        self._base = Base(base)
        self._runs: list[SavedRun] = []
        self._open: BytesIO | None = None
        self._offset = 0
        self._end = 0

    def add(self, offset_bytes: int, chunk: memoryview) -> None:
        """Take a chunk in. It is copied.

        Args:
            offset_bytes: where it begins, a multiple of the page size, not before the end of the chunk before.
            chunk: bytes; whole pages, but for the last of the buffer.
        """
        for start in range(0, len(chunk), _BLOCK_BYTES):
            block = bytes(chunk[start : start + _BLOCK_BYTES])
            at = offset_bytes + start
            base = self._base.read(at, len(block))
            if block != base:
                for page, data in _changed(block, base):
                    self._put(at + page, data)

    def finish(self) -> tuple[SavedRun, ...]:
        """Return the runs, ascending, no two of which touch."""
        if self._open is not None:
            self._runs.append(SavedRun(self._offset, self._open.getvalue()))
            self._open = None
        return tuple(self._runs)

    def _put(self, offset_bytes: int, data: bytes) -> None:
        if self._open is None or self._end != offset_bytes:
            self.finish()
            self._open, self._offset = BytesIO(), offset_bytes
        self._open.write(data)
        self._end = offset_bytes + len(data)


class Base:
    """What a buffer holds that is only known by its runs.

    Args:
        runs: ascending and apart.
    """

    __slots__ = ("_runs", "_starts")

    def __init__(self, runs: Sequence[SavedRun]) -> None:
        self._runs = runs
        self._starts = [run.offset_bytes for run in runs]

    def read(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Return a piece of it, a block at most."""
        end = offset_bytes + length_bytes
        first = max(bisect_right(self._starts, offset_bytes) - 1, 0)
        last = bisect_right(self._starts, end - 1)
        piece = None
        for run in self._runs[first:last]:
            start = max(run.offset_bytes, offset_bytes)
            part = run.data[start - run.offset_bytes : end - run.offset_bytes]
            if part:
                piece = piece or bytearray(length_bytes)
                piece[start - offset_bytes : start - offset_bytes + len(part)] = part
        return _ZEROS[:length_bytes] if piece is None else bytes(piece)


def _changed(block: bytes, base: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the pages that differ, with where they begin."""
    for page in range(0, len(block), PAGE_BYTES):
        data = block[page : page + PAGE_BYTES]
        if data != base[page : page + PAGE_BYTES]:
            yield page, data
