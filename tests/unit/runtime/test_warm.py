"""Warm sandboxes: the books of the pool, with fakes; and what a caller sees of one, which is nothing."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import (
    CapacityExhausted,
    GuestTrap,
    InternalError,
    InvalidArgs,
    InvokeTimeout,
    MissingExport,
)
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.runtime.deploy.deployer import StopHook
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.warm import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    MAX_AGE_S,
    ROOM,
    UnavailableServices,
    WarmPool,
    WarmSpecification,
)
from tensorwasm.values import Deadline

SOON_S = 60.0
LIMIT = 5


@dataclass(eq=False)
class FakeSandbox:
    made_s: float
    closed: int = 0
    drawn: bool = False

    def close(self) -> None:
        self.closed += 1


class World:
    """A pool, a clock, and a machine that makes sandboxes, or fails."""

    def __init__(self, counts: list[int]) -> None:
        self.now_s = 1000.0
        self.free = 100
        self.broken = False
        self.made: list[FakeSandbox] = []
        self.tried_s: list[float] = []
        self.pool = WarmPool(LIMIT, now_s=lambda: self.now_s, threaded=False)
        self.specifications = [WarmSpecification(self.make, lambda: (self.free, 100), count) for count in counts]
        for specification in self.specifications:
            self.pool.add(specification)

    def make(self, _tell: Any) -> FakeSandbox:
        self.tried_s.append(self.now_s)
        assert self.free * ROOM > 100
        if self.broken:
            raise GuestTrap("the start trapped", "unreachable")
        made = FakeSandbox(self.now_s)
        self.made.append(made)
        return made

    def draw(self, number: int) -> None:
        found: Any = self.pool.draw(self.specifications[number % len(self.specifications)])
        if found is not None:
            assert not found.drawn
            assert not found.closed
            assert self.now_s - found.made_s <= MAX_AGE_S
            found.drawn = True

    def check(self) -> None:
        counts = self.pool.statistics()
        assert counts.draws == counts.hits + counts.misses
        assert counts.hits == sum(each.drawn for each in self.made)
        assert counts.warm <= min(LIMIT, sum(specification.count for specification in self.specifications))
        assert len(self.made) == counts.hits + counts.drops + counts.warm
        assert all(each.closed <= 1 and not (each.closed and each.drawn) for each in self.made)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tend"), st.just(0)),
        st.tuples(st.just("draw"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.sampled_from([0.05, 1.0, MAX_AGE_S / 2, MAX_AGE_S + 1])),
        st.tuples(st.just("fill"), st.sampled_from([0, 5, 13, 100])),
        st.tuples(st.just("break"), st.booleans()),
        st.tuples(st.just("shed"), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), STEPS)
def test_each_warm_sandbox_serves_one_call_or_is_closed_once_in_any_order_of_events(counts, steps):
    world = World(counts)
    for name, value in steps:
        match name:
            case "tend":
                world.pool.maintain()
            case "draw":
                world.draw(value)
            case "wait":
                world.now_s += value
            case "fill":
                world.free = value
            case "break":
                world.broken = bool(value)
            case "shed":
                world.pool.drop_ready()
            case "remove":
                world.pool.remove(world.specifications[value % len(counts)])
        world.check()
    world.pool.close()
    world.check()
    assert world.pool.statistics().warm == 0
    assert all(each.drawn or each.closed == 1 for each in world.made)


def tend_all(world: World) -> None:
    while world.pool.maintain():
        pass


def test_specifications_are_filled_side_by_side_up_to_the_limit_of_all():
    world = World([4, 4])
    tend_all(world)
    assert [len(specification.ready) for specification in world.specifications] == [3, 2]


def test_a_start_that_fails_is_retried_less_and_less_often():
    world = World([1])
    world.broken = True
    for _ in range(2000):
        tend_all(world)
        world.now_s += FIRST_BACKOFF_S / 2
    gaps = [later - earlier for earlier, later in itertools.pairwise(world.tried_s)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 2 * FIRST_BACKOFF_S
    assert LONGEST_BACKOFF_S / 4 < gaps[-1] <= LONGEST_BACKOFF_S + FIRST_BACKOFF_S
    world.broken = False
    world.now_s += LONGEST_BACKOFF_S
    tend_all(world)
    assert (world.pool.statistics().warm, world.specifications[0].failures) == (1, 0)


def test_old_ones_are_replaced_and_a_full_pool_keeps_none():
    world = World([2])
    tend_all(world)
    world.now_s += MAX_AGE_S + 1
    tend_all(world)
    assert [each.closed for each in world.made] == [1, 1, 0, 0]
    world.free = 100 // ROOM
    tend_all(world)
    assert world.pool.statistics().warm == 0
    assert all(each.closed == 1 for each in world.made)


def test_a_sandbox_made_for_a_removed_specification_is_dropped():
    world = World([1])
    specification = world.specifications[0]
    make = specification.make

    def late(tell: Any) -> Any:
        world.pool.remove(specification)
        return make(tell)

    specification.make = late
    world.pool.maintain()
    assert [each.closed for each in world.made] == [1]


def test_a_closed_pool_keeps_nothing_more_and_stops_what_is_being_made():
    world, stopped = World([1]), []
    specification = world.specifications[0]

    def endless(tell: Any) -> Any:
        tell(lambda: stopped.append(1))
        world.pool.close()
        raise GuestTrap("cancelled", "cancelled")

    specification.make = endless
    world.pool.maintain()
    assert stopped == [1]
    with pytest.raises(InternalError):
        world.pool.add(specification)


def test_unavailable_services_record_that_one_was_requested():
    services = UnavailableServices()
    assert (len(services), list(services), services.asked) == (0, [], False)
    with pytest.raises(InternalError):
        services.get("input")
    assert services.asked


# ------------------------------------------------------------------------------------------------ as callers see them

GUEST = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "input-len" (func $input (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\10\\00\\00\\00\\02\\00\\00\\00") (data (i32.const 16) "hi")
  (data (i32.const 32) "\\40\\00\\00\\00\\08\\00\\00\\00")
  (global $calls (mut i32) (i32.const 0)) (global $begun (mut i32) (i32.const 0))
  (func $say (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func $start (call $say) (global.set $begun (i32.add (global.get $begun) (i32.const 1)))) (start $start)
  (func (export "begin") (global.set $begun (i32.add (global.get $begun) (i32.const 10))))
  (func (export "count") (result i32 i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1))) (global.get $calls) (global.get $begun))
  (func (export "stdin") (result i32)
    (drop (call $read (i32.const 0) (i32.const 32) (i32.const 1) (i32.const 48))) (i32.load (i32.const 48)))
  (func (export "argc") (result i32)
    (drop (call $sizes (i32.const 48) (i32.const 52))) (i32.load (i32.const 48)))
  (func (export "now") (result i64)
    (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 56))) (i64.load (i32.const 56)))
  (func (export "input") (result i32) (call $input))
  (func (export "spin") (loop br 0)))"""
