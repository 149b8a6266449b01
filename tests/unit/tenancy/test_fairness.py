"""Shares, bounds, deadlines and cancelled waiters of the fair gate, in virtual time."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.virtual_time import VirtualLoop, run_virtually
from tensorwasm.errors import CapacityExhausted, InternalError, InvalidArgs, InvokeTimeout, RateLimited
from tensorwasm.tenancy.fairness import NEWCOMERS, FairGate, GateStatistics
from tensorwasm.values import Deadline

WEIGHTS = st.lists(st.integers(1, 8), min_size=2, max_size=4)


async def _contend(slots, tenants, until_s, *, measured=False):
    """Return the seconds of a slot that each tenant had, all of them asking for more than they get.

    Args:
        tenants: weight, and a function that returns the seconds of the next turn, for each.
        measured: the gate gets the seconds when a turn ends; else when it begins.
    """
    gate, had = FairGate(slots), Counter()

    async def ask(tenant, weight, seconds):
        while True:
            spent = seconds()
            async with gate.turn(tenant, weight, 1.0 if measured else spent) as turn:
                await asyncio.sleep(spent)
                had[tenant] += spent
                turn.spent = spent if measured else None

    askers = [
        asyncio.create_task(ask(tenant, weight, seconds))
        for tenant, (weight, seconds) in enumerate(tenants)
        for _ in range(2 * slots)
    ]
    await asyncio.sleep(until_s)
    for asker in askers:
        asker.cancel()
    await asyncio.gather(*askers, return_exceptions=True)
    assert gate.statistics() == GateStatistics(slots, slots, 0, 0)
    return had


@settings(max_examples=25)
@given(WEIGHTS, st.integers(1, 3), st.integers(0, 2**32))
def test_tenants_that_want_more_get_shares_by_weight(weights, slots, seed):
    chance = random.Random(seed)
    tenants = [(weight, lambda: chance.choice((1, 2, 3))) for weight in weights]
    had = run_virtually(lambda: _contend(slots, tenants, 600 * len(weights)))
    for tenant, weight in enumerate(weights):
        assert had[tenant] / sum(had.values()) == pytest.approx(weight / sum(weights), rel=0.05)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("longer", [2, 16])
def test_real_costs_correct_the_expected_ones(slots, longer):
    tenants = [(1, lambda: 1), (1, lambda: longer), (1, lambda: 0.25)]
    had = run_virtually(lambda: _contend(slots, tenants, 400 * longer, measured=True))
    for tenant in range(3):
        assert had[tenant] / sum(had.values()) == pytest.approx(1 / 3, rel=0.05)


def test_a_single_request_does_not_wait_for_another_tenants_ten_thousand():
    order = []

    async def main():
        gate = FairGate(1, queue_per_tenant=10_000)

        async def ask(tenant):
            async with gate.turn(tenant):
                order.append(tenant)
                await asyncio.sleep(1)

        flood = [asyncio.create_task(ask(1)) for _ in range(10_000)]
        await asyncio.sleep(3.5)
        begun_s = asyncio.get_running_loop().time()
        await ask(2)
        assert asyncio.get_running_loop().time() - begun_s <= 2.0
        for each in flood:
            each.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert gate.statistics() == GateStatistics(1, 1, 0, 0)
        assert not [entry for entry in gate._heap if entry[1] == entry[2].entry]

    run_virtually(main)
    assert order == [1, 1, 1, 1, 2]


@given(st.lists(st.sampled_from([0.5, 1, 2]), min_size=1, max_size=40), st.integers(1, 4))
def test_one_tenants_requests_run_in_order_without_idle_slots(seconds, slots):
    order = []

    async def main():
        gate = FairGate(slots)

        async def ask(number, spent):
            async with gate.turn(7, 3, 5.0) as turn:
                order.append(number)
                await asyncio.sleep(spent)
                turn.spent = spent

        await asyncio.gather(*(ask(number, spent) for number, spent in enumerate(seconds)))
        return asyncio.get_running_loop().time()

    took_s = run_virtually(main)
    assert order == sorted(order)
    assert sum(seconds) / slots <= took_s <= sum(seconds) / slots + 2


def test_debts_are_void_after_the_gate_was_idle():
    async def main():
        gate = FairGate(1)
        assert gate.try_enter(1)
        gate.leave(1, spent=1000.0)
        assert gate.try_enter(3)
        order = []

        async def ask(tenant):
            async with gate.turn(tenant):
                order.append(tenant)

        tasks = [asyncio.create_task(ask(tenant)) for tenant in (1, 2, 2, 1)]
        await asyncio.sleep(0)
        gate.leave(3)
        await asyncio.gather(*tasks)
        assert order == [1, 2, 1, 2]

    run_virtually(main)


def test_a_free_slot_is_taken_without_a_coroutine_and_there_are_no_more_than_that():
    gate = FairGate(2)
    assert [gate.try_enter(tenant) for tenant in (1, 1, 2)] == [True, True, False]
    gate.leave(1)
    assert gate.try_enter(2)
    gate.leave(2)
    gate.leave(1)
    with pytest.raises(InternalError):
        gate.leave(1)


@pytest.mark.parametrize(("weight", "cost"), [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_a_turn_without_weight_or_cost_is_refused_and_takes_no_slot(weight, cost):
    gate = FairGate(1)
    with pytest.raises(InvalidArgs):
        gate.try_enter(1, weight, cost)
    assert gate.statistics().free == 1


def test_a_tenant_that_keeps_its_slots_leaves_as_many_to_others():
    async def main():
        gate = FairGate(12, yields=True)
        waiting = []

        def flood(tenant):
            waiting.extend(asyncio.create_task(gate.turn(tenant).__aenter__()) for _ in range(20))

        for tenant, had in ((1, 6), (2, 3), (3, 1), (4, 1), (5, 1)):  # three are for those that have none
            before = gate.statistics().free
            flood(tenant)
            await asyncio.sleep(0)
            assert before - gate.statistics().free == had
        gate.leave(1)
        assert gate.statistics().free == 1  # all of them have as many
        assert gate.try_enter(6)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run_virtually(main)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=200), st.integers(1, 12))
def test_a_gate_that_yields_admits_every_newcomer(steps, slots):
    async def main():
        gate, held, tasks = FairGate(slots, yields=True), Counter(), []

        async def come(tenant):
            await gate.turn(tenant).__aenter__()
            held[tenant] += 1

        wanted = Counter()
        for tenant, comes in steps:
            if comes:
                tasks.append(asyncio.create_task(come(tenant)))
                wanted[tenant] += 1
            elif held[tenant]:
                gate.leave(tenant)
                held[tenant] -= 1
                wanted[tenant] -= 1
            for _ in range(3):
                await asyncio.sleep(0)
            free = slots - held.total()
            assert gate.statistics() == GateStatistics(
                slots, free, wanted.total() - held.total(), sum(wanted[each] > held[each] for each in wanted)
            )
            few = free <= slots // NEWCOMERS
            assert all(held[each] and (few or held[each] >= free) for each in wanted if wanted[each] > held[each] > 0)
            assert not free or all(held[each] for each in wanted if wanted[each])
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtually(main)


def test_queues_are_bounded():
    async def main():
        gate = FairGate(1, queue_per_tenant=2, queue=3)
        assert gate.try_enter(1)
        waiting = [asyncio.create_task(gate.turn(tenant).__aenter__()) for tenant in (1, 1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await gate.turn(1).__aenter__()
        with pytest.raises(CapacityExhausted):
            await gate.turn(3).__aenter__()
        assert gate.statistics() == GateStatistics(1, 0, 3, 2)
        for tenant in (1, 2, 1, 1):
            gate.leave(tenant)
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert gate.statistics() == GateStatistics(1, 1, 0, 0)

    run_virtually(main)


def test_a_deadline_ends_waiting_and_leaves_no_trace():
    async def main():
        gate = FairGate(1)
        assert gate.try_enter(1)
        with pytest.raises(InvokeTimeout):
            await gate.turn(2, deadline=Deadline.after(100.0)).__aenter__()
        assert asyncio.get_running_loop().time() == pytest.approx(100, abs=5)
        with pytest.raises(InvokeTimeout):
            await gate.turn(2, deadline=Deadline.after(0)).__aenter__()
        assert gate.statistics() == GateStatistics(1, 0, 0, 0)
        gate.leave(1)
        assert gate.statistics().free == 1

    run_virtually(main)


def test_a_waiter_cancelled_after_it_got_a_slot_passes_it_on():
    async def main():
        gate = FairGate(1)
        assert gate.try_enter(1)
        first, second = (asyncio.create_task(gate.turn(tenant).__aenter__()) for tenant in (2, 3))
        await asyncio.sleep(0)
        gate.leave(1)  # to the first, who has not run since
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        gate.leave(3)
        assert gate.statistics() == GateStatistics(1, 1, 0, 0)

    run_virtually(main)


def test_flows_without_debt_are_forgotten():
    gate = FairGate(1)
    for tenant in range(1000):
        assert gate.try_enter(tenant)
        gate.leave(tenant)
    assert len(gate._flows) < 4


class GateMachine(RuleBasedStateMachine):
    """Turns that begin, wait, end, are corrected, cancelled and expire, in any order."""

    def __init__(self):
        super().__init__()
        self.loop = VirtualLoop()
        self.gate = FairGate(3, queue_per_tenant=5, queue=12)
        self.holders = []
        self.waiters = []

    def teardown(self):
        for waiter in self.waiters:
            waiter.cancel()
        self._turn()
        while self.holders:
            self.gate.leave(self.holders.pop())
        self._turn()
        assert self.gate.statistics() == GateStatistics(3, 3, 0, 0)
        self.loop.close()

    def _turn(self, seconds=0.0):
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self.loop.run_until_complete(asyncio.sleep(0))
        for waiter in [each for each in self.waiters if each.done()]:
            self.waiters.remove(waiter)
            if not waiter.cancelled() and waiter.exception() is None:
                self.holders.append(waiter.result())

    @rule(tenant=st.integers(0, 3))
    def enter_if_free(self, tenant):
        free = len(self.holders) < 3
        assert self.gate.try_enter(tenant) == free
        if free:
            self.holders.append(tenant)

    @rule(tenant=st.integers(0, 3), weight=st.integers(1, 3), timeout_s=st.sampled_from([None, 1.0, 50.0]))
    def ask(self, tenant, weight, timeout_s):
        async def wait():
            await self.gate.turn(tenant, weight, deadline=Deadline.after(timeout_s)).__aenter__()
            return tenant

        self.waiters.append(self.loop.create_task(wait()))
        self._turn()

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 2), spent=st.sampled_from([None, 0.0, 0.1, 1.0, 7.0]), after=st.booleans())
    def leave(self, which, spent, after):
        self.gate.leave(self.holders.pop(which % len(self.holders)), spent)
        if after:
            self._turn()

    @precondition(lambda self: self.waiters)
    @rule(which=st.integers(0, 11))
    def cancel(self, which):
        self.waiters[which % len(self.waiters)].cancel()

    @rule(seconds=st.sampled_from([0.0, 2.0, 60.0]))
    def pass_time(self, seconds):
        self._turn(seconds)

    @invariant()
    def no_request_waits_while_a_slot_is_free(self):
        self._turn()
        seen = self.gate.statistics()
        assert (seen.free, seen.waiting) == (3 - len(self.holders), len(self.waiters))
        assert not (seen.free and seen.waiting)
        queues = [len(flow.waiting) for flow in self.gate._flows.values() if flow.waiting]
        assert (seen.waiting, seen.tenants) == (sum(queues), len(queues))
        assert len(self.gate._heap) <= 64 + 2 * 12


TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40), st.integers(1, 6), st.booleans())
def test_may_enter_predicts_try_enter(steps, slots, yields):
    gate, inside = FairGate(slots, yields=yields), Counter()
    for tenant, enters in steps:
        if enters:
            allowed = gate.may_enter(tenant)
            assert gate.try_enter(tenant) == allowed
            inside[tenant] += allowed
        elif inside[tenant]:
            gate.leave(tenant)
            inside[tenant] -= 1


@pytest.mark.parametrize("charged", [False, True])
def test_turns_without_a_slot_count_against_their_tenants(charged):
    order = []

    async def ask(gate, tenant):
        async with gate.turn(tenant):
            order.append(tenant)

    async def story():
        gate = FairGate(1)
        gate.charge("a", 1.0, 100.0)  # the gate is idle: no debt
        assert gate.try_enter("c")
        if charged:
            gate.charge("a", 1.0, 100.0)
        asking = [asyncio.create_task(ask(gate, tenant)) for tenant in "aabb"]
        await asyncio.sleep(0)
        gate.leave("c")
        await asyncio.gather(*asking)
        assert gate.statistics() == GateStatistics(1, 1, 0, 0)

    run_virtually(story)
    assert order == (["b", "b", "a", "a"] if charged else ["a", "b", "a", "b"])
