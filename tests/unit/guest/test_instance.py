from __future__ import annotations

import threading
import time

import pytest

from neighbours import until
from tensorwasm.errors import (
    GuestTrap,
    InternalError,
    InvalidArgs,
    InvalidPointer,
    InvokeTimeout,
    MissingExport,
    ModuleMemoryTooLarge,
)
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.imports.host_function import HostFunction
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.values import Deadline, Limits

SPIN = '(module (func (export "spin") (loop (br 0))) (func (export "one") (result i32) (i32.const 1)))'
PATIENCE_S = 20.0  # far above anything that should happen, far below the test's time limit


def host(body, params=(), results=()):
    return HostFunction("h", "f", params, results, body)


@pytest.mark.parametrize(
    ("body", "trap"),
    [
        ("unreachable", "unreachable"),
        ("(drop (i32.div_s (i32.const 1) (i32.const 0)))", "integer_division_by_zero"),
        ("(drop (i32.div_s (i32.const 0x80000000) (i32.const -1)))", "integer_overflow"),
        ("(drop (i32.trunc_f32_s (f32.const nan)))", "bad_conversion_to_integer"),
        ("(drop (i32.load (i32.const 65533)))", "memory_out_of_bounds"),
        ("(i32.store offset=0xffffffff (i32.const -1) (i32.const 0))", "memory_out_of_bounds"),
        ("(call_indirect (param i32) (i32.const 0) (i32.const 0))", "bad_signature"),
        ("(call_indirect (i32.const 1))", "indirect_call_to_null"),
        ("(call_indirect (i32.const 99))", "table_out_of_bounds"),
        ("(drop (table.get 0 (i32.const 99)))", "table_out_of_bounds"),
        ("(call $go)", "stack_overflow"),
    ],
)
def test_each_trap_has_a_stable_name(spawn, body, trap):
    wat = f"""(module (memory 1) (table 2 funcref) (func $f) (elem (i32.const 0) $f)
      (func $go (export "go") {body}))"""
    instance = spawn(wat)
    for _ in range(2):  # a trap leaves the sandbox usable
        with pytest.raises(GuestTrap) as caught:
            instance.call("go")
        assert caught.value.trap == trap
        assert "in function 1 (go)" in caught.value.message
        assert "0x" not in caught.value.message


def test_a_function_name_from_the_guest_is_cleaned(spawn, wat):
    body = wat('(module (func $NAME (export "go") unreachable))').replace(b"NAME", b"\n\x1b\r\x00")
    with pytest.raises(GuestTrap) as caught:
        spawn(body).call("go")
    assert caught.value.message.isprintable()


def test_mutual_recursion_is_a_typed_trap(spawn):
    instance = spawn(
        """(module (func $a (export "a") (param i64 i64) (result i64) (i64.add (call $b (local.get 1)) (local.get 0)))
           (func $b (param i64) (result i64) (i64.add (call $a (local.get 0) (local.get 0)) (i64.const 1))))"""
    )
    with pytest.raises(GuestTrap) as caught:
        instance.call("a", [1, 2])
    assert caught.value.trap == "stack_overflow"


def test_data_and_elements_outside_are_traps_of_instantiation(engine, spawn):
    free = engine.free_slots
    for text, trap in (
        ('(module (memory 1) (data (i32.const 0x7fffffff) "x"))', "memory_out_of_bounds"),
        ('(module (memory 1) (data (i32.const -1) "x"))', "memory_out_of_bounds"),
        ("(module (table 1 funcref) (func $f) (elem (i32.const 5) $f))", "table_out_of_bounds"),
    ):
        with pytest.raises(GuestTrap) as caught:
            spawn(text)
        assert caught.value.trap == trap
    assert engine.free_slots == free