TRAPS = '(module (func $start unreachable) (start $start) (func (export "go")))'
SPINS = '(module (func $start (loop br 0)) (start $start) (func (export "go")))'
ASKS = """(module (import "wasi:tensor/host@0.1.0" "input-len" (func $input (result i32)))
  (global $seen (mut i32) (i32.const -1))
  (func $start (global.set $seen (call $input))) (start $start)
  (func (export "go") (result i32) (global.get $seen)))"""


@pytest.fixture
def runtime():
    with Runtime("emulator") as made:
        yield made


def load(runtime: Runtime, text: str = GUEST, **options: Any) -> Any:
    return runtime.load(bytes(wat2wasm(text)), "guest", **options)


def until(holds: Any) -> None:
    ends = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < ends
        threading.Event().wait(0.002)


def warmed(function: Any, count: int = 1, **options: Any) -> Any:
    pool = function.host.warm
    before = pool.statistics().warm
    function.warm(count, **options)
    until(lambda: pool.statistics().warm >= before + count)
    return pool


@pytest.mark.rule("4-warm")
def test_a_warm_sandbox_is_used_once_and_another_is_made(runtime):
    function = load(runtime)
    fresh = function.invoke("count")
    pool = warmed(function)
    for number in range(1, 4):
        until(lambda: pool.statistics().warm == 1)
        got = function.invoke("count")
        assert (got.values, got.stdout, got.exit_code) == (fresh.values, fresh.stdout, 0) == ((1, 1), b"hi", 0)
        assert pool.statistics().hits == number


