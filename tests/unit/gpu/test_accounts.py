"""An account grants its last byte and no more, together with the ledger, and is never reset."""

import gc
import threading
import time
from itertools import chain
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.gpu.device.limits import MAX_PROCESS_DEVICE_BYTES
from tensorwasm.gpu.limits.accounts import DEFAULT_TENANT, MAX_CAP_BYTES, Accounts, MemoryLedger, MemoryLedgerStatistics

NOTHING = MemoryLedgerStatistics(0, 0)


@pytest.fixture
def ledger():
    ledger = MemoryLedger(max_bytes=1000, max_allocations=10)
    yield ledger
    assert ledger.statistics() == NOTHING


def test_the_default_tenant_has_the_caps_of_the_process():
    account = Accounts(MemoryLedger()).account(DEFAULT_TENANT)
    statistics = account.statistics()
    assert statistics.max_bytes == statistics.max_pinned_bytes == MAX_PROCESS_DEVICE_BYTES


def test_an_account_grants_its_last_byte_and_no_more(ledger):
    account = Accounts(ledger).register("a", 100)
    first = account.reserve(60)
    last = account.reserve(40)
    with pytest.raises(QuotaExceeded):
        account.reserve(1)
    with account.reserve(0, allocations=0):
        pass
    assert account.statistics().device_bytes == ledger.statistics().device_bytes == 100
    first.release()
    last.release()
    assert account.statistics().refusals == 1
    assert account.statistics().peak_bytes == 100


@pytest.mark.parametrize(("max_bytes", "max_allocations"), [(50, 10), (1000, 1)])
def test_a_refusal_by_the_ledger_charges_neither(max_bytes, max_allocations):
    ledger = MemoryLedger(max_bytes, max_allocations)
    account = Accounts(ledger).register("a", 100)
    with account.reserve(50):
        with pytest.raises(QuotaExceeded):
            account.reserve(10)
        assert account.statistics().device_bytes == ledger.statistics().device_bytes == 50
        assert account.statistics().allocations == ledger.statistics().allocations == 1
    assert account.statistics().refusals == 1
    assert ledger.statistics() == NOTHING


def test_pinned_memory_is_a_line_of_its_own(ledger):
    account = Accounts(ledger).register("a", 10, max_pinned_bytes=100)
    pinned = account.reserve_pinned(100)
    with account.reserve(10), pytest.raises(QuotaExceeded):
        account.reserve_pinned(1)
    assert account.statistics().pinned_bytes == 100
    assert ledger.statistics() == NOTHING
    pinned.release()
    assert account.statistics().peak_pinned_bytes == 100
    assert not account.charged


def test_a_committed_charge_stays(ledger):
    account = Accounts(ledger).register("a", 100)
    with account.reserve(60) as reservation:
        reservation.commit()
    assert account.statistics().device_bytes == 60
    reservation.release()


def test_an_uncommitted_charge_is_refunded_on_every_exit(ledger):
    account = Accounts(ledger).register("a", 100)
    with pytest.raises(ZeroDivisionError), account.reserve(60):
        raise ZeroDivisionError
    with account.reserve(100) as reservation:
        reservation.release()
    assert not account.charged


@pytest.mark.parametrize(
    ("before", "mistake"),
    [
        (["release"], "release"),
        (["release"], "commit"),
        (["commit"], "commit"),
        (["commit", "release"], "release"),
        (["commit", "release"], "commit"),
    ],
)
def test_a_reservation_ends_once(ledger, before, mistake):
    account = Accounts(ledger).register("a", 100)
    bystander = account.reserve(7)
    reservation = account.reserve(60)
    for step in before:
        getattr(reservation, step)()
    with pytest.raises(InternalError):
        getattr(reservation, mistake)()
    if "release" not in before:
        reservation.release()
    assert account.statistics().device_bytes == ledger.statistics().device_bytes == 7
    bystander.release()


@pytest.mark.parametrize(("size", "allocations"), [(-1, 1), (1, -1)])
def test_nothing_negative_is_charged(ledger, size, allocations):
    account = Accounts(ledger).register("a", 100)
    with pytest.raises(InvalidArgs):
        account.reserve(size, allocations)
    with pytest.raises(InvalidArgs):
        account.reserve_pinned(-1)


