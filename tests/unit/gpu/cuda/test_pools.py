import pytest

from fakes.driver import FakeDriver
from tensorwasm.errors import InvalidHandle, LaunchRefused, QuotaExceeded
from tensorwasm.gpu.cuda.driver.calls import Driver
from tensorwasm.gpu.cuda.opening import open_with
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.values import MIB, NEVER


@pytest.fixture
def pool(device):
    return device.pools.open_pool(64 * MIB)


def test_the_driver_itself_refuses_what_is_over_the_cap(device, pool):
    assert device.pools.capped
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(pool, 128 * MIB)
    address = device.pools.pool_allocate(pool, 32 * MIB)
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(pool, 64 * MIB)
    assert device.statistics() == DeviceStatistics(allocations=1, allocated_bytes=32 * MIB, pools=1)
    device.pools.pool_free(pool, address)
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, 64 * MIB))


def test_pools_do_not_take_from_each_other(device, pool):
    other = device.pools.open_pool(32 * MIB)
    addresses = [device.pools.pool_allocate(one, 32 * MIB) for one in (pool, other)]
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(other, MIB)
    with pytest.raises(InvalidHandle, match="nothing of the pool"):
        device.pools.pool_free(pool, addresses[1])


@pytest.mark.parametrize(("asked", "given"), [(1, 32), (32 * MIB, 32), (33 * MIB, 64), (1 << 80, 1024)])
def test_a_cap_is_rounded_up_to_what_pools_grow_by_and_ends_at_the_device(device, asked, given):
    assert device.pools.open_pool(asked).handle.size == given * MIB


@pytest.mark.parametrize("size", [(1 << 30) + 1, 1 << 64, 1 << 200])
def test_more_than_the_device_has_never_reaches_the_driver(device, fake, pool, size):
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(pool, size)
    assert fake.calls["cuMemAllocFromPoolAsync"] == 0


def test_a_pool_frees_without_waiting_for_kernels(device, fake, pool, stream, work):
    address = device.pools.pool_allocate(pool, 512)
    own = device.allocate(512)
    work(stream)
    fake.begin()
    device.pools.pool_free(pool, address)
    device.pools.pool_allocate(pool, 512)
    device.free(own)
    assert fake.calls["cuMemFree"] == fake.calls["cuEventSynchronize"] == fake.calls["cuStreamSynchronize"] == 0


def test_memory_of_a_pool_is_copied_to_and_from(device, pool, stream):
    address = device.pools.pool_allocate(pool, 512)
    device.write(address + 8, b"poolside", stream)
    into = bytearray(8)
    device.read(address + 8, memoryview(into), stream)
    assert bytes(into) == b"poolside"


def test_a_pool_closes_once_and_empty(device, fake, pool):
    address = device.pools.pool_allocate(pool, 512)
    with pytest.raises(InvalidHandle, match="still allocated"):
        device.pools.close_pool(pool)
    device.pools.pool_free(pool, address)
    with pytest.raises(InvalidHandle):
        device.pools.pool_free(pool, address)
    device.pools.close_pool(pool)
    with pytest.raises(InvalidHandle):
        device.pools.close_pool(pool)
    with pytest.raises(InvalidHandle):
        device.pools.pool_allocate(pool, 512)
    assert not any(handle.kind == "pool" for handle in fake.handles)


@pytest.mark.parametrize("where", ["pool", "device", "managed"])
def test_memory_kept_by_the_devices_own_pool_is_returned_when_needed(device, fake, pool, where):
    device.free(device.allocate(64))
    fake.kept = (1 << 30) - 4096
    allocate = {
        "pool": lambda: device.pools.pool_allocate(pool, MIB),
        "device": lambda: device.allocate(MIB),
        "managed": lambda: device.unified.allocate_managed(MIB),
    }[where]
    allocate()
    assert fake.kept == 0


def test_a_driver_that_knows_no_cap_takes_it_as_a_hint():
    fake = FakeDriver(cuda=12010)
    device = open_with(Driver(fake), 0)
    assert not device.pools.capped
    pool = device.pools.open_pool(MIB)
    assert pool.handle.size == 0
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, 64 * MIB))
    device.close()
    assert fake.leftovers() == []


def test_a_device_without_pools_frees_as_ever_and_opens_none():
    fake = FakeDriver()
    fake.attributes["MEMORY_POOLS_SUPPORTED"] = 0
    device = open_with(Driver(fake), 0)
    assert not device.pools.capped
    with pytest.raises(LaunchRefused):
        device.pools.open_pool(MIB)
    stream = device.open_stream()
    address = device.allocate(64)
    into = bytearray(b"x" * 64)
    device.read(address, memoryview(into), stream)
    assert into == bytes(64)
    device.free(address)
    assert fake.calls["cuMemFree"] == 1
    device.synchronize(stream, NEVER)
    device.close()
    assert fake.leftovers() == []
