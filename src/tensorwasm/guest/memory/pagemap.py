"""Finds the pages of a memory that have changed, without touching pages that nothing has touched.

Source: proc_pid_pagemap(5); Linux admin guide, "Examining Process Page Tables".
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from tensorwasm.saved import PAGE_BYTES
from tensorwasm.yielding import yield_gil

Span = tuple[int, int]
"""First byte, and the one past the last."""

_ENTRY_BYTES: Final = 8
_ENTRIES_AT_ONCE: Final = 1 << 12
_FILE_SHIFT: Final = 61  # bit 61: of a file, or shared; 62: swapped; 63: present
_WRITTEN: Final = frozenset({0b010, 0b011, 0b100, 0b110, 0b111})  # absent, or a file's page that is there: as it was
_STEPS_BYTES: Final = (1 << 20, 1 << 16, PAGE_BYTES)
_ZEROS: Final = mmap.mmap(-1, _STEPS_BYTES[0])  # never touched but to be read: a page of zeros, many times
_ZEROS_AT: Final = ctypes.addressof(ctypes.c_char.from_buffer(_ZEROS))

_memcmp: Final = ctypes.PyDLL("msvcrt" if sys.platform == "win32" else None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int


def find_written(address: int, size_bytes: int) -> list[Span]:
    """Return the spans of a private mapping, whole pages, that may differ from its file or from zeros.

    They are ascending offsets from the address; everything where the system does not say.
    """
    try:
        descriptor = os.open("/proc/self/pagemap", os.O_RDONLY)
        try:
            return list(_written_pages(descriptor, address, size_bytes))
        finally:
            os.close(descriptor)
    except OSError:
        return [(0, size_bytes)]


def _written_pages(descriptor: int, address: int, size_bytes: int) -> Iterator[Span]:
    first, count = address // mmap.PAGESIZE, size_bytes // mmap.PAGESIZE
    start = end = 0
    for base in range(0, count, _ENTRIES_AT_ONCE):
        yield_gil()
        wanted = min(_ENTRIES_AT_ONCE, count - base)
        entries = array.array("Q", os.pread(descriptor, wanted * _ENTRY_BYTES, (first + base) * _ENTRY_BYTES))
        if len(entries) != wanted:
            raise OSError
        for index in [index for index, entry in enumerate(entries) if entry >> _FILE_SHIFT in _WRITTEN]:
            page = (base + index) * mmap.PAGESIZE
            if page != end:
                if end > start:
                    yield start, end
                start = page
            end = page + mmap.PAGESIZE
    if end > start:
        yield start, end


def find_nonzero(address: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield what is not zero in some spans, offsets from an address, in pages of 4 KiB.

    All spans are ascending and apart, of whole pages.
    """
    return join(found for span in spans for found in _narrow(address, 0, span, 0))


def find_different(address: int, other: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield likewise what differs in some spans between the memories at two addresses."""
    return join(found for span in spans for found in _narrow(address, other, span, 0))


def join(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield ascending spans, those that touch or overlap as one."""
    start = end = -1
    for first, last in spans:
        if first > end:
            if end > start:
                yield start, end
            start, end = first, last
        else:
            end = max(end, last)
    if end > start:
        yield start, end


def clip(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """Return the parts of some spans between two offsets."""
    cut = ((max(first, start), min(last, end)) for first, last in spans)
    return [(first, last) for first, last in cut if first < last]


def _narrow(address: int, other: int, span: Span, level: int) -> Iterator[Span]:
    """Yield the pages of a span that differ from another memory, or if that is 0, from zeros."""
    step, leaf = _STEPS_BYTES[level], level == len(_STEPS_BYTES) - 1
    for start in range(span[0], span[1], step):
        yield_gil()
        end = min(start + step, span[1])
        if _memcmp(address + start, other + start if other else _ZEROS_AT, end - start):
            if leaf:
                yield start, end
            else:
                yield from _narrow(address, other, (start, end), level + 1)
