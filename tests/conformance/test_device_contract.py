"""What `tensorwasm.gpu.device.port.Device` promises, kept by every device."""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
from contextlib import contextmanager

import pytest

from tensorwasm.errors import InvalidDimensions, QuotaExceeded, TensorWasmError, UnsupportedPtx
from tensorwasm.ptx.parser import parse
from tensorwasm.values import NEVER, Deadline, LaunchConfig, Region

NONE = Deadline()
PAGE = mmap.PAGESIZE

INCREMENT = """
.version 6.3
.target sm_70
.address_size 64
.visible .entry increment(.param .u64 data, .param .u32 count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r5, 4;
  add.u64 %rd4, %rd2, %rd3;
  ld.global.u32 %r6, [%rd4];
  add.u32 %r7, %r6, 1;
  st.global.u32 [%rd4], %r7;
DONE:
  ret;
}
"""

REVERSE = """
.version 6.3
.target sm_70
.address_size 64
.extern .shared .align 4 .b8 scratch[];
.visible .entry reverse(.param .u64 data)
{
  .reg .b32 %r<10>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [data];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd2, %rd3;
  ld.global.u32 %r3, [%rd4];
  mov.u32 %r4, scratch;
  sub.u32 %r5, %r2, %r1;
  sub.u32 %r5, %r5, 1;
  mad.lo.u32 %r6, %r5, 4, %r4;
  st.shared.u32 [%r6], %r3;
  bar.sync 0;
  mad.lo.u32 %r7, %r1, 4, %r4;
  ld.shared.u32 %r8, [%r7];
  st.global.u32 [%rd4], %r8;
  ret;
}
"""


@pytest.fixture
def stream(device):
    opened = device.open_stream()
    yield opened
    device.close_stream(opened)


@pytest.fixture
def memory(device):
    """Allocate device memory that is freed after the test."""
    addresses = []

    def allocate(size_bytes: int) -> int:
        addresses.append(device.allocate(size_bytes))
        return addresses[-1]

    yield allocate
    for address in addresses:
        device.free(address)


@pytest.fixture
def increment(device):
    loaded = device.load(parse(INCREMENT), NEVER)
    yield loaded
    device.unload(loaded)


@contextmanager
def pages(count: int):
    """Host pages, with their address."""
    block = mmap.mmap(-1, count * PAGE)
    anchor = ctypes.c_char.from_buffer(block)
    try:
        yield block, ctypes.addressof(anchor)
    finally:
        del anchor
        block.close()


def read(device, address, size, stream):
    into = bytearray(size)
    device.read(address, memoryview(into), stream)
    return bytes(into)


