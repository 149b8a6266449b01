import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from oracles.live import outcome_of, state_now
from strategies.live import GUEST, programs
from tensorwasm.errors import (
    CapacityExhausted,
    GuestTrap,
    InternalError,
    InvalidSnapshot,
    InvokeTimeout,
    MissingExport,
    ModuleMemoryTooLarge,
    NotCapturable,
)
from tensorwasm.guest.native.loading import load_entries, load_oneshot
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.snapshots.live import InstanceOptions
from tensorwasm.values import MIB, Deadline, Limits

SLOW = """
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi:tensor/host" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\08\\00\\00\\00\\05\\00\\00\\00hello")
  (func (export "spin") (loop $again (br $again)))
  (func (export "hello") (result i32) (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 100)))
  (func (export "emit") (result i32) (call $emit (i32.const 8) (i32.const 5))))
"""


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator", limits=Limits(memory_bytes=4 * MIB, wall_s=10)) as made:
        yield made


@pytest.fixture(scope="module")
def function(runtime):
    return runtime.load(bytes(wat2wasm(GUEST)), "stateful")


@pytest.fixture(scope="module")
def slow(runtime):
    return runtime.load(bytes(wat2wasm(SLOW)), "slow")


def test_state_stays_from_call_to_call(function):
    with function.open(input=b"given") as live:
        live.call("store", (50, 1234))
        assert live.call("load", (50,)).values == (1234,)
        assert live.call("read", (60, 99)).values == (5,)
        assert live.call("read", (60, 99), input=b"anew").values == (4,)
        assert live.call("read", (60, 99)).values == (4,)
        assert live.call("load", (2000,)).values == (1,)
        assert live.statistics().calls == 6
    assert live.closed
    with pytest.raises(InternalError, match="closed"):
        live.call("load", (50,))


def test_the_edited_form_does_what_the_module_does(function):
    plain = function.invoke("vector").values, function.invoke("i64").values, function.invoke("call-u", (0,)).values
    with function.open() as live:
        assert (live.call("vector").values, live.call("i64").values, live.call("call-u", (0,)).values) == plain


def test_private_names_are_not_there_for_callers(function):
    with function.open() as live, pytest.raises(MissingExport):
        live.call(function.instrumented.functions[2])
    assert not any("private" in name for name in function.exports)


@given(before=programs(), after=programs(15))
@settings(max_examples=60)
def test_an_instance_that_was_restored_goes_on_like_one_that_was_not(runtime, function, before, after):
    with function.open(input=b"an input of some length") as live:
        for export, args in before:
            outcome_of(live, export, args)
        snapshot = runtime.snapshot(live)
        with runtime.restore(snapshot, function) as restored, runtime.restore(snapshot, function) as untouched:
            assert state_now(restored) == state_now(live)
            for export, args in after:
                assert outcome_of(restored, export, args) == outcome_of(live, export, args)
            assert state_now(restored) == state_now(live)
            with runtime.restore(runtime.snapshot(untouched), function) as again:
                assert state_now(again) == state_now(untouched)
        snapshot.close()


@given(first=programs(), second=programs())
@settings(max_examples=40)
def test_a_state_and_its_changes_give_the_later_state(runtime, function, first, second):
    with function.open() as live:
        for export, args in first:
            outcome_of(live, export, args)
        with runtime.snapshot(live) as earlier, runtime.restore(earlier, function) as restored:
            for each in (live, restored):
                for export, args in second:
                    outcome_of(each, export, args)
                with each.captured(earlier.ancestor) as added:
                    data = bytearray(added.memories[0].size_bytes)
                    before = earlier.image.map()
                    data[: earlier.image.size_bytes] = before.view()
                    before.close()
                    for run in added.memories[0].runs:
                        data[run.offset_bytes : run.offset_bytes + len(run.data)] = run.data
                memory = each._instance.memory
                assert bytes(data) == memory.read(0, memory.size_bytes)


def test_only_changed_pages_are_saved_again(runtime, function):
    with function.open() as live:
        live.call("fill", (0, 5, 100_000))
        with runtime.snapshot(live) as earlier, runtime.restore(earlier, function) as restored:
            for each in (live, restored):
                each.call("store", (4096 * 3 + 8, 1))
                each.call("store", (4096 * 4, 0x0505050505050505))
                with each.captured(earlier.ancestor) as added:
                    assert [(run.offset_bytes, len(run.data)) for run in added.memories[0].runs] == [(4096 * 3, 4096)]


