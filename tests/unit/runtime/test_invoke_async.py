"""Invocations that begin on an event loop's thread: what stays there, what moves, and what a loop can lose."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import wat2wasm

pytest.importorskip("numba")

from tensorwasm import Runtime
from tensorwasm.errors import GuestExit, GuestTrap, InternalError, InvokeTimeout
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.guest.reactor.preemption_timer import SLICE_NS
from tensorwasm.runtime.invoke import dispatch
from tensorwasm.runtime.invoke import inline as loops
from tensorwasm.runtime.invoke.deployed_module import SMALL_BYTES, is_interruptible
from tensorwasm.runtime.invoke.inline import COOL_DOWN, SPARE_NS, SliceBudget
from tensorwasm.values import Deadline, Limits

pytestmark = pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")

SOON_S = 60.0
GUEST = """(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1 32)
  (data (i32.const 24) "\\01") (data (i32.const 32) "\\10\\27")
  (func $say (export "say") (drop (call $emit (i32.const 16) (i32.const 2))))
  (func (export "exit") (call $say) (call $exit (i32.const 7)))
  (func (export "sleep") (result i32) (call $poll (i32.const 8) (i32.const 128) (i32.const 1) (i32.const 256)))
  (func (export "spin") (loop br 0))
  (func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (i32.add (local.get 0) (i32.const 1)))))
  (func $count (export "count") (param $n i64) (result i64) (local $sum i64)
    (loop $next
      (local.set $sum (i64.xor (i64.mul (local.get $sum) (i64.const 31)) (local.get $n)))
      (br_if $next (i32.eqz (i64.eqz (local.tee $n (i64.sub (local.get $n) (i64.const 1)))))))
    (local.get $sum))
  (func (export "overflow") (drop (call $count (i64.const 100000000))) (drop (call $deep (i32.const 0)))))"""


@pytest.fixture
def runtime():
    with Runtime("emulator") as made:
        yield made


@pytest.fixture
def new_function(runtime):
    return runtime.load(bytes(wat2wasm(GUEST)), "guest")


@pytest.fixture
def function(new_function):
    """One that was called before: a first call compiles, elsewhere."""
    asyncio.run(new_function.invoke_async("say"))
    new_function.long = False  # on a busy machine the first call may have been
    return new_function


@pytest.mark.parametrize("grants", [(), iter(["cuda"])], ids=["plain", "gpu"])
def test_the_first_call_compiles_on_another_thread_than_the_loops(runtime, new_function, grants, monkeypatch):
    compiled_by, prepare = [], runtime.prepare

    def watched(*args):
        compiled_by.append(threading.get_ident())
        return prepare(*args)

    monkeypatch.setattr(runtime, "prepare", watched)
    for _ in range(2):
        assert asyncio.run(new_function.invoke_async("say", grants=grants)).chunks == (b"\0\0",)
    assert compiled_by
    assert threading.get_ident() not in compiled_by


def test_a_guest_that_writes_does_not_hold_the_gil_that_its_sink_needs(runtime):
    """wasmtime calls sinks on threads of its own, and the guest waits for them."""
    writer = runtime.load(
        bytes(
            wat2wasm("""(module
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1) (data (i32.const 0) "\\10\\00\\00\\00\\02\\00\\00\\00") (data (i32.const 16) "hi")
        (func (export "_start") (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))""")
        )
    )
    assert asyncio.run(writer.invoke_async()).stdout == b"hi"
    assert writer.submit().result(SOON_S).stdout == b"hi"


@pytest.fixture(autouse=True)
def rested():
    """A loop that no earlier test has tired."""
    loops.slice_budget()._free_ns = 0


@pytest.fixture
def patient(monkeypatch):
    """A slice that no short guest uses up, however busy the machine is."""
    monkeypatch.setattr("tensorwasm.guest.reactor.preemption_timer.SLICE_NS", 200_000_000_000)


async def until(holds) -> None:
    ends = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < ends
        await asyncio.sleep(0.001)


def moved(runtime: Runtime, count: int = 1) -> bool:
    return runtime.fibers.statistics().away == count


@pytest.mark.usefixtures("patient")
def test_a_short_guest_never_leaves_the_thread_and_creates_no_waiter(runtime, function):
    threads: list[int] = []
    coroutine = function.invoke_async("say", on_chunk=lambda _: bool(threads.append(threading.get_ident())) or True)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)  # there is no event loop
    assert ended.value.value.export == "say"
    assert threads == [threading.get_ident()]
    assert runtime.fibers.statistics().polls == 0


@pytest.mark.usefixtures("patient")
def test_an_error_of_a_short_guest_is_raised_at_once(function):
    with pytest.raises(InvokeTimeout):
        function.invoke_async("count", (1,), deadline=Deadline(0)).send(None)
    with pytest.raises(StopIteration) as left:
        function.invoke_async("exit").send(None)
    assert left.value.value.exit_code == 7
    assert not isinstance(left.value.value, GuestExit)


@pytest.mark.usefixtures("patient")
def test_an_interrupt_in_a_sink_ends_the_guest_and_reaches_the_caller(runtime, function):
    def interrupt(_chunk: bytes) -> bool:
        raise KeyboardInterrupt

    free = function.engine.free_slots
    with pytest.raises(KeyboardInterrupt):
        function.invoke_async("say", on_chunk=interrupt).send(None)
    assert function.engine.free_slots == free


def test_a_guest_that_runs_long_moves_and_answers_as_if_it_had_not(runtime, function):
    expected = function.invoke("count", (200_000_000,)).values

    async def run():
        before = runtime.fibers.statistics().polls
        values = (await function.invoke_async("count", (200_000_000,))).values
        return values, runtime.fibers.statistics().polls - before

    values, polls = asyncio.run(run())
    assert values == expected
    assert polls > 0
    assert function.long


@pytest.mark.usefixtures("patient")
def test_a_function_is_no_longer_long_once_its_guests_are_short(function):
    async def run():
        function.long = True
        await function.invoke_async("count", (1,))

    asyncio.run(run())
    assert not function.long


def test_a_guest_that_moved_can_overflow_its_stack_there(function):
    with pytest.raises(GuestTrap, match="stack"):
        asyncio.run(function.invoke_async("overflow"))


@pytest.mark.usefixtures("patient")
def test_a_guest_that_waits_goes_on_with_the_reactor(runtime, function):
    assert asyncio.run(function.invoke_async("sleep")).values == (0,)
    assert not function.long


def test_cancelling_ends_a_guest_that_moved(runtime, function):
    free = function.engine.free_slots

    async def run():
        task = asyncio.ensure_future(function.invoke_async("spin"))
        await until(lambda: moved(runtime))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: function.engine.free_slots == free)

    asyncio.run(run())


def test_many_long_guests_run_side_by_side_and_each_keeps_its_deadline(runtime, function):
    async def run():
        spins = [function.invoke_async("spin", deadline=Deadline.after(0.2)) for _ in range(20)]
        return await asyncio.gather(*spins, return_exceptions=True)

    assert {type(each) for each in asyncio.run(run())} == {InvokeTimeout}


def test_a_loop_that_closes_before_the_answer_ends_the_guest(runtime, function):
    free = function.engine.free_slots
    loop = asyncio.new_event_loop()
    coroutine = function.invoke_async("spin")
    task = loop.create_task(coroutine)
    loop.run_until_complete(until(lambda: moved(runtime)))
    loop.close()
    coroutine.close()
    ends = time.monotonic() + SOON_S
    while function.engine.free_slots != free:
        assert time.monotonic() < ends
        threading.Event().wait(0.002)
    assert not task.done()
    task._log_destroy_pending = False  # nobody can end the task of a closed loop


def test_closing_the_runtime_ends_a_guest_that_moved_and_refuses_the_next(runtime, function):
    async def run():
        task = asyncio.ensure_future(function.invoke_async("spin"))
        await until(lambda: moved(runtime))
        await asyncio.to_thread(runtime.close)
        with pytest.raises(GuestTrap, match="closed"):
            await task
        with pytest.raises(InternalError, match="closed"):
            await function.invoke_async("count", (1,))

    asyncio.run(run())


def test_a_guest_whose_reactor_closes_under_it_is_closed_too(runtime, function, monkeypatch):
    free = function.engine.free_slots
    function.invoke_async("say").close()
    reactor: Any = runtime.fibers.open()

    def refuse(_job, _fiber):
        raise InternalError("the reactor is closed")

    monkeypatch.setattr(reactor, "adopt", refuse)
    monkeypatch.setattr(
        dispatch, "slice_budget", SliceBudget
    )  # this thread's may have to rest after the guest of another test
    with pytest.raises(InternalError, match="closed"):
        function.invoke_async("spin").send(None)
    assert function.engine.free_slots == free


@pytest.mark.usefixtures("patient")
@pytest.mark.rule("12-nested")
def test_a_sink_runs_no_guest(runtime, function):
    refused: list[BaseException] = []

    def nest(_chunk: bytes) -> bool:
        for run in (lambda: function.invoke_async("say").send(None), lambda: function.submit("say")):
            with pytest.raises(InternalError, match="host function of a guest") as caught:
                run()
            refused.append(caught.value)
        return True

    asyncio.run(function.invoke_async("say", on_chunk=nest))
    assert len(refused) == 2


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["reactor", "loop", "crew"])
def test_a_sink_does_not_close_the_runtime_that_waits_for_it(runtime, function, way):
    refused: list[BaseException] = []

    def end(_chunk: bytes) -> bool:
        with pytest.raises(InternalError, match="host function of a guest") as caught:
            runtime.close()
        refused.append(caught.value)
        return True

    function.long = way == "crew"
    if way == "reactor":
        function.submit("say", on_chunk=end).result(SOON_S)
    else:
        asyncio.run(function.invoke_async("say", on_chunk=end))
    assert len(refused) == 1
    assert function.submit("count", (3,)).result(SOON_S).values


def test_the_interpreter_ends_with_guests_that_run():
    program = f"""
