"""The worker's side of kernels that its parent compiles: whom it asks for, and who waits for whom."""

from __future__ import annotations

import queue
import sys
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from tensorwasm.errors import CapacityExhausted, InvokeTimeout, MalformedPtx
from tensorwasm.gpu.resources.guarded_compiler import KernelJob, KernelTarget
from tensorwasm.offload.analysis.regions import LoopRegion
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.module import LoneRegion
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.offload import MAX_JOB_BYTES
from tensorwasm.runtime.offload.plan_job import PlanJob, PlanOutcome, pack
from tensorwasm.runtime.workers.child.parent_compiler import ParentCompiler
from tensorwasm.runtime.workers.frames import AskFrame, PlanAskFrame
from tensorwasm.runtime.workers.kernels.room import ASKS, ASKS_EACH, PLANS_EACH
from tensorwasm.values import Deadline

if sys.platform == "win32":
    pytest.skip("workers need Linux or macOS", allow_module_level=True)

LIMIT_S = 30.0
TARGET = KernelTarget((9, 0), (9, 0), 1024, "ptxas 13.0")
REFUSAL = CapacityExhausted("not now")


class Link:
    """A parent that notes what it is asked."""

    def __init__(self):
        self.asks = queue.SimpleQueue()

    def send(self, frame):
        if isinstance(frame, AskFrame | PlanAskFrame):
            self.asks.put(frame)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def compiler(link):
    return ParentCompiler(link)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2 * ASKS.kernels) as made:
        yield made


def job(tenant, number=0):
    return KernelJob(tenant, b"text %d" % number, "k", (9, 0), "narrow", TARGET)


def take(link, number):
    return [link.asks.get(timeout=LIMIT_S) for _ in range(number)]


def refuse(compiler, link, number):
    """Answer so many asks as they come, and return their tenants."""
    tenants = set()
    for _ in range(number):
        (ask,) = take(link, 1)
        compiler.answer(ask.ask, REFUSAL)
        tenants.add(ask.tenant)
    return tenants


def test_a_tenant_with_many_new_kernels_leaves_room_for_others(compiler, link, pool):
    wanted = ASKS.kernels
    flood = [pool.submit(compiler.compile, job("flood", n), Deadline.after(LIMIT_S)) for n in range(wanted)]
    held = take(link, ASKS_EACH.kernels)
    first = pool.submit(compiler.compile, job("ann"), Deadline.after(LIMIT_S))
    assert refuse(compiler, link, 1) == {"ann"}
    assert first.exception(LIMIT_S) is REFUSAL
    for ask in held:
        compiler.answer(ask.ask, REFUSAL)
    assert refuse(compiler, link, wanted - len(held)) == {"flood"}
    assert {each.exception(LIMIT_S) for each in flood} == {REFUSAL}


def test_an_ask_that_waits_for_its_place_ends_at_its_deadline(compiler, link, pool):
    held = [pool.submit(compiler.compile, job("ann", n), Deadline.after(LIMIT_S)) for n in range(ASKS_EACH.kernels)]
    asks = take(link, len(held))
    with pytest.raises(InvokeTimeout):
        compiler.compile(job("ann", 99), Deadline.after(0.0))
    for ask in asks:
        compiler.answer(ask.ask, REFUSAL)
    assert {each.exception(LIMIT_S) for each in held} == {REFUSAL}


def test_the_place_of_an_ask_is_taken_until_it_is_answered(compiler, link):
    for number in range(ASKS_EACH.kernels + 1):
        with pytest.raises(InvokeTimeout):
            compiler.compile(job("ann", number), Deadline.after(0.0))
    assert link.asks.qsize() == ASKS_EACH.kernels
    refuse(compiler, link, ASKS_EACH.kernels)
    with pytest.raises(InvokeTimeout):
        compiler.compile(job("ann"), Deadline.after(0.0))
    assert link.asks.qsize() == 1


def test_an_empty_text_is_refused_here(compiler, link):
    empty = KernelJob("ann", b"", "k", (9, 0), "narrow", TARGET)
    with pytest.raises(MalformedPtx):
        compiler.compile(empty, Deadline.after(LIMIT_S))
    assert link.asks.empty()


def plan(region=b"region"):
    return PlanJob("ann", LoneRegion(region, LoopRegion(0, 0, 1, (), (), (), 1)), (1, 2), 65536, "this machine")


def test_a_plan_is_what_the_parent_answers(compiler, link, pool):
    outcome = PlanOutcome.of(PlanRefusal(DeclineReason.SEQUENTIAL))
    first, second = (pool.submit(compiler.make, plan(), StopHook()) for _ in range(2))
    answers = [pack(outcome), REFUSAL]
    for ask in take(link, 2):
        assert (ask.tenant, ask.size_bytes) == ("ann", len(pack(plan())))
        compiler.answer(ask.ask, answers.pop())
    results = {type(each.exception(LIMIT_S)) for each in (first, second)}
    assert results == {type(None), CapacityExhausted}
    assert outcome in {each.result() for each in (first, second) if each.exception() is None}


def test_who_waits_for_a_plan_can_be_stopped_and_its_place_is_taken_until_the_answer(compiler, link, pool):
    stops = [StopHook() for _ in range(PLANS_EACH.kernels)]
    waiting = [pool.submit(compiler.make, plan(), stop) for stop in stops]
    asks = take(link, len(stops))
    for stop in stops:
        stop.stop()
    assert {type(each.exception(LIMIT_S)) for each in waiting} == {CancelledError}
    with pytest.raises(CapacityExhausted):
        compiler.make(plan(), StopHook())
    for ask in asks:
        compiler.answer(ask.ask, REFUSAL)
    again = pool.submit(compiler.make, plan(), StopHook())
    assert refuse(compiler, link, 1) == {"ann"}
    assert again.exception(LIMIT_S) is REFUSAL


def test_a_region_that_is_too_long_is_refused_here(compiler, link):
    outcome = compiler.make(plan(bytes(MAX_JOB_BYTES)), StopHook())
    assert outcome.read().reason is DeclineReason.TOO_LARGE
    assert link.asks.empty()