def test_registering_again_changes_the_cap_and_keeps_what_is_charged(ledger):
    accounts = Accounts(ledger)
    account = accounts.register("a", 100, max_pinned_bytes=5)
    with account.reserve(60):
        assert accounts.register("a", 50) is account
        assert account.statistics().device_bytes == 60
        assert account.statistics().max_pinned_bytes == 5
        with pytest.raises(QuotaExceeded):
            account.reserve(1)
        accounts.register("a", 70, max_pinned_bytes=6)
        with account.reserve(10), pytest.raises(QuotaExceeded):
            account.reserve(1)
    with accounts.account("a").reserve_pinned(6):
        pass


def test_leaving_and_coming_back_resets_no_quota(ledger):
    accounts = Accounts(ledger)
    reservation = accounts.register("a", 100).reserve(60)
    accounts.unregister("a")
    gc.collect()
    with pytest.raises(InvalidArgs):
        accounts.account("a")
    account = accounts.register("a", 100)
    assert account.statistics().device_bytes == 60
    with pytest.raises(QuotaExceeded):
        account.reserve(41)
    reservation.release()
    assert not account.charged


def test_an_account_that_is_held_is_the_tenants_only_one(ledger):
    accounts = Accounts(ledger)
    held = accounts.register("a", 100)
    accounts.unregister("a")
    with pytest.raises(QuotaExceeded, match="not registered"):
        held.reserve(1)
    assert accounts.register("a", 100) is held
    with held.reserve(1):
        pass


def test_an_account_that_left_is_shown_until_it_is_empty(ledger):
    accounts = Accounts(ledger)
    reservation = accounts.register("a", 100).reserve(60)
    accounts.unregister("a")
    assert [(each.tenant, each.registered) for each in accounts.statistics()] == [("a", False), ("default", True)]
    reservation.release()
    assert [each.tenant for each in accounts.statistics()] == ["default"]


@given(st.text(max_size=70))
def test_a_tenant_is_a_short_plain_name_or_refused(tenant):
    accounts = Accounts(MemoryLedger())
    plain = 1 <= len(tenant) <= 64 and all(c.isascii() and (c.isalnum() or c in "._-") for c in tenant)
    if plain:
        assert accounts.register(tenant, 1) is accounts.account(tenant)
    else:
        with pytest.raises(InvalidArgs):
            accounts.register(tenant, 1)


@pytest.mark.parametrize("tenant", ["a\n", "", "a" * 65, "ä", "a b", "../a"])
def test_names_that_nearly_pass_do_not(tenant):
    with pytest.raises(InvalidArgs):
        Accounts(MemoryLedger()).register(tenant, 1)


@pytest.mark.parametrize(("cap", "pinned"), [(-1, 0), (0, -1), (MAX_CAP_BYTES + 1, 0), (0, MAX_CAP_BYTES + 1)])
def test_a_cap_out_of_range_is_refused_and_changes_nothing(cap, pinned):
    accounts = Accounts(MemoryLedger())
    account = accounts.register("a", 10, 20)
    with pytest.raises(InvalidArgs):
        accounts.register("a", cap, pinned)
    assert (account.statistics().max_bytes, account.statistics().max_pinned_bytes) == (10, 20)
    accounts.register("a", MAX_CAP_BYTES, 0)


def test_a_tenant_that_never_was_cannot_leave():
    with pytest.raises(InvalidArgs):
        Accounts(MemoryLedger()).unregister("nobody")


def test_threads_never_overdraw_account_or_ledger():
    ledger = MemoryLedger(max_bytes=70, max_allocations=1000)
    accounts = Accounts(ledger)
    tenants = [accounts.register(name, 40) for name in ("a", "b")]
    granted = {account: [] for account in tenants}

    def reserve(account):
        for _ in range(30):
            try:
                granted[account].append(account.reserve(1))
            except QuotaExceeded:
                continue

    threads = [threading.Thread(target=reserve, args=(tenants[number % 2],)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(len, granted.values())) == 70
    assert max(map(len, granted.values())) <= 40
    for reservation in chain.from_iterable(granted.values()):
        reservation.release()
    assert ledger.statistics() == NOTHING
    assert not any(account.charged for account in tenants)


def test_a_refusal_is_quick():
    account = Accounts(MemoryLedger()).register("a", 100)
    taken = []
    for _ in range(2000):
        began = time.perf_counter_ns()
        try:
            account.reserve(101)
        except QuotaExceeded:
            taken.append(time.perf_counter_ns() - began)
    assert len(taken) == 2000
    # The bar is 10 us, which the benchmark holds it to; here the machine may be busy with anything.
    assert median(taken) < 100_000
