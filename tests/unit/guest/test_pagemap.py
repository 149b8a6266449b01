import ctypes
import mmap
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.guest.memory import pagemap
from tensorwasm.guest.memory.images import make_image
from tensorwasm.saved import PAGE_BYTES, SavedRun

PAGES = 600
SIZE = PAGES * PAGE_BYTES
ALL = [(0, SIZE)]


def fresh() -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def spans_of(pages: set[int]) -> list[tuple[int, int]]:
    """The plain way: single pages, joined."""
    spans: list[tuple[int, int]] = []
    for page in sorted(pages):
        if spans and spans[-1][1] == page * PAGE_BYTES:
            spans[-1] = spans[-1][0], (page + 1) * PAGE_BYTES
        else:
            spans.append((page * PAGE_BYTES, (page + 1) * PAGE_BYTES))
    return spans


pages = st.sets(st.integers(0, PAGES - 1), max_size=40) | st.builds(
    lambda first, count: set(range(first, min(first + count, PAGES))), st.integers(0, PAGES - 1), st.integers(0, 400)
)


@given(touched=pages, data=st.data())
def test_exactly_the_pages_that_are_not_zero_are_found(touched, data):
    memory, address = fresh()
    for page in touched:
        memory[page * PAGE_BYTES + data.draw(st.sampled_from([0, 1, 2048, PAGE_BYTES - 1]))] = 255
    assert list(pagemap.find_nonzero(address, ALL)) == spans_of(touched)
    assert list(pagemap.find_nonzero(address, pagemap.find_written(address, SIZE))) == spans_of(touched)


@given(touched=pages, changed=pages)
def test_exactly_the_pages_that_differ_are_found(touched, changed):
    (one, address), (other, base) = fresh(), fresh()
    for page in touched:
        one[page * PAGE_BYTES + 7] = other[page * PAGE_BYTES + 7] = 1
    for page in changed:
        one[page * PAGE_BYTES + 9] = 2
    assert list(pagemap.find_different(address, base, ALL)) == spans_of(changed)


@given(read=pages, written=pages)
def test_pages_that_were_only_read_are_not_taken_for_written(read, written):
    image = make_image(-(-SIZE // 65536) * 65536, [SavedRun(0, b"\x05" * SIZE)])
    memory = image.map()
    for page in read:
        assert ctypes.string_at(memory.address + page * PAGE_BYTES, 1) == b"\x05"
    for page in written:
        ctypes.memset(memory.address + page * PAGE_BYTES, 6, 1)
    assert pagemap.find_written(memory.address, SIZE) == spans_of(written)
    memory.close()
    image.close()


def test_without_the_systems_word_everything_may_have_been_written(monkeypatch):
    memory, address = fresh()
    memory[5 * PAGE_BYTES] = 1

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(pagemap.os, "open", refuse)
    assert pagemap.find_written(address, SIZE) == ALL


@pytest.mark.parametrize("words", [b"", b"12345678"])
def test_a_page_table_that_is_cut_short_means_everything(monkeypatch, words):
    memory, address = fresh()
    memory[0] = 1
    monkeypatch.setattr(pagemap.os, "pread", lambda *_: words)
    assert pagemap.find_written(address, SIZE) == ALL


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted), max_size=8))
def test_joined_spans_cover_the_same_bytes_and_do_not_touch(spans):
    spans = sorted((first, last) for first, last in spans if first < last)
    joined = list(pagemap.join(spans))
    covered = {byte for first, last in spans for byte in range(first, last)}
    assert {byte for first, last in joined for byte in range(first, last)} == covered
    assert all(before[1] < after[0] for before, after in pairwise(joined))


@given(st.integers(0, 60), st.integers(0, 60))
def test_clipped_spans_are_what_lies_within(start, end):
    spans = [(3, 9), (12, 20), (30, 31)]
    covered = {byte for first, last in spans for byte in range(first, last) if start <= byte < end}
    assert {byte for first, last in pagemap.clip(spans, start, end) for byte in range(first, last)} == covered


def test_looking_at_much_memory_gives_way_to_other_threads(monkeypatch):
    gave_way = []
    monkeypatch.setattr(pagemap, "yield_gil", lambda: gave_way.append(None))
    memory = mmap.mmap(-1, 4 << 20)
    try:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        held = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(held)
        assert list(pagemap.find_nonzero(address, [(0, len(memory))])) == [(0, len(memory))]
        del held
    finally:
        memory.close()
    assert len(gave_way) >= (4 << 20) // (1 << 16), "once for every 64 KiB at least"
