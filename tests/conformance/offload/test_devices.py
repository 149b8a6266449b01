"""Programs of the corpus with their loops on a device do what WebAssembly alone does: results, traps, all of memory."""

from __future__ import annotations

import pytest

from loops import CORPUS, corpus
from tensorwasm.offload.costs import RegionCosts, RunPlace
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.api.comparison import MeasuredCall, compare_runs

UNLINKED = "control.c"  # what it imports no grant provides


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