@pytest.mark.parametrize(
    ("export", "options"),
    [
        ("stdin", {"stdin": b"four"}),
        ("input", {"input": b"sixsix"}),
        ("argc", {}),
        ("argc", {"argv": ["one", "two", "three"]}),
        ("argc", {"env": {"a": "b"}}),
        ("count", {"tenant": "somebody"}),
        ("count", {"grants": ["cuda"]}),
    ],
)
@pytest.mark.rule("4-warm")
def test_a_guest_gets_the_arguments_of_its_own_call(runtime, export, options):
    function = load(runtime)
    expected = function.invoke(export, **options).values if "tenant" not in options else (1, 1)
    pool = warmed(function, 2)
    assert function.invoke(export, **options).values == expected
    fits = not options.keys() & {"argv", "env", "tenant", "grants"}
    assert pool.statistics().hits == int(fits)
    until(lambda: pool.statistics().warm == 2)
    plain = function.invoke(export)
    assert plain.values == {"stdin": (0,), "input": (0,), "argc": (1,), "count": (1, 1)}[export]


def test_arguments_may_be_those_of_the_specification(runtime):
    function = load(runtime)
    pool = warmed(function, argv=["a", "b"], env={"x": "y"})
    assert function.invoke("argc", argv=["a", "b"], env={"x": "y"}).values == (2,)
    assert function.invoke("argc").values == (1,)
    assert pool.statistics().draws == 1


def test_a_sink_gets_what_the_start_wrote_and_what_it_raises_ends_the_call(runtime):
    function, taken = load(runtime), []
    pool = warmed(function, 2)
    assert function.invoke("count", stdout=taken.append).stdout == b""
    assert taken == [b"hi"]
    until(lambda: pool.statistics().warm == 2)
    free = function.engine.free_slots

    def refuse(_chunk: bytes) -> None:
        raise ZeroDivisionError

    until(lambda: pool.statistics().warm == 2)
    with pytest.raises(InternalError, match="stdout sink"):
        function.invoke("count", stdout=refuse)
    until(lambda: pool.statistics().warm == 2)
    assert function.engine.free_slots == free


def test_the_deadline_is_the_callers_and_time_begins_at_the_draw(runtime):
    function = load(runtime)
    pool = warmed(function, 2)
    with pytest.raises(InvokeTimeout):
        function.invoke("spin", deadline=Deadline.after(0.05))
    with pytest.raises(InvokeTimeout):
        function.invoke("count", deadline=Deadline(0))
    until(lambda: pool.statistics().warm == 2)
    threading.Event().wait(0.05)
    begun_ns = time.monotonic_ns()
    (now_ns,) = function.invoke("now").values
    assert 0 <= now_ns <= time.monotonic_ns() - begun_ns
    assert pool.statistics().misses == 0


def test_a_start_that_fails_reaches_the_caller_as_if_there_were_no_pool(runtime):
    function = load(runtime, TRAPS)
    function.warm(2)
    until(lambda: runtime.warm.statistics().failures)
    with pytest.raises(GuestTrap, match="unreachable"):
        function.invoke("go")
    assert runtime.warm.statistics().misses == 1


@pytest.mark.rule("4-warm")
def test_a_start_that_asks_for_input_is_never_had_in_advance(runtime):
    function = load(runtime, ASKS, warm=1)
    until(lambda: runtime.warm.statistics().failures)
    assert function.invoke("go", input=b"five!").values == (5,)
    assert runtime.warm.statistics().warm == 0


