"""A reactor's ``_initialize`` runs once in a state's life, before any other export, whatever way a call takes."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from tensorwasm import Runtime
from tensorwasm.errors import GuestExit, GuestTrap, InvokeTimeout
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.runtime.executor.local import LocalExecutor
from tensorwasm.runtime.executor.request import Request
from tensorwasm.runtime.invoke import dispatch, inline
from tensorwasm.values import Deadline, Limits

SOON_S = 60.0
CONSTRUCTOR = (Path(__file__).parents[2] / "golden/wasm/guests/constructor.wasm").read_bytes()
EXIT = '(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))'
DESTROY = '(import "wasi:cuda/host@0.3.0" "wasi_cuda_stream_destroy" (func $destroy (param i64) (result i32)))'


def reactor(initialise="", imports="", more=""):
    """Return a module that counts how often it was initialised: ``get`` is ten for each, and one for each call."""
    return bytes(
        wat2wasm(f"""(module {imports} (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
          (func (export "_initialize") (global.set $n (i32.add (global.get $n) (i32.const 10))) {initialise})
          (func (export "get") (result i32) (global.set $n (i32.add (global.get $n) (i32.const 1))) (global.get $n))
          (func (export "reset") (global.set $n (i32.const 100)))
          {more})""")
    )


PURE = reactor()
WASI = reactor(imports=EXIT)
CUDA = reactor("(drop (call $destroy (i64.const 7)))", imports=DESTROY)
MODULES = {"pure": PURE, "wasi": WASI, "cuda": CUDA}


@pytest.fixture(scope="module", params=["off", "on"])
def runtime(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSOR_WASM_NATIVE", request.param)
        with Runtime("emulator", limits=Limits(wall_s=10)) as made:
            yield made


@pytest.fixture(autouse=True)
def rested(monkeypatch):
    """No test is held up by the guest of another."""
    monkeypatch.setattr(inline, "_of_thread", threading.local())


def invoke(function, export, **options):
    return function.invoke(export, **options)


def submit(function, export, **options):
    return function.submit(export, **options).result(SOON_S)


def begin(function, export, **options):
    return asyncio.run(function.invoke_async(export, **options))


def open_and_call(function, export, **options):
    with function.open(**options) as live:
        return live.call(export)


WAYS = [invoke, submit, begin, open_and_call]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MODULES)
def test_every_fresh_state_is_initialised_once(runtime, kind, way):
    function = runtime.load(MODULES[kind], kind)
    for grants in ((), ("cuda",)) if kind == "cuda" else ((),):
        assert [way(function, "get", grants=grants).values for _ in range(3)] == [(11,)] * 3


@pytest.mark.parametrize("way", WAYS)
def test_constructors_of_cpp_run_and_their_output_is_the_calls(runtime, way):
    found = way(runtime.load(CONSTRUCTOR, "constructor"), "get")
    assert found.values == (42,)
    if way is not open_and_call:
        assert found.stdout == b"constructed\n"


def test_an_inline_call_initialises_too(runtime):
    function = runtime.load(PURE, "pure")
    function.engine.require_ticker()
    function.dispatch.prepare_pure()
    function.invoke("get")
    ends_s = time.monotonic() + SOON_S
    while (found := function.dispatch.begin_pure("get", (), "default")) is None:
        assert time.monotonic() < ends_s
        function.long = False  # another process had the processor meanwhile; the pause after that call passes
    assert found.values == (11,)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MODULES)
def test_initialize_called_by_name_runs_once(runtime, kind, way):
    function = runtime.load(MODULES[kind], kind)
    assert way(function, "_initialize").values == ()
    with function.open() as live:
        live.call("_initialize")
        live.call("_initialize")
        assert live.call("get").values == (11,)
        assert live.call("get").values == (12,)


def test_a_warm_sandbox_is_initialised_when_it_is_made(runtime):
    function = runtime.load(WASI, "warm")
    function.warm(1)
    ends_s = time.monotonic() + SOON_S
    while not function.warm_kept["default"].ready:
        assert time.monotonic() < ends_s
        threading.Event().wait(0.01)
    hits = runtime.warm.statistics().hits
    assert function.invoke("get").values == (11,)
    assert runtime.warm.statistics().hits == hits + 1
    function.warm(0)


def test_an_initialiser_of_the_callers_own_runs_behind_it(runtime):
    function = runtime.load(WASI, "both")
    function.warm(0, initialiser="reset")
    for way in WAYS[:3]:
        assert way(function, "get").values == (101,)
    with function.open() as live:
        assert live.call("get").values == (101,)


def test_naming_it_as_the_initialiser_changes_nothing(runtime):
    function = runtime.load(WASI, "named")
    function.warm(0, initialiser="_initialize")
    for way in WAYS:
        assert way(function, "get").values == (11,)


@pytest.mark.parametrize("wasm", [PURE, WASI, CONSTRUCTOR], ids=["pure", "wasi", "constructor"])
def test_a_restored_state_has_it(runtime, tmp_path, wasm):
    function = runtime.load(wasm, "saved")
    with function.open() as live:
        first = live.call("get").values[0]
        runtime.snapshot(live, tmp_path / "saved.tws")
    expected = first if wasm is CONSTRUCTOR else first + 1
    with runtime.restore(tmp_path / "saved.tws", function) as live:
        live.call("_initialize")
        assert live.call("get").values == (expected,)
    assert runtime.invoke(tmp_path / "saved.tws", function, "get").values == (expected,)
    assert runtime.invoke(tmp_path / "saved.tws", function, "_initialize").values == ()


COMMAND = bytes(
    wat2wasm("""(module (global $n (mut i32) (i32.const 0))
      (func (export "_initialize") (global.set $n (i32.const 1)))
      (func (export "_start") (if (global.get $n) (then unreachable)))
      (func (export "get") (result i32) (global.get $n)))""")
)


@pytest.mark.parametrize("way", WAYS[:3])
def test_a_command_is_not_initialised(runtime, way):
    function = runtime.load(COMMAND, "command")
    way(function, None)
    way(function, "_start")
    assert way(function, "get").values == (1,)


OTHER = bytes(
    wat2wasm("""(module (global $n (mut i32) (i32.const 0))
      (func (export "_initialize") (param i32) (result i32) (global.set $n (local.get 0)) (local.get 0))
      (func (export "get") (result i32) (global.get $n)))""")
)
MEMORY = bytes(wat2wasm('(module (memory (export "_initialize") 1) (func (export "get") (result i32) (i32.const 0)))'))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wasm", [OTHER, MEMORY], ids=["signature", "memory"])
def test_only_a_function_without_parameters_and_results_is_one(runtime, wasm, way):
    assert way(runtime.load(wasm, "other"), "get").values == (0,)


@pytest.mark.parametrize("way", WAYS)
def test_a_failing_initialize_raises_the_errors_of_a_start_function(runtime, way):
    with pytest.raises(GuestTrap) as trapped:
        way(runtime.load(reactor("unreachable"), "trap"), "get")
    assert trapped.value.trap == "unreachable"
    with pytest.raises(InvokeTimeout):
        way(runtime.load(reactor("(loop (br 0))"), "spin"), "get", deadline=Deadline.after(0.2))


@pytest.mark.parametrize("code", [0, 3])
def test_a_guest_that_leaves_in_it_is_not_called(runtime, code):
    leaves = runtime.load(reactor(f"(call $exit (i32.const {code}))", EXIT), "leaves")
    starts = runtime.load(
        bytes(
            wat2wasm(f"""(module {EXIT} (memory (export "memory") 1) (func $go (call $exit (i32.const {code})))
              (start $go) (func (export "get") (result i32) (i32.const 1)))""")
        )
    )
    for way in WAYS:
        outcomes = []
        for function in (starts, leaves):
            try:
                outcomes.append((way(function, "get").values, way(function, "get").exit_code))
            except GuestExit as left:
                outcomes.append(left.code)
        assert outcomes[0] == outcomes[1]


def test_executors_initialise(runtime):
    executor = LocalExecutor(runtime)
    try:
        request = Request(PURE, "get", name="reactor")
        assert [executor.submit(request).result().values for _ in range(2)] == [(11,)] * 2
    finally:
        executor.close()


def test_a_module_without_one_takes_the_short_ways(runtime):
    function = runtime.load(bytes(wat2wasm('(module (func (export "get") (result i32) (i32.const 1)))')), "plain")
    function.invoke("get")
    assert function.dispatch.plans
    if may_have_fibers():
        submit(function, "get")
        assert function.dispatch.fiber_plans["get"] is not None


def test_a_plan_that_was_made_before_an_initialiser_was_set_is_not_kept(runtime, monkeypatch):
    function, plan_one_shot = runtime.load(PURE, "pure"), dispatch.plan_one_shot

    def plan(asked):
        made = plan_one_shot(asked)
        if function.initialiser is None:
            function.warm(0, initialiser="reset")  # as another thread may, at this very moment
        return made

    monkeypatch.setattr(dispatch, "plan_one_shot", plan)
    assert function.invoke("get").values == (11,)
    assert function.invoke("get").values == (101,)
