"""Functions whose loops run on all cores or on the emulator give what WebAssembly gives."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from loops import compile_c, corpus
from tensorwasm import settings
from tensorwasm.errors import GuestTrap, InvalidArgs, InvokeTimeout, UnsupportedPtx
from tensorwasm.gpu.resources.kernel_cache import KernelCache
from tensorwasm.gpu.session.streams import SessionStreams
from tensorwasm.guest.imports.offload import device_target
from tensorwasm.guest.imports.offload.guards import MOST_DECLINES
from tensorwasm.guest.sandbox.wasi_io import INHERIT
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs
from tensorwasm.runtime.invoke.offloading import Offloading
from tensorwasm.runtime.offload.compiler import OffloadCompiler
from tensorwasm.values import Deadline

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM = """
#define EXPORT(name) __attribute__((export_name(#name))) name
static double x[256], y[256];
static int k[256];
void EXPORT(init)(void) { for (int i = 0; i < 256; i++) { x[i] = i * 0.5; y[i] = 256 - i; k[i] = i * 7 - 300; } }
void EXPORT(axpy)(int n, double a) { for (int i = 0; i < n; i++) y[i] += a * x[i]; }
int EXPORT(wander)(unsigned n) { int s = 0; while (n != 7) { n = n & 1 ? 3 * n + 1 : n / 2; s++; } return s; }
double EXPORT(sum)(int n) { double s = 0; for (int i = 0; i < n; i++) { y[i] *= 2; s += x[i]; } return s; }
int EXPORT(last)(int n) { int at = 0; for (int i = 0; i < n; i++) { k[i] += 3; at = 5 * i; } return at; }
void EXPORT(chain)(int n) { for (int i = 1; i < n; i++) y[i] += y[i - 1]; }
void EXPORT(divide)(int n, double a) { for (int i = 0; i < n; i++) y[i] = x[i] / a; }
void EXPORT(fail)(int n) { for (int i = 0; i < n; i++) y[i] = x[i] * 2; __builtin_trap(); }
void EXPORT(endless)(int n) { for (int i = 0; i < n; i++) y[i] = x[i] * 3; for (volatile int i = 0; i < 2;) i = 1; }
void EXPORT(steps)(int t, int n) {
  for (int s = 0; s < t; s++) {
    for (int i = 1; i < n - 1; i++) y[i] = x[i - 1] + x[i + 1];
    for (int i = 1; i < n - 1; i++) x[i] = y[i - 1] * 0.25;
  }
}
"""
WITH_IMPORTS = "control.c"  # what it imports no grant provides
TAKEN = [("axpy", (200, 1.5)), ("sum", (200,)), ("last", (200,)), ("steps", (3, 64)), ("axpy", (7, -0.0))]
ENDLESS = [("cpu", "steps", (2_000_000_000, 256)), ("gpu", "steps", (2_000_000_000, 256)), ("cpu", "wander", (1,))]
DECLINED = [
    ("chain", (100,), "SEQUENTIAL"),
    ("divide", (64, 0.0), "NOT_A_NUMBER"),
    ("axpy", (1_000_000, 1.5), "OUT_OF_BOUNDS"),
]


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Offload whatever that costs."""
    monkeypatch.setattr(RegionCosts, "choose", lambda *_: RunPlace.ELSEWHERE)


@pytest.fixture(scope="module")
def wasm():
    return compile_c(PROGRAM, "-O2")


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


@pytest.fixture(params=["cpu", "gpu"])
def compared(request, runtime, wasm):
    """Return a function: run calls with and without offloading, and return the offloaded function."""

    def run(name, args, repeat=2):
        function = runtime.load(wasm, offload=request.param, offload_waits=True)
        found = compare_runs(runtime.load(wasm), function, [MeasuredCall("init")], MeasuredCall(name, args), repeat)
        assert found.difference == ""
        return function, found

    return run


def change_settings(monkeypatch, **changes):
    changed = replace(settings.current(), **changes)
    monkeypatch.setattr(settings, "current", lambda: changed)


def reasons(function):
    return {refusal.reason.name for each in function.offloading.statistics for refusal in each.declined}


@pytest.mark.parametrize(("name", "args"), TAKEN)
def test_a_loop_that_is_taken_gives_the_same(compared, name, args):
    function, _ = compared(name, args)
    assert sum(each.taken for each in function.offloading.statistics) == 3
    assert reasons(function) == set()