def test_a_function_that_is_collected_waits_for_no_lock(runtime):
    function = load(runtime)
    pool, held, done = warmed(function), [function], threading.Event()
    del function

    def collect() -> None:
        with pool._lock, pool._wake._cond:  # as it may happen wherever something is allocated
            held.clear()
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(10)
    until(lambda: not pool.statistics().warm)
    until(lambda: not pool._dropped)


@pytest.mark.parametrize("end", ["close", "remove"])
def test_closing_waits_for_no_start(runtime, end):
    free = runtime._engine.free_slots
    function = load(runtime, SPINS)
    function.warm(1)
    until(lambda: runtime.warm._start is not None)
    began_s = time.monotonic()
    if end == "close":
        runtime.close()
    else:
        function.warm(0)
    assert time.monotonic() - began_s < SOON_S / 10
    until(lambda: runtime._engine.free_slots == free)


def test_closing_and_forgetting_give_the_slots_back(runtime):
    free = runtime._engine.free_slots
    function = load(runtime)
    warmed(function, 3)
    assert runtime._engine.free_slots == free - 3
    function.warm(0)
    until(lambda: runtime._engine.free_slots == free)
    warmed(function, 2)
    del function
    gc.collect()
    until(lambda: runtime._engine.free_slots == free)
    assert runtime.warm.statistics().drops == 5


def test_warm_sandboxes_give_way_to_calls():
    with Runtime("emulator", slots=24) as runtime:
        function = load(runtime)
        pool = warmed(function, 3)
        taken = runtime._engine.free_slots
        for _ in range(taken):
            runtime._engine.reserve_slot()
        try:
            assert function.invoke("count", argv=["other"]).values == (1, 1)
        finally:
            for _ in range(taken):
                runtime._engine.release_slot()
        assert pool.statistics().drops == 3


def test_without_warm_sandboxes_a_full_pool_says_so():
    with Runtime("emulator", slots=23) as runtime:
        function = load(runtime)
        taken = runtime._engine.free_slots
        for _ in range(taken):
            runtime._engine.reserve_slot()
        try:
            with pytest.raises(CapacityExhausted):
                function.invoke("count")
        finally:
            for _ in range(taken):
                runtime._engine.release_slot()


def test_every_sandbox_calls_the_initialiser_first(runtime):
    function = load(runtime)
    pool = warmed(function, initialiser="begin")
    assert function.invoke("count").values == (1, 11)
    assert function.invoke("count", argv=["fresh"]).values == (1, 11)
    assert pool.statistics().hits == 1
    if may_have_fibers():
        assert function.submit("count").result(SOON_S).values == (1, 11)


def test_a_module_without_a_start_is_warm_only_for_its_initialiser(runtime):
    text = """(module (global $n (mut i32) (i32.const 0)) (func (export "begin") (global.set $n (i32.const 7)))
      (func (export "go") (result i32) (global.get $n)))"""
    function = load(runtime, text)
    function.warm(2)
    assert (function.invoke("go").values, runtime.warm.statistics().draws) == ((0,), 0)
    pool = warmed(function, initialiser="begin")
    assert (function.invoke("go").values, pool.statistics().hits) == ((7,), 1)


def test_warming_a_function_that_cannot_be_warmed_is_refused(runtime):
    function = load(runtime)
    with pytest.raises(InvalidArgs, match="at least 0"):
        function.warm(-1)
    with pytest.raises(InvalidArgs, match="initialiser"):
        function.warm(1, initialiser="argc")
    with pytest.raises(MissingExport):
        function.warm(1, initialiser="nope")
    runtime.close()
    with pytest.raises(InternalError, match="closed"):
        function.warm(1)


def test_executors_draw_too(runtime):
    module = bytes(wat2wasm(GUEST))
    executor = LocalExecutor(runtime)
    try:
        request = Request(module, "count", name="guest")
        function = executor._load(request, StopHook())
        pool = warmed(function)
        assert executor.submit(request).result().values == (1, 1)
        assert pool.statistics().hits == 1
    finally:
        executor.close()