import asyncio
from wasmtime import wat2wasm
from tensorwasm import Runtime
function = Runtime("emulator").load(bytes(wat2wasm({GUEST!r})))
async def run():
    for _ in range(3):
        asyncio.get_running_loop().call_soon(function.submit, "spin")
    coroutine = function.invoke_async("spin")
    coroutine.send(None)
    print("moved", flush=True)
asyncio.run(run())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SOON_S, check=False)
    assert (done.returncode, done.stdout) == (0, "moved\n"), done.stderr


STEP = "(i32.store8 (local.tee 0 (i32.add (local.get 0) (i32.const 4096))) (i32.const 1))"
FILL = "(memory.fill (i32.const 0) (i32.const 1) (i32.const 9))"


@pytest.mark.parametrize(
    ("text", "brief"),
    [
        ('(module (memory 1) (func (export "go")))', True),
        ('(module (memory 1 4096) (func (export "go") (loop br 0)))', True),
        (f'(module (memory 1 32) (func (export "go") {FILL}))', True),
        (f'(module (memory 1 33) (func (export "go") {FILL}))', False),
        (f'(module (memory 1) (func (export "go") {FILL}))', False),
        ('(module (import "wasi:tensor/host@0.1.0" "input-len" (func (result i32))) (memory 1 32))', True),
        ('(module (import "wasi:tensor/host@0.1.0" "input-len" (func (result i32))) (memory 1))', False),
        ('(module (table 1 funcref) (func (export "go") (drop (table.grow (ref.null func) (i32.const 9)))))', False),
        ("(module (func $start) (start $start))", False),
        (f'(module (memory 1024) (func (export "go") (param i32) {STEP * 1_000}))', True),
        (f'(module (memory 1024) (func (export "go") (param i32) {STEP * 16_000}))', False),
        (f'(module (memory 1 32) (func (export "go") (param i32) {STEP * 16_000}))', True),
    ],
)
def test_only_what_a_timer_can_end_begins_on_a_loop(runtime, text, brief):
    assert runtime.load(bytes(wat2wasm(text))).brief == brief


