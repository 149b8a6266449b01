"""What only a GPU can show of memory: caps that the driver keeps, growth in place, migration, frees without waiting."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from conformance.cuda.child import run_child, start_child
from conformance.cuda.kernels import COUNT
from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.device.protocols import Advice
from tensorwasm.ptx.parser import parse
from tensorwasm.values import MIB, NEVER, LaunchConfig, Region

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
LIMIT_S = 30.0

GROW = """
import ctypes
grain = device.unified.granularity_bytes
start = device.unified.reserve(8 * grain)
device.unified.map(start, grain)
ctypes.memset(start, 1, grain)
address = start + grain - 4
run(sys.argv[1], "count")
assert ctypes.c_uint32.from_address(address).value == 0x01010102
print("mapped", flush=True)
"""


@pytest.fixture
def count(gpu, stream):
    """Add 1 to a word on the device, and wait for it."""
    loaded = gpu.load(parse(COUNT), NEVER)

    def add(address: int) -> None:
        reach = [Region(address, 4, host=False)]
        gpu.launch(loaded, "count", ONE, [struct.pack("<Q", address)], reach, stream, NEVER)
        gpu.synchronize(stream, NEVER)

    yield add
    gpu.unload(loaded)


def ends(call: Callable[[], object]) -> bool:
    """Return whether a call returns within the limit; it runs on a thread of its own."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return not thread.is_alive()


def take_until_refused(gpu, pool, size_bytes: int) -> list[int]:
    """Allocate from a pool until it refuses, a hundred times at most."""
    held: list[int] = []
    with suppress(QuotaExceeded):
        held.extend(gpu.pools.pool_allocate(pool, size_bytes) for _ in range(100))
    return held


@pytest.mark.hardware("H2-cap", "BUG-1")
def test_the_driver_refuses_what_is_over_a_pools_cap_and_grants_what_is_under_it(gpu, count, stream):
    assert gpu.pools.capped
    pool = gpu.pools.open_pool(64 * MIB)
    with pytest.raises(QuotaExceeded):
        gpu.pools.pool_allocate(pool, 128 * MIB)
    address = gpu.pools.pool_allocate(pool, 32 * MIB)
    assert address % 256 == 0
    gpu.fill(address, 32 * MIB, stream)
    count(address + 32 * MIB - 4)
    into = bytearray(4)
    gpu.read(address + 32 * MIB - 4, memoryview(into), stream)
    assert int.from_bytes(into, "little") == 1
    gpu.pools.pool_free(pool, address)
    gpu.pools.close_pool(pool)


@pytest.mark.hardware("H2-cap", "BUG-1")
@pytest.mark.parametrize("piece_mib", [1, 16, 32])
def test_a_pool_never_holds_more_than_its_cap_and_grants_it_again_after_frees(gpu, piece_mib):
    pool = gpu.pools.open_pool(64 * MIB)
    for _ in range(2):
        held = take_until_refused(gpu, pool, piece_mib * MIB)
        assert 0 < len(held) <= 64 // piece_mib
        for address in held:
            gpu.pools.pool_free(pool, address)
    gpu.pools.close_pool(pool)


def test_a_small_cap_is_usable_to_its_end(gpu):
    pool = gpu.pools.open_pool(10 * MIB)
    gpu.pools.pool_free(pool, gpu.pools.pool_allocate(pool, 10 * MIB))
    gpu.pools.close_pool(pool)


def test_frees_do_not_wait_for_another_streams_running_kernel(gpu, flag, poll, stream):
    pool = gpu.pools.open_pool(64 * MIB)
    own, pooled = gpu.allocate(MIB), gpu.pools.pool_allocate(pool, MIB)
    poll()
    returned = ends(lambda: (gpu.free(own), gpu.pools.pool_free(pool, pooled)))
    running = not gpu.ended(stream)
    flag.value = 1
    gpu.synchronize(stream, NEVER)
    assert running
    assert returned
    gpu.pools.close_pool(pool)


def test_memory_is_allocated_while_another_streams_kernel_runs(gpu, flag, poll, stream):
    pool = gpu.pools.open_pool(64 * MIB)
    poll()
    found = []
    returned = ends(lambda: found.extend((gpu.allocate(MIB), gpu.pools.pool_allocate(pool, MIB))))
    running = not gpu.ended(stream)
    flag.value = 1
    gpu.synchronize(stream, NEVER)
    assert running
    assert returned
    gpu.free(found[0])
    gpu.pools.pool_free(pool, found[1])
    gpu.pools.close_pool(pool)


def test_memory_that_comes_back_is_zeroed_again(gpu, stream):
    ones = b"\xff" * MIB
    for _ in range(5):
        address = gpu.allocate(MIB)
        into = bytearray(MIB)
        gpu.read(address, memoryview(into), stream)
        assert bytes(into) == bytes(MIB)
        gpu.write(address, ones, stream)
        gpu.free(address)