@pytest.mark.parametrize(("name", "args", "reason"), DECLINED)
def test_a_loop_that_is_declined_gives_the_same(compared, name, args, reason):
    function, _ = compared(name, args)
    assert reasons(function) == {reason}


def test_a_guard_that_keeps_declining_is_not_called_any_more(compared):
    function, _ = compared("chain", (9,), MOST_DECLINES + 50)
    assert {each.declined.total() for each in function.offloading.statistics} == {0, MOST_DECLINES}


def test_a_guard_that_runs_its_region_now_and_then_goes_on(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)
    taken, declined = MeasuredCall("divide", (10, 2.0)), MeasuredCall("divide", (9, 0.0))
    calls = [taken, *[declined] * 3] * (MOST_DECLINES // 2)
    found = compare_runs(runtime.load(wasm), function, [MeasuredCall("init"), *calls], taken)
    assert found.difference == ""
    assert max(each.taken for each in function.offloading.statistics) == MOST_DECLINES // 2 + 1


def test_a_loop_that_traps_raises_its_own_trap(compared):
    _, found = compared("axpy", (1_000_000, 1.5))
    assert found.offloaded.ending == "memory_out_of_bounds"


@pytest.mark.parametrize("mode", ["auto", "cpu", "gpu"])
def test_invoking_offloads_and_counts(runtime, wasm, mode):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    assert function.invoke("sum", (100,)).values == (0.0,)
    assert [each.taken for each in function.offloading.statistics].count(1) == 1


def test_nothing_is_offloaded_by_default(runtime, wasm):
    assert runtime.load(wasm).offloading is None


def test_a_module_without_loops_is_called_as_ever(runtime):
    module = compile_c('int __attribute__((export_name("f"))) f(void) { return 7; }', "-O2")
    function = runtime.load(module, offload="cpu", offload_waits=True)
    assert function.offloading is None
    assert function.invoke("f").values == (7,)


def test_a_submitted_call_has_its_loops_elsewhere(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)
    assert function.submit("last", (100,)).result().values == (495,)
    assert sum(each.taken for each in function.offloading.statistics) == 1


def test_an_asynchronous_call_does_not_hold_its_loop_up(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)

    async def cancel():
        running = asyncio.create_task(function.invoke_async("steps", (2_000_000_000, 256)))
        for _ in range(3):
            assert (await function.invoke_async("last", (100,))).values == (495,)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())


def test_closing_a_runtime_ends_submitted_calls(wasm):
    with Runtime("emulator") as runtime:
        running = runtime.load(wasm, offload="cpu").submit("steps", (2_000_000_000, 256))
    with pytest.raises(GuestTrap) as ended:
        running.result()
    assert ended.value.trap == "cancelled"


def test_a_submitted_call_cannot_have_this_process_s_own_streams(runtime, wasm):
    refused = runtime.load(wasm, offload="cpu", offload_waits=True).submit("last", (100,), stdout=INHERIT)
    with pytest.raises(InvalidArgs, match="own streams"):
        refused.result()


