"""Invocations that are submitted: fibers on the emulator, and threads where there are no fibers."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from concurrent.futures import CancelledError, wait
from pathlib import Path

import pytest
from wasmtime import wat2wasm

import tensorwasm.runtime.invoke.dispatch
import tensorwasm.runtime.invoke.fiber_runner
from tensorwasm import Runtime
from tensorwasm.bench.device.waiting import GatedHost
from tensorwasm.errors import GuestTrap, InternalError, InvalidArgs, InvokeTimeout, MissingExport, TickerNotRunning
from tensorwasm.guest.native.loading import may_have_fibers
from tensorwasm.runtime.api.function import Function
from tensorwasm.runtime.deploy.form import Form
from tensorwasm.runtime.invoke.invocation import CallOptions
from tensorwasm.values import Deadline, Limits

SOON_S = 60.0
EXAMPLES = Path(__file__).parents[3] / "examples"
GUEST = """(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi:tensor/host@0.1.0" "emit-chunk" (func $emit (param i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\10\\00\\00\\00\\02\\00\\00\\00") (data (i32.const 16) "hi")
  (func (export "add") (param i64 f64) (result f64 i64) (local.get 1) (i64.add (local.get 0) (i64.const 1)))
  (func $say (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (drop (call $emit (i32.const 16) (i32.const 2))))
  (func (export "_start") (call $say) (call $exit (i32.const 3)))
  (func (export "trap") (call $say) unreachable)
  (func (export "spin") (loop br 0)))"""

WORK = """(module
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_alloc" (func $alloc (param i32 i32) (result i64)))
  (import "wasi:cuda/host@0.3.0" "wasi_cuda_sync" (func $sync (result i32)))
  (memory (export "memory") 1)
  (func (export "main") (result i32) (drop (call $alloc (i32.const 64) (i32.const 0))) (call $sync)))"""

fibers_only = pytest.mark.skipif(not may_have_fibers(), reason="NO FIBERS: they need Linux and Numba")


@pytest.fixture(params=[pytest.param("fibers", marks=fibers_only), "threads"])
def runtime(request, monkeypatch):
    if request.param == "threads":
        monkeypatch.setattr(tensorwasm.runtime.invoke.fiber_runner, "load_suspension_code", lambda: None)
    with Runtime("emulator") as made:
        yield made


@pytest.fixture
def fiber_runtime():
    with Runtime("emulator") as made:
        yield made


def load(runtime: Runtime, text: str = GUEST) -> Function:
    return runtime.load(bytes(wat2wasm(text)), "guest")


def test_options_are_the_keywords_of_invoke():
    parameters = inspect.signature(Function.invoke).parameters.values()
    keywords = {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert {name: kind.__forward_arg__ for name, kind in CallOptions.__annotations__.items()} == keywords


def test_an_outcome_is_that_of_invoke(runtime):
    function = load(runtime)
    for export, args in (("add", (1, 0.5)), (None, ())):
        expected, got = function.invoke(export, args), function.submit(export, args).result(SOON_S)
        for field in ("export", "values", "result_types", "exit_code", "stdout", "stderr", "chunks", "gpu"):
            assert getattr(got, field) == getattr(expected, field), field


def test_a_failed_guest_keeps_what_it_wrote(runtime):
    error = load(runtime).submit("trap").exception(SOON_S)
    assert isinstance(error, GuestTrap)
    assert (error.trap, error.stdout) == ("unreachable", b"hi")


def test_sinks_and_input_are_those_of_invoke(runtime):
    taken, chunks = [], []
    function = load(runtime)
    got = function.submit(stdout=taken.append, on_chunk=lambda chunk: not chunks.append(chunk)).result(SOON_S)
    assert (taken, chunks, got.stdout, got.chunks) == ([b"hi"], [b"hi"], b"", ())


@pytest.mark.parametrize(
    ("export", "args", "options", "error"),
    [
        ("nope", (), {}, MissingExport),
        ("add", (1,), {}, InvalidArgs),
        ("add", (1, 2.0), {"grants": ["everything"]}, InvalidArgs),
        ("add", (1, 2.0), {"grants": ["cuda"], "tenant": "nobody"}, InvalidArgs),
        ("add", (1, 2.0), {"memory_kind": "soft", "grants": ["cuda"]}, InvalidArgs),
        ("spin", (), {"deadline": Deadline(0)}, InvokeTimeout),
    ],
)
def test_an_error_of_invoke_is_the_outcome_of_submit(runtime, export, args, options, error):
    function = load(runtime)
    with pytest.raises(error):
        function.invoke(export, args, **options)
    assert isinstance(function.submit(export, args, **options).exception(SOON_S), error)


def test_a_deadline_ends_a_guest(runtime):
    assert isinstance(load(runtime).submit("spin", deadline=Deadline.after(0.05)).exception(SOON_S), InvokeTimeout)


def test_an_event_loop_may_wait_for_many(runtime):
    function = load(runtime)

    async def gather():
        return await asyncio.gather(*(function.invoke_async("add", (number, 0.0)) for number in range(50)))

    assert [outcome.values[1] for outcome in asyncio.run(gather())] == list(range(1, 51))


def test_a_closed_runtime_takes_nothing_more():
    with Runtime("emulator") as runtime:
        function = load(runtime)
    with pytest.raises(InternalError, match="the runtime is closed"):
        function.submit("add", (1, 2.0))


@pytest.mark.parametrize("example", ["vector_add", "reduction", "graph", "streams"])
@pytest.mark.parametrize("native", ["off", "on"])
def test_examples_do_the_same_as_fibers(runtime, example, native, monkeypatch):
    path = EXAMPLES / example / f"{example}.wasm"
    wants = {"off": False, "on": True}[native]
    monkeypatch.setattr(tensorwasm.runtime.invoke.dispatch, "wants_compiled", lambda _shared: wants)
    function = runtime.load(path)
    expected = function.invoke(grants=["cuda"])
    got = function.submit(grants=["cuda"]).result(SOON_S)
    assert (got.exit_code, got.stdout) == (expected.exit_code, expected.stdout)
    assert got.gpu.kernels_launched == expected.gpu.kernels_launched
    assert not got.gpu.abandoned


# ------------------------------------------------------------------------------------------------ fibers


def started(runtime: Runtime, count: int = 1) -> None:
    ends = time.monotonic() + SOON_S
    while runtime.fibers.statistics().polls < count:
        assert time.monotonic() < ends
        threading.Event().wait(0.002)


@fibers_only
def test_cancelling_ends_a_guest_that_runs(fiber_runtime):
    future = load(fiber_runtime).submit("spin")
    started(fiber_runtime, 3)
    assert future.cancel()
    assert future.cancel()
    assert wait([future], timeout=SOON_S).done == {future}
    with pytest.raises(CancelledError):
        future.result()
    ends = time.monotonic() + SOON_S
    while fiber_runtime.fibers.statistics().running:
        assert time.monotonic() < ends
        threading.Event().wait(0.002)


@fibers_only
def test_cancelling_the_task_ends_the_guest(fiber_runtime):
    function = load(fiber_runtime)

    async def give_up():
        await asyncio.wait_for(function.invoke_async("spin"), timeout=0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())


@fibers_only
def test_an_ended_call_cannot_be_cancelled(fiber_runtime):
    future = load(fiber_runtime).submit("add", (1, 2.0))
    future.result(SOON_S)
    assert not future.cancel()


@fibers_only
def test_closing_the_runtime_ends_what_runs():
    with Runtime("emulator") as runtime:
        futures = [load(runtime).submit("spin") for _ in range(3)]
        started(runtime, 3)
    assert [future.exception(SOON_S).trap for future in futures] == ["cancelled"] * 3


@fibers_only
@pytest.mark.parametrize("nested", ["submit", "invoke"])
@pytest.mark.rule("12-nested")
def test_a_host_function_in_a_fiber_cannot_run_another_guest(fiber_runtime, nested):
    function = load(fiber_runtime)
    error = function.submit(on_chunk=lambda _: getattr(function, nested)("add", (1, 2.0))).exception(SOON_S)
    assert isinstance(error, InternalError)
    assert "tried to" in error.message


@fibers_only
def test_a_hundred_guests_use_the_device_at_once_on_one_thread(fiber_runtime):
    function = fiber_runtime.load(EXAMPLES / "vector_add" / "vector_add.wasm")
    futures = [function.submit(grants=["cuda"]) for _ in range(100)]
    assert {future.result(SOON_S).exit_code for future in futures} == {0}
    assert all(future.result().gpu.kernels_launched == 1 for future in futures)
    assert not fiber_runtime.fibers.statistics().orphans


@fibers_only
def test_limits_hold_in_a_fiber(fiber_runtime):
    text = '(module (memory 1) (func (export "main") (result i32) (memory.grow (i32.const 100))))'
    function = fiber_runtime.load(bytes(wat2wasm(text)), limits=Limits(memory_bytes=1 << 20))
    assert function.submit().result(SOON_S).values == (-1,)


@fibers_only
@pytest.mark.rule("3-memory")
def test_a_guest_that_runs_out_of_time_leaves_its_memory_to_the_device():
    with Runtime("emulator", slots=8) as runtime:
        before = runtime._engine.free_slots
        wasm = bytes(wat2wasm(WORK))
        host = GatedHost(runtime)
        gate = host.close_gate()
        function = Function(host, "late", wasm, runtime.load(wasm).form(Form()))
        late = function.submit(grants=["cuda"], deadline=Deadline.after(1))
        assert isinstance(late.exception(SOON_S), InvokeTimeout)
        free = runtime._engine.free_slots
        assert free == before - 1  # the slot is never used again: the device may still write there
        gate.open()
        ends = time.monotonic() + SOON_S
        while runtime.fibers.statistics().on_device:
            assert time.monotonic() < ends
            threading.Event().wait(0.01)
        gate.close()
        assert runtime._engine.free_slots == free


@fibers_only
def test_guests_end_while_all_threads_for_work_are_taken(fiber_runtime):
    function = fiber_runtime.load(EXAMPLES / "vector_add" / "vector_add.wasm")
    assert function.submit(grants=["cuda"]).result(SOON_S).exit_code == 0
    reactor, ended = fiber_runtime.fibers._reactor, threading.Event()
    plain = fiber_runtime.load(bytes(wat2wasm('(module (func (export "main")))')))
    for _ in range(32):
        reactor._blocking_pool.work(lambda: ended.wait(SOON_S))
    try:
        assert plain.submit(grants=["cuda"]).result(SOON_S / 2).values == ()
    finally:
        ended.set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked here")
def test_a_forked_child_is_refused_and_not_left_waiting_for_threads_that_it_has_not(runtime):
    """It has neither the reactor's thread nor timers."""
    function = load(runtime)
    assert function.submit("add", (1, 2.0)).result(SOON_S).values == (2.0, 2)
    child = os.fork()
    if not child:
        signal.alarm(20)
        refused = 0
        for ask in (
            lambda: function.submit("add", (1, 2.0)),
            lambda: function.invoke_async("add", (1, 2.0)).send(None),
        ):
            try:
                ask()
            except TickerNotRunning:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