def test_a_call_that_is_stopped_leaves_an_instance_that_can_be_saved(runtime, slow):
    with slow.open() as live:
        with pytest.raises(InvokeTimeout):
            live.call("spin", deadline=Deadline.after(0.02))
        with runtime.restore(runtime.snapshot(live), slow) as restored:
            assert restored.call("hello").stdout == b"hello"


def test_output_belongs_to_one_call(slow):
    with slow.open() as live:
        assert live.call("hello").stdout == b"hello"
        assert live.call("hello").stdout == b"hello"
        assert live.call("emit").chunks == (b"hello",)
        assert live.call("emit").chunks == (b"hello",)
        taken: list[bytes] = []
        live.call("emit", on_chunk=lambda chunk: not taken.append(chunk))
        assert taken == [b"hello"]


def test_a_call_waits_for_another_only_until_its_deadline_and_nothing_is_saved_meanwhile(runtime, slow):
    started = threading.Event()
    with slow.open() as live:

        def spin() -> None:
            started.set()
            with pytest.raises((InvokeTimeout, GuestTrap)):
                live.call("spin")

        thread = threading.Thread(target=spin)
        thread.start()
        started.wait()
        while not live._lock.locked():
            pass
        with pytest.raises(NotCapturable, match="call is in progress"):
            runtime.snapshot(live)
        with pytest.raises(InvokeTimeout):
            live.call("hello", deadline=Deadline.after(0.02))
        live.cancel()
        thread.join()


def test_an_instance_whose_call_was_ended_goes_on_once_it_is_resumed(slow):
    with slow.open() as live:
        outcomes: list[str] = []

        def spin() -> None:
            with pytest.raises(GuestTrap) as trap:
                live.call("spin")
            outcomes.append(trap.value.trap)

        thread = threading.Thread(target=spin)
        thread.start()
        while not live._lock.locked():
            pass
        live.cancel()
        thread.join()
        with pytest.raises(GuestTrap, match="cancelled"):
            live.call("hello")
        live.resume()
        live.resume()
        assert outcomes == ["cancelled"]
        assert live.call("hello").stdout == b"hello"
        live.cancel()
        live.resume()
        assert live.call("hello").stdout == b"hello"


def test_state_that_only_the_engine_has_is_refused_by_name(runtime, slow, tmp_path):
    with slow.open(grants=[f"dir:{tmp_path}:ro"]) as live, pytest.raises(NotCapturable, match="folders"):
        runtime.snapshot(live)
    with slow.open(stdin=b"text") as live, pytest.raises(NotCapturable, match="standard input"):
        runtime.snapshot(live)
    live.close()
    with pytest.raises(NotCapturable, match="closed"):
        runtime.snapshot(live)


@pytest.mark.rule("7-module")
def test_a_snapshot_fits_its_own_module_only(runtime, function, slow):
    with function.open() as live, runtime.snapshot(live) as snapshot, pytest.raises(InvalidSnapshot, match="module"):
        runtime.restore(snapshot, slow)
    twin = runtime.load(bytes(wat2wasm(GUEST)) + b"\0\2\1x")  # of the same shape, but for a custom section
    with function.open() as live, runtime.snapshot(live) as snapshot:
        with pytest.raises(InvalidSnapshot, match="module"):
            runtime.restore(snapshot, twin)
        with pytest.raises(InvalidSnapshot, match="module"):
            snapshot.invoke(twin, "load", (8,), opening())


def test_a_memory_over_the_limits_of_the_restoring_runtime_is_refused(runtime, function):
    small = runtime.load(bytes(wat2wasm(GUEST)), "small", Limits(memory_bytes=3 << 16))
    with function.open() as live:
        live.call("grow", (3,))
        with runtime.snapshot(live) as snapshot, pytest.raises(ModuleMemoryTooLarge):
            runtime.restore(snapshot, small)


