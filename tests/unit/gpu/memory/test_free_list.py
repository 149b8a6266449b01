"""Free space is exactly what was not handed out, in spans that are as long as possible."""

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.gpu.memory.suballocator import Chunk, FreeList

CHUNKS = ((1000, 100), (1100, 60), (2000, 100))  # two of them side by side


def free_bytes(spans):
    return sum(size for size, _, _ in spans._by_size)


def free_bytes_of(chunk):
    return sum(chunk.sizes.values())


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 70)), max_size=60))
def test_pieces_never_overlap_and_the_rest_is_free(steps):
    spans = FreeList()
    chunks = [Chunk(address, size) for address, size in CHUNKS]
    for chunk in chunks:
        spans.add(chunk)
    live = []
    for gives_back, number in steps:
        if gives_back and live:
            address, size, chunk = live.pop(number % len(live))
            spans.put(chunk, address, size)
        elif found := spans.take(number):
            live.append((found[0], number, found[1]))
        else:
            assert all(size < number for chunk in chunks for size in chunk.sizes.values())
        expected = {byte for address, size in CHUNKS for byte in range(address, address + size)}
        for address, size, chunk in live:
            piece = set(range(address, address + size))
            assert piece <= expected
            assert chunk.address <= address
            assert address + size <= chunk.address + chunk.size_bytes
            expected -= piece
        assert free_bytes(spans) == len(expected)
        for chunk in chunks:
            assert chunk.used_bytes == chunk.size_bytes - free_bytes_of(chunk)
            ends = {start + size for start, size in chunk.sizes.items()}
            assert ends.isdisjoint(chunk.sizes), "two spans lie side by side"
    for address, size, chunk in live:
        spans.put(chunk, address, size)
    for chunk in chunks:
        assert chunk.sizes == {chunk.address: chunk.size_bytes}
        spans.remove(chunk)
    assert free_bytes(spans) == 0


def test_the_smallest_span_that_is_long_enough_is_taken():
    spans = FreeList()
    chunk = Chunk(0, 100)
    spans.add(chunk)
    pieces = [spans.take(size)[0] for size in (30, 1, 10, 1, 20, 1)]
    for address, size in zip(pieces[::2], (30, 10, 20), strict=True):
        spans.put(chunk, address, size)
    assert spans.take(9)[0] == pieces[2]
    assert spans.take(20)[0] == pieces[4]
