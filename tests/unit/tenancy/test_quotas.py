"""Quotas: never exceeded under concurrency, and everything is released however calls end."""

import asyncio
import random
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.limits import LedgerModel
from tensorwasm.errors import CapacityExhausted, InternalError, InvalidArgs, QuotaExceeded
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.accounts import HOUR_MS
from tensorwasm.tenancy.caps import parse_caps
from tensorwasm.tenancy.quotas import BUDGETS, HELD, LEAST_MEMORY_BYTES, QUOTAS, Quotas
from tensorwasm.values import MIB

AMOUNTS = st.dictionaries(st.sampled_from(sorted(HELD)), st.integers(0, 6), max_size=4)
NOTHING = dict.fromkeys(QUOTAS, 0)
NOON = 485_000 * HOUR_MS


@given(AMOUNTS, st.lists(st.one_of(AMOUNTS, st.integers(0, 20)), max_size=60))
def test_all_amounts_are_held_or_none_and_a_release_counts_once(limits, steps):
    quotas, model, holdings = Quotas(), LedgerModel(limits), []
    for step in steps:
        if isinstance(step, int):
            if holdings:
                holding, amounts = holdings[step % len(holdings)]
                holding.release()
                model.change(amounts, -1)
                holdings[step % len(holdings)] = (holding, {})
        elif model.fits(step):
            quotas.require(7, limits, **step)
            holdings.append((quotas.hold(7, limits, **step), step))
            model.change(step, 1)
        else:
            with pytest.raises(QuotaExceeded) as held:
                quotas.hold(7, limits, **step)
            with pytest.raises(QuotaExceeded) as asked:
                quotas.require(7, limits, **step)
            assert str(asked.value) == str(held.value)
        assert quotas.usage(7) == NOTHING | model.held
    for holding, _ in holdings:
        with holding:
            pass
    assert quotas.usage(7) == NOTHING


def test_64_threads_never_exceed_a_limit_and_release_everything():
    quotas, limits, over = Quotas(), {"instances": 10, "memory_bytes": 1000}, []

    def work(seed):
        chance = random.Random(seed)
        for _ in range(60):
            tenant = chance.randrange(3)
            try:
                with quotas.hold(tenant, limits, instances=chance.randrange(4), memory_bytes=chance.randrange(400)):
                    used = quotas.usage(tenant)
                    over.extend(name for name, limit in limits.items() if not 0 <= used[name] <= limit)
            except QuotaExceeded:
                continue

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not over
    assert [quotas.usage(tenant) for tenant in range(3)] == [NOTHING] * 3


def test_64_tasks_release_everything_however_they_end():
    quotas, limits = Quotas(), {"requests": 20}

    async def work(seed):
        chance = random.Random(seed)
        for _ in range(20):
            with quotas.hold(7, limits, requests=1):
                await asyncio.sleep(0)
                if chance.random() < 0.1:
                    raise ValueError

    async def main():
        tasks = [asyncio.create_task(work(seed)) for seed in range(64)]
        for turn in range(200):
            await asyncio.sleep(0)
            assert quotas.usage(7)["requests"] <= 20
            tasks[turn % 64].cancel() if turn % 3 == 0 else None
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} >= {ValueError, QuotaExceeded, asyncio.CancelledError}

    asyncio.run(main())
    assert quotas.usage(7) == NOTHING


@pytest.mark.parametrize("amounts", [{"instances": -1}, {"gold": 1}, {"requests": 1, "launches_per_hour": 1}])
def test_an_amount_over_the_quota_is_refused_and_changes_nothing(amounts):
    quotas = Quotas()
    with pytest.raises(InvalidArgs):
        quotas.hold(7, {}, **amounts)
    assert quotas.usage(7) == NOTHING


def test_a_refusal_names_the_quota_what_is_used_and_the_limit():
    quotas = Quotas()
    quotas.hold(7, {}, instances=3)
    with pytest.raises(QuotaExceeded, match="the quota instances is 4: 3 are used, and 2 more are too many"):
        quotas.hold(7, {"instances": 4}, requests=1, instances=2)
    assert quotas.usage(7) == NOTHING | {"instances": 3}
    assert quotas.held("instances") == {7: 3}


