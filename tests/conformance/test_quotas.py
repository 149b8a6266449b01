"""Two locks on device memory: the account refuses before the device is asked, and the device where it is not asked."""

import struct

import pytest

from strategies.kernels import VECTOR_ADD
from tensorwasm.errors import QuotaExceeded
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.memory.suballocator import Suballocator
from tensorwasm.ptx.parser import parse
from tensorwasm.values import MIB, NEVER, LaunchConfig

CAP = 64 * MIB


@pytest.fixture
def ledger():
    ledger = MemoryLedger()
    yield ledger
    assert ledger.statistics() == MemoryLedgerStatistics(0, 0)


@pytest.fixture
def accounts(ledger):
    return Accounts(ledger)


@pytest.fixture
def account(accounts):
    return accounts.register("tenant", CAP)


@pytest.fixture
def slab(device, account):
    slab = Suballocator(device.pools, account)
    yield slab
    slab.close()
    assert slab.statistics().release_failures == 0


def asked(device):
    """What shows that the device was asked for anything."""
    return device.statistics()


# ------------------------------------------------------------------------------------------- the first lock


@pytest.mark.parametrize("size", [CAP + 1, 2 * CAP, 1 << 62, 1 << 70])
def test_the_account_refuses_what_is_over_the_cap_and_the_device_hears_nothing(device, slab, account, size):
    before = asked(device)
    with pytest.raises(QuotaExceeded):
        slab.allocate(size)
    assert asked(device) == before
    assert account.statistics().refusals == 1


def test_the_account_refuses_the_byte_after_the_last(device, slab, account):
    slab.allocate(CAP)
    before = asked(device)
    with pytest.raises(QuotaExceeded):
        slab.allocate(1)
    assert asked(device) == before
    assert account.statistics().device_bytes == CAP


def test_the_process_refuses_what_is_over_its_limit_and_the_device_hears_nothing(device):
    account = Accounts(MemoryLedger(max_bytes=MIB)).register("tenant", CAP)
    slab = Suballocator(device.pools, account)
    before = asked(device)
    with pytest.raises(QuotaExceeded):
        slab.allocate(MIB + 1)
    assert asked(device) == before
    slab.close()


# ------------------------------------------------------------------------------------------ the second lock


@pytest.fixture
def pool(device):
    if not device.pools.capped:
        pytest.skip("this driver knows no cap on a pool")
    pool = device.pools.open_pool(CAP)
    yield pool
    device.pools.close_pool(pool)


def test_with_the_books_bypassed_the_device_refuses_what_is_over_the_cap(device, pool):
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, CAP))
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(pool, 2 * CAP)
    address = device.pools.pool_allocate(pool, CAP // 2)
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(pool, CAP)
    device.pools.pool_free(pool, address)


def until_refused(allocate, attempts):
    """Return what was allocated before the first refusal, which has to come."""
    taken = []
    for _ in range(attempts):
        try:
            taken.append(allocate())
        except QuotaExceeded:
            return taken
    raise AssertionError(f"{attempts} allocations and no refusal")


def test_with_the_books_bypassed_many_small_ones_stop_at_the_cap(device, pool):
    addresses = until_refused(lambda: device.pools.pool_allocate(pool, MIB), 2 * CAP // MIB)
    assert 0 < len(addresses) <= CAP // MIB
    for address in addresses:
        device.pools.pool_free(pool, address)


def test_wrong_books_get_no_more_from_the_device_than_the_pool_has(device, accounts, account, slab):
    if not device.pools.capped:
        pytest.skip("this driver knows no cap on a pool")
    regions = [slab.allocate(CAP // 2)]
    slab._fit_pools = lambda: None  # the pool stays as it is,
    account._device.max_bytes = 4 * CAP  # but the account believes that there is no such cap
    for source in slab._sources:
        source.held_bytes -= 4 * CAP  # and the slab that there is room
    regions += until_refused(lambda: slab.allocate(CAP // 2), 8)
    assert len(regions) * CAP // 2 <= CAP
    assert device.statistics().allocated_bytes <= CAP
    for source in slab._sources:
        source.held_bytes += 4 * CAP
    for region in regions:
        slab.free(region)


# ------------------------------------------------------------------------------------------------- what is left


@pytest.mark.parametrize("sizes", [[64], [1] * 64, [20, 20, 20, 4], [0.25] * 256, [31.5, 32.5]])
def test_a_tenant_can_use_all_of_its_cap(slab, account, sizes):
    for _ in range(2):
        regions = [slab.allocate(int(size * MIB)) for size in sizes]
        assert account.statistics().device_bytes == CAP
        for region in regions:
            slab.free(region)
    assert account.statistics().device_bytes == 0


def test_a_raised_cap_is_there_at_once_and_a_lowered_one_holds(slab, accounts, account):
    first = slab.allocate(CAP)
    accounts.register("tenant", 2 * CAP)
    second = slab.allocate(CAP)
    accounts.register("tenant", CAP)
    slab.free(second)
    with pytest.raises(QuotaExceeded):
        slab.allocate(1)
    slab.free(first)


def test_close_gives_the_device_everything_back(device, account):
    before = device.statistics()
    slab = Suballocator(device.pools, account)
    for size in (1, 100, MIB, 20 * MIB):
        slab.allocate(size)
    slab.close()
    assert device.statistics() == before
    assert not account.charged


def test_kernels_reach_regions_of_a_slab(device, slab):
    count = 1000
    stream = device.open_stream()
    loaded = device.load(parse(VECTOR_ADD), NEVER)
    a, b, c = regions = [slab.allocate(4 * count) for _ in range(3)]
    values = [float(n) for n in range(count)]
    for region in (a, b):
        device.write(region.address, struct.pack(f"<{count}f", *values), stream)
    args = [region.address.to_bytes(8, "little") for region in regions] + [struct.pack("<I", count)]
    device.launch(loaded, "vector_add", LaunchConfig((4, 1, 1), (256, 1, 1)), args, regions, stream, NEVER)
    device.synchronize(stream, NEVER)
    into = bytearray(4 * count)
    device.read(c.address, memoryview(into), stream)
    assert list(struct.unpack(f"<{count}f", into)) == [2 * value for value in values]
    device.unload(loaded)
    device.close_stream(stream)
