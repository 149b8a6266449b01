import threading

import pytest

from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.emulator.memory.allocations import GRANULARITY_BYTES, PATTERN
from tensorwasm.values import MIB


@pytest.fixture
def pools(emulation):
    return emulation.device.pools


def test_a_cap_is_rounded_up_and_holds_to_the_byte(emulation, pools):
    pool = pools.open_pool(GRANULARITY_BYTES + 1)
    assert pools.capped
    first = pools.pool_allocate(pool, GRANULARITY_BYTES)
    second = pools.pool_allocate(pool, GRANULARITY_BYTES - 256)
    with pytest.raises(QuotaExceeded):
        pools.pool_allocate(pool, 257)
    third = pools.pool_allocate(pool, 1)
    with pytest.raises(QuotaExceeded):
        pools.pool_allocate(pool, 1)
    assert emulation.device.statistics().allocations == 3
    assert emulation.device.statistics().pools == 1
    for address in (second, first, third):
        pools.pool_free(pool, address)
    pools.pool_free(pool, pools.pool_allocate(pool, 2 * GRANULARITY_BYTES))
    pools.close_pool(pool)
    assert emulation.device.statistics().pools == 0


def test_new_pool_memory_holds_a_pattern_and_not_zeros(emulation, pools):
    pool = pools.open_pool(MIB)
    for _ in range(2):
        address, into = pools.pool_allocate(pool, 1000), bytearray(1000)
        emulation.device.read(address, memoryview(into), emulation.stream)
        assert into == bytes([PATTERN]) * 1000
        emulation.device.write(address, bytes(1000), emulation.stream)
        pools.pool_free(pool, address)


def test_a_pool_is_no_more_than_the_device_has(emulation, pools):
    pool = pools.open_pool(1 << 40)
    with pytest.raises(QuotaExceeded):
        pools.pool_allocate(pool, (1 << 30) + 1)
    pools.close_pool(pool)


def test_memory_of_another_pool_is_not_taken_back(emulation, pools):
    one, other = pools.open_pool(MIB), pools.open_pool(MIB)
    address = pools.pool_allocate(one, 256)
    plain = emulation.device.allocate(256)
    for wrong in (plain, address + 1, 0):
        with pytest.raises(LaunchRefused):
            pools.pool_free(one, wrong)
    with pytest.raises(LaunchRefused):
        pools.pool_free(other, address)
    with pytest.raises(LaunchRefused):
        pools.close_pool(one)
    pools.pool_free(one, address)
    with pytest.raises(LaunchRefused):
        pools.pool_free(one, address)
    pools.close_pool(one)
    with pytest.raises(InvalidHandle):
        pools.pool_allocate(one, 1)


def test_threads_never_get_more_than_the_cap(pools):
    pool, pieces, most = pools.open_pool(GRANULARITY_BYTES), [], 0
    lock, failures = threading.Lock(), []

    def work():
        nonlocal most
        try:
            for _ in range(50):
                try:
                    address = pools.pool_allocate(pool, GRANULARITY_BYTES // 4)
                except QuotaExceeded:
                    continue
                with lock:
                    pieces.append(address)
                    most = max(most, len(pieces))
                with lock:
                    pieces.remove(address)
                pools.pool_free(pool, address)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert 1 <= most <= 4
    pools.close_pool(pool)
