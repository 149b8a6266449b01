"""The reactor, with a device whose work ends when the test says so."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from tensorwasm.guest.engine.module import compile_module

pytest.importorskip("numba")

from fakes.fibers import HOST, FakeJob, FakeLine, FakeStream
from tensorwasm.errors import (
    CapacityExhausted,
    DeviceLost,
    GuestExit,
    InternalError,
    InvalidArgs,
    InvalidPointer,
    InvokeTimeout,
    MissingExport,
)
from tensorwasm.guest.engine.engine import Engine, EngineConfig
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.imports.suspension import DeviceWait, QueueWait, Sleep
from tensorwasm.guest.native.compiled import make_suspension_code
from tensorwasm.guest.reactor import notifications, threads
from tensorwasm.guest.reactor import task as tasks
from tensorwasm.guest.reactor.reactor import Reactor
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.wasi import WasiConfig
from tensorwasm.values import Deadline

SLOTS = 2100
SOON_S = 20.0
WAITS = '(import "host" "wait" (func $wait (param i32) (result i32)))'
ECHO = f"""(module {WAITS} (memory (export "memory") 1) (data (i32.const 1024) "data")
  (func (export "go") (param i32) (result i32)
    (i32.store (i32.const 0) (local.get 0))
    (i32.add (call $wait (local.get 0)) (i32.load (i32.const 0))))
  (func (export "twice") (param i32) (result i32) (call $wait (call $wait (local.get 0))))
  (func (export "trap") (param i32) (result i32) (drop (call $wait (local.get 0))) unreachable)
  (func (export "spin") (loop br 0)))"""
PRINTS = r"""(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 0) "\10\00\00\00\02\00\00\00") (data (i32.const 16) "hi")
  (func (export "go") (loop (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (br_if 0 (i32.eqz (i32.load (i32.const 8)))))))"""
SEVEN = '(module (func (export "go") (result i32) (i32.const 7)))'


@pytest.fixture(scope="module")
def code():
    return make_suspension_code()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.shared(EngineConfig(slots=SLOTS, fibers=True))


@pytest.fixture
def room(monkeypatch) -> notifications.NotificationLimit:
    made = notifications.NotificationLimit(SLOTS)
    monkeypatch.setattr(notifications, "PROCESS_LIMIT", made)
    return made


@pytest.fixture
def reactor(code, engine, room) -> Iterator[Reactor]:
    before = engine.free_slots
    made = Reactor(code)
    yield made
    made.close()
    assert engine.free_slots == before
    assert len(room) == 0


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def job(engine, code, stream) -> Callable[..., FakeJob]:
    def make(wat: str, export: str = "go", *args: object, functions: Any = None, **options: Any) -> FakeJob:
        linker = Linker(engine, (stream.function(),) if functions is None else functions, code=code)
        return FakeJob(linker.prepare(compile_module(engine, bytes(wat2wasm(wat)))), export, args, **options)

    return make


def spawn(reactor: Reactor, *jobs: FakeJob) -> list[Any]:
    return [reactor.spawn(job) for job in jobs]


def outcome(job: FakeJob) -> Any:
    try:
        return job.future.result(SOON_S)
    except BaseException as error:  # noqa: BLE001 - the outcome under test
        return error


def settle(reactor: Reactor, arrived: Callable[[], bool]) -> None:
    """Wait until the reactor's own thread has got there."""
    ends = time.monotonic() + SOON_S
    while not arrived():
        assert time.monotonic() < ends, reactor.statistics()
        threading.Event().wait(0.002)


def test_a_guest_waits_and_goes_on_with_the_answer_and_its_memory(reactor, job, stream):
    one = job(ECHO, "go", 5)
    spawn(reactor, one)
    stream.await_waiters(1)
    assert not one.future.done()
    settle(reactor, lambda: reactor.statistics().waiting == 1)
    stream.end_work()
    assert outcome(one) == [11]
    assert reactor.statistics().notifications == 1