def test_an_instance_that_can_be_saved_runs_as_webassembly(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)
    with function.open() as live:
        assert live.call("last", (100,)).values == (495,)
        saved = runtime.snapshot(live)
    with runtime.restore(saved, function) as live:
        assert live.call("last", (100,)).values == (495,)
    assert runtime.invoke(saved, function, "last", (100,)).values == (495,)
    assert all(not each.taken for each in function.offloading.statistics)


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_what_a_call_did_is_told_with_its_outcome(runtime, wasm, mode):
    outcome = runtime.load(wasm, offload=mode, offload_waits=True).invoke("sum", (100,))
    assert (outcome.offload.taken, outcome.offload.declined, outcome.offload.mismatches) == (1, (), ())
    assert 0 < outcome.offload_s < outcome.elapsed_s
    assert (outcome.gpu is not None and outcome.gpu.kernels_launched > 0) == (mode == "gpu")
    assert runtime.load(wasm).invoke("sum", (100,)).offload is None


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_what_a_call_did_that_fails_is_told_with_its_error(runtime, wasm, mode):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    with pytest.raises(GuestTrap) as trapped:
        function.invoke("fail", (100,))
    assert (trapped.value.offload.taken, trapped.value.offload.declined) == (1, ())
    with pytest.raises(GuestTrap) as trapped:
        function.invoke("axpy", (1_000_000, 1.5))
    assert trapped.value.offload.declined == (("out_of_bounds", 1),)
    with pytest.raises(InvokeTimeout) as late:
        function.invoke("endless", (100,), deadline=Deadline.after(1.5))
    assert late.value.offload.taken == 1
    with pytest.raises(GuestTrap) as trapped:
        runtime.load(wasm).invoke("fail", (100,))
    assert trapped.value.offload is None


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_every_run_can_be_compared(runtime, wasm, mode, monkeypatch):
    change_settings(monkeypatch, offload_shadow=1)
    compared = 0
    for name, args in TAKEN:
        function = runtime.load(wasm, offload=mode, offload_waits=True)
        found = compare_runs(runtime.load(wasm), function, [MeasuredCall("init")], MeasuredCall(name, args), 2)
        assert found.difference == ""
        assert sum(each.taken for each in function.offloading.statistics) == 0
        assert reasons(function) <= {"NOT_READY"}  # of regions inside of one that is compared
        compared += sum(each.compared for each in function.offloading.statistics)
    assert compared >= 2 * len(TAKEN)


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["axpy", "last"])
def test_wrong_code_is_found_and_the_guest_goes_on_with_its_own(runtime, wasm, mode, name, monkeypatch):
    request = Offloading._request

    def ask_for_fewer(offloading, target, codes, key):
        fewer = tuple(n - 8 if n == 200 else n for n in key.integers)
        return request(offloading, target, codes, key._replace(integers=fewer))

    change_settings(monkeypatch, offload_shadow=2)
    monkeypatch.setattr(Offloading, "_request", ask_for_fewer)
    function, args = runtime.load(wasm, offload=mode, offload_waits=True), (200, 1.5)[: 2 if name == "axpy" else 1]
    calls = [function.invoke(name, args) for _ in range(3)]
    counts = [(call.offload.taken, call.offload.compared, len(call.offload.mismatches)) for call in calls]
    assert counts == [(1, 0, 0), (0, 1, 1), (0, 0, 0)]
    assert calls[1].values == calls[2].values == runtime.load(wasm).invoke(name, args).values
    assert {reason for reason, _ in calls[2].offload.declined} == {"differed"}


def test_a_place_that_there_is_not_is_refused(runtime, wasm):
    with pytest.raises(InvalidArgs, match="offload is one of off, auto, cpu, gpu"):
        runtime.load(wasm, offload="tpu")


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("name", ["streams", "graph", "reduction", "histogram"])
def test_loops_beside_kernels_of_the_guest_s_own(mode, native, name, monkeypatch):
    change_settings(monkeypatch, native=native)
    with Runtime("emulator") as runtime:
        function = runtime.load(EXAMPLES / name / f"{name}.wasm", offload=mode, offload_waits=True)
        outcome = function.invoke("run", (64,), grants={"cuda"})
        assert outcome.values == (0,)
        assert outcome.offload.taken > 0
        assert function.submit("run", (64,), grants={"cuda"}).result().values == (0,)


def test_loops_run_in_the_guest_while_its_kernels_may_reach_its_memory(runtime, monkeypatch):
    monkeypatch.setattr(SessionStreams, "idle", lambda _streams: False)
    outcome = runtime.load(EXAMPLES / "reduction" / "reduction.wasm", offload="cpu", offload_waits=True).invoke(
        "run", (64,), grants={"cuda"}
    )
    assert (outcome.values, outcome.offload.taken, [*dict(outcome.offload.declined)]) == ((0,), 0, ["busy"])


def test_many_threads_share_plans(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)
    with ThreadPoolExecutor(4) as pool:
        values = [call.values for call in pool.map(lambda _: function.invoke("last", (150,)), range(12))]
    assert values == [(745,)] * 12
    counts = {each.taken + each.declined.total() for each in function.offloading.statistics}
    assert counts == {0, 12}
    assert reasons(function) <= {"NOT_READY"}


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_a_deadline_ends_a_loop_wherever_it_runs(runtime, wasm, mode):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    function.invoke("last", (150,))
    with pytest.raises(InvokeTimeout):
        function.invoke("steps", (2_000_000_000, 256), deadline=Deadline.after(3.0))
    assert function.invoke("last", (150,)).values == (745,)


