"""Guards of regions, with places that only pretend to run them."""

from __future__ import annotations

import json
from concurrent.futures import Future
from itertools import count

import pytest

from fakes.guest import FakeCall
from tensorwasm.errors import InternalError
from tensorwasm.guest.imports.offload import guards
from tensorwasm.guest.imports.offload.guards import (
    ASK_EVERY_NS,
    MOST_DECLINES,
    MOST_NANS,
    SERVICE,
    OffloadService,
    make_guards,
)
from tensorwasm.guest.imports.offload.shadow import ShadowSampler
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.cut import COMPARED, OFF, ON
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.plan_cache import PlanCache, PlanKey, PlanRefusal
from tensorwasm.values import MOST_EVIDENCE

REGION = LoopRegion(
    0, 0, 5, ((0, "i32"), (2, "f64"), (3, "i64"), (4, "f32")), ((4, "f32"), (3, "i64")), ((1, "i32"),), 1
)
VALUES = (-1, -2, 1 << 40, -(1 << 31), 7)
WRITTEN = b"what it would have written"
KEY = PlanKey(0, (0xFFFF_FFFF, 1 << 40, 7), 1 << 16)


class FakeTarget:
    def __init__(self, outcome) -> None:
        self.outcome = outcome
        self.moved_bytes = 0
        self.runs = []

    def run(self, plan, inputs, _call, kept=None):
        self.runs.append((plan, inputs))
        self.moved_bytes += 100
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if kept is not None:
            kept.append((64, WRITTEN))
        return self.outcome

    def stop(self):
        raise AssertionError("nothing is to be stopped")

    def statistics(self):
        return None


def ready(key):
    """Return what has made a plan already, which is its key."""
    made = Future()
    made.set_result(key)
    return made


def serve(outcome, request=ready, every=0, *, waits=True):
    plans = PlanCache(request, lambda code: code, waits=waits)
    service = OffloadService([REGION], plans, FakeTarget(outcome), ShadowSampler(b"\x5e" * 32, 1, every))
    return service, FakeCall(services={SERVICE: service})


def test_a_taken_region_gives_the_bits_of_its_outputs():
    service, call = serve({3: (1 << 64) - 5, 4: 0xC000_0000})
    guard = make_guards([REGION])[0]
    assert guard.body(call, *VALUES) == (1, 0, 0xC000_0000 - (1 << 32), -5)
    assert service._target.runs == [(KEY, {0: 0xFFFF_FFFF, 2: (1 << 64) - 2, 3: 1 << 40, 4: 1 << 31})]
    assert (service.statistics[0].taken, service.statistics[0].moved_bytes) == (1, 100)
    assert (guard.module, guard.name) == ("tensorwasm:offload", "region0")
    assert guard.params == ("i32", "i64", "i64", "i32", "i32")


def test_an_output_that_the_plan_does_not_name_is_unchanged():
    _, call = serve({3: 9})
    assert make_guards([REGION])[0].body(call, *VALUES) == (1, 0, -(1 << 31), 9)


@pytest.mark.parametrize("services", [{}, None])
def test_a_region_that_is_declined_gives_its_outputs_back(services):
    service, call = serve({}, lambda _key: ready(PlanRefusal(DeclineReason.SEQUENTIAL)))
    if services is not None:
        call = FakeCall(services=services)
    assert make_guards([REGION])[0].body(call, *VALUES) == (0, services is not None, -(1 << 31), 1 << 40)
    if services is None:
        assert service.statistics[0].declined == {PlanRefusal(DeclineReason.SEQUENTIAL): 1}


def test_a_guard_without_outputs_says_what_came_of_it():
    region = LoopRegion(0, 0, 5, ((0, "i32"),), (), (), 1)
    plans = PlanCache(ready, lambda code: code, waits=True)
    service = OffloadService([region], plans, FakeTarget({}), ShadowSampler(b"", 1, 0))
    guard = make_guards([region])[0]
    assert guard.body(FakeCall(services={SERVICE: service}), 5) == (1, 0)
    assert guard.body(FakeCall(), 5) == (0, 1)


def test_a_plan_that_makes_nans_is_given_up_after_some_runs():
    service, call = serve(Declined(DeclineReason.NOT_A_NUMBER))
    guard = make_guards([REGION])[0]
    for _ in range(MOST_NANS + 4):
        assert guard.body(call, *VALUES)[0] == 0
    assert len(service._target.runs) == MOST_NANS
    assert service.statistics[0].declined == {PlanRefusal(DeclineReason.NOT_A_NUMBER): MOST_NANS + 4}


def test_a_place_that_refuses_a_plan_is_not_asked_again():
    service, call = serve(Declined(DeclineReason.DEVICE, "no room"))
    guard = make_guards([REGION])[0]
    for _ in range(3):
        assert guard.body(call, *VALUES)[0] == 0
    assert len(service._target.runs) == 1