def run_increment(device, loaded, region, count, stream, deadline=NONE):
    args = [struct.pack("<Q", region.address), struct.pack("<I", count)]
    device.launch(
        loaded, "increment", LaunchConfig((-(-count // 128), 1, 1), (128, 1, 1)), args, [region], stream, deadline
    )
    device.synchronize(stream, deadline)


def test_new_memory_is_zero_and_aligned(device, memory, stream):
    for size in (1, 100, 4096, 1 << 20):
        address = memory(size)
        assert address % 256 == 0
        assert read(device, address, size, stream) == bytes(size)


@pytest.mark.rule("4-device")
def test_memory_that_was_used_before_is_zero_again(device, memory, stream):
    size = 1 << 16
    for _ in range(4):
        address = device.allocate(size)
        assert read(device, address, size, stream) == bytes(size)
        device.write(address, b"\xff" * size, stream)
        device.free(address)


def test_written_bytes_are_read_back_at_any_offset(device, memory, stream):
    address = memory(1000)
    device.write(address + 3, memoryview(b"some bytes"), stream)
    device.write(address + 999, b"!", stream)
    assert read(device, address, 1000, stream) == bytes(3) + b"some bytes" + bytes(986) + b"!"
    assert read(device, address + 5, 3, stream) == b"me "


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (61, 4), (64, 1), (0, 65)])
def test_a_copy_outside_an_allocation_is_refused(device, memory, stream, offset, size):
    address = memory(64)
    with pytest.raises(TensorWasmError):
        device.write(address + offset, bytes(size), stream)
    with pytest.raises(TensorWasmError):
        device.read(address + offset, memoryview(bytearray(size)), stream)


@pytest.mark.rule("13-memory")
def test_more_memory_than_there_is_is_a_quota_and_leaves_no_trace(device):
    before = device.statistics()
    with pytest.raises(QuotaExceeded):
        device.allocate(1 << 50)
    assert device.statistics() == before


def test_a_kernel_works_on_device_memory(device, memory, stream, increment):
    count = 1000
    address = memory(4 * count)
    values = list(range(count))
    device.write(address, struct.pack(f"<{count}I", *values), stream)
    run_increment(device, increment, Region(address, 4 * count, host=False), count, stream)
    assert list(struct.unpack(f"<{count}I", read(device, address, 4 * count, stream))) == [v + 1 for v in values]


def test_a_kernel_works_on_registered_host_pages_at_the_hosts_own_address(device, stream, increment):
    with pages(4) as (block, address):
        device.register(address, 4 * PAGE)
        try:
            assert device.statistics().registered_bytes >= 4 * PAGE
            block[:4] = struct.pack("<I", 41)
            run_increment(device, increment, Region(address, 4 * PAGE, host=True), PAGE, stream)
            assert struct.unpack("<I", block[:4]) == (42,)
            assert struct.unpack("<I", block[4 * PAGE - 4 :]) == (1,)
        finally:
            device.unregister(address)


def test_threads_of_a_block_meet_in_dynamic_shared_memory(device, memory, stream):
    loaded = device.load(parse(REVERSE), NEVER)
    try:
        address = memory(4 * 256)
        device.write(address, struct.pack("<256I", *range(256)), stream)
        config = LaunchConfig((1, 1, 1), (256, 1, 1), min(device.info.max_shared_bytes, 64 << 10))
        region = Region(address, 4 * 256, host=False)
        device.launch(loaded, "reverse", config, [struct.pack("<Q", address)], [region], stream, NONE)
        device.synchronize(stream, NONE)
        assert list(struct.unpack("<256I", read(device, address, 4 * 256, stream))) == list(range(255, -1, -1))
    finally:
        device.unload(loaded)


@pytest.mark.parametrize(
    "config",
    [
        LaunchConfig((0, 1, 1), (1, 1, 1)),
        LaunchConfig((1, 1, 1), (0, 1, 1)),
        LaunchConfig((1, 1, 1), (1024, 2, 1)),
        LaunchConfig((1, 1, 1), (1, 1, 1), 1 << 30),
    ],
)
def test_a_geometry_that_no_device_takes_is_refused_and_not_counted(device, memory, stream, increment, config):
    address = memory(4)
    before = device.statistics()
    args = [struct.pack("<Q", address), struct.pack("<I", 1)]
    with pytest.raises(InvalidDimensions):
        device.launch(increment, "increment", config, args, [Region(address, 4, host=False)], stream, NONE)
    assert device.statistics() == before


def test_a_module_for_a_newer_device_is_refused_by_name(device):
    before = device.statistics()
    with pytest.raises(UnsupportedPtx):
        device.load(parse(".version 9.9\n.target sm_999\n.address_size 64\n.visible .entry k() { ret; }"), NEVER)
    assert device.statistics() == before


def test_statistics_are_exact(device, stream, increment):
    before = device.statistics()
    address = device.allocate(300)
    other = device.open_stream()
    run_increment(device, increment, Region(address, 300, host=False), 75, other)
    during = device.statistics()
    assert during.allocations == before.allocations + 1
    assert during.allocated_bytes == before.allocated_bytes + 300
    assert during.streams == before.streams + 1
    assert during.launches == before.launches + 1
    device.close_stream(other)
    device.free(address)
    after = device.statistics()
    assert (after.allocations, after.allocated_bytes, after.streams) == (
        before.allocations,
        before.allocated_bytes,
        before.streams,
    )


def test_sixteen_threads_share_a_device(device, increment):
    failures = []

    def work(seed: int) -> None:
        try:
            stream = device.open_stream()
            for turn in range(5):
                count = 64 + turn
                address = device.allocate(4 * count)
                device.write(address, struct.pack(f"<{count}I", *[seed] * count), stream)
                run_increment(device, increment, Region(address, 4 * count, host=False), count, stream)
                assert set(struct.unpack(f"<{count}I", read(device, address, 4 * count, stream))) == {seed + 1}
                device.free(address)
            device.close_stream(stream)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