@pytest.mark.parametrize("registered", [False, True])
def test_copies_by_address_keep_every_byte(gpu, stream, registered):
    size = 4 * MIB
    block = ctypes.create_string_buffer(2 * size + 4096)
    start = -(-ctypes.addressof(block) // 4096) * 4096
    data = os.urandom(size)
    ctypes.memmove(start, data, size)
    if registered:
        gpu.register(start, 2 * size)
    address = gpu.allocate(size)
    gpu.copy_in(address, start, size, stream)
    gpu.copy_out(start + size, address, size, stream)
    gpu.synchronize(stream, NEVER)
    assert ctypes.string_at(start + size, size) == data
    gpu.free(address)
    if registered:
        gpu.unregister(start)


# ------------------------------------------------------------------------------------------------ managed memory


@pytest.mark.hardware("H1", "H3-round-trip", "H3-prefetch")
def test_managed_memory_goes_to_the_device_and_back_with_every_byte(gpu, count, stream):
    size = 8 * MIB
    address = gpu.unified.allocate_managed(size)
    assert ctypes.string_at(address, size) == bytes(size)
    data = os.urandom(size - 4)
    ctypes.memmove(address + 4, data, size - 4)
    moves = gpu.info.concurrent_managed_access
    for turn in range(3):
        assert gpu.unified.prefetch(address, size, stream, to_host=False) == moves
        count(address)
        assert gpu.unified.prefetch(address, size, stream, to_host=True) == moves
        gpu.synchronize(stream, NEVER)
        assert ctypes.c_uint32.from_address(address).value == turn + 1
        assert ctypes.string_at(address + 4, size - 4) == data
    gpu.unified.free_managed(address)


@pytest.mark.hardware("H1", "H3-advice", "BUG-10")
def test_every_advice_is_taken_and_undone_or_says_that_it_has_no_effect(gpu, count):
    size = 2 * MIB
    address = gpu.unified.allocate_managed(size)
    for turn, advice in enumerate(Advice):
        assert gpu.unified.advise(address, size, advice) == gpu.info.concurrent_managed_access
        count(address)
        assert ctypes.c_uint32.from_address(address).value == turn + 1
    gpu.unified.free_managed(address)


@pytest.mark.hardware("BUG-9")
def test_managed_memory_is_allocated_from_threads_that_never_touched_the_device(gpu):
    found, failed = [], []

    def allocate() -> None:
        try:
            found.append(gpu.unified.allocate_managed(MIB))
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failed.append(error)

    threads = [threading.Thread(target=allocate) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(set(found)) == 16
    for address in found:
        gpu.unified.free_managed(address)


def test_managed_memory_is_never_more_than_the_device_has_free(gpu):
    assert 0 < gpu.unified.free_bytes() <= gpu.info.memory_bytes
    with pytest.raises(QuotaExceeded):
        gpu.unified.allocate_managed(gpu.info.memory_bytes + 1)


# ------------------------------------------------------------------------------------------------ growth in place


@pytest.mark.hardware("H6", "H2-window")
def test_memory_grows_in_place_with_the_data_kept_and_the_pointer_unchanged(gpu, count):
    unified = gpu.unified
    assert unified.growable
    grain = unified.granularity_bytes
    start = unified.reserve(8 * grain)
    unified.map(start, grain)
    assert ctypes.string_at(start, grain) == bytes(grain)
    data = os.urandom(grain - 4)
    ctypes.memmove(start + 4, data, grain - 4)
    count(start)
    unified.map(start + grain, 3 * grain)
    assert ctypes.string_at(start + 4, grain - 4) == data
    assert ctypes.string_at(start + grain, 3 * grain) == bytes(3 * grain)
    count(start)
    count(start + 4 * grain - 4)
    assert ctypes.c_uint32.from_address(start).value == 2
    assert ctypes.c_uint32.from_address(start + 4 * grain - 4).value == 1
    unified.unmap(start, grain)
    unified.unmap(start + grain, 3 * grain)
    unified.unreserve(start, 8 * grain)


@pytest.mark.hardware("H6")
def test_unmapped_memory_faults_on_the_host():
    ended = start_child(GROW + "ctypes.c_uint32.from_address(start + grain).value = 1", COUNT)
    assert ended.stdout == "mapped\n", ended.stderr
    assert ended.returncode == -signal.SIGSEGV


@pytest.mark.hardware("H6")
def test_unmapped_memory_faults_on_the_device():
    said = run_child(GROW + 'address = start + grain\nexpect(KernelFault, lambda: run(sys.argv[1], "count"))', COUNT)
    assert said.splitlines()[1].startswith("KernelFault")


def test_memory_mapped_again_is_zeroed(gpu):
    unified = gpu.unified
    grain = unified.granularity_bytes
    start = unified.reserve(grain)
    for _ in range(5):
        unified.map(start, grain)
        assert ctypes.string_at(start, grain) == bytes(grain)
        ctypes.memset(start, 0xFF, grain)
        unified.unmap(start, grain)
    unified.unreserve(start, grain)
