"""A suballocator charges what it hands out, hands out all that may be charged, and gives everything back."""

import random
import threading

import pytest

from fakes.pools import FakePools
from tensorwasm.errors import DeviceLost, InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.limits.accounts import Accounts, MemoryLedger, MemoryLedgerStatistics
from tensorwasm.gpu.memory.suballocator import GRAIN_BYTES, Suballocator
from tensorwasm.values import MIB, Region


class Setup:
    """A suballocator on fakes."""

    def __init__(self, cap, **pools):
        self.ledger = MemoryLedger()
        self.accounts = Accounts(self.ledger)
        self.account = self.accounts.register("a", cap)
        self.pools = FakePools(**pools)
        self.suballocator = Suballocator(self.pools, self.account)

    def set_cap(self, cap):
        self.accounts.register("a", cap)

    def charged(self):
        assert self.ledger.statistics().device_bytes == self.account.statistics().device_bytes
        return self.account.statistics().device_bytes


@pytest.fixture
def bench():
    made = []

    def make(cap=64 * MIB, **pools):
        made.append(Setup(cap, **pools))
        return made[-1]

    yield make
    for each in made:
        each.suballocator.close()
        assert each.ledger.statistics() == MemoryLedgerStatistics(0, 0)
        assert not each.pools.broken


@pytest.mark.parametrize(("size", "charge"), [(1, 256), (256, 256), (257, 512), (MIB, MIB), (20 * MIB + 1, None)])
def test_a_region_is_charged_its_rounded_size(bench, size, charge):
    one = bench()
    region = one.suballocator.allocate(size)
    assert region.size_bytes == size
    assert region.address % GRAIN_BYTES == 0
    assert not region.host
    assert one.charged() == (charge or 20 * MIB + 256)
    one.suballocator.free(region)
    assert one.charged() == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_region_has_a_size(bench, size):
    one = bench()
    with pytest.raises(InvalidArgs):
        one.suballocator.allocate(size)


@pytest.mark.parametrize(
    "sizes", [[64], [1] * 64, [20, 20, 20, 4], [63, 1], [32, 32], [5] * 12 + [4], [2, 60, 2], [0.25] * 256]
)
def test_a_tenant_can_use_all_of_its_cap(bench, sizes):
    one = bench(64 * MIB)
    for _ in range(2):
        regions = [one.suballocator.allocate(int(size * MIB)) for size in sizes]
        assert one.charged() == 64 * MIB
        with pytest.raises(QuotaExceeded):
            one.suballocator.allocate(1)
        for region in regions:
            one.suballocator.free(region)


@pytest.mark.parametrize("sizes", [[80], [1] * 80, [20, 20, 20, 20], [79, 1], [40, 40], [0.25] * 320, [30, 30, 20]])
def test_a_tenant_of_several_chunks_can_use_all_of_its_cap(bench, sizes):
    one = bench(80 * MIB)
    for _ in range(2):
        regions = [one.suballocator.allocate(int(size * MIB)) for size in sizes]
        assert one.charged() == 80 * MIB
        for region in regions:
            one.suballocator.free(region)


def test_a_small_cap_is_one_chunk_so_that_a_drivers_grain_does_not_matter(bench):
    one = bench(64 * MIB)
    for size in (1, 20, 20, 20):
        one.suballocator.allocate(size * MIB)
    assert one.pools.calls == ["open_pool", "pool_allocate"]
    assert one.suballocator.statistics().chunk_bytes == 64 * MIB


def test_empty_blocks_of_one_tenant_cause_no_refusal_for_another():
    pools, accounts = FakePools(device_bytes=64 * MIB), Accounts(MemoryLedger())
    suballocators = []
    spare = lambda: sum(suballocator.trim() for suballocator in suballocators) > 0  # noqa: E731 - as the device's sessions share it
    suballocators += [Suballocator(pools, accounts.register(tenant, 1024 * MIB), spare=spare) for tenant in "abcdef"]
    for suballocator in suballocators:
        suballocator.free(suballocator.allocate(1))
    held = [suballocator.allocate(32 * MIB) for suballocator in suballocators[:2]]
    with pytest.raises(QuotaExceeded):
        suballocators[2].allocate(1)
    for suballocator, region in zip(suballocators, held, strict=False):
        suballocator.free(region)
    for suballocator in suballocators:
        suballocator.close()
    assert not pools.broken


