"""Finds pages that differ, or are not zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tensorwasm.saved import PAGE_BYTES

Span = tuple[int, int]
"""Begin and end."""

_STRIDE_BYTES: Final = 64 * PAGE_BYTES
"""Compared at once first: most of a memory is as it was."""


def cover(runs: Iterable[tuple[int, int, int]]) -> list[Span]:
    """Return the spans, in multiples of a page, that runs lie in: ascending and apart."""
    pages = sorted((offset // PAGE_BYTES, -(-(offset + size) // PAGE_BYTES)) for offset, size, _ in runs)
    return merge((first * PAGE_BYTES, end * PAGE_BYTES) for first, end in pages)


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return ascending spans as such that are apart."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def find_pages(view: memoryview, other: memoryview | None, spans: Iterable[Span]) -> list[Span]:
    """Return the spans of pages that differ from those at the same place in another memory, or from zeros.

    Args:
        view: a memory.
        other: the other one; beyond its end, and without it, there are zeros.
        spans: where to look, ascending, apart, in multiples of a page.
    """
    return merge(_find_pages(view, other, spans))


def _find_pages(view: memoryview, other: memoryview | None, spans: Iterable[Span]) -> Iterator[Span]:
    for start, end in spans:
        for stride in range(start, min(end, len(view)), _STRIDE_BYTES):
            stop = min(stride + _STRIDE_BYTES, end, len(view))
            ours, theirs = bytes(view[stride:stop]), _read(other, stride, stop)
            if ours == theirs:
                continue
            for at in range(0, len(ours), PAGE_BYTES):
                if ours[at : at + PAGE_BYTES] != theirs[at : at + PAGE_BYTES]:
                    yield stride + at, min(stride + at + PAGE_BYTES, stop)


def _read(other: memoryview | None, start: int, stop: int) -> bytes:
    """Return a part of a memory that may be shorter; what is missing is zero."""
    return (b"" if other is None else bytes(other[start:stop])).ljust(stop - start, b"\0")
