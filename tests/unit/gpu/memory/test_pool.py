"""A pool hands out zeros, aligned and apart, and takes everything back only when nothing is live."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.unified import FakeMemory
from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.memory import BufferPool, UnifiedBuffer
from tensorwasm.gpu.memory.pool import MAX_ALIGN_BYTES

SIZE = 10_000


@pytest.fixture(params=["device", "pinned"])
def buffer(request):
    device = FakeMemory()
    with UnifiedBuffer.allocate(device, SIZE, request.param) as buffer:
        yield buffer
    assert device.broken == []
    assert device.empty()


def contents(buffer, piece):
    into = bytearray(piece.region.size_bytes)
    buffer.read(into, piece.offset_bytes)
    return bytes(into)


@given(
    st.sampled_from(["device", "pinned"]),
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 10).map(lambda n: 1 << n)), max_size=20),
)
def test_slices_are_zero_aligned_and_apart(kind, requests):
    with UnifiedBuffer.allocate(FakeMemory(), SIZE, kind) as buffer:
        pool = BufferPool(buffer)
        for _ in range(2):
            end, slices = 0, []
            for size, align in requests:
                try:
                    piece = pool.allocate(size, align)
                except QuotaExceeded:
                    assert end + size + align > SIZE
                    continue
                assert piece.region.address % align == 0
                assert piece.region.size_bytes == size
                assert piece.region.address == buffer.address + piece.offset_bytes
                assert end <= piece.offset_bytes < end + align
                assert piece.offset_bytes + size <= SIZE
                assert contents(buffer, piece) == bytes(size)
                buffer.write(b"\xff" * size, piece.offset_bytes)
                end = piece.offset_bytes + size
                slices.append(piece)
            assert pool.statistics().live == len(slices)
            assert pool.statistics().used_bytes == end
            for piece in slices:
                piece.release()
            pool.reset()


def test_the_last_byte_is_handed_out(buffer):
    pool = BufferPool(buffer)
    with pool.allocate(SIZE, 1):
        with pytest.raises(QuotaExceeded):
            pool.allocate(1, 1)
        assert pool.statistics().issued_total == 1


def test_a_pool_is_reset_when_nothing_is_live_and_counts_on(buffer):
    pool = BufferPool(buffer)
    first, second = pool.allocate(10), pool.allocate(10)
    first.release()
    with pytest.raises(InternalError):
        pool.reset()
    assert pool.statistics().used_bytes > 0
    second.release()
    pool.reset()
    statistics = pool.statistics()
    assert (statistics.live, statistics.issued_total, statistics.used_bytes) == (0, 2, 0)
    assert statistics.capacity_bytes == SIZE


def test_a_slice_is_released_once(buffer):
    pool = BufferPool(buffer)
    with pool.allocate(1) as piece:
        piece.release()
        with pytest.raises(InternalError):
            piece.release()
    assert pool.statistics().live == 0
    with pool.allocate(1):
        pass
    assert pool.statistics().live == 0


@pytest.mark.parametrize(
    ("size", "align"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1, 3), (1, 2 * MAX_ALIGN_BYTES), (1, 1 << 70)]
)
def test_impossible_requests_are_refused_and_use_nothing(buffer, size, align):
    pool = BufferPool(buffer)
    with pytest.raises(InvalidArgs):
        pool.allocate(size, align)
    assert pool.statistics().issued_total == 0


@pytest.mark.parametrize("size", [SIZE + 1, 1 << 63, 1 << 70])
def test_too_much_is_refused_and_uses_nothing(buffer, size):
    pool = BufferPool(buffer)
    with pytest.raises(QuotaExceeded):
        pool.allocate(size)
    assert pool.statistics().used_bytes == 0


def test_a_pool_of_a_closed_buffer_hands_out_nothing():
    buffer = UnifiedBuffer.allocate(FakeMemory(), SIZE, "device")
    pool = BufferPool(buffer)
    buffer.close()
    with pytest.raises(InternalError):
        pool.allocate(1)
