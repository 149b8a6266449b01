"""Loops of a function that follow one another run as one region, and do what WebAssembly does."""

from __future__ import annotations

import pytest

from loops import compile_c
from tensorwasm.errors import GuestTrap, InvokeTimeout
from tensorwasm.guest.imports.offload.device_target import DeviceTarget
from tensorwasm.guest.sandbox.state import GuestState
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs
from tensorwasm.values import Deadline
from tensorwasm.wasm.module import decode

PROGRAM = """
#define EXPORT(name) __attribute__((export_name(#name))) name
static double x[64], y[64], z[64], both[128];
static int k[8], bounds[2];
static __attribute__((noinline)) void touch(void) { __asm__ volatile("" ::: "memory"); y[5] = 1; }
void EXPORT(init)(int n) {
  for (int i = 0; i < 64; i++) { x[i] = i * 0.5; y[i] = 64 - i; z[i] = 3; }
  k[1] = 8;
  bounds[0] = (int)x[n - 24];
}
void EXPORT(plain)(int n, double a) {
  for (int i = 0; i < n; i++) y[i] = a * x[i];
  for (int i = 0; i < n; i++) z[i] = y[i] + x[i];
}
void EXPORT(store)(int n, double a) {
  for (int i = 0; i < n; i++) y[i] = a * x[i];
  y[3] = 7;
  for (int i = 0; i < n; i++) z[i] = y[i] + x[n - i];
}
void EXPORT(shared)(double *p, double *q, int n) {
  for (int i = 0; i < n; i++) p[i] = 2;
  for (int i = 0; i < n; i++) q[i] = p[i] + 1;
}
void EXPORT(alias)(int from, int n) {
  for (int i = 0; i < n; i++) both[i + from] = 3 * x[i];
  for (int i = 0; i < n; i++) y[i] = both[i] + 1;
}
void EXPORT(holes)(int n) {
  for (int i = 0; i < n; i++) y[2 * i] = x[i];
  for (int i = 0; i < n; i++) z[2 * i] = y[2 * i] + y[2 * i + 1];
}
void EXPORT(nan)(int n, double a) {
  for (int i = 0; i < n; i++) y[i] = x[i] + 1;
  for (int i = 0; i < n; i++) z[i] = (y[i] - y[i]) / a;
}
int EXPORT(trap)(int n, int a) {
  for (int i = 0; i < n; i++) y[i] = x[i] + 1;
  int quotient = k[1] / a;
  for (int i = 0; i < n; i++) z[i] = y[i] * quotient;
  return quotient;
}
int EXPORT(grow)(int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] + 1;
  int pages = __builtin_wasm_memory_grow(0, 1);
  for (int i = 0; i < n; i++) z[i] = y[i] * 2;
  return pages;
}
void EXPORT(calls)(int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] + 1;
  touch();
  for (int i = 0; i < n; i++) z[i] = y[i] * 2;
}
void EXPORT(loaded)(int n) {
  for (int i = 0; i < n; i++) y[i] = x[i] + 1;
  int m = bounds[0];
  for (int i = 0; i < m; i++) z[i] = y[i] * 2;
}
void EXPORT(chain)(int n) {
  for (int i = 1; i < 60 * n; i++) y[1] = y[1] * 0.5 + i;
  for (int i = 0; i < 64; i++) for (int j = 0; j < 64 * n; j++) z[i] += x[i];
}
void EXPORT(steps)(int t) {
  for (int i = 0; i < 64; i++) z[i] = x[i] + 1;
  for (int s = 0; s < t; s++) {
    for (int i = 1; i < 63; i++) y[i] = x[i - 1] + x[i + 1];
    for (int i = 1; i < 63; i++) x[i] = y[i - 1] * 0.25;
  }
}
"""


@pytest.fixture(autouse=True)
def whatever_it_costs(monkeypatch):
    """Have small loops run elsewhere, too."""
    monkeypatch.setattr(RegionCosts, "choose", lambda *_: RunPlace.ELSEWHERE)


@pytest.fixture(scope="module")
def wasm():
    return compile_c(PROGRAM, "-O1")


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


def outcomes(function, wasm, name):
    """Return for each region of an export how many blocks it is, how often it was taken and why it was not."""
    offloading = function.offloading
    (index,) = [item.index for item in decode(wasm).exports if item.name == name]
    return [
        (region.parts, each.taken, sorted(refusal.reason.name for refusal in each.declined))
        for region, each in zip(offloading.regions, offloading.statistics, strict=True)
        if region.function == index
    ]


