"""Programs of the corpus with their loops on a device do what WebAssembly alone does: results, traps, all of memory."""

from __future__ import annotations

import pytest

from loops import CORPUS, compile_c, corpus
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs
from tensorwasm.wasm.module import decode

UNLINKED = "control.c"  # what it imports no grant provides

FOR_VECTORS = ("gemm", "atax", "jacobi_2d", "saxpy", "rows", "products_of_bytes", "clamped", "scaled")


@pytest.fixture(scope="module")
def runtime(device):
    with Runtime(device.info.kind) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Offload whatever that costs."""
    monkeypatch.setattr(RegionCosts, "choose", lambda *_: RunPlace.ELSEWHERE)


@pytest.mark.parametrize("file", sorted({run.file for run in corpus()} - {UNLINKED}))
def test_loops_on_a_device_do_what_webassembly_does(runtime, file):
    wasm, taken = (CORPUS / file).with_suffix(".wasm").read_bytes(), 0
    for run in [run for run in corpus() if run.file == file]:
        function = runtime.load(wasm, offload="gpu", offload_waits=True)
        call = MeasuredCall(run.name, run.arguments)
        found = compare_runs(runtime.load(wasm), function, [MeasuredCall("init")], call, repeat=2)
        assert not found.difference, run
        taken += sum(each.taken for each in function.offloading.statistics)
    assert taken


@pytest.mark.parametrize("place", ["gpu", "cpu"])
@pytest.mark.parametrize("level", ["-O2", "-O3"])
@pytest.mark.parametrize("name", FOR_VECTORS)
def test_loops_compiled_for_vectors_are_taken_and_do_what_webassembly_does(runtime, name, level, place):
    run = next(run for run in corpus() if run.name == name)
    wasm = compile_c(run.source, level, "-msimd128")
    function = runtime.load(wasm, offload=place, offload_waits=True)
    found = compare_runs(
        runtime.load(wasm), function, [MeasuredCall("init")], MeasuredCall(name, run.arguments), repeat=2
    )
    assert not found.difference
    called = next(each.index for each in decode(wasm).exports if each.name == name)
    regions = zip(function.offloading.regions, function.offloading.statistics, strict=True)
    reached = [each for region, each in regions if region.function == called and (each.taken or each.declined)]
    assert [each.declined for each in reached] == [{}] * len(reached)
    assert reached
