"""Quotas over several processes: as those of one while they take turns, and nearly so however they mix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.shared_tables import SteppedLock, SteppedWords, Stepping, full_set, tables
from tensorwasm.errors import CapacityExhausted, InvalidArgs, QuotaExceeded, TensorWasmError
from tensorwasm.tenancy.accounts import HOUR_MS
from tensorwasm.tenancy.quotas import HELD, QUOTAS, Quotas
from tensorwasm.tenancy.shared_table import clear_row
from tensorwasm.values import MIB

ROWS = 3
NOON = 485_000 * HOUR_MS
ROW = st.integers(0, ROWS - 1)
TENANT = st.integers(1, 3)
NUMBER = st.integers(0, 30)
NAMED = st.dictionaries(st.sampled_from(sorted(HELD)), st.sampled_from([0, 1, 2, 100 * MIB, 400 * MIB]), max_size=3)
LIMITS = st.dictionaries(st.sampled_from(sorted(QUOTAS)), st.sampled_from([0, 2, 5, 900 * MIB]), max_size=4)
STEP = st.one_of(
    st.tuples(st.just("hold"), ROW, TENANT, NAMED, LIMITS),
    st.tuples(st.just("require"), ROW, TENANT, NAMED, LIMITS),
    st.tuples(st.just("charge"), ROW, TENANT, NUMBER, NUMBER),
    st.tuples(st.just("check"), ROW, TENANT, LIMITS),
    st.tuples(st.just("limit"), ROW, TENANT, LIMITS),
    st.tuples(st.just("release"), NUMBER),
    st.tuples(st.just("keep"), NUMBER, st.sampled_from([0, 50 * MIB])),
    st.tuples(st.just("report"), ROW),
)


def attempt(function, *arguments, **named):
    """What a function returns, or its error as a pair."""
    try:
        return function(*arguments, **named)
    except TensorWasmError as error:
        return type(error), str(error)


class Pair:
    """Several processes, and one that does all that they do."""

    def __init__(self, views, host_bytes):
        self.parts = [Quotas(lambda: NOON, host_bytes, view) for view in views]
        self.whole = Quotas(lambda: NOON, host_bytes)
        self.holds = []
        self.unreported = []

    def hold(self, row, tenant, amounts, limits):
        ours = attempt(self.parts[row].hold, tenant, limits, **amounts)
        theirs = attempt(self.whole.hold, tenant, limits, **amounts)
        if isinstance(theirs, tuple):
            assert ours == theirs
        else:
            self.holds.append((ours, theirs))

    def require(self, row, tenant, amounts, limits):
        assert attempt(self.parts[row].require, tenant, limits, **amounts) == attempt(
            self.whole.require, tenant, limits, **amounts
        )

    def charge(self, row, tenant, gpu_us, launches):
        self.parts[row].charge(tenant, gpu_us=gpu_us, launches=launches)
        self.whole.charge(tenant, gpu_us=gpu_us, launches=launches)
        if row:
            self.unreported.append((row, tenant, gpu_us, launches))

    def report(self, row):
        for reporter, tenant, gpu_us, launches in self.unreported:
            if reporter == row:
                self.parts[0].restore(tenant, NOON, gpu_us=gpu_us, launches=launches)
                self.parts[row].reported(tenant, gpu_us=gpu_us, launches=launches)
        self.unreported = [each for each in self.unreported if each[0] != row]

    def check(self, row, tenant, limits):
        assert attempt(self.parts[row].check_budget, tenant, limits) == attempt(self.whole.check_budget, tenant, limits)

    def limit(self, row, tenant, limits):
        assert self.parts[row].memory_limit(tenant, limits) == self.whole.memory_limit(tenant, limits)

    def release(self, number):
        if self.holds:
            for hold in self.holds.pop(number % len(self.holds)):
                hold.release()

    def keep(self, number, memory_bytes):
        if self.holds:
            for hold in self.holds[number % len(self.holds)]:
                hold.keep(memory_bytes)


@given(st.sampled_from([None, 1000 * MIB, 2000 * MIB]), st.lists(STEP, max_size=40))
def test_processes_in_turn_are_as_one(host_bytes, steps):
    with tables(ROWS) as (_, views):
        pair = Pair(views, host_bytes)
        for kind, *arguments in steps:
            getattr(pair, kind)(*arguments)
            for tenant in range(1, 4):
                for quotas in pair.parts:
                    assert quotas.usage(tenant) == pair.whole.usage(tenant)
        for name in HELD:
            total = sum(sum(quotas.held(name).values()) for quotas in pair.parts)
            assert total == sum(pair.whole.held(name).values())


def test_what_is_no_quota_cannot_be_held():
    with tables(1) as (_, views):
        quotas = Quotas(table=views[0])
        with pytest.raises(InvalidArgs):
            quotas.hold(1, {"qps": 3}, qps=1)
        with pytest.raises(InvalidArgs):
            quotas.hold(1, {"launches_per_hour": 3}, launches_per_hour=1)


def test_what_a_dead_process_held_is_free_and_what_was_used_up_is_not():
    with tables(2) as (descriptor, views):
        primary, front = (Quotas(lambda: NOON, 500 * MIB, view) for view in views)
        for quotas in (primary, front):
            quotas.charge(1, launches=4)
        primary.hold(1, {}, streams=1)
        front.hold(1, {"memory_bytes": 400 * MIB}, streams=1, memory_bytes=400 * MIB)
        with pytest.raises(QuotaExceeded):
            primary.hold(1, {"streams": 2}, streams=1)
        with pytest.raises(CapacityExhausted):
            primary.hold(2, {}, memory_bytes=200 * MIB)
        clear_row(descriptor, 1)
        primary.hold(1, {"streams": 2}, streams=1)
        with primary.hold(2, {}, memory_bytes=200 * MIB):
            assert front.usage(1)["launches_per_hour"] == 4 + 4  # it is alive, and has not reported
        assert Quotas(lambda: NOON, table=views[1]).usage(1)["launches_per_hour"] == 4
        clear_row(descriptor, 0)
        assert Quotas(lambda: NOON, table=views[1]).usage(1)["launches_per_hour"] == 4
        following = Quotas(lambda: NOON, table=views[0])
        following.restore(1, NOON, launches=8)  # from the database
        assert Quotas(lambda: NOON, table=views[1]).usage(1) == dict.fromkeys(QUOTAS, 0) | {"launches_per_hour": 8}


def test_what_was_used_up_fades_in_all_processes_without_news_from_the_primary():
    now = [NOON]
    with tables(2) as (_, views):
        primary, front = (Quotas(lambda: now[0], table=view) for view in views)
        primary.charge(1, launches=10)
        front.charge(1, launches=2)
        for passed_ms, used in ((0, 12), (HOUR_MS, 12), (HOUR_MS // 2, 7), (HOUR_MS // 2, 2), (HOUR_MS, 2)):
            now[0] += passed_ms
            assert front.usage(1)["launches_per_hour"] == primary.usage(1)["launches_per_hour"] == used
            for quotas in (primary, front):
                quotas.check_budget(1, {"launches_per_hour": used + 1})
                with pytest.raises(QuotaExceeded):
                    quotas.check_budget(1, {"launches_per_hour": used})
        front.reported(1, launches=2)
        assert front.usage(1)["launches_per_hour"] == 0


def test_a_tenant_comes_in_for_one_that_holds_nothing_and_has_used_nothing():
    now = [NOON]
    with tables(2) as (_, views):
        one, other = (Quotas(lambda: now[0], table=view) for view in views)
        *tenants, last = full_set(views[0], views[0].accounts)
        one.charge(tenants[0], launches=1)
        held = [one.hold(tenant, {"streams": 1}, streams=1) for tenant in tenants[1:]]
        with pytest.raises(CapacityExhausted, match="tenants"):
            other.hold(last, {}, streams=1)
        assert other.usage(last) == dict.fromkeys(QUOTAS, 0)
        assert other.usage(tenants[1])["streams"] == 1
        held[0].release()
        with other.hold(last, {"streams": 1}, streams=1):
            assert one.usage(last)["streams"] == 1
            with pytest.raises(CapacityExhausted, match="tenants"):
                one.hold(tenants[1], {}, streams=1)
        with one.hold(tenants[1], {"streams": 1}, streams=1), pytest.raises(QuotaExceeded):
            other.hold(tenants[1], {"streams": 1}, streams=1)
        one.hold(tenants[1], {}, streams=1)
        with pytest.raises(CapacityExhausted, match="tenants"):
            other.hold(last, {}, streams=1)
        now[0] += 2 * HOUR_MS
        other.hold(last, {}, streams=1)


def stepped(view, lock, step):
    """Quotas whose accesses to shared words are steps."""
    view.words = SteppedWords(view.words, step)
    view._lock = lock
    quotas = Quotas(lambda: NOON, table=view)
    for name, unpack in quotas._shared.columns.items():

        def stepping(memory, at_byte, unpack=unpack):
            step()
            return unpack(memory, at_byte)

        quotas._shared.columns[name] = stepping
    return quotas


class Observed:
    """What processes hold of ``streams``, seen from outside."""

    def __init__(self, tenants):
        self.held = dict.fromkeys(tenants, 0)
        self.most = 0

    def process(self, quotas, script):
        """A function that takes and releases as a script says."""

        def run():
            holds = []
            for take, number in script:
                if not take and holds:
                    hold, tenant = holds.pop(number % len(holds))
                    self.held[tenant] -= 1
                    hold.release()
                elif take:
                    tenant = list(self.held)[number]
                    try:
                        holds.append((quotas.hold(tenant, {"streams": 2}, streams=1), tenant))
                    except (QuotaExceeded, CapacityExhausted):
                        continue
                    self.held[tenant] += 1
                    self.most = max(self.most, self.held[tenant])

        return run


@given(
    st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=12), min_size=ROWS, max_size=ROWS),
    st.lists(st.tuples(ROW, st.integers(1, 30)), max_size=60),
)
def test_however_processes_mix_they_exceed_a_quota_by_one_each_and_lose_nothing(scripts, schedule):
    with tables(ROWS) as (_, views):
        *tenants, last = full_set(views[0], views[0].accounts)
        first = Quotas(lambda: NOON, table=views[0])
        for tenant in tenants[2:]:
            first.hold(tenant, {}, artifact_bytes=1)  # they stay: three tenants compete for two places
        stepping, observed = Stepping(), Observed([*tenants[:2], last, tenants[5]])
        lock = SteppedLock(stepping.step)
        parts = [stepped(view, lock, stepping.step) for view in views]
        stepping.start(list(map(observed.process, parts, scripts)))
        for row, accesses in schedule:
            for _ in range(accesses):
                stepping.resume(row)
        stepping.finish()
        assert observed.most <= 2 + ROWS - 1
        for tenant, amount in observed.held.items():
            if amount:
                assert [quotas.usage(tenant)["streams"] for quotas in parts] == [amount] * ROWS