def test_guests_end_in_the_order_in_which_their_work_does(reactor, job, stream):
    first, second = job(ECHO, "go", 1), job(ECHO, "go", 2)
    spawn(reactor, first)
    stream.await_waiters(1)
    spawn(reactor, second)
    stream.await_waiters(2)
    stream.waiting.reverse()
    stream.end_work(1)
    assert outcome(second) == [5]
    assert not first.future.done()
    stream.end_work()
    assert outcome(first) == [3]


def test_a_guest_may_wait_any_number_of_times(reactor, job, stream):
    one = job(ECHO, "twice", 40)
    spawn(reactor, one)
    for _ in range(2):
        stream.await_waiters(1)
        stream.end_work()
    assert outcome(one) == [42]


def test_work_that_has_ended_does_not_wait(reactor, job):
    def steps(_call, value):
        yield DeviceWait(lambda _function, _argument: False, lambda: False)
        return value * 2

    function = HostFunction(HOST, "wait", ("i32",), ("i32",), print, waits=True, steps=steps)
    one = job(ECHO, "twice", 3, functions=(function,))
    spawn(reactor, one)
    assert outcome(one) == [12]


def test_a_thousand_waits_complete_on_eight_threads_one_wake_each_at_most(reactor, job, stream):
    jobs = [job(ECHO, "go", 0)]
    jobs += [FakeJob(jobs[0].prepared, "go", (number,)) for number in range(1, 1000)]
    spawn(reactor, *jobs)
    stream.await_waiters(1000)
    settle(reactor, lambda: reactor.statistics().waiting == 1000)
    wakes, polls = reactor.statistics().wakes, reactor.statistics().polls
    threads = [threading.Thread(target=stream.end_work, args=(125,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert [outcome(job) for job in jobs] == [[2 * number + 1] for number in range(1000)]
    for thread in threads:
        thread.join()
    after = reactor.statistics()
    assert after.notifications == 1000
    assert after.polls - polls == 1000
    assert 1 <= after.wakes - wakes <= 1000


def test_a_guest_that_spins_leaves_the_others_their_turn(reactor, job, stream):
    spinner = job(ECHO, "spin", deadline=Deadline.after(60))
    other = FakeJob(spinner.prepared, "twice", (1,))
    spinning, _ = spawn(reactor, spinner, other)
    for _ in range(2):
        stream.await_waiters(1)
        stream.end_work()
    assert outcome(other) == [3]
    assert not spinner.future.done()
    reactor.cancel(spinning)
    assert outcome(spinner).trap == "cancelled"


def test_a_deadline_ends_a_guest_that_spins(reactor, job):
    one = job(ECHO, "spin", deadline=Deadline.after(0.05))
    spawn(reactor, one)
    assert isinstance(outcome(one), InvokeTimeout)


@pytest.mark.rule("3-layout")
def test_a_deadline_ends_a_guest_that_waits_and_its_layout_outlives_it_until_notified(reactor, job, stream):
    one = job(ECHO, "go", 1, deadline=Deadline.after(0.05))
    spawn(reactor, one)
    assert isinstance(outcome(one), InvokeTimeout)
    settle(reactor, lambda: reactor.statistics().orphans == 1)
    stream.end_work()
    settle(reactor, lambda: reactor.statistics().orphans == 0)
    assert reactor.statistics().waiting == 0


def test_a_guest_that_waits_can_be_cancelled(reactor, job, stream):
    one = job(ECHO, "go", 1)
    (task,) = spawn(reactor, one)
    stream.await_waiters(1)
    reactor.cancel(task)
    assert outcome(one).trap == "cancelled"
    reactor.cancel(task)
    stream.end_work()
    settle(reactor, lambda: reactor.statistics().orphans == 0)


def test_one_that_is_cancelled_at_once_ends_all_the_same(reactor, job):
    one = job(ECHO, "spin")
    reactor.cancel(reactor.spawn(one))
    assert outcome(one).trap == "cancelled"


def test_closing_ends_every_guest(code, job, stream):
    reactor = Reactor(code)
    jobs = [job(ECHO, "spin"), job(ECHO, "go", 1)]
    spawn(reactor, *jobs)
    stream.await_waiters(1)
    reactor.close()
    assert [outcome(job).trap for job in jobs] == ["cancelled"] * 2
    with pytest.raises(InternalError, match="closed"):
        reactor.spawn(jobs[0])
    stream.end_work()  # a notification that comes after the end harms nobody
    reactor.close()


def test_traps_and_exits_are_distinguished(reactor, job, stream):
    leave = (
        '(module (import "wasi_snapshot_preview1" "proc_exit" (func $e (param i32)))'
        ' (memory (export "memory") 1) (func (export "go") (param i32) (call $e (local.get 0))))'
    )
    trapped, left, failed = job(ECHO, "trap", 1), job(leave, "go", 0), job(leave, "go", 3)
    spawn(reactor, trapped, left, failed)
    stream.await_waiters(1)
    stream.end_work()
    assert outcome(trapped).trap == "unreachable"
    assert outcome(left) == []
    error = outcome(failed)
    assert isinstance(error, GuestExit)
    assert error.code == 3


def test_a_start_function_may_wait_trap_or_leave(reactor, job, stream):
    start = f"""(module {WAITS} (global $g (mut i32) (i32.const 0)) (memory 1)
      (func $start (global.set $g (call $wait (i32.const 6)))) (start $start)
      (func (export "go") (result i32) (global.get $g)))"""
    leave = (
        '(module (import "wasi_snapshot_preview1" "proc_exit" (func $e (param i32))) (memory (export "memory") 1)'
        ' (func $start (call $e (i32.const 0))) (start $start) (func (export "go") (result i32) unreachable))'
    )
    waits, left = job(start), job(leave)
    trapped = job('(module (func $s unreachable) (start $s) (func (export "go")))')
    spawn(reactor, waits, left, trapped)
    stream.await_waiters(1)
    stream.end_work()
    assert outcome(waits) == [7]
    assert outcome(left) == []
    assert outcome(trapped).trap == "unreachable"


def test_stack_overflow_in_a_fiber_is_a_trap(reactor, job):
    one = job('(module (func $f (export "go") (call $f)))')
    spawn(reactor, one)
    assert outcome(one).trap == "stack_overflow"


@pytest.mark.rule("12-nested")
def test_a_host_function_of_a_fiber_cannot_run_a_guest(reactor, job, engine):
    inner = Linker(engine).prepare(compile_module(engine, bytes(wat2wasm('(module (func (export "f")))'))))

    def call(*_):
        with Instance(inner) as instance:
            return instance.call("f")

    nested = (call, lambda *_: reactor.spawn(FakeJob(inner, "f")) and 0)
    for body in nested:
        one = job(ECHO, "go", 1, functions=(HostFunction(HOST, "wait", ("i32",), ("i32",), body),))
        spawn(reactor, one)
        error = outcome(one)
        assert isinstance(error, InternalError)
        assert "tried to run a guest itself" in error.message


def test_a_full_pool_is_a_typed_error(code, job, stream):
    small = Engine.shared(EngineConfig(slots=2, fibers=True))
    prepared = Linker(small, (stream.function(),), code=code).prepare(compile_module(small, bytes(wat2wasm(ECHO))))
    reactor = Reactor(code)
    jobs = [FakeJob(prepared, "go", (1,)) for _ in range(3)]
    spawn(reactor, *jobs)
    assert isinstance(outcome(jobs[2]), CapacityExhausted)
    stream.await_waiters(2)
    stream.end_work()
    assert [outcome(job) for job in jobs[:2]] == [[3], [3]]
    reactor.close()
    assert small.free_slots == 2


@pytest.mark.parametrize(
    ("export", "args", "error"), [("nope", (), MissingExport), ("go", (), InvalidArgs), ("go", ("x",), InvalidArgs)]
)
def test_a_call_that_does_not_fit_leaves_nothing(reactor, job, export, args, error):
    one = job(ECHO, export, *args)
    spawn(reactor, one)
    assert isinstance(outcome(one), error)


def test_numbers_of_every_type_cross(reactor, job):
    text = """(module (func (export "go") (param i32 i64 f32 f64) (result f64 f32 i64 i32)
      (local.get 3) (local.get 2) (local.get 1) (local.get 0)))"""
    one = job(text, "go", -1, 1 << 63, 0.5, -0.0)
    spawn(reactor, one)
    assert repr(outcome(one)) == repr([-0.0, 0.5, -(1 << 63), -1])


# ------------------------------------------------------------------------------------------- other waits


def sleeping(milliseconds: int) -> str:
    return f"""(module (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $p (param i32 i32 i32 i32) (result i32))) (memory (export "memory") 1)
      (func (export "go") (result i32 i32)
        (i64.store (i32.const 0) (i64.const 7)) (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const {milliseconds * 1_000_000}))
        (call $p (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)) (i32.load (i32.const 128))))"""


def test_guests_sleep_side_by_side(reactor, job):
    first = job(sleeping(100))
    jobs = [first, *(FakeJob(first.prepared) for _ in range(199))]
    start = time.monotonic()
    spawn(reactor, *jobs)
    assert [outcome(job) for job in jobs] == [[0, 1]] * 200
    assert 0.1 <= time.monotonic() - start < 200 * 0.1


def test_a_deadline_ends_a_sleep(reactor, job):
    one = job(sleeping(60_000), deadline=Deadline.after(0.05))
    spawn(reactor, one)
    assert isinstance(outcome(one), InvokeTimeout)


def test_a_body_without_steps_runs_on_another_thread_and_sees_the_memory(reactor, job):
    seen: list[object] = []

    def body(call, value):
        seen.extend((threading.current_thread().name, call.memory.read(1024, 4), call.memory.size_bytes))
        call.memory.write(0, b"\x2a\0\0\0")
        return value

    one = job(ECHO, "go", 1, functions=(HostFunction(HOST, "wait", ("i32",), ("i32",), body, waits=True),))
    spawn(reactor, one)
    assert outcome(one) == [43]
    assert seen[0].startswith("tensorwasm-fibers")
    assert seen[1:] == [b"data", 65536]


def test_a_guest_without_memory_has_none_while_it_waits(reactor, job):
    def body(call, _value):
        return len(call.memory.read(0, 1))

    text = f'(module {WAITS} (func (export "go") (result i32) (call $wait (i32.const 1))))'
    one = job(text, functions=(HostFunction(HOST, "wait", ("i32",), ("i32",), body, waits=True),))
    spawn(reactor, one)
    assert isinstance(outcome(one), InvalidPointer)


@pytest.mark.parametrize("raised", [DeviceLost("gone"), ZeroDivisionError("bug"), KeyboardInterrupt()])
def test_an_error_of_a_host_function_ends_only_its_guest(reactor, job, raised):
    def body(_call, _value):
        raise raised

    def steps(_call, _value):
        yield Sleep(0.0)
        raise raised

    for how in ({"steps": steps}, {}):
        function = HostFunction(HOST, "wait", ("i32",), ("i32",), body, waits=True, **how)
        one = job(ECHO, "go", 1, functions=(function,))
        spawn(reactor, one)
        expected = InternalError if isinstance(raised, ZeroDivisionError) else type(raised)
        assert type(outcome(one)) is expected


@pytest.mark.rule("3-memory")
def test_a_sandbox_is_kept_until_work_in_its_memory_is_done(reactor, job):
    begun, go_on = threading.Event(), threading.Event()

    def body(call, _value):
        begun.set()
        assert go_on.wait(SOON_S)
        call.memory.write(0, b"still there")
        return 0

    function = HostFunction(HOST, "wait", ("i32",), ("i32",), body, waits=True)
    one = job(ECHO, "go", 1, functions=(function,), deadline=Deadline.after(0.05))
    spawn(reactor, one)
    assert begun.wait(SOON_S)
    settle(reactor, lambda: reactor.statistics().waiting == 0)
    assert not one.future.done()
    go_on.set()
    assert isinstance(outcome(one), InvokeTimeout)


def test_a_failed_device_ends_the_waits_that_it_will_never_end(code, engine, job, stream, monkeypatch):
    monkeypatch.setattr(notifications, "PULSE_S", 0.02)
    reactor = Reactor(code)
    healthy = FakeStream()
    fine = job(ECHO, "go", 1, functions=(healthy.function(),))
    lost = [job(ECHO, "go", number) for number in range(3)]
    spawn(reactor, *lost, fine)
    stream.await_waiters(3)
    healthy.await_waiters(1)
    stream.failure = DeviceLost("fell off the bus")
    assert {type(outcome(job)) for job in lost} == {DeviceLost}
    healthy.end_work()
    assert outcome(fine) == [3]
    settle(reactor, lambda: reactor.statistics().orphans == 3)
    reactor.close()


# ------------------------------------------------------------------------------ more than a driver queues


@pytest.fixture
def narrow(code, engine, monkeypatch) -> Iterator[Callable[[], Reactor]]:
    """Reactors of a process that asks for two notifications at a time."""
    room, made = notifications.NotificationLimit(2), []
    monkeypatch.setattr(notifications, "PROCESS_LIMIT", room)

    def make() -> Reactor:
        made.append(Reactor(code))
        return made[-1]

    yield make
    for reactor in made:
        reactor.close()
    assert len(room) == 0


def suspended(reactor: Reactor, count: int) -> None:
    settle(reactor, lambda: reactor.statistics().on_device == count)


def spawn_in_order(reactor: Reactor, *jobs: FakeJob) -> list[Any]:
    """Begin guests that wait in this order: of those that begin together, one that is interrupted is overtaken."""
    tasks = []
    for count, one in enumerate(jobs, 1):
        tasks += spawn(reactor, one)
        suspended(reactor, count)
    return tasks


def test_no_more_are_asked_for_than_a_driver_queues_and_the_others_in_their_order(narrow, job, stream):
    reactor = narrow()
    jobs = [job(ECHO, "go", number) for number in range(5)]
    spawn_in_order(reactor, *jobs)
    for number, one in enumerate(jobs):
        assert len(stream.waiting) == min(2, 5 - number)
        stream.end_work(1)
        assert outcome(one) == [2 * number + 1]
        stream.await_waiters(min(2, 4 - number))
    assert reactor.statistics().notifications == 5


def test_reactors_of_a_process_share_the_room(narrow, job, stream):
    first, second = narrow(), narrow()
    for reactor in (first, second):
        jobs = [job(ECHO, "go", 1), job(ECHO, "go", 1)]
        spawn(reactor, *jobs)
        suspended(reactor, 2)
    assert len(stream.waiting) == 2
    stream.end_work()
    stream.await_waiters(2)
    stream.end_work()
    assert [outcome(one) for one in jobs] == [[3], [3]]


def test_a_guest_that_ends_in_line_is_never_asked_for(narrow, job, stream):
    reactor = narrow()
    jobs = [job(ECHO, "go", number) for number in range(4)]
    tasks = spawn_in_order(reactor, *jobs)
    reactor.cancel(tasks[2])
    assert outcome(jobs[2]).trap == "cancelled"
    stream.end_work(1)
    stream.await_waiters(2)
    stream.end_work()
    assert outcome(jobs[3]) == [7]
    settle(reactor, lambda: not reactor.statistics().orphans)


def test_a_guest_in_line_whose_work_has_ended_leaves_its_room_to_the_next(narrow, job, stream):
    def steps(_call, value):
        return 10 + (yield DeviceWait(lambda _function, _argument: False, lambda: False)) + value

    done = HostFunction(HOST, "wait", ("i32",), ("i32",), print, waits=True, steps=steps)

    def broken(_call, value):
        try:
            yield DeviceWait(lambda _function, _argument: 1 // 0, lambda: False)
        except ZeroDivisionError:
            return value

    failed = HostFunction(HOST, "wait", ("i32",), ("i32",), print, waits=True, steps=broken)
    reactor = narrow()
    jobs = [job(ECHO, "go", 1), job(ECHO, "go", 1), job(ECHO, "go", 1, functions=(done,)),
            job(ECHO, "go", 1, functions=(failed,)), job(ECHO, "go", 1)]  # fmt: skip
    spawn_in_order(reactor, *jobs)
    stream.end_work(1)
    assert [outcome(one) for one in jobs[2:4]] == [[12], [2]]
    stream.await_waiters(2)
    stream.end_work()
    assert outcome(jobs[4]) == [3]


def test_a_guest_in_line_behind_long_work_is_not_kept_once_its_own_has_ended(narrow, job, stream, monkeypatch):
    monkeypatch.setattr(notifications, "PULSE_S", 0.02)
    reactor, short = narrow(), FakeStream()
    long = [job(ECHO, "go", number) for number in range(3)]
    quick = [job(ECHO, "go", number, functions=(short.function(),)) for number in range(2)]
    spawn_in_order(reactor, *long, *quick)
    short.idle = True
    assert [outcome(one) for one in quick] == [[1], [3]]
    assert (len(short.waiting), reactor.statistics().on_device) == (0, 3)
    stream.idle = True  # of who was asked for, only the notification counts: it will come and needs its guest's wait
    assert outcome(long[2]) == [5]
    stream.end_work()
    assert [outcome(one) for one in long[:2]] == [[1], [3]]


def test_a_failed_device_ends_the_waits_in_line_too_and_frees_the_room(narrow, job, stream, monkeypatch):
    monkeypatch.setattr(notifications, "PULSE_S", 0.02)
    reactor, healthy = narrow(), FakeStream()
    lost = [job(ECHO, "go", number) for number in range(4)]
    fine = job(ECHO, "go", 1, functions=(healthy.function(),))
    spawn(reactor, *lost)
    suspended(reactor, 4)
    stream.failure = DeviceLost("fell off the bus")
    assert {type(outcome(one)) for one in lost} == {DeviceLost}
    spawn(reactor, fine)
    healthy.await_waiters(1)
    healthy.end_work()
    assert outcome(fine) == [3]
    stream.end_work()
    settle(reactor, lambda: reactor.statistics().orphans == 0)


# ------------------------------------------------------------------------------------------------- lines


def lined_up(reactor: Reactor, job: Callable[..., FakeJob], line: FakeLine, *calls: Any, **options: Any) -> list[Any]:
    """Return jobs whose guests stand in line, with their tasks."""
    jobs = [job(ECHO, *call, functions=(line.function(),), **options) for call in calls]
    tasks = []
    for count, one in enumerate(jobs, 1):
        tasks += spawn(reactor, one)
        line.await_waiters(count)
    return list(zip(jobs, tasks, strict=True))


def test_guests_go_on_when_their_turn_comes(reactor, job):
    line = FakeLine()
    (first, _), (second, _) = lined_up(reactor, job, line, ("go", 1), ("go", 2))
    settle(reactor, lambda: reactor.statistics().in_line == reactor.statistics().waiting == 2)
    line.call_next()
    assert outcome(first) == [3]
    assert not second.future.done()
    line.call_next()
    assert outcome(second) == [5]
    assert reactor.statistics().in_line == 0
    assert line.asked == ["join"] * 2


def test_a_guest_whose_turn_is_free_continues_at_once(reactor, job):
    line = FakeLine()
    line.join = lambda _tell, _until: False
    one = job(ECHO, "twice", 1, functions=(line.function(),))
    spawn(reactor, one)
    assert outcome(one) == [3]


@pytest.mark.parametrize(("error", "expected"), [(CapacityExhausted("full"), [5]), (DeviceLost("gone"), DeviceLost)])
def test_a_queue_that_admits_none_informs_the_steps(reactor, job, error, expected):
    def refuse(_tell, _until):
        raise error

    line = FakeLine()
    line.join = refuse
    one = job(ECHO, "twice", 1, functions=(line.function(),))
    spawn(reactor, one)
    assert outcome(one) == expected or type(outcome(one)) is expected


@pytest.mark.parametrize(("refusal", "expected"), [(CapacityExhausted("full"), 4), (None, 3)])
def test_a_guest_that_waits_too_long_gives_up_unless_its_turn_has_come(reactor, job, refusal, expected):
    line = FakeLine(until=Deadline.after(0.03), refusal=refusal)
    ((one, _),) = lined_up(reactor, job, line, ("go", 1))
    assert outcome(one) == [expected]
    assert line.asked == ["join", "give up"]


def test_a_turn_that_came_as_it_was_given_up_is_not_the_next_one(reactor, job):
    def give_up():
        late.append(line.waiting.pop())
        line.until = Deadline()

    late, line = [], FakeLine(until=Deadline.after(0.03))
    line.give_up = give_up
    ((one, _),) = lined_up(reactor, job, line, ("twice", 1))
    settle(reactor, lambda: late and line.waiting)
    late.pop()()
    spawn(reactor, job(ECHO, "go", 1, functions=(line.function(),)))
    line.await_waiters(2)  # by now the late one was heard
    settle(reactor, lambda: reactor.statistics().in_line == 2)
    line.call_next()
    assert outcome(one) == [3]
    assert line.asked == ["join"] * 3


def test_a_guest_that_ends_leaves_the_line(reactor, job):
    line = FakeLine()
    (first, task), (second, _) = lined_up(reactor, job, line, ("go", 1), ("go", 2))
    reactor.cancel(task)
    assert outcome(first).trap == "cancelled"
    assert line.asked == ["join", "join", "abandon"]
    line.call_next()  # as it does if the turn came at that very moment
    line.call_next()
    assert outcome(second) == [5]
    assert line.asked == ["join", "join", "abandon"]


def test_a_deadline_ends_a_guest_in_line(reactor, job):
    line = FakeLine()
    ((one, _),) = lined_up(reactor, job, line, ("go", 1), deadline=Deadline.after(0.05))
    assert isinstance(outcome(one), InvokeTimeout)
    assert line.asked == ["join", "abandon"]


def test_closing_ends_guests_in_line(code, job):
    reactor, line = Reactor(code), FakeLine()
    made = lined_up(reactor, job, line, ("go", 1), ("go", 2))
    reactor.close()
    assert [outcome(one).trap for one, _ in made] == ["cancelled"] * 2
    assert line.asked.count("abandon") == 2


def test_a_guest_needs_one_timer_however_often_it_waits_for_its_turn(reactor, job):
    line = FakeLine(until=Deadline.after(60))

    def steps(_call, value):
        for _ in range(50):
            yield QueueWait(line, line.until)
        return value

    function = HostFunction(HOST, "wait", ("i32",), ("i32",), print, waits=True, steps=steps)
    one = job(ECHO, "go", 1, functions=(function,))
    spawn(reactor, one)
    for _ in range(50):
        line.await_waiters(1)
        line.call_next()
    assert outcome(one) == [2]
    assert len(reactor._timers) == 2  # that and its deadline


# ----------------------------------------------------------------------------------------------- the end


@pytest.mark.rule("3-memory")
def test_a_sandbox_that_something_still_reaches_is_kept(code, engine, job):
    before = engine.free_slots
    reactor = Reactor(code)
    one = job(ECHO, "spin", deadline=Deadline.after(0.02), drain=lambda: False, blocks=True)
    spawn(reactor, one)
    assert isinstance(outcome(one), InvokeTimeout)
    reactor.close()
    assert engine.free_slots == before - 1


def test_blocking_work_at_the_end_of_a_guest_does_not_delay_the_reactor(reactor, job, stream):
    go_on = threading.Event()
    slow = job(ECHO, "spin", deadline=Deadline.after(0.02), drain=lambda: go_on.wait(SOON_S), blocks=True)
    spawn(reactor, slow)
    quick = job(ECHO, "go", 2)
    spawn(reactor, quick)
    stream.await_waiters(1)
    stream.end_work()
    assert outcome(quick) == [5]
    go_on.set()
    assert isinstance(outcome(slow), InvokeTimeout)
    assert slow.finished_on != threading.get_ident()


@pytest.mark.parametrize("long", [False, True])
def test_guests_that_no_timer_ends_in_time_hold_up_no_other_on_any_thread(reactor, job, long):
    go_on = threading.Event()
    config = WasiConfig(stdout=lambda _: go_on.wait(SOON_S))
    heavy = [job(PRINTS, "go", wasi_config=config, may_move=True) for _ in range(3)]
    spawn(reactor, *heavy)
    light = job(SEVEN, "go", may_move=True, light=True)
    reactor.spawn(light, long=long)
    assert outcome(light) == [7]
    assert not any(one.future.done() for one in heavy)
    go_on.set()
    assert [outcome(one) for one in heavy] == [[], [], []]


def test_the_end_of_a_guest_that_ran_long_is_not_on_the_reactors_thread(reactor, job):
    one = job(ECHO, "spin", deadline=Deadline.after(0.05), may_move=True, light=True)
    spawn(reactor, one)
    assert isinstance(outcome(one), InvokeTimeout)
    assert one.finished_on != reactor._thread.ident


@pytest.mark.parametrize("spare", ["there are", "there are none"])
def test_ends_that_wait_for_others_hold_up_no_other_end(code, job, monkeypatch, spare):
    reactor, go_on = Reactor(code), threading.Event()
    count = 2 * threads.THREADS if spare == "there are" else 2
    if spare == "there are none":
        monkeypatch.setattr(threads, "_on_own_thread", lambda _function: False)
    late = [job(ECHO, "spin", deadline=Deadline.after(0.02), blocks=True, lingers=True) for _ in range(count)]
    for one in late:
        one.drain = lambda: go_on.wait(SOON_S)
        spawn(reactor, one)
    soon = job(ECHO, "spin", deadline=Deadline.after(0.05), drain=lambda: True, blocks=True)
    spawn(reactor, soon)
    assert isinstance(outcome(soon), InvokeTimeout)
    assert not any(one.future.done() for one in late)
    closing = threading.Thread(target=reactor.close)
    closing.start()
    go_on.set()
    closing.join()
    assert all(one.future.done() for one in late), "a reactor closes when the last of its guests has gone"


def test_output_reaches_its_sink_and_one_that_raises_ends_the_call(reactor, job):
    taken: list[bytes] = []

    def refuse(_chunk):
        raise ValueError("full")

    good, bad = (
        job(PRINTS, wasi_config=WasiConfig(stdout=taken.append)),
        job(PRINTS, wasi_config=WasiConfig(stdout=refuse)),
    )
    spawn(reactor, good, bad)
    assert outcome(good) == []
    assert taken == [b"hi"]
    assert isinstance(outcome(bad), InternalError)


def test_stale_timers_are_swept_out(code, engine, job, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_STALE", 8)
    reactor = Reactor(code)
    first = job('(module (func (export "go")))')
    jobs = [first, *(FakeJob(first.prepared) for _ in range(99))]
    for one in jobs:
        spawn(reactor, one)
        assert outcome(one) == []
    assert len(reactor._timers) < 40
    reactor.close()


def test_stale_timers_of_guests_that_stood_in_line_are_swept_out(code, engine, job, monkeypatch):
    monkeypatch.setattr(tasks, "MAX_STALE", 8)
    reactor, line = Reactor(code), FakeLine(until=Deadline.after(60))
    for _ in range(100):
        ((one, _),) = lined_up(reactor, job, line, ("go", 1))
        line.call_next()
        assert outcome(one) == [3]
    assert len(reactor._timers) < 40
    reactor.close()


def test_an_ended_call_is_released_before_its_timers_are_due(reactor, job):
    line = FakeLine(until=Deadline.after(60))
    ((one, _),) = lined_up(reactor, job, line, ("go", 1))
    line.call_next()
    assert outcome(one) == [3]
    assert len(reactor._timers) == 2
    kept = weakref.ref(one)
    del one, _
    settle(reactor, lambda: kept() is None)
    assert len(reactor._timers) == 2


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_two_thousand_guests_wait_at_once_in_less_than_40_kib_each(reactor, job, stream):
    first = job(ECHO, "go", 0)
    spawn(reactor, first)
    stream.await_waiters(1)
    gc.collect()
    threads, before = threading.active_count(), resident_bytes()
    jobs = [FakeJob(first.prepared, "go", (number,)) for number in range(1, 2001)]
    spawn(reactor, *jobs)
    stream.await_waiters(2001)
    settle(reactor, lambda: reactor.statistics().waiting == 2001)
    each = (resident_bytes() - before) / 2000
    assert threading.active_count() == threads
    stream.end_work()
    assert [outcome(job) for job in jobs] == [[2 * number + 1] for number in range(1, 2001)]
    assert each < 40 << 10
