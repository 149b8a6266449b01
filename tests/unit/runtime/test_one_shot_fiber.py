"""The short way of submitted invocations: one sandbox after another in one place, and nothing of one for the next."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from wasmtime import wat2wasm

pytest.importorskip("numba")

from neighbours import until
from tensorwasm import Runtime
from tensorwasm.errors import CapacityExhausted, GuestTrap, InternalError, InvokeTimeout
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.guest.sandbox.oneshot_fiber import OneShotFiber
from tensorwasm.guest.sandbox.state import STATES
from tensorwasm.runtime.invoke.one_shot import MAX_IDLE, FiberPlan
from tensorwasm.values import Deadline

pytestmark = pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")

SOON_S = 60.0
WAT = """(module
 (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
 (memory (export "memory") 1) (global $count (mut i32) (i32.const 0))
 (func (export "twice") (param i64) (result i64) (i64.mul (local.get 0) (i64.const 2)))
 (func (export "residue") (result i32)
  (global.set $count (i32.add (global.get $count) (i32.const 1)))
  (i32.store (i32.const 4000) (i32.add (i32.load (i32.const 4000)) (i32.const 1)))
  (i32.add (global.get $count) (i32.load (i32.const 4000))))
 (func (export "sync") (result i32) (call $sync))
 (func (export "count") (param $n i32) (result i32)
  (loop $next (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1))))) (local.get $n))
 (func (export "trap") unreachable)
 (func (export "spin") (loop (br 0))))"""


@pytest.fixture
def runtime():
    with Runtime("emulator") as made:
        yield made


@pytest.fixture
def function(runtime):
    return runtime.load(bytes(wat2wasm(WAT)), "guest")


def idle(function) -> list[OneShotFiber]:
    return [sandbox for plan in function.dispatch.fiber_plans.values() for sandbox in plan._idle]


def settled(function) -> int:
    """Return the free slots of the engine, once the reactor has let go of its last guest."""
    assert function.submit("twice", [1]).result(SOON_S).values == (2,)
    return function.engine.free_slots


def test_a_guest_may_wait_for_a_host_function(function):
    assert function.submit("sync").result(SOON_S).values == function.invoke("sync").values
    assert function.submit("sync").result(SOON_S).values[0] < 0


def test_a_guest_that_runs_long_is_suspended_and_right_in_the_end(function):
    counts = [function.submit("count", [30_000_000]) for _ in range(3)]
    assert function.submit("twice", [4]).result(SOON_S).values == (8,)
    assert [count.result(SOON_S).values for count in counts] == [(0,)] * 3


def test_an_endless_guest_ends_at_its_deadline_or_when_it_is_cancelled(function):
    slots = settled(function)
    late = function.submit("spin", deadline=Deadline.after(0.05))
    endless = [function.submit("spin") for _ in range(3)]
    assert isinstance(late.exception(SOON_S), InvokeTimeout)
    assert isinstance(function.submit("spin", deadline=Deadline.after(-1)).exception(SOON_S), InvokeTimeout)
    for each in endless:
        assert each.cancel()
        with pytest.raises(CancelledError):
            each.result(SOON_S)
    while settled(function) != slots:
        threading.Event().wait(0.001)


def test_closing_the_runtime_ends_those_that_run_and_those_that_have_not_begun():
    with Runtime("emulator") as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        endless = [function.submit("spin") for _ in range(40)]
    assert {type(each.exception(SOON_S)) for each in endless} == {GuestTrap}


def test_an_outcome_without_references_is_gone_without_the_collector(function):
    settled(function)
    gc.disable()
    try:
        future = function.submit("twice", [1])
        seen = weakref.ref(future)
        future.result(SOON_S)
        settled(function)
        del future
        while seen() is not None:  # the reactor's thread may still hold it for a moment
            threading.Event().wait(0.001)
    finally:
        gc.enable()


def test_more_than_there_are_slots_for_is_refused():
    with Runtime("emulator", slots=2) as runtime:
        function = runtime.load(bytes(wat2wasm(WAT)))
        endless = [function.submit("spin") for _ in range(3)]
        refused = [
            each for each in endless if isinstance(each.exception(0.5) if each.done() else None, CapacityExhausted)
        ]
        while not refused:
            refused = [each for each in endless if each.done()]
        assert isinstance(refused[0].exception(), CapacityExhausted)


def test_a_pooled_sandbox_serves_one_call_at_a_time(function):
    function.submit("twice", [1]).result(SOON_S)
    plan = function.dispatch.fiber_plans["twice"]
    sandbox = plan.take()
    sandbox.begin([1], {}, None, plan.put)
    with pytest.raises(InternalError):
        sandbox.begin([1], {}, None, plan.put)
    sandbox.close()
    sandbox.recycle()


def test_a_plan_keeps_a_few_sandboxes_which_are_closed_when_it_is_collected(runtime):
    function = runtime.load(bytes(wat2wasm(WAT)))  # not a fixture's, which would keep it
    assert len([each.result(SOON_S) for each in [function.submit("twice", [1]) for _ in range(200)]]) == 200
    settled(function)
    assert 1 <= len(idle(function)) <= MAX_IDLE
    tokens = [sandbox.state.token for sandbox in idle(function)]
    assert all(token in STATES for token in tokens)
    other = runtime.load(bytes(wat2wasm(WAT)))
    plans = [weakref.ref(plan) for plan in function.dispatch.fiber_plans.values()]
    del function
    ends = time.monotonic() + SOON_S
    while any(plan() for plan in plans):
        assert time.monotonic() < ends
        settled(other)  # the reactor lets go of the first function
        gc.collect()
    until(lambda: not any(token in STATES for token in tokens))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_three_thousand_sandboxes_leave_nothing(function):
    def run(count: int) -> None:
        for _ in range(count // 100):
            for future in [function.submit("residue") for _ in range(100)]:
                assert future.result(SOON_S).values == (2,)
            function.submit("trap").exception(SOON_S)

    def figures() -> dict[str, int]:
        gc.collect()
        return {
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": threading.active_count(),
            "mappings": Path("/proc/self/maps").read_bytes().count(b"\n"),
            "states": len(STATES),
            "places": sum(isinstance(each, (OneShotFiber, FiberPlan)) for each in gc.get_objects()),
            "tasks": len(function.host.fibers._reactor._tasks),
        }

    run(500)
    settled(function)
    before = figures()
    run(3000)
    settled(function)
    assert {name: count for name, count in figures().items() if count > before[name] + MAX_IDLE + 16} == {}