def test_a_deadline_ends_a_loop_that_stays(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)
    with pytest.raises(InvokeTimeout):
        function.invoke("wander", (1,), deadline=Deadline.after(1.0))
    assert function.invoke("wander", (28,)).values == (2,)


@pytest.mark.parametrize(("mode", "name", "args"), ENDLESS)
def test_a_cancellation_ends_a_loop_wherever_it_runs(runtime, wasm, mode, name, args):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    function.invoke("steps", (2, 256))
    stops = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(function.dispatch.call, name, args, announce=lambda stop: (stops.append(stop), stop()))
        with pytest.raises(GuestTrap, match="cancelled"):
            running.result(20)


def test_a_device_that_refuses_work_declines(runtime, wasm, monkeypatch):
    monkeypatch.setattr(device_target, "_SHOWN_BYTES", 1 << 50)
    function = runtime.load(wasm, offload="gpu", offload_waits=True)
    assert function.invoke("last", (150,)).values == (745,)
    assert reasons(function) == {"DEVICE"}


def test_buffers_that_no_run_needs_are_freed_for_others(wasm, monkeypatch):
    monkeypatch.setenv("TENSOR_WASM_GPU_SESSION", "1")
    source = """
    static double big[400][80];
    void __attribute__((export_name("f"))) f(int from, int to) {
      for (int i = from; i < to; i++) for (int j = 0; j < 80; j++) big[i][j] = big[i][j] * 2 + 1;
    }
    """
    module = compile_c(source, "-O2")
    with Runtime("emulator", gpu_bytes=300_000) as runtime:
        function = runtime.load(module, offload="gpu", offload_waits=True)
        calls = [MeasuredCall("f", (0, 300)), MeasuredCall("f", (10, 30)), MeasuredCall("f", (0, 200))]
        found = compare_runs(runtime.load(module), function, calls, MeasuredCall("f", (1, 310)), 1)
        assert found.difference == ""
        assert [each.taken for each in function.offloading.statistics] == [4]


@pytest.mark.parametrize("file", sorted({run.file for run in corpus()} - {WITH_IMPORTS}))
def test_guards_that_decline_change_nothing(runtime, monkeypatch, file):
    def decline(_compiler, _job):
        refused = Future()
        refused.set_result(PlanRefusal(DeclineReason.SEQUENTIAL))
        return refused

    monkeypatch.setattr(OffloadCompiler, "request", decline)
    runs = [run for run in corpus() if run.file == file]
    module = compile_c(runs[0].source, "-O2")
    function = runtime.load(module, offload="cpu", offload_waits=True)
    *before, last = [MeasuredCall(run.name, run.arguments) for run in runs]
    found = compare_runs(runtime.load(module), function, [MeasuredCall("init"), *before], last)
    assert found.difference == ""
    assert {"SEQUENTIAL"} <= reasons(function) <= {"SEQUENTIAL", "UNSETTLED"}


def test_a_ready_plan_waits_for_no_assembler(wasm, monkeypatch):
    """Kernels are prepared where their plan is made: the call that finds it ready only takes them."""
    prepared, draft = [], KernelCache.draft

    def watch(cache, key, *rest):
        prepared.append((key[2], threading.current_thread().name))
        return draft(cache, key, *rest)

    monkeypatch.setattr(KernelCache, "draft", watch)
    with Runtime("emulator") as runtime:
        function = runtime.load(wasm, offload="gpu", offload_waits=True)
        function.invoke("axpy", (200, 1.5))
        function.invoke("sum", (200,))
        assert sum(each.taken for each in function.offloading.statistics) >= 2
    assert {name for _, name in prepared} == {"tensorwasm-plans"}
    assert "results" in {entry for entry, _ in prepared}


def test_a_plan_whose_kernels_the_device_refuses_declines_when_it_runs(wasm, monkeypatch):
    def refuse(*_):
        raise UnsupportedPtx("not here")

    monkeypatch.setattr(KernelCache, "draft", refuse)
    with Runtime("emulator") as runtime:
        function = runtime.load(wasm, offload="gpu", offload_waits=True)
        assert function.invoke("last", (200,)).values == (995,)
        (refusal,) = {refusal for each in function.offloading.statistics for refusal in each.declined}
    assert (refusal.reason, refusal.detail) == (DeclineReason.DEVICE, "unsupported_ptx: not here")
