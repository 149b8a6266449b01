from __future__ import annotations

import threading

import pytest

from tensorwasm.offload import plan_cache
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.plan_cache import PlanCache, PlanKey, PlanRefusal

KEY = PlanKey(0, (1, 2), 65536)


def keys(count: int, region: int = 0):
    return [PlanKey(region, (number,), 0) for number in range(count)]


def refuse(_key):
    raise Declined(DeclineReason.SEQUENTIAL)


def test_a_plan_is_made_once():
    made = []
    cache = PlanCache(lambda key: made.append(key) or "plan")
    assert [cache.find(KEY), cache.find(KEY)] == ["plan", "plan"]
    assert made == [KEY]


def test_a_refusal_is_remembered():
    made = []

    def make(key):
        made.append(key)
        raise Declined(DeclineReason.SEQUENTIAL, "a store")

    cache = PlanCache(make)
    assert cache.find(KEY) == cache.find(KEY) == PlanRefusal(DeclineReason.SEQUENTIAL, "a store")
    assert made == [KEY]


def test_a_plan_that_is_being_made_declines():
    begun, go_on = threading.Event(), threading.Event()

    def make(_key):
        begun.set()
        go_on.wait(10)
        return "plan"

    cache = PlanCache(make)
    thread = threading.Thread(target=cache.find, args=(KEY,))
    thread.start()
    assert begun.wait(10)
    assert cache.find(KEY) == PlanRefusal(DeclineReason.NOT_READY)
    go_on.set()
    thread.join()
    assert cache.find(KEY) == "plan"


def test_a_fault_of_the_analysis_declines(caplog):
    cache = PlanCache(lambda _key: 1 // 0)
    assert cache.find(KEY) == cache.find(KEY) == PlanRefusal(DeclineReason.FAULT, "ZeroDivisionError")
    assert "no plan could be made of region 0" in caplog.text


def test_a_region_whose_inputs_always_differ_is_given_up():
    cache, refusing = PlanCache(lambda key: key), PlanCache(refuse)
    many = keys(plan_cache.TRIAL_PLANS + 2)
    found, refused = [cache.find(key) for key in many], [refusing.find(key).reason for key in many]
    unsettled = PlanRefusal(DeclineReason.UNSETTLED)
    assert found == [*many[:-2], unsettled, unsettled]
    assert refused[-3:] == [DeclineReason.SEQUENTIAL, DeclineReason.UNSETTLED, DeclineReason.UNSETTLED]
    assert cache.find(PlanKey(1, (0,), 0)) == PlanKey(1, (0,), 0)


def test_each_second_use_of_a_plan_allows_another():
    cache = PlanCache(lambda key: key)
    many = keys(plan_cache.TRIAL_PLANS + 10)
    assert [cache.find(key) for key in many for _ in range(2)] == [key for key in many for _ in range(2)]


def test_the_oldest_plans_are_forgotten():
    made = []
    cache = PlanCache(lambda key: made.append(key) or key)
    for key in keys(plan_cache.MOST_PLANS + 1):
        cache.find(key)
        cache.find(key)
    assert len(made) == plan_cache.MOST_PLANS + 1
    cache.find(PlanKey(0, (0,), 0))
    assert len(made) == plan_cache.MOST_PLANS + 2


@pytest.mark.parametrize("known", [True, False])
def test_a_useless_plan_is_refused_as_long_as_it_is_known(known):
    cache = PlanCache(lambda _key: "plan")
    if known:
        cache.find(KEY)
    cache.refuse(KEY, PlanRefusal(DeclineReason.NOT_A_NUMBER))
    assert (cache.find(KEY) == "plan") is not known