def test_exports_are_described_and_missing_ones_named(spawn):
    instance = spawn('(module (memory (export "memory") 1) (func (export "f") (param i32) (result i64) (i64.const 1)))')
    assert str(instance.module.exports["f"].signature) == "(i32) -> (i64)"
    assert instance.module.exports["memory"].kind == "memory"
    for name in ("g", "memory", "", "f\0", "é"):
        with pytest.raises(MissingExport, match="there is f"):
            instance.call(name)


@pytest.mark.parametrize("args", [[], [1, 2], ["x"], [None], [1.5], [True], [2**40]])
def test_wrong_arguments_never_reach_the_guest(spawn, args):
    reached = []
    instance = spawn(
        '(module (import "h" "f" (func $f)) (func (export "go") (param i32) (call $f)))',
        host(lambda _call: reached.append(1)),
    )
    with pytest.raises(InvalidArgs):
        instance.call("go", args)
    assert not reached
    instance.call("go", [1])
    assert reached == [1]


@pytest.mark.parametrize(
    ("signature", "kind"),
    [("(param v128)", "v128"), ("(result v128) unreachable", "v128"), ("(result funcref) unreachable", "funcref")],
)
def test_types_that_cannot_cross_are_refused_by_name(spawn, signature, kind):
    with pytest.raises(InvalidArgs, match=f"a {kind} cannot be passed"):
        spawn(f'(module (func (export "f") {signature}))').call("f", [1] if "param" in signature else [])


def test_many_values_come_back(spawn):
    instance = spawn(
        """(module (func (export "f") (param i64) (result i64 f32 f64 i32)
             (local.get 0) (f32.const 0.1) (f64.const -inf) (i32.const -7)))"""
    )
    assert instance.call("f", [2**63]) == [-(2**63), 0.10000000149011612, float("-inf"), -7]


def test_an_endless_call_ends_at_its_deadline_and_the_sandbox_lives_on(spawn):
    instance = spawn(SPIN)
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(InvokeTimeout, match=r"stopped after 0\.\d+ s"):
            instance.call("spin", deadline=Deadline.after(0.05))
    assert 0.1 <= time.monotonic() - begun < PATIENCE_S
    assert instance.call("one") == [1]


def test_the_wall_limit_holds_without_a_deadline(spawn):
    instance = spawn(SPIN, limits=Limits(wall_s=0.03))
    for deadline in (None, Deadline(), Deadline.after(1000)):
        with pytest.raises(InvokeTimeout):
            instance.call("spin", deadline=deadline)


def test_a_deadline_in_the_past_runs_nothing(spawn):
    reached = []
    wat = '(module (import "h" "f" (func $f)) (func (export "go") (call $f)))'
    instance = spawn(wat, host(lambda _call: reached.append(1)))
    with pytest.raises(InvokeTimeout):
        instance.call("go", deadline=Deadline.after(0))
    assert not reached


def test_an_endless_start_function_ends_at_the_deadline(engine, spawn):
    free = engine.free_slots
    for options in ({"deadline": Deadline.after(0.03)}, {"limits": Limits(wall_s=0.03)}):
        with pytest.raises(InvokeTimeout):
            spawn("(module (func $s (loop (br 0))) (start $s))", **options)
    assert engine.free_slots == free


def test_a_deadline_beyond_one_poll_interval_is_kept(spawn):
    begun = time.monotonic()
    with pytest.raises(InvokeTimeout):
        spawn(SPIN).call("spin", deadline=Deadline.after(0.6))
    assert 0.6 <= time.monotonic() - begun < PATIENCE_S


def test_a_deadline_is_kept_while_another_thread_keeps_python_busy(spawn):
    instance = spawn(SPIN)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            sum(range(1000))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    begun = time.monotonic()
    try:
        with pytest.raises(InvokeTimeout):
            instance.call("spin", deadline=Deadline.after(0.1))
    finally:
        stop.set()
        busy.join()
    assert time.monotonic() - begun < PATIENCE_S


