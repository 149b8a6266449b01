"""A saved state that was signed may still say anything: whatever does not fit the module is refused, named, early."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wasmtime import wat2wasm

from oracles.guest import typed_error_of
from strategies.live import GUEST
from tensorwasm.errors import InvalidSnapshot, NotCapturable
from tensorwasm.guest.saved.instrumented import instrument
from tensorwasm.guest.saved.transfer import make_plan
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.snapshots.live import InstanceOptions
from tensorwasm.runtime.snapshots.snapshot import Snapshot, make_snapshot
from tensorwasm.saved import SavedGlobal, SavedInstance, SavedMemory, SavedRun, SavedTable
from tensorwasm.values import MIB, Limits


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator", limits=Limits(memory_bytes=4 * MIB)) as made:
        yield made


@pytest.fixture(scope="module")
def function(runtime):
    return runtime.load(bytes(wat2wasm(GUEST)), "stateful")


@pytest.fixture(scope="module")
def good(runtime, function) -> SavedInstance:
    """What is saved of an instance in which something of everything has changed."""
    with function.open() as live:
        for export, args in [("drop-late", ()), ("drop-spare", ()), ("table-grow", (2,)), ("set-i32", (5,))]:
            live.call(export, args)
        with live.captured() as saved:
            return dataclasses.replace(
                saved, memories=(SavedMemory(saved.memories[0].size_bytes, (SavedRun(0, b"x"),)),)
            )


def restored(runtime, function, saved: SavedInstance) -> None:
    with make_snapshot(saved) as snapshot:
        runtime.restore(snapshot, function).close()


def test_the_state_itself_is_fine(runtime, function, good):
    restored(runtime, function, good)


sizes = st.sampled_from(
    [-65536, 0, 1, 65_535, 65_536, 196_608, 41 << 16, 1 << 32, (1 << 32) + 65_536, 1 << 63, 1 << 64]
)
numbers = st.sampled_from([-1, 0, 1, 4, 6, 7, 100, 1 << 31, 1 << 32, 1 << 64])
functions = st.lists(st.none() | numbers, max_size=12).map(tuple)
bits = st.none() | st.sampled_from([-1, 0, 1, (1 << 32) - 1, 1 << 32, 1 << 64, 1 << 128, 1 << 200])
changes = st.one_of(
    st.fixed_dictionaries({"module_hash": st.sampled_from([b"", bytes(32), bytes(31)])}),
    st.fixed_dictionaries({"memories": st.sampled_from([(), (SavedMemory(65536, ()),) * 2])}),
    st.builds(lambda size: {"memories": (SavedMemory(size, ()),)}, sizes),
    st.builds(lambda at: {"memories": (SavedMemory(131_072, (SavedRun(at, b"data"),)),)}, sizes),
    st.builds(lambda index, value: {"global": (index, value)}, st.integers(0, 5), bits),
    st.fixed_dictionaries({"globals": st.sampled_from([(), (SavedGlobal(0, "i64", 1),)])}),
    st.builds(
        lambda index, held, again: {"tables": (SavedTable(index, held),) * again}, numbers, functions, st.integers(1, 2)
    ),
    st.builds(lambda found: {"dropped_data": tuple(found)}, st.lists(numbers, max_size=3)),
    st.builds(lambda found: {"dropped_elements": tuple(found)}, st.lists(numbers, max_size=3)),
    st.fixed_dictionaries({"parent": st.just(bytes(32))}),
    st.fixed_dictionaries({"grants": st.sampled_from([("root",), ("cuda", "dir:"), ("dir:/",)])}),
)


@pytest.mark.rule("7-module")
@given(change=changes)
@settings(max_examples=200)
def test_every_saved_state_fits_or_is_refused(runtime, function, good, change):
    fields = dict(change)
    if "global" in fields:
        index, value = fields.pop("global")
        held = list(good.globals)
        held[index] = dataclasses.replace(held[index], bits=value)
        fields["globals"] = tuple(held)
    free = function.form(Form(instrumented="blank")).module.engine.free_slots
    typed_error_of(restored, runtime, function, dataclasses.replace(good, **fields))
    assert function.form(Form(instrumented="blank")).module.engine.free_slots == free


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memories": ()}, "memories"),
        ({"memories": (SavedMemory(65_536, ()),)}, "pages"),
        ({"memories": (SavedMemory(41 << 16, ()),)}, "pages"),
        ({"globals": ()}, "globals"),
        ({"tables": (SavedTable(0, (None,)),)}, "table 0"),
        ({"tables": (SavedTable(2, (None,) * 9),)}, "tables"),
        ({"tables": (SavedTable(0, (99,) * 9),)}, "function 99"),
        ({"dropped_data": (0,)}, "data segments"),
        ({"dropped_data": (2, 2)}, "data segments"),
        ({"dropped_elements": (0,)}, "element segments"),
    ],
)
def test_state_that_does_not_fit_is_named(runtime, function, good, change, words):
    with pytest.raises(InvalidSnapshot, match=words):
        restored(runtime, function, dataclasses.replace(good, **change))


def test_a_state_that_only_adds_to_another_is_not_kept_as_a_whole(good):
    with pytest.raises(InvalidSnapshot, match="adds"):
        make_snapshot(dataclasses.replace(good, parent=bytes(32)))


@pytest.mark.parametrize(
    "text",
    [
        '(module (import "wasi:tensor/host" "m" (memory 1)))',
        '(module (import "a" "t" (table 1 funcref)))',
        '(module (import "a" "g" (global i32)))',
        '(module (import "a" "g" (global (mut i64))))',
    ],
)
def test_state_that_is_shared_with_others_is_refused_by_name(text):
    with pytest.raises(NotCapturable, match="imports the"):
        instrument(bytes(wat2wasm(text)))


@pytest.mark.parametrize("taken", ["tensorwasm.private.", "tensorwasm.private.memory", "tensorwasm.private.1.func0"])
def test_a_guest_that_uses_the_reserved_names_keeps_them(runtime, taken):
    names = f'(export "{taken}" (func $f)) (export "tensorwasm.private.x" (func $f))'
    text = f"(module (memory 1) (global (mut i32) (i32.const 4)) (func $f (result i32) (i32.const 42)) {names})"
    function = runtime.load(bytes(wat2wasm(text)))
    assert function.instrumented.memory not in function.exports
    with function.open() as live, runtime.snapshot(live) as snapshot, runtime.restore(snapshot, function) as again:
        assert live.call(taken).values == again.call(taken).values == (42,)


@pytest.mark.parametrize(
    "text",
    [
        "(module)",
        '(module (func (export "f")))',
        '(module (memory 0) (func (export "f")))',
        '(module (memory (export "memory") 0 0) (data "") (func (export "f")))',
        '(module (table 0 funcref) (global (mut funcref) (ref.null func)) (func (export "f")))',
        '(module (memory 1) (func $s (unreachable)) (func (export "f")) (export "s" (func $s)))',
    ],
)
def test_modules_with_little_or_no_state(runtime, text):
    function = runtime.load(bytes(wat2wasm(text)))
    with function.open() as live, runtime.snapshot(live) as snapshot:
        with runtime.restore(snapshot, function) as again:
            for name in function.exports[:1]:
                assert again.call(name).values == live.call(name).values
        for name in function.exports[:1]:
            runtime.invoke(snapshot, function, name)


def test_a_plan_changes_only_what_differs(runtime, function):
    with function.open() as live, live.captured() as saved:
        snapshot = make_snapshot(saved)
    blank = function.form(Form(instrumented="blank")).module.preamble
    from tensorwasm.runtime.snapshots.snapshot import _find_pristine  # noqa: PLC0415 - what the plan is compared with

    plan = make_plan(snapshot.saved, function.instrumented, blank, _find_pristine(function))
    assert (plan.pointers, plan.tables, plan.drops) == ((), (), ())
    assert [name.rpartition("global")[2] for name, _, _ in plan.bits] == ["1"], "the start function set $i64"
    snapshot.close()


def test_instances_of_a_closed_image_go_on(runtime, function):
    with function.open() as live:
        snapshot: Snapshot = runtime.snapshot(live)
    restored = snapshot.restore(function, InstanceOptions())
    snapshot.close()
    assert restored.call("size").values == (2,)
    restored.close()