@pytest.mark.parametrize(("every_ns", "off"), [(ASK_EVERY_NS // 4, True), (ASK_EVERY_NS * 2, False)])
def test_a_guard_whose_code_is_being_made_is_off_only_if_calls_of_it_cost_much(monkeypatch, every_ns, off):
    clock = count(step=every_ns)
    monkeypatch.setattr(guards.time, "perf_counter_ns", lambda: next(clock) // 2)  # it is read twice
    service, _ = serve({}, lambda _key: Future(), waits=False)
    guard, call = make_guards([REGION])[0], FakeCall(services={SERVICE: service})
    assert [guard.body(call, *VALUES)[:2] for _ in range(MOST_DECLINES)] == [(0, 0)] * MOST_DECLINES
    answers = [guard.body(call, *VALUES)[:2] for _ in range(4 * MOST_DECLINES)]
    assert ((0, 1) in answers) is off


def test_another_service_of_the_name_is_an_error():
    with pytest.raises(InternalError, match="not an OffloadService"):
        make_guards([REGION])[0].body(FakeCall(services={SERVICE: object()}), *VALUES)


def test_statistics_of_instances_add_up():
    (one, call), (other, _) = serve({3: 1, 4: 1}), serve({})
    make_guards([REGION])[0].body(call, *VALUES)
    other.statistics[0].add(one.statistics[0])
    other.statistics[0].add(one.statistics[0])
    assert (other.statistics[0].taken, other.statistics[0].moved_bytes) == (2, 200)


RESULTS = {3: 9, 4: 1 << 31}
AFTER = (-1, -2, 9, -(1 << 31), 7)  # what the region makes of its inputs


def compared(memory=WRITTEN, after=AFTER):
    """Compare one run; return the service and what both calls of the guard gave."""
    service, call = serve(RESULTS, every=2)
    guard = make_guards([REGION])[0]
    assert guard.body(call, *VALUES)[0] == 1  # the first is not compared
    before = guard.body(call, *VALUES)
    call.memory.write(64, memory)
    return service, before, guard.body(call, *after)


def test_a_compared_run_goes_on_with_what_the_guest_has_done():
    service, before, after = compared()
    assert before == (0, COMPARED, -(1 << 31), 1 << 40)
    assert after == (1, ON, -(1 << 31), 9)
    assert (service.use().taken, service.use().compared, service.use().mismatches) == (1, 1, ())


@pytest.mark.parametrize(
    ("memory", "after", "place"),
    [(b"something else", AFTER, 64), (b"what it", AFTER, 71), (WRITTEN, (*AFTER[:2], 10, *AFTER[3:]), None)],
)
def test_a_compared_run_that_differs_switches_its_region_off_and_leaves_evidence(memory, after, place):
    service, _, answer = compared(memory, after)
    assert answer == (1, OFF, after[3], after[2])
    (evidence,) = map(json.loads, service.use().mismatches)
    assert (evidence["module"], evidence["region"], evidence["outputs"]) == ("5e" * 32, 0, [after[3], after[2]])
    assert evidence["outputs_elsewhere"] == [-(1 << 31), 9]
    assert [each["differs_at"] for each in evidence["ranges"]] == ([] if place is None else [place])
    assert make_guards([REGION])[0].body(FakeCall(services={SERVICE: service}), *VALUES)[:2] == (0, OFF)
    assert dict(service.use().declined) == {"differed": 1}


def test_a_region_within_one_that_is_compared_runs_in_the_guest():
    service = OffloadService(
        [REGION, REGION],
        PlanCache(ready, lambda code: code, waits=True),
        FakeTarget(RESULTS),
        ShadowSampler(b"", 2, 1),
    )
    call, (outer, inner, _) = FakeCall(services={SERVICE: service}), make_guards([REGION, REGION])
    assert outer.body(call, *VALUES)[:2] == (0, COMPARED)
    assert inner.body(call, *VALUES)[:2] == (0, ON)
    call.memory.write(64, WRITTEN)
    assert outer.body(call, *AFTER)[:2] == (1, ON)
    assert service.use().mismatches == ()


def test_a_region_that_traps_only_in_the_guest_differs():
    service, call = serve(RESULTS, every=1)
    make_guards([REGION])[0].body(call, *VALUES)
    service.compare((), None)
    assert json.loads(service.use().mismatches[0])["outputs"] == "trap"


def test_evidence_of_the_largest_region_fits():
    region = LoopRegion(0, 0, 5, tuple((n, "i64") for n in range(128)), ((0, "i64"),), (), 1)
    sampler = ShadowSampler(b"\xff" * 32, 1, 1)
    service = OffloadService([region], PlanCache(ready, lambda code: code, waits=True), FakeTarget({0: 1}), sampler)
    call = FakeCall(services={SERVICE: service})
    for _ in range(2):
        make_guards([region])[0].body(call, *[-(1 << 63)] * 128)
    assert 1000 < len(service.use().mismatches[0]) < MOST_EVIDENCE // 2


def test_work_that_the_guest_has_begun_declines():
    service, call = serve(RESULTS)
    service.is_busy = lambda: True
    assert make_guards([REGION])[0].body(call, *VALUES)[:2] == (0, ON)
    assert dict(service.use().declined) == {"busy": 1}


def test_a_region_in_another_one_waits_for_that_ones_plan():
    outer, inner, beside = (
        LoopRegion(0, 0, 20, (), (), (), 1, 2),
        LoopRegion(0, 0, 9, (), (), (), 1),
        LoopRegion(0, 30, 39, (), (), (), 1),
    )
    asked, answer = [], Future()

    def request(key):
        asked.append(key.region)
        return answer if key.region == 0 else ready(key)

    plans = PlanCache(request, lambda code: code)
    service = OffloadService([outer, inner, beside], plans, FakeTarget({}), ShadowSampler(b"", 3, 0))
    call = FakeCall(services={SERVICE: service})
    for number in (0, 1, 0, 1, 2):
        service.run(number, [], call)
    assert asked == [0, 2]
    answer.set_result(PlanRefusal(DeclineReason.SEQUENTIAL))
    for number in (0, 1, 1):
        service.run(number, [], call)
    assert asked == [0, 2, 1]
    assert [each.taken for each in service.statistics] == [0, 1, 0]
