"""Functions whose loops run on all cores or on the emulator give what WebAssembly gives."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from loops import compile_c, corpus
from tensorwasm.errors import GuestTrap, InvokeTimeout
from tensorwasm.guest.imports.offload import device_target
from tensorwasm.guest.imports.offload.guards import MOST_DECLINES
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.plan_cache import PlanRefusal
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs
from tensorwasm.runtime.offload.compiler import OffloadCompiler
from tensorwasm.values import Deadline

PROGRAM = """
#define EXPORT(name) __attribute__((export_name(#name))) name
static double x[256], y[256];
static int k[256];
void EXPORT(init)(void) { for (int i = 0; i < 256; i++) { x[i] = i * 0.5; y[i] = 256 - i; k[i] = i * 7 - 300; } }
void EXPORT(axpy)(int n, double a) { for (int i = 0; i < n; i++) y[i] += a * x[i]; }
double EXPORT(sum)(int n) { double s = 0; for (int i = 0; i < n; i++) { y[i] *= 2; s += x[i]; } return s; }
int EXPORT(last)(int n) { int at = 0; for (int i = 0; i < n; i++) { k[i] += 3; at = 5 * i; } return at; }
void EXPORT(chain)(int n) { for (int i = 1; i < n; i++) y[i] += y[i - 1]; }
void EXPORT(divide)(int n, double a) { for (int i = 0; i < n; i++) y[i] = x[i] / a; }
void EXPORT(steps)(int t, int n) {
  for (int s = 0; s < t; s++) {
    for (int i = 1; i < n - 1; i++) y[i] = x[i - 1] + x[i + 1];
    for (int i = 1; i < n - 1; i++) x[i] = y[i - 1] * 0.25;
  }
}
"""
WITH_IMPORTS = "control.c"  # what it imports no grant provides
TAKEN = [("axpy", (200, 1.5)), ("sum", (200,)), ("last", (200,)), ("steps", (3, 64)), ("axpy", (7, -0.0))]
DECLINED = [
    ("chain", (100,), "SEQUENTIAL"),
    ("divide", (64, 0.0), "NOT_A_NUMBER"),
    ("axpy", (1_000_000, 1.5), "OUT_OF_BOUNDS"),
]


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
    assert sum(each.declined.total() for each in function.offloading.statistics) == MOST_DECLINES


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


def test_a_submitted_call_runs_as_it_is(runtime, wasm):
    function = runtime.load(wasm, offload="cpu", offload_waits=True)
    assert function.submit("last", (100,)).result().values == (495,)
    assert all(not each.taken for each in function.offloading.statistics)


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


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_a_cancellation_ends_a_loop_wherever_it_runs(runtime, wasm, mode):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    function.invoke("steps", (2, 256))
    stops = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            function.dispatch.call, "steps", (2_000_000_000, 256), announce=lambda stop: (stops.append(stop), stop())
        )
        with pytest.raises(GuestTrap, match="cancelled"):
            running.result(20)


def test_a_device_that_refuses_work_declines(runtime, wasm, monkeypatch):
    monkeypatch.setattr(device_target, "_FLAG_BYTES", 1 << 50)
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
