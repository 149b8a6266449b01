import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import InvalidHandle, InvalidPointer
from tensorwasm.gpu.cuda.handles import LiveRanges, LiveResources

UNIT = 256


@st.composite
def layouts(draw):
    """Ranges that do not overlap, and one question."""
    sizes = draw(st.lists(st.integers(1, 3 * UNIT), max_size=12))
    gaps = draw(st.lists(st.integers(0, UNIT), min_size=len(sizes), max_size=len(sizes)))
    address, ranges = draw(st.integers(1, 2**40)), []
    for size, gap in zip(sizes, gaps, strict=True):
        address += gap
        ranges.append((address, size))
        address += size
    question = draw(st.tuples(st.integers(0, address + UNIT), st.integers(0, 4 * UNIT)))
    return ranges, question


@given(layouts())
def test_a_range_is_inside_exactly_if_one_live_range_holds_all_of_it(layout):
    ranges, (address, size) = layout
    books = LiveRanges()
    for start, length in ranges:
        books.enter(start, length)
    inside = any(start <= address and address + size <= start + length for start, length in ranges)
    assert books.holds(address, size) == inside


@given(layouts())
def test_totals_are_exact(layout):
    ranges, _ = layout
    books = LiveRanges()
    for start, length in ranges:
        books.enter(start, length)
    assert books.totals() == (len(ranges), sum(length for _, length in ranges))
    assert books.entries() == sorted(ranges)
    for start, length in ranges:
        assert books.take(start) == (start, length)
    assert books.totals() == (0, 0)


@pytest.mark.parametrize("kind", ["allocations", "pooled", "managed", "mapped"])
def test_a_copy_may_reach_memory_of_every_kind_and_no_other(kind):
    books = LiveResources()
    getattr(books, kind).enter(4096, 512)
    books.require(4096 + 256, 256)
    with pytest.raises(InvalidPointer):
        books.require(4096 + 256, 257)
    assert not books.empty()


def test_nothing_is_taken_twice():
    books = LiveRanges()
    books.enter(4096, 1)
    books.take(4096)
    with pytest.raises(InvalidHandle):
        books.take(4096)


def test_of_many_threads_one_takes_it():
    books = LiveRanges()
    books.enter(4096, 1)
    won, start = [], threading.Barrier(16)

    def take():
        start.wait()
        try:
            won.append(books.take(4096))
        except InvalidHandle:
            return

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [(4096, 1)]