def run_in_thread(function, *args, **kwargs):
    """Start a call on a thread; return the thread and the list that gets its outcome."""
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the outcome is what is judged
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def test_cancelling_ends_a_running_call_and_no_other(spawn):
    entered = threading.Event()
    wat = '(module (import "h" "f" (func $f)) (func (export "go") (call $f) (loop (br 0))))'
    victim = spawn(wat, host(lambda _call: entered.set()))
    bystander = spawn(SPIN)
    other, other_outcome = run_in_thread(bystander.call, "spin", deadline=Deadline.after(0.5))
    thread, outcome = run_in_thread(victim.call, "go")
    assert entered.wait(PATIENCE_S)
    victim.cancel()
    thread.join(PATIENCE_S)
    assert isinstance(outcome[0], GuestTrap)
    assert outcome[0].trap == "cancelled"
    other.join(PATIENCE_S)
    assert isinstance(other_outcome[0], InvokeTimeout)
    with pytest.raises(GuestTrap, match="cancelled"):
        victim.call("go")


def test_closing_ends_a_running_call(engine, spawn):
    entered = threading.Event()
    wat = '(module (import "h" "f" (func $f)) (func (export "go") (call $f) (loop (br 0))))'
    instance = spawn(wat, host(lambda _call: entered.set()))
    free = engine.free_slots
    thread, outcome = run_in_thread(instance.call, "go")
    assert entered.wait(PATIENCE_S)
    instance.close()
    thread.join(PATIENCE_S)
    assert isinstance(outcome[0], GuestTrap)
    assert engine.free_slots == free + 1