def test_usage_counts_for_an_hour_and_fades_in_the_next():
    now = [NOON]
    quotas = Quotas(lambda: now[0])
    limits = {"gpu_us_per_hour": 100}
    quotas.charge(7, gpu_us=100, launches=3)
    with pytest.raises(QuotaExceeded, match="gpu_us_per_hour is 100: 100 are used"):
        quotas.check_budget(7, limits)
    now[0] += HOUR_MS + HOUR_MS // 2
    quotas.check_budget(7, limits)
    assert quotas.usage(7) == NOTHING | {"gpu_us_per_hour": 50, "launches_per_hour": 1}
    now[0] += HOUR_MS
    assert quotas.usage(7) == NOTHING


@given(
    st.lists(st.tuples(st.integers(0, 2 * HOUR_MS), st.integers(0, 1000)), max_size=30),
    st.integers(0, 1000),
)
def test_use_within_an_hour_exceeds_the_budget_by_one_charge_at_most(steps, limit):
    now = [NOON]
    quotas = Quotas(lambda: now[0])
    by_hour = {}
    for passing_ms, amount in steps:
        now[0] += passing_ms
        try:
            quotas.check_budget(7, {"gpu_us_per_hour": limit})
        except QuotaExceeded:
            continue
        assert sum(by_hour.get(now[0] // HOUR_MS, [])) < limit
        quotas.charge(7, gpu_us=amount)
        by_hour.setdefault(now[0] // HOUR_MS, []).append(amount)
    assert quotas.usage(7)["gpu_us_per_hour"] >= sum(by_hour.get(now[0] // HOUR_MS, []))


def test_hours_that_were_recorded_before_a_restart_count_on():
    quotas = Quotas(lambda: NOON + HOUR_MS // 4)
    for hour, amount in ((NOON - 2 * HOUR_MS, 900), (NOON - HOUR_MS, 40), (NOON, 5), (NOON - HOUR_MS, 40)):
        quotas.restore(7, hour, gpu_us=amount)
    assert quotas.usage(7) == NOTHING | {"gpu_us_per_hour": 65}


def test_idle_accounts_are_dropped_as_others_are_opened():
    now = [NOON]
    quotas = Quotas(lambda: now[0])
    kept = quotas.hold(0, {}, instances=1)
    quotas.charge(1, launches=1)
    for tenant in range(2, 1000):
        quotas.hold(tenant, {}, requests=1).release()
        now[0] += 1
    assert len(quotas._accounts) < 6
    assert quotas.usage(0)["instances"] == 1
    assert quotas.usage(1)["launches_per_hour"] == 1
    kept.release()


def test_usage_cannot_be_negative():
    with pytest.raises(InvalidArgs):
        Quotas().charge(7, gpu_us=-1)


def test_the_caps_of_the_settings_parse():
    caps = parse_caps(ServiceSettings.from_environment({}).tenant_caps)
    assert (caps["qps"], caps["burst"]) == (100, 200)
    assert parse_caps("") == {}
    assert parse_caps(" qps=0 , launches_per_hour=9223372036854775807") == {
        "qps": 0,
        "launches_per_hour": (1 << 63) - 1,
    }


@pytest.mark.parametrize(
    "text", ["qps", "qps=", "qps=-1", "qps=1.5", "gold=1", "qps=\u0661", f"qps={1 << 63}", "qps=" + "9" * 5000]
)
def test_invalid_caps_are_refused(text):
    with pytest.raises(InvalidArgs, match="a cap is NAME=NUMBER"):
        parse_caps(text)


def test_quota_names_are_unique():
    assert not set(HELD) & set(BUDGETS)


def test_all_tenants_together_hold_no_more_memory_than_the_host_has_for_them():
    quotas = Quotas(host_bytes=100)
    first = quotas.hold(1, {}, instances=1, memory_bytes=60)
    with pytest.raises(CapacityExhausted):
        quotas.hold(2, {}, instances=1, memory_bytes=41)
    assert quotas.usage(2)["instances"] == 0, "what was refused holds nothing"
    with quotas.hold(2, {}, instances=1, memory_bytes=40), quotas.hold(3, {}, requests=1):
        first.release()
        first.release()
        quotas.hold(1, {}, memory_bytes=60).release()
    assert quotas.refusals() == {"host_bytes": 1}
    quotas.hold(4, {}, memory_bytes=100)


def test_a_tenants_own_limit_is_reported_before_the_hosts():
    with pytest.raises(QuotaExceeded):
        Quotas(host_bytes=10).hold(1, {"memory_bytes": 5}, memory_bytes=11)


def test_a_tenant_without_a_limit_leaves_as_much_memory_as_it_holds():
    """A case of 2026-11-23: two tenants with half each, who let their streams stand, held all there was."""
    quotas = Quotas(host_bytes=2400 * MIB)
    for _ in range(2):
        quotas.hold(1, {}, memory_bytes=600 * MIB)
    with pytest.raises(QuotaExceeded, match=f"memory_bytes is {1200 * MIB}"):
        quotas.hold(1, {}, memory_bytes=1)
    assert quotas.memory_limit(1, {}) == 1200 * MIB
    assert quotas.memory_limit(2, {}) == 600 * MIB
    quotas.hold(2, {}, memory_bytes=600 * MIB)
    with pytest.raises(QuotaExceeded, match=f"memory_bytes is {600 * MIB // 2}"):
        quotas.hold(3, {}, memory_bytes=400 * MIB)
    with pytest.raises(CapacityExhausted):
        quotas.hold(3, {}, memory_bytes=601 * MIB)  # it holds none, so it is not its fault
    with pytest.raises(QuotaExceeded):
        quotas.hold(2, {}, memory_bytes=1)
    last = quotas.hold(3, {}, memory_bytes=300 * MIB)  # so much anybody may have
    assert quotas.memory_limit(4, {}) == 300 * MIB
    quotas.hold(4, {"memory_bytes": 1 << 40}, memory_bytes=300 * MIB)  # the operator said so
    with pytest.raises(CapacityExhausted):
        quotas.hold(5, {}, memory_bytes=1)
    last.release()


@settings(max_examples=100, deadline=None)
@given(wishes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 700)), max_size=40), room=st.integers(1, 4096))
def test_no_tenant_holds_more_than_is_free_beyond_the_least(wishes, room):
    quotas = Quotas(host_bytes=room * MIB)
    for tenant, size in wishes:
        limit = quotas.memory_limit(tenant, {})
        try:
            quotas.hold(tenant, {}, memory_bytes=size * MIB)
        except (CapacityExhausted, QuotaExceeded):
            assert quotas.usage(tenant)["memory_bytes"] + size * MIB > limit
        else:
            own, whole = quotas.usage(tenant)["memory_bytes"], sum(quotas.held("memory_bytes").values())
            assert own <= limit
            assert own <= max(LEAST_MEMORY_BYTES, room * MIB - whole)
            assert whole <= room * MIB


def test_an_amount_that_never_fits_exceeds_the_quota():
    with pytest.raises(QuotaExceeded, match=f"memory_bytes is {600 * MIB}"):
        Quotas(host_bytes=1200 * MIB).hold(1, {}, memory_bytes=601 * MIB)


def test_a_hold_takes_more_and_releases_a_part():
    quotas = Quotas(host_bytes=100)
    first, more = quotas.hold(1, {}, instances=1, memory_bytes=30), quotas.hold(1, {}, memory_bytes=20)
    first.add(more)
    more.release()
    assert first.memory_bytes == 50
    first.keep(60)
    first.keep(10)
    assert (first.memory_bytes, quotas.usage(1)["memory_bytes"], quotas.held("instances")) == (10, 10, {1: 1})
    quotas.hold(2, {}, memory_bytes=90).release()
    first.release()
    first.keep(0)
    assert quotas.held("memory_bytes") == {}
    quotas.hold(2, {}, memory_bytes=100)


def test_a_released_hold_takes_no_more():
    quotas = Quotas(host_bytes=100)
    first, more = quotas.hold(1, {}, instances=1, memory_bytes=30), quotas.hold(1, {}, memory_bytes=20)
    first.release()
    with pytest.raises(InternalError):
        first.add(more)
    assert quotas.held("memory_bytes") == {}
