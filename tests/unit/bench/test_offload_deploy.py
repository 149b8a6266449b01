"""The benchmark of deploys with offload."""

from tensorwasm.bench.offload import deploying
from tensorwasm.bench.offload.programs import read_programs
from tensorwasm.offload.module import cut_module
from tensorwasm.wasm.module import encode


def test_a_second_deploy_makes_and_compiles_nothing(monkeypatch):
    monkeypatch.setattr(deploying, "_programs", lambda: iter(read_programs("small", ["jacobi-1d", "trisolv"])))
    report = deploying.measure_offload_deploy(samples=1, code_bytes=20_000)
    values = {figure.name: figure.value for figure in report.figures}
    assert values["plans made anew of what was seen before"] == 0
    assert values["modules compiled anew that were seen before"] == 0
    assert values["regions"] >= values["regions that were taken"] > 0
    assert values["seen before: all code is ready, and was called"] < values["new: all code is ready, and was called"]
    assert [figure.bar for figure in report.figures] == [
        None,
        None,
        500.0,
        None,
        20.0,
        500.0,
        None,
        20.0,
        None,
        0.0,
        0.0,
    ]


def test_the_module_has_about_twenty_regions_and_code_without_loops():
    programs = list(deploying._programs())
    found = cut_module(encode(deploying.make_loops(10_000, programs)))
    assert 20 <= len(found.regions) <= 25
    first = min(region.function for region in found.regions)
    assert {region.function - first for region in found.regions} <= set(range(len(programs)))