def test_a_padded_number_of_a_bulk_instruction_is_seen(runtime):
    wasm = bytes(wat2wasm(f'(module (memory 1) (func (export "go") {FILL}))'))
    declared = runtime.load(wasm).prepared.module.preamble
    padded = wasm.replace(b"\xfc\x0b", b"\xfc\x8b\x00")
    assert padded != wasm
    assert not is_interruptible(padded, declared, 1 << 28)


def test_lower_limits_let_a_module_begin_on_a_loop(runtime):
    text = f'(module (memory 1) (func (export "go") {FILL}))'
    assert runtime.load(bytes(wat2wasm(text)), limits=Limits(memory_bytes=SMALL_BYTES)).brief


class FakeFiber:
    """A guest that needs so long, on a clock of its own."""

    def __init__(self, clock: list[int], needs_ns: int) -> None:
        self.clock, self.needs_ns = clock, needs_ns
        self.long = self.waits = False
        self.state = SimpleNamespace(check=lambda: None, engine=None)

    def run(self, *, briefly: bool) -> bool:
        assert briefly
        ran_ns = min(self.needs_ns, SLICE_NS)
        self.clock[0] += ran_ns
        self.needs_ns -= ran_ns
        return self.needs_ns == 0


@given(st.lists(st.tuples(st.integers(0, 3 * SLICE_NS), st.integers(1, 20 * SLICE_NS)), max_size=100))
def test_guests_that_run_long_hold_a_loop_for_a_tenth_of_its_time_at_most(arrivals):
    clock, lost_ns = [10**12], 0
    place = SliceBudget(lambda: clock[0], lambda: clock[0])
    began_ns = clock[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tensorwasm.guest.reactor.preemption_timer.find_timer", lambda _engine: None)
        for idle_ns, needs_ns in arrivals:
            clock[0] += idle_ns
            if not place.free:
                continue
            before_ns, fiber = clock[0], FakeFiber(clock, needs_ns)
            ended = place.run(fiber)
            assert ended == (not fiber.long)
            assert clock[0] - before_ns <= SLICE_NS
            lost_ns += 0 if ended else clock[0] - before_ns
    assert lost_ns <= (clock[0] - began_ns) / (COOL_DOWN + 1) + SPARE_NS + SLICE_NS


@given(st.lists(st.integers(0, 20 * SLICE_NS), min_size=1, max_size=20))
def test_a_guest_that_is_made_to_wait_for_a_processor_stays_and_costs_no_rest(waits_ns):
    """While others have the processor, nobody is held up by the guest."""
    clock, spent = [10**12], [0]
    place = SliceBudget(lambda: clock[0], lambda: spent[0])
    for wait_ns in waits_ns:

        class Waiting(FakeFiber):
            def run(self, *, briefly: bool) -> bool:
                clock[0] += self.needs_ns
                if self.needs_ns > SLICE_NS:  # its alarm has gone off meanwhile
                    self.needs_ns = 1
                    return False
                spent[0] += 1000
                return True

        fiber = Waiting(clock, wait_ns)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tensorwasm.guest.reactor.preemption_timer.find_timer", lambda _engine: None)
            assert place.run(fiber)
        assert not fiber.long
        assert place.free


class StubbornFiber(FakeFiber):
    """A guest whose code goes straight on, past its slice, and then ends or traps."""

    def __init__(self, clock: list[int], needs_ns: int, error: Exception | None) -> None:
        super().__init__(clock, needs_ns)
        self.error = error

    def run(self, *, briefly: bool) -> bool:
        assert briefly
        self.clock[0] += self.needs_ns
        if self.error is not None:
            raise self.error
        return True


@pytest.mark.parametrize("error", [None, GuestTrap("unreachable", "a trap")])
def test_a_guest_that_no_timer_could_end_costs_its_loop_the_same_rest(error, monkeypatch):
    monkeypatch.setattr("tensorwasm.guest.reactor.preemption_timer.find_timer", lambda _engine: None)
    clock = [10**12]
    place, fiber = SliceBudget(lambda: clock[0], lambda: clock[0]), StubbornFiber(clock, 100 * SLICE_NS, error)
    with pytest.raises(GuestTrap) if error else nullcontext():
        assert place.run(fiber)
    assert fiber.long
    assert not place.free
    clock[0] += COOL_DOWN * (100 * SLICE_NS - SPARE_NS) - 1
    assert not place.free
    clock[0] += 1
    assert place.free
