"""Buffers of every kind hold the same bytes for host and kernels, grow in place, and give everything back."""

import ctypes
import mmap
import struct
from contextlib import ExitStack

import pytest

from strategies.kernels import VECTOR_ADD
from tensorwasm.errors import LaunchRefused, NotSupported, QuotaExceeded
from tensorwasm.gpu.device.protocols import Advice
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger
from tensorwasm.gpu.memory import BufferPool, UnifiedBuffer
from tensorwasm.gpu.memory.backings import KINDS
from tensorwasm.gpu.opening import open_device
from tensorwasm.ptx.parser import parse
from tensorwasm.values import MIB, NEVER, Deadline, LaunchConfig, Region

COUNT = 5000
SIZE = 4 * COUNT
GROWING = [kind for kind, traits in KINDS.items() if traits.grows]


@pytest.fixture(params=KINDS)
def kind(request, device):
    return supported(device, request.param)


@pytest.fixture(params=GROWING)
def growing(request, device):
    return supported(device, request.param)


@pytest.fixture
def stream(device):
    stream = device.open_stream()
    yield stream
    device.close_stream(stream)


@pytest.fixture
def add(device, stream):
    """Run ``c[:count] = a + b`` over regions."""
    loaded = device.load(parse(VECTOR_ADD), NEVER)

    def run(a, b, c, count, reach=()):
        args = [region.address.to_bytes(8, "little") for region in (a, b, c)] + [struct.pack("<I", count)]
        config = LaunchConfig((-(-count // 256), 1, 1), (256, 1, 1))
        regions = reach or [a, b, c]
        device.launch(loaded, "vector_add", config, args, regions, stream, Deadline.after(60))
        device.synchronize(stream, Deadline.after(60))

    yield run
    device.unload(loaded)


def supported(device, kind):
    if not KINDS[kind].available(device):
        pytest.skip(f"the device has no memory of kind {kind}")
    return kind


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def contents(buffer, size=None):
    into = bytearray(len(buffer) if size is None else size)
    buffer.read(into)
    return bytes(into)


def test_a_kernel_adds_vectors_of_each_kind_alike(device, kind, add):
    ones, twos = [float(n) for n in range(COUNT)], [0.5 * n for n in range(COUNT)]
    with ExitStack() as stack:
        a, b, c = (stack.enter_context(UnifiedBuffer.allocate(device, SIZE, kind)) for _ in range(3))
        a.write(floats(ones))
        b.write(floats(twos))
        assert contents(c) == bytes(SIZE)
        add(a.region, b.region, c.region, COUNT)
        assert contents(c) == floats([1.5 * n for n in range(COUNT)])
        assert contents(a) == floats(ones)


def test_kinds_meet_in_one_launch(device, add):
    kinds = [kind for kind, traits in KINDS.items() if traits.available(device)]
    with ExitStack() as stack:
        for first in kinds:
            for second in kinds:
                a = stack.enter_context(UnifiedBuffer.allocate(device, 40, first))
                b = stack.enter_context(UnifiedBuffer.allocate(device, 40, second))
                a.write(floats([3.0] * 10))
                add(a.region, a.region, b.region, 10)
                assert contents(b) == floats([6.0] * 10)


def test_growing_in_place_keeps_data_and_address(device, growing, add):
    with UnifiedBuffer.allocate(device, SIZE, growing, capacity_bytes=8 * MIB) as buffer:
        address, expected = buffer.address, b""
        for size in (SIZE, SIZE + 1, 3 * SIZE, MIB, 5 * MIB + 4, 8 * MIB):
            buffer.try_grow_in_place(size)
            assert buffer.address == address
            assert len(buffer) == size
            expected = expected.ljust(size, b"\0")
            assert contents(buffer) == expected
            tail = Region(address + size // 4 * 4 - SIZE, SIZE, host=True)
            buffer.write(floats([1.0] * COUNT), tail.address - address)
            add(tail, tail, tail, COUNT, reach=buffer.regions)
            expected = expected[: tail.address - address] + floats([2.0] * COUNT)
            assert contents(buffer, len(expected)) == expected
        assert not buffer.supports_grow_in_place


def test_a_kernel_reaches_a_grown_buffer_as_one(device, growing, add):
    count = MIB // 4
    with UnifiedBuffer.allocate(device, 4096, growing, capacity_bytes=MIB) as buffer:
        for size in (4096 * 3, 4096 * 40, MIB):
            buffer.try_grow_in_place(size)
        buffer.write(floats([1.0] * count))
        add(buffer.region, buffer.region, buffer.region, count, reach=buffer.regions)
        assert contents(buffer) == floats([2.0] * count)


def test_new_bytes_are_zero_even_where_a_kernel_could_write_before(device, growing):
    with UnifiedBuffer.allocate(device, 100, growing, capacity_bytes=MIB) as buffer:
        ctypes.memset(buffer.address, 0xFF, mmap.PAGESIZE)
        buffer.try_grow_in_place(MIB)
        assert contents(buffer) == b"\xff" * 100 + bytes(MIB - 100)


def test_hints_change_no_bytes_and_say_whether_they_did_anything(device, kind, stream, add):
    with UnifiedBuffer.allocate(device, SIZE, kind) as buffer:
        values = floats([2.0] * COUNT)
        buffer.write(values)
        told = [buffer.advise(advice) for advice in Advice]
        told.append(buffer.prefetch_to_device(stream))
        add(buffer.region, buffer.region, buffer.region, COUNT)
        told.append(buffer.prefetch_to_host(stream))
        device.synchronize(stream, NEVER)
        assert contents(buffer) == floats([4.0] * COUNT)
        assert len(set(told)) == 1
        if not buffer.capabilities.hints:
            assert not any(told)
        if device.info.kind == "cuda" and kind == "managed" and device.info.concurrent_managed_access:
            assert all(told)


def test_a_part_is_cleared_and_nothing_beside_it(device, kind):
    with UnifiedBuffer.allocate(device, 1000, kind) as buffer:
        buffer.write(b"\xff" * 1000)
        buffer.clear(100, 333)
        assert contents(buffer) == b"\xff" * 100 + bytes(333) + b"\xff" * 567


def test_closing_a_buffer_returns_all_its_device_memory(device, kind):
    account = Accounts(MemoryLedger()).register("tenant", 64 * MIB, 64 * MIB)
    before = device.statistics()
    with UnifiedBuffer.allocate(device, MIB, kind, account=account):
        assert device.statistics() != before
        assert account.charged
    assert device.statistics() == before
    assert not account.charged


def test_nothing_of_one_buffer_is_in_the_next(device, kind):
    for _ in range(4):
        with UnifiedBuffer.allocate(device, MIB, kind) as buffer:
            assert contents(buffer) == bytes(MIB)
            buffer.write(b"\xee" * MIB)


def test_managed_memory_beyond_what_is_free_is_refused(device):
    supported(device, "managed")
    before = device.statistics()
    with UnifiedBuffer.allocate(device, 4 * MIB, "managed"), pytest.raises(QuotaExceeded):
        UnifiedBuffer.allocate(device, device.info.memory_bytes, "managed")
    assert device.statistics() == before


def test_the_host_does_not_reach_device_memory(device):
    with UnifiedBuffer.allocate(device, 100, "device") as buffer, pytest.raises(NotSupported):
        buffer.as_memoryview()


@pytest.mark.parametrize("kind", sorted({*GROWING} - {"managed"}))  # all of which is usable from the start
def test_the_emulator_refuses_kernels_what_is_not_usable_yet(kind):
    """Hardware finds out by a fault."""
    device, _ = open_device("emulator")
    stream, loaded = device.open_stream(), device.load(parse(VECTOR_ADD), NEVER)
    with UnifiedBuffer.allocate(device, 4096, kind, capacity_bytes=MIB) as buffer:
        beyond = Region(buffer.address, MIB, host=True)
        args = [buffer.address.to_bytes(8, "little")] * 3 + [struct.pack("<I", 10)]
        with pytest.raises(LaunchRefused):
            device.launch(loaded, "vector_add", LaunchConfig((1, 1, 1), (256, 1, 1)), args, [beyond], stream, NEVER)
    device.close()


def test_kernels_use_slices_of_a_pool(device, kind, add):
    with UnifiedBuffer.allocate(device, MIB, kind) as buffer:
        pool = BufferPool(buffer)
        for _ in range(2):
            slices = [pool.allocate(SIZE, 4096) for _ in range(3)]
            a, b, c = (piece.region for piece in slices)
            for piece, value in zip(slices[:2], (1.0, 2.0), strict=True):
                buffer.write(floats([value] * COUNT), piece.offset_bytes)
            add(a, b, c, COUNT)
            into = bytearray(SIZE)
            buffer.read(into, slices[2].offset_bytes)
            assert bytes(into) == floats([3.0] * COUNT)
            for piece in slices:
                piece.release()
            pool.reset()