@pytest.fixture(params=["cpu", "gpu"])
def ran(request, runtime, wasm):
    """Return a function: run calls with and without offloading; return what became of an export's regions."""

    def run(name, *args, repeat=2):
        function = runtime.load(wasm, offload=request.param, offload_waits=True)
        before, call = [MeasuredCall("init", (64,))], MeasuredCall(name, args)
        found = compare_runs(runtime.load(wasm), function, before, call, repeat)
        assert found.difference == ""
        return outcomes(function, wasm, name), found.offloaded.ending

    return run


ALONE = [(2, 2, []), (1, 0, []), (1, 0, [])]
APART = [(1, 2, []), (1, 2, [])]


@pytest.mark.parametrize(
    ("name", "args"), [("plain", (50, 1.5)), ("plain", (0, 1.5)), ("store", (50, 1.5)), ("holes", (30,))]
)
def test_loops_in_a_row_are_taken_at_once(ran, name, args):
    found, _ = ran(name, *args)
    assert found[0][0] == 2
    assert args[0] == 0 or found == ALONE


@pytest.mark.parametrize("start", [0, 1, 7, 63])
def test_loops_in_a_row_may_use_arrays_that_overlap(ran, start):
    found, _ = ran("alias", start, 60)
    assert found == ALONE


@pytest.mark.parametrize("distance", [0, 8, 80, 512])
def test_loops_in_a_row_may_be_given_pointers_that_overlap(ran, distance):
    ran("shared", 4096, 4096 + distance, 20)


@pytest.mark.parametrize("name", ["grow", "calls"])
def test_loops_with_what_no_region_contains_between_them_are_taken_one_by_one(ran, name):
    found, _ = ran(name, 50)
    assert found == APART


def test_a_bound_that_is_loaded_between_loops_has_them_taken_one_by_one(ran):
    found, _ = ran("loaded", 50)
    assert found == [(2, 0, ["CONTROL_FLOW"]), (1, 2, []), (1, 2, [])]


def test_a_nan_of_the_second_loop_has_the_first_taken_by_itself(ran):
    found, _ = ran("nan", 50, 0.0)
    assert found == [(2, 0, ["NOT_A_NUMBER"]), (1, 2, []), (1, 0, ["NOT_A_NUMBER"])]


@pytest.mark.parametrize(("divisor", "ending"), [(0, "integer_division_by_zero"), (2, "")])
def test_a_trap_between_loops_comes_after_the_first(ran, divisor, ending):
    found, ended = ran("trap", 50, divisor, repeat=1)
    assert ended == ending
    assert [taken for _, taken, _ in found] == ([0, 1, 0] if divisor == 0 else [1, 0, 0])


def test_a_sequential_loop_beside_a_parallel_one_is_left_to_the_processor(ran):
    found, _ = ran("chain", 40)
    assert [parts for parts, _, _ in found] == [2, 1, 1]
    assert found[0][1:] == (0, ["SEQUENTIAL"])
    assert found[2][1:] == (2, [])


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_a_deadline_ends_loops_in_a_row(runtime, wasm, mode):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    function.invoke("steps", (2,))
    with pytest.raises(InvokeTimeout):
        function.invoke("steps", (2_000_000_000,), deadline=Deadline.after(3.0))
    assert function.invoke("steps", (2,)).values == ()


@pytest.mark.parametrize("mode", ["cpu", "gpu"])
def test_memory_that_has_grown_is_copied_too(runtime, wasm, mode):
    function = runtime.load(wasm, offload=mode, offload_waits=True)
    calls = [MeasuredCall("init", (64,)), *[MeasuredCall("grow", (50,)), MeasuredCall("plain", (20, 2.5))] * 3]
    found = compare_runs(runtime.load(wasm), function, calls, MeasuredCall("grow", (50,)), 1)
    assert found.difference == ""


def test_a_cancelled_guest_ends(runtime, wasm):
    function = runtime.load(wasm, offload="gpu", offload_waits=True)
    with pytest.raises(GuestTrap, match="cancelled"):
        function.dispatch.call("steps", (2_000_000_000,), announce=lambda stop: stop())


def test_registered_pages_are_given_up_before_the_sandbox_goes(runtime, wasm, monkeypatch):
    order = []
    for kind, name in ((DeviceTarget, "end"), (GuestState, "close")):
        method = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda self, method=method, name=name: (order.append(name), method(self))[1])
    function = runtime.load(wasm, offload="gpu", offload_waits=True)
    function.invoke("plain", (50, 1.5))
    assert sum(each.taken for each in function.offloading.statistics) == 1
    assert order[:2] == ["end", "close"]
