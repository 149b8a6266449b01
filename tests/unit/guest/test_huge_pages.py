import ctypes
import mmap
import sys
from pathlib import Path

import pytest

from tensorwasm.guest.memory import huge_pages

MIB = 1 << 20


def flags(address):
    """Return the kernel's flags of the mapping that an address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and ":" not in head:
            start, end = (int(edge, 16) for edge in head.split("-"))
            inside = start <= address < end
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    return set()


@pytest.mark.skipif(sys.platform != "linux", reason="madvise and /proc/self/smaps are Linux's")
def test_huge_pages_are_asked_for_and_not_left_to_the_next():
    with mmap.mmap(-1, 4 * MIB) as memory:
        view = (ctypes.c_char * len(memory)).from_buffer(memory)
        address = ctypes.addressof(view)
        if not huge_pages.prefer_huge(address, 4 * MIB):
            pytest.skip("this kernel has no huge pages to ask for")
        assert "hg" in flags(address)
        assert huge_pages.prefer_small(address, 4 * MIB)
        assert "hg" not in flags(address)
        del view


def test_an_unmapped_range_is_reported_and_changes_nothing():
    assert not huge_pages.prefer_huge(mmap.PAGESIZE, mmap.PAGESIZE)