def test_calls_of_one_sandbox_take_turns(spawn):
    inside: list[int] = []
    most: list[int] = []

    def body(_call) -> None:
        inside.append(1)
        most.append(len(inside))
        sum(range(2000))
        inside.pop()

    instance = spawn('(module (import "h" "f" (func $f)) (func (export "go") (call $f)))', host(body))
    threads = [run_in_thread(lambda: [instance.call("go") for _ in range(100)])[0] for _ in range(4)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(most) == 400
    assert max(most) == 1


def test_waiting_for_a_turn_ends_at_the_deadline(spawn):
    entered, release = threading.Event(), threading.Event()

    def body(_call) -> None:
        entered.set()
        release.wait(PATIENCE_S)

    instance = spawn('(module (import "h" "f" (func $f)) (func (export "go") (call $f)))', host(body))
    thread, outcome = run_in_thread(instance.call, "go")
    assert entered.wait(PATIENCE_S)
    with pytest.raises(InvokeTimeout, match="another call"):
        instance.call("go", deadline=Deadline.after(0.02))
    release.set()
    thread.join(PATIENCE_S)
    assert outcome == [[]]


@pytest.mark.rule("12-nested")
def test_a_host_function_cannot_call_back_or_close(spawn):
    instances: list[Instance] = []
    errors: list[InternalError] = []

    def body(_call) -> None:
        for forbidden in (lambda: instances[0].call("go"), instances[0].close):
            with pytest.raises(InternalError) as caught:
                forbidden()
            errors.append(caught.value)

    instances.append(spawn('(module (import "h" "f" (func $f)) (func (export "go") (call $f)))', host(body)))
    instances[0].call("go")
    assert len(errors) == 2


def test_a_host_function_may_run_another_sandbox(spawn):
    inner = spawn(SPIN)
    outer = spawn(
        '(module (import "h" "f" (func $f (result i32))) (func (export "go") (result i32) (call $f)))',
        host(lambda _call: inner.call("one")[0] + 1, (), ("i32",)),
    )
    assert outer.call("go") == [2]


def test_the_host_function_sees_the_deadline_of_the_call(spawn):
    seen = []
    wat = '(module (import "h" "f" (func $f)) (func (export "go") (call $f)))'
    instance = spawn(wat, host(lambda call: seen.append(call.deadline)), limits=Limits(wall_s=5))
    deadline = Deadline.after(2)
    instance.call("go", deadline=deadline)
    instance.call("go")
    assert seen[0] == deadline
    assert 2 < seen[1].remaining_s() <= 5


def test_growing_past_the_cap_answers_minus_one(spawn):
    wat = """(module (memory (export "memory") 1)
      (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
      (func (export "grow_all") (result i32) (loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
        (memory.size)))"""
    instance = spawn(wat, limits=Limits(memory_bytes=10 << 16))
    assert instance.call("grow", [9]) == [1]
    assert instance.call("grow", [1]) == [-1]
    assert instance.call("grow", [2**31]) == [-1]
    assert spawn(wat, limits=Limits(memory_bytes=100 << 16)).call("grow_all") == [100]
    assert instance.memory.size_bytes == 10 << 16


def test_growing_a_table_past_the_cap_answers_minus_one(spawn):
    wat = """(module (table 1 funcref)
      (func (export "grow") (param i32) (result i32) (table.grow 0 (ref.null func) (local.get 0))))"""
    instance = spawn(wat, limits=Limits(table_elements=10))
    assert instance.call("grow", [9]) == [1]
    assert instance.call("grow", [1]) == [-1]
    unbounded = spawn(wat, limits=Limits(table_elements=1 << 40))
    assert unbounded.call("grow", [(1 << 20) - 1]) == [1]
    assert unbounded.call("grow", [1]) == [-1]


def test_limits_of_the_sandbox_count_too(engine, wat):
    prepared = Linker(engine).prepare(compile_module(engine, wat("(module (memory 100))")))
    with pytest.raises(ModuleMemoryTooLarge):
        Instance(prepared, limits=Limits(memory_bytes=1 << 20))


def test_closing_twice_is_harmless_and_a_closed_sandbox_refuses(engine, spawn):
    free = engine.free_slots
    instance = spawn('(module (memory (export "memory") 1) (func (export "f")))')
    memory = instance.memory
    assert engine.free_slots == free - 1
    instance.close()
    instance.close()
    assert engine.free_slots == free
    assert instance.closed
    with pytest.raises(InternalError, match="closed"):
        instance.call("f")
    for access in (lambda: memory.read(0, 1), lambda: instance.memory.view(0, 1), lambda: memory.write(0, b"x")):
        with pytest.raises(InvalidPointer):
            access()
    instance.cancel()


def test_a_forgotten_sandbox_gives_its_slot_back(engine, wat):
    free = engine.free_slots
    instance = Instance(Linker(engine).prepare(compile_module(engine, wat("(module)"))))
    assert engine.free_slots == free - 1
    del instance
    assert engine.free_slots == free


def test_the_session_of_a_forgotten_sandbox_ends_on_a_thread_without_locks(engine, wat):
    free, threads = engine.free_slots, []
    linked = Linker(engine).prepare(compile_module(engine, wat("(module)")))

    def drain() -> bool:
        threads.append(threading.get_ident())
        return True

    instance = Instance(linked, drain=drain)
    del instance
    until(lambda: engine.free_slots == free)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.rule("4-memory")
def test_nothing_of_one_sandbox_is_left_for_the_next(engine, wat):
    wasm = wat(
        """(module (memory (export "memory") 64) (global $g (mut i32) (i32.const 5)) (table 10 funcref) (func $f)
          (elem declare func $f)
          (func (export "dirty") (memory.fill (i32.const 0) (i32.const 0xAB) (i32.const 4194304))
            (global.set $g (i32.const 9)) (table.set 0 (i32.const 3) (ref.func $f)))
          (func (export "look") (result i32 i32) (global.get $g) (ref.is_null (table.get 0 (i32.const 3)))))"""
    )
    prepared = Linker(engine).prepare(compile_module(engine, wasm))
    for _ in range(3):
        with Instance(prepared) as instance:
            assert instance.call("look") == [5, 1]
            assert instance.memory.read(0, 64 << 16).count(0) == 64 << 16
            instance.call("dirty")
            assert instance.memory.read(0, 64 << 16).count(0xAB) == 64 << 16