@pytest.mark.rule("7-grants")
def test_grants_are_those_of_both(runtime, function, slow, tmp_path):
    saved = ["cuda", f"dir:{tmp_path}::/d:ro", "dir:/there::/there"]
    with function.open(grants=saved) as live, runtime.snapshot(live) as snapshot:
        for mine in (saved[:1], saved[1:2], saved[2:], [], saved):
            with runtime.restore(snapshot, function, grants=[*mine, "dir:/elsewhere"]) as restored:
                assert list(restored.grants.words()) == mine
        with runtime.restore(snapshot, function, grants=["dir:/there:ro", f"dir:{tmp_path}::/d"]) as restored:
            assert restored.grants.words() == ("dir:/there::/there:ro",)
    with slow.open(grants=["cuda"]) as live, runtime.snapshot(live) as snapshot:
        with runtime.restore(snapshot, slow) as restored:
            assert restored.grants.words() == ()
        with runtime.restore(snapshot, slow, grants=["cuda", f"dir:{tmp_path}:ro"]) as restored:
            assert restored.grants.words() == ("cuda",)
    with (
        slow.open() as live,
        runtime.snapshot(live) as snapshot,
        runtime.restore(snapshot, slow, grants=["cuda"]) as restored,
    ):
        assert restored.grants.words() == ()
        assert restored.statistics().gpu is None


@pytest.mark.rule("4-memory")
@given(marks=st.lists(st.integers(0, 100_000), min_size=1, max_size=10))
@settings(max_examples=20)
def test_a_restored_instance_does_not_see_writes_of_an_earlier_one(runtime, function, marks):
    with function.open() as live, runtime.snapshot(live) as snapshot:
        for _ in range(2):
            with runtime.restore(snapshot, function) as restored:
                for mark in marks:
                    assert restored.call("load", (mark,)).values == live.call("load", (mark,)).values
                for mark in marks:
                    restored.call("store", (mark, -1 & (1 << 64) - 1))


def test_nothing_is_held_once_instances_are_closed(runtime, function):
    engine = function.engine
    free = engine.free_slots
    with function.open() as live, runtime.snapshot(live) as snapshot:
        assert engine.free_slots == free - 1
        runtime.restore(snapshot, function).close()
    assert engine.free_slots == free
    live.close()


def opening(**options: object) -> InstanceOptions:
    return InstanceOptions(**options)  # type: ignore[arg-type]


@given(before=programs(), after=programs(10))
@settings(max_examples=40)
def test_a_call_of_a_snapshot_is_the_first_call_of_what_is_restored_from_it(runtime, function, before, after):
    with function.open(input=b"an input") as live:
        for export, args in before:
            outcome_of(live, export, args)
        with runtime.snapshot(live) as snapshot:
            for export, args in after:
                with runtime.restore(snapshot, function) as restored:
                    expected = outcome_of(restored, export, args)
                try:
                    found: object = snapshot.invoke(function, export, args, opening(input=b"an input")).to_json()
                except GuestTrap as trap:
                    found = trap.trap
                assert found == expected


@pytest.mark.parametrize("code", ["any", "compiled"])
def test_the_short_way_is_taken_and_shows_no_call_to_the_next_one(runtime, function, code):
    if code == "compiled" and not load_entries():
        pytest.skip("NO COMPILED CODE: it needs Linux and Numba")
    assert code == "any" or load_oneshot() is not None
    with function.open() as live:
        live.call("set-i32", (1000,))
        live.call("scale", (2.5,))
        live.call("vector")
        live.call("store", (8, 5))
        with runtime.snapshot(live) as snapshot:
            for _ in range(3):
                assert snapshot.invoke(function, "call", (2,), opening()).values == (1002,)
                assert snapshot.invoke(function, "load", (8,), opening()).values == (5,)
                snapshot.invoke(function, "store", (8, 77), opening())
                with pytest.raises(GuestTrap):
                    snapshot.invoke(function, "trap-midway", (8,), opening())
            assert snapshot.invoke(function, "vector", (), opening()).values == live.call("vector").values
            assert snapshot.invoke(function, "f32-bits", (), opening()).values == live.call("f32-bits").values
            assert len(snapshot._one_shots) == 6
            free = function.form(Form(instrumented="blank")).module.engine.free_slots
            snapshot.invoke(function, "store", (8, 77), opening())
            assert function.form(Form(instrumented="blank")).module.engine.free_slots == free


