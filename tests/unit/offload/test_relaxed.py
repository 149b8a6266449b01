"""Sums and products of floats run in parts only where their order was left open, and then in one order."""

from __future__ import annotations

import math

import msgspec
import pytest

from loops import CORPUS, compile_c
from oracles.wasm_numeric import to_float
from tensorwasm.errors import InvalidArgs
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.offload.module import cut_module
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs, run_alone
from tensorwasm.runtime.offload.plan_job import PlanJob

COUNT = 1101
INIT = [MeasuredCall("init")]


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Offload whatever that costs."""
    monkeypatch.setattr(RegionCosts, "choose", lambda *_: RunPlace.ELSEWHERE)


@pytest.fixture(scope="module")
def wasm():
    return compile_c((CORPUS / "reductions.c").read_text(), "-O1")


def run(runtime, wasm, name, offload, maths):
    """Return the bits of a call's result, and how often loops ran elsewhere in it and in what came before."""
    function = runtime.load(wasm, offload=offload, offload_math=maths, offload_waits=True)
    found = run_alone(function, INIT, MeasuredCall(name, (COUNT,)))
    return found.outcomes[-1][0], sum(each.taken for each in function.offloading.statistics)


def doubles():
    s, values = 1, []
    for _ in range(COUNT):
        s = (s * 1664525 + 1013904223) % (1 << 32)
        values.append((s - (s >> 31 << 32)) / 4096)
    return values


@pytest.mark.parametrize("offload", ["cpu", "gpu"])
def test_a_sum_of_floats_is_near_the_exact_one_and_the_same_each_time(runtime, wasm, offload):
    exact, sequential = run(runtime, wasm, "sum_of_doubles", offload, "exact")
    relaxed, taken = run(runtime, wasm, "sum_of_doubles", offload, "relaxed")
    again, _ = run(runtime, wasm, "sum_of_doubles", offload, "relaxed")
    values = doubles()
    bound = COUNT * 2.0**-53 * math.fsum(map(abs, values)) * 2
    assert taken == sequential + 1
    assert to_float("f64", exact) == sum(values)
    assert abs(to_float("f64", relaxed) - math.fsum(values)) <= bound
    assert relaxed == again


def test_threads_and_a_device_add_up_in_one_order(runtime, wasm):
    assert run(runtime, wasm, "sum_of_doubles", "cpu", "relaxed") == run(
        runtime, wasm, "sum_of_doubles", "gpu", "relaxed"
    )


@pytest.mark.parametrize("name", ["remainders", "prefix_sums", "sum", "largest", "least_unsigned"])
def test_nothing_but_sums_and_products_of_floats_changes(runtime, wasm, name):
    relaxed = runtime.load(wasm, offload="cpu", offload_math="relaxed", offload_waits=True)
    assert not compare_runs(runtime.load(wasm), relaxed, INIT, MeasuredCall(name, (COUNT,))).difference


def test_another_order_is_another_plan(wasm):
    cut = cut_module(wasm)
    job = PlanJob("tenant", cut.lone[0], (0,), 1 << 16, (9, 0))
    assert job.name != msgspec.structs.replace(job, relaxed=True).name


def test_there_are_two_orders(runtime, wasm):
    with pytest.raises(InvalidArgs, match="offload_math is one of exact, relaxed"):
        runtime.load(wasm, offload="cpu", offload_math="fast")