def test_two_that_grow_at_once_do_not_wait_for_each_other():
    pools, accounts = FakePools(device_bytes=64 * MIB), Accounts(MemoryLedger())
    suballocators = []
    spare = lambda: sum(suballocator.trim() for suballocator in suballocators) > 0  # noqa: E731 - as above
    suballocators += [Suballocator(pools, accounts.register(tenant, 1024 * MIB), spare=spare) for tenant in "abcd"]

    def use(suballocator):
        for _ in range(200):
            try:
                suballocator.free(suballocator.allocate(24 * MIB))
            except QuotaExceeded:
                continue

    threads = [threading.Thread(target=use, args=(suballocator,), daemon=True) for suballocator in suballocators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for suballocator in suballocators:
        suballocator.close()
    assert not pools.broken


def test_a_new_use_of_the_cap_takes_over_from_the_old_one(bench):
    one = bench(80 * MIB)
    for sizes in ([80], [1] * 80, [40, 40], [26, 26, 26], [80]):
        regions = [one.suballocator.allocate(size * MIB) for size in sizes]
        for region in regions:
            one.suballocator.free(region)


def test_small_regions_come_from_one_chunk_without_the_driver(bench):
    one = bench(1 << 36)
    regions = [one.suballocator.allocate(1000) for _ in range(1000)]
    assert one.pools.calls == ["open_pool", "pool_allocate"]
    for region in regions:
        one.suballocator.free(region)
    one.suballocator.free(one.suballocator.allocate(4 * MIB))
    assert one.pools.calls == ["open_pool", "pool_allocate"]


def test_at_most_one_empty_chunk_is_kept(bench):
    one = bench(1 << 36)
    regions = [one.suballocator.allocate(10 * MIB) for _ in range(8)]
    assert one.suballocator.statistics().chunks == 8
    assert one.suballocator.statistics().chunk_bytes == one.charged() == 80 * MIB
    for region in regions:
        one.suballocator.free(region)
    assert one.suballocator.statistics().chunks == 1
    one.suballocator.free(one.suballocator.allocate(100 * MIB))
    assert one.suballocator.statistics().chunk_bytes == 10 * MIB


def test_over_the_cap_the_device_is_not_asked(bench):
    one = bench(MIB)
    with pytest.raises(QuotaExceeded):
        one.suballocator.allocate(MIB + 1)
    assert one.pools.calls == []
    assert one.account.statistics().refusals == 1


def test_nothing_is_admitted_under_a_cap_of_nothing_and_no_pool_is_opened(bench):
    one = bench(0)
    with pytest.raises(QuotaExceeded):
        one.suballocator.allocate(1)
    assert one.pools.calls == []


def test_the_pool_has_the_cap_of_the_account(bench):
    one = bench(3 * MIB + 1)
    one.suballocator.allocate(1)
    assert [pool.max_bytes for pool in one.pools.live] == [3 * MIB + 256]


def test_a_raised_cap_is_there_at_once_and_held_by_the_device(bench):
    one = bench(8 * MIB)
    first = one.suballocator.allocate(8 * MIB)
    one.set_cap(20 * MIB)
    second = one.suballocator.allocate(12 * MIB)
    assert sum(pool.max_bytes for pool in one.pools.live) == 20 * MIB
    for region in (first, second):
        one.suballocator.free(region)
    one.suballocator.allocate(20 * MIB)
    assert [pool.max_bytes for pool in one.pools.live] == [20 * MIB]


def test_a_lowered_cap_holds_at_once_and_reaches_the_device_when_nothing_is_left(bench):
    one = bench(8 * MIB)
    region = one.suballocator.allocate(8 * MIB)
    one.set_cap(2 * MIB)
    with pytest.raises(QuotaExceeded):
        one.suballocator.allocate(1)
    one.suballocator.free(region)
    held = one.suballocator.allocate(2 * MIB)
    one.suballocator.free(held)
    one.suballocator.allocate(2 * MIB)
    assert one.charged() == 2 * MIB


def test_a_refusal_by_the_pool_is_a_refusal_that_changes_nothing(bench):
    one = bench(64 * MIB, device_bytes=10 * MIB)
    region = one.suballocator.allocate(10 * MIB)
    with pytest.raises(QuotaExceeded):
        one.suballocator.allocate(MIB)
    assert one.charged() == 10 * MIB
    assert one.account.statistics().refusals == 1
    one.suballocator.free(region)


def test_a_device_with_little_left_gives_what_is_needed_instead_of_a_chunk(bench):
    one = bench(1 << 36, device_bytes=4096)
    one.suballocator.allocate(1000)
    assert one.suballocator.statistics().chunk_bytes == 1024


@pytest.mark.parametrize("method", ["open_pool", "pool_allocate"])
@pytest.mark.parametrize("error", [DeviceLost("gone"), ValueError("a bug")])
def test_when_the_device_fails_the_books_are_as_before(bench, method, error):
    one = bench()
    one.pools.failures[method] = error
    with pytest.raises(type(error)):
        one.suballocator.allocate(1000)
    assert one.charged() == 0
    assert one.suballocator.statistics().allocations == 0
    one.suballocator.allocate(1000)


def test_a_pool_that_cannot_be_opened_is_a_refusal_that_is_counted(bench):
    one = bench()
    one.pools.failures["open_pool"] = QuotaExceeded("no room for another")
    with pytest.raises(QuotaExceeded):
        one.suballocator.allocate(1)
    assert one.account.statistics().refusals == 1
    assert one.charged() == 0
    one.suballocator.allocate(1)


def test_a_chunk_that_the_device_does_not_take_back_is_counted_and_not_used_again(bench):
    one = bench(80 * MIB)
    regions = [one.suballocator.allocate(20 * MIB) for _ in range(4)]
    one.pools.failures["pool_free"] = DeviceLost("gone")
    one.suballocator.free(regions[0])
    assert one.charged() == 60 * MIB
    assert one.suballocator.statistics().release_failures == 1
    with pytest.raises(QuotaExceeded):
        one.suballocator.allocate(20 * MIB)
    one.suballocator.free(regions[1])
    assert one.suballocator.allocate(20 * MIB).address != regions[0].address


def test_freeing_twice_or_an_unknown_address_is_an_internal_error_without_effect(bench):
    one = bench()
    region, bystander = one.suballocator.allocate(1000), one.suballocator.allocate(1000)
    one.suballocator.free(region)
    for wrong in (
        region,
        Region(bystander.address, 999, host=False),
        Region(bystander.address, 1000, host=True),
        Region(bystander.address + 256, 744, host=False),
    ):
        with pytest.raises(InternalError):
            one.suballocator.free(wrong)
    assert one.charged() == 1024


def test_close_gives_everything_back_and_ends_the_suballocator(bench):
    one = bench()
    region = one.suballocator.allocate(1000)
    one.suballocator.allocate(5 * MIB)
    for _ in range(2):
        one.suballocator.close()
    assert one.charged() == 0
    assert one.pools.live == []
    with pytest.raises(InternalError):
        one.suballocator.allocate(1)
    with pytest.raises(InternalError):
        one.suballocator.free(region)
    assert one.charged() == 0


def test_close_goes_on_when_the_device_fails(bench):
    one = bench()
    one.suballocator.allocate(1000)
    one.pools.failures["pool_free"] = DeviceLost("gone")
    one.suballocator.close()
    assert one.charged() == 0
    assert one.suballocator.statistics().release_failures == 1


def test_a_request_that_can_be_met_does_not_wait_for_the_device(bench):
    one = bench(1 << 36)
    one.suballocator.allocate(1)
    asked, go_on = threading.Event(), threading.Event()
    allocate = one.pools.pool_allocate

    def slow(pool, size_bytes):
        asked.set()
        assert go_on.wait(10)
        return allocate(pool, size_bytes)

    one.pools.pool_allocate = slow
    waiting = threading.Thread(target=one.suballocator.allocate, args=(100 * MIB,))
    waiting.start()
    assert asked.wait(10)
    one.suballocator.free(one.suballocator.allocate(1000))
    go_on.set()
    waiting.join()
    assert one.charged() == 100 * MIB + 256


def test_64_threads_never_get_a_byte_over_the_cap(bench):
    one = bench(4 * MIB)
    lock, failures = threading.Lock(), []
    live = {"bytes": 0, "refused": 0, "done": 0}

    def note(size):
        with lock:
            live["bytes"] += size
            if live["bytes"] > 4 * MIB or one.pools.held_bytes > 4 * MIB:
                failures.append(dict(live))

    def work(seed):
        draw, held = random.Random(seed), []
        for _ in range(400):
            if held and draw.random() < 0.5:
                region = held.pop(draw.randrange(len(held)))
                note(-(-(-region.size_bytes // 256) * 256))
                one.suballocator.free(region)
                continue
            size = draw.choice((1, 256, 1000, 5000, 70_000, 300_000))
            try:
                region = one.suballocator.allocate(size)
            except QuotaExceeded:
                with lock:
                    live["refused"] += 1
                continue
            note(-(-size // 256) * 256)
            held.append(region)
        for region in held:
            note(-(-(-region.size_bytes // 256) * 256))
            one.suballocator.free(region)
        with lock:
            live["done"] += 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert live["done"] == 64
    assert not failures
    assert live["refused"] > 0
    assert live["bytes"] == one.charged() == 0
    assert one.suballocator.statistics().chunks <= 1