@pytest.mark.rule("4-memory", "7-tenant")
def test_a_reservation_never_serves_another_tenant(runtime, function):
    with function.open() as live, runtime.snapshot(live) as snapshot:

        def place(tenant: str) -> int:
            with runtime.restore(snapshot, function, tenant=tenant) as restored:
                return restored._instance.memory.address

        first = place("one")
        assert place("two") != first
        assert place("one") == first


def test_an_instance_that_is_being_captured_can_neither_be_called_nor_closed(function):
    with function.open() as live:
        with live.captured():
            with pytest.raises(InternalError, match="busy"):
                live.close()
            with pytest.raises(InternalError, match="busy"):
                live.call(function.exports[0])
        assert not live.closed


def test_a_snapshot_that_is_closed_restores_nothing(runtime, function):
    with function.open() as live, runtime.snapshot(live) as snapshot:
        snapshot.invoke(function, "size", (), opening())
    with pytest.raises(CapacityExhausted, match="closed"):
        runtime.restore(snapshot, function)
    with pytest.raises(CapacityExhausted, match="closed"):
        snapshot.invoke(function, "size", (), opening())


def test_threads_call_one_instance_one_at_a_time(function):
    with function.open() as live:

        def work() -> None:
            for _ in range(50):
                live.call("call", (2,))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert live.call("call", (2,)).values == (7 + 2 * 201,)
        assert live.statistics().calls == 201


def held() -> tuple[int, int]:
    """Return how many files this process has open, and how many mappings there are."""
    files = len(list(Path("/proc/self/fd").iterdir()))
    return files, Path("/proc/self/maps").read_bytes().count(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_restoring_gains_neither_files_nor_mappings(runtime, function):
    def cycle() -> None:
        with function.open() as live, runtime.snapshot(live) as snapshot:
            for growth in (0, 0, 1):
                with runtime.restore(snapshot, function) as restored, runtime.restore(snapshot, function):
                    restored.call("grow", (growth,))
                runtime.invoke(snapshot, function, "grow", (growth,))

    cycle()
    before = held()
    for _ in range(30):
        cycle()
    gc.collect()
    files, mappings = held()
    assert files <= before[0]
    assert mappings <= before[1] + 8


def test_an_instance_outlives_its_runtime():
    with Runtime("emulator", limits=Limits(memory_bytes=4 * MIB)) as runtime:
        function = runtime.load(bytes(wat2wasm(GUEST)))
        live, other = function.open(grants=["cuda"]), function.open()
    assert other.call("size").values == (2,)
    other.close()
    live.close()
    live.close()


@pytest.mark.parametrize("place", ["get", "pop"])
@pytest.mark.parametrize("way", ["restore", "invoke", "compiled"])
def test_an_interrupt_while_memory_is_made_or_given_back_ends_that_and_nothing_else(way, place):
    program = f"""
import signal
from wasmtime import wat2wasm
from tensorwasm import Runtime
from tensorwasm.guest.engine import memory_creator as kinds
from tensorwasm.guest.native.loading import load_entries
from tensorwasm.runtime.snapshots.live import InstanceOptions

class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

class Memories(dict):
    def __getitem__(self, number):
        strike("get")
        return super().__getitem__(number)
    def pop(self, number):
        strike("pop")
        return super().pop(number)

def strike(place):
    if armed == place:
        signal.raise_signal(signal.SIGALRM)

armed = ""
if {way!r} == "compiled":
    load_entries()
signal.signal(signal.SIGALRM, interrupt)
kinds._live = Memories()
with Runtime("emulator") as runtime:
    function = runtime.load(bytes(wat2wasm('(module (memory (export "memory") 1) (func (export "go")))')))
    with function.open() as live:
        snapshot = runtime.snapshot(live)
    def go():
        if {way!r} != "restore":
            return snapshot.invoke(function, "go", (), InstanceOptions())
        with runtime.restore(snapshot, function) as restored:
            return restored.call("go")
    go()
    armed = {place!r}
    try:
        go()
    except Interrupted:
        print("interrupted")
    armed = ""
    go()
    print(len(kinds._live))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["interrupted", "0"], "", 0)
