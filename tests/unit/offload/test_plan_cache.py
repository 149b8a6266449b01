from __future__ import annotations

from concurrent.futures import Future

import pytest

from tensorwasm.offload import plan_cache
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.plan_cache import NOT_READY, PAUSE_S, PlanCache, PlanKey, PlanRefusal
from tensorwasm.values import NEVER, Deadline

KEY = PlanKey(0, (1, 2), 65536)
SEQUENTIAL = PlanRefusal(DeclineReason.SEQUENTIAL, "a store")


def keys(count: int, region: int = 0):
    return [PlanKey(region, (number,), 0) for number in range(count)]


class Maker:
    """Makes code when it is told to; an outcome of None is for a queue that is full."""

    def __init__(self, outcome=lambda key: key) -> None:
        self.outcome = outcome
        self.requested = []
        self.refused = 0

    def __call__(self, key):
        if self.outcome is None:
            self.refused += 1
            return None
        self.requested.append((key, Future()))
        return self.requested[-1][1]

    def finish(self):
        for key, future in self.requested:
            if not future.done():
                future.set_result(self.outcome(key))

    def cancel(self):
        for _, future in self.requested:
            future.cancel()


def open_cache(outcome=lambda key: key, load=lambda code: code):
    maker = Maker(outcome)
    return maker, PlanCache(maker, load)


def settle(maker, cache, key):
    """Have a plan made, and return what is found then."""
    cache.find(key, NEVER)
    maker.finish()
    return cache.find(key, NEVER)


def test_a_plan_is_asked_for_once_and_declined_until_it_is_ready():
    maker, cache = open_cache(lambda _key: "code", lambda code: f"loaded {code}")
    assert [cache.find(KEY, NEVER), cache.find(KEY, NEVER)] == [NOT_READY, NOT_READY]
    maker.finish()
    assert [cache.find(KEY, NEVER), cache.find(KEY, NEVER)] == ["loaded code", "loaded code"]
    assert [key for key, _ in maker.requested] == [KEY]


def test_a_refusal_is_remembered():
    maker, cache = open_cache(lambda _key: SEQUENTIAL)
    assert settle(maker, cache, KEY) == cache.find(KEY, NEVER) == SEQUENTIAL
    assert len(maker.requested) == 1


def test_code_that_cannot_be_loaded_is_a_refusal():
    def load(_code):
        raise Declined(DeclineReason.DEVICE, "no room")

    maker, cache = open_cache(load=load)
    assert settle(maker, cache, KEY) == PlanRefusal(DeclineReason.DEVICE, "no room")


def test_a_fault_declines(caplog):
    maker, cache = open_cache(load=lambda _code: 1 // 0)
    assert settle(maker, cache, KEY) == cache.find(KEY, NEVER) == PlanRefusal(DeclineReason.FAULT, "ZeroDivisionError")
    assert "no plan could be made of region 0" in caplog.text


def test_a_plan_for_which_there_is_no_room_is_asked_for_again_after_a_pause(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(plan_cache.time, "monotonic", lambda: now_s)
    maker, cache = open_cache(None)
    assert [cache.find(key, NEVER) for key in keys(3)] == [NOT_READY] * 3
    assert maker.refused == 1
    maker.outcome = lambda _key: "plan"
    now_s += PAUSE_S / 2
    assert cache.find(KEY, NEVER) == NOT_READY
    assert maker.requested == []
    now_s += PAUSE_S
    assert settle(maker, cache, KEY) == "plan"


@pytest.mark.parametrize("how", ["cancelled", "not now"])
def test_a_plan_that_was_not_made_is_asked_for_again(how):
    maker, cache = open_cache(lambda _key: NOT_READY)
    assert cache.find(KEY, NEVER) == NOT_READY
    if how == "cancelled":
        maker.cancel()
    else:
        maker.finish()
    maker.outcome = lambda _key: "plan"
    assert settle(maker, cache, KEY) == "plan"
    assert len(maker.requested) == 2


def test_a_cache_that_waits_does_so_until_the_deadline():
    maker = Maker()
    cache = PlanCache(maker, lambda code: code, waits=True)
    assert cache.find(KEY, Deadline.after(0.01)) == NOT_READY
    maker.finish()
    assert cache.find(KEY, NEVER) == KEY


def test_a_region_whose_inputs_always_differ_is_given_up():
    maker, cache = open_cache(lambda _key: SEQUENTIAL)
    found = [settle(maker, cache, key) for key in keys(plan_cache.TRIAL_PLANS + 2)]
    assert found == [SEQUENTIAL] * plan_cache.TRIAL_PLANS + [PlanRefusal(DeclineReason.UNSETTLED)] * 2
    assert settle(maker, cache, PlanKey(1, (0,), 0)) == SEQUENTIAL


def test_a_region_whose_inputs_differ_faster_than_plans_are_made_is_given_up():
    maker, cache = open_cache()
    reasons = [cache.find(key, NEVER).reason for key in keys(plan_cache.TRIAL_PLANS + 1)]
    assert reasons == [DeclineReason.NOT_READY] * plan_cache.TRIAL_PLANS + [DeclineReason.UNSETTLED]
    assert len(maker.requested) == plan_cache.TRIAL_PLANS


def test_each_use_of_a_plan_allows_another():
    maker, cache = open_cache()
    many = keys(plan_cache.TRIAL_PLANS + 10)
    assert [settle(maker, cache, key) for key in many] == many


def test_the_oldest_plans_are_forgotten():
    maker, cache = open_cache()
    for key in keys(plan_cache.MOST_PLANS + 1):
        settle(maker, cache, key)
    assert len(maker.requested) == plan_cache.MOST_PLANS + 1
    assert cache.find(PlanKey(0, (0,), 0), NEVER) == NOT_READY
    assert len(maker.requested) == plan_cache.MOST_PLANS + 2


@pytest.mark.parametrize("known", [True, False])
def test_a_useless_plan_is_refused_as_long_as_it_is_known(known):
    maker, cache = open_cache(lambda _key: "plan")
    if known:
        settle(maker, cache, KEY)
    cache.refuse(KEY, PlanRefusal(DeclineReason.NOT_A_NUMBER))
    assert (settle(maker, cache, KEY) == "plan") is not known
