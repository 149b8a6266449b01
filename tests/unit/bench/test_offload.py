"""The benchmark of offloaded programs: what it finds, what it keeps, and when it fails."""

import json
import re
import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from tensorwasm.bench.figures import MissingPeer
from tensorwasm.bench.harness import checkout_path
from tensorwasm.bench.offload import measuring
from tensorwasm.bench.offload.benchmark import MeasuredProgram, make_report, measure_offload
from tensorwasm.bench.offload.kernels import KernelTimes, make_kernel_report, measure_kernels
from tensorwasm.bench.offload.measuring import (
    LIMITS,
    KeptFigures,
    OffloadedFigures,
    PlainFigures,
    TransformerFigures,
    measure_offloaded,
)
from tensorwasm.bench.offload.programs import FOLDER, PROGRAMS, UNCOUNTED, read_programs
from tensorwasm.bench.peers.handwritten import build_handwritten
from tensorwasm.bench.peers.host import WasmtimeGuest
from tensorwasm.errors import InternalError, InvalidArgs
from tensorwasm.runtime import Runtime

PLAIN = PlainFigures(4.0, "other", "same", 2.0)
TAKEN = OffloadedFigures(3.0, 2.0, 1.0, 7, ("region 1: taken: 7",), "")
DECLINED = OffloadedFigures(6.0, 6.0, 5.0, 0, ("region 1: taken: 0, sequential: 7",), "")
COUNTED = [name for name in PROGRAMS if name not in UNCOUNTED]


def report_of(place, size, offloaded, plain=PLAIN):
    return make_report(place, "a device", size, {name: MeasuredProgram(plain, offloaded) for name in PROGRAMS})


def means(report):
    return [(round(figure.value, 6), figure.bar, figure.met) for figure in report.figures if figure.unit == "x"]


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("kept") / "state.json"


@pytest.fixture(scope="module")
def measured(state):
    return measure_offload("cpu", size="small", programs="jacobi-1d,trisolv", resume=state)


def test_loops_are_taken_or_declined_and_leave_the_same_memory(measured):
    found = measured.programs
    assert [each.offloaded.difference for each in found.values()] == ["", ""]
    assert found["jacobi-1d"].offloaded.taken > 0
    assert all(re.fullmatch(r"region \d+: taken: \d+(, .*)?", row) for row in found["trisolv"].offloaded.regions)


def test_the_transformer_gives_the_same_answer_and_says_how_fast_and_why(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "WARM_S", 0.0)
    kept = tmp_path / "kept.json"
    report = measure_offload("cpu", programs="llm", resume=kept)
    found = report.transformer
    assert found.same
    assert found.tokens > 64
    (figure,) = [figure for figure in report.figures if figure.name == "llm: tokens"]
    assert (figure.unit, figure.value) == ("1/s", found.tokens / found.offloaded_s)
    assert re.search(r"llm: \S+ tokens a second, offloaded \S+ \(.+\); regions: taken: \d+", report.to_text())
    assert json.loads(report.to_json())["llm"]["tokens"] == found.tokens
    assert measure_offload("cpu", programs="llm", resume=kept).transformer == found


def test_another_answer_of_the_transformer_misses_a_bar():
    wrong = TransformerFigures(90, 1.0, 0.5, 3, ("sequential: 2",), same=False)
    report = make_report("cpu", "all cores", "small", {}, wrong)
    assert not report.met
    assert "180 (x 2); regions: taken: 3, sequential: 2" in report.to_text()


def test_native_code_is_a_peer(measured):
    for each in measured.programs.values():
        assert (each.plain.native_s is not None) == (shutil.which("gcc") is not None)


def test_what_is_kept_is_not_measured_again(measured, state, monkeypatch):
    for name in ("measure_plain", "measure_offloaded"):
        monkeypatch.setattr(f"tensorwasm.bench.offload.benchmark.{name}", None)
    again = measure_offload("cpu", size="small", programs="jacobi-1d,trisolv", resume=state)
    assert again.programs == measured.programs


def test_figures_of_other_code_are_not_taken(tmp_path):
    kept = KeptFigures(tmp_path / "state")
    kept.keep(TAKEN, "gemm", ["a machine", "old code"])
    again = KeptFigures(tmp_path / "state")
    assert again.find(OffloadedFigures, "gemm", ["a machine", "new code"]) is None
    assert again.find(PlainFigures, "gemm", ["a machine", "old code"]) is None
    assert again.find(OffloadedFigures, "gemm", ["a machine", "old code"]) == TAKEN


def test_figures_depend_on_the_sizes_of_both_calls(monkeypatch):
    program = read_programs("small", ["gemm"])[0]
    larger = replace(program, sizes=(80, 90, 100))
    assert program.digest != larger.digest
    before = program.digest
    monkeypatch.setattr(type(program), "other_sizes", property(lambda self: self.sizes))
    assert program.digest != before


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "state"
    path.write_text("no figures")
    with pytest.raises(InvalidArgs, match="keeps no figures"):
        KeptFigures(path)


def test_another_memory_misses_a_bar(monkeypatch):
    monkeypatch.setattr(measuring, "_digest", lambda memory: repr(id(memory)))
    report = measure_offload("cpu", size="small", programs="jacobi-1d")
    assert not report.met
    assert "memory differs after the cold call" in report.to_text()


def test_a_program_that_traps_ends_the_benchmark():
    program = replace(read_programs("small", ["jacobi-1d"])[0], sizes=(1 << 30, 1 << 30))
    with Runtime("emulator", limits=LIMITS) as runtime, pytest.raises(InternalError, match="jacobi-1d ended"):
        measure_offloaded(partial(runtime.load, offload="cpu", offload_waits=True), program, PLAIN)


def test_the_bars_are_those_of_a_gpu_and_extra_large_sizes():
    assert means(report_of("cuda", "extralarge", TAKEN)) == [(2.0, 20.0, False), (4.0, 30.0, False), (2.0, None, None)]
    assert means(report_of("cuda", "large", TAKEN)) == [(2.0, None, None), (4.0, None, None), (2.0, None, None)]


def test_the_bars_are_those_of_all_cores_and_large_sizes():
    assert means(report_of("cpu", "large", TAKEN)) == [(2.0, None, None), (4.0, 2.0, True), (2.0, 1.0, True)]


def test_a_program_of_which_nothing_is_taken_counts_one():
    assert means(report_of("cuda", "extralarge", DECLINED))[:2] == [(1.0, 20.0, False), (1.0, 30.0, False)]


def test_without_a_compiler_the_column_says_so():
    report = report_of("cpu", "large", TAKEN, replace(PLAIN, native_s=None))
    assert "missing" in report.to_text()
    assert len(means(report)) == 2


def test_a_part_of_the_programs_has_no_bar():
    report = make_report("cuda", "a device", "extralarge", {"gemm": MeasuredProgram(PLAIN, TAKEN)})
    assert means(report) == [(2.0, None, None), (4.0, None, None), (2.0, None, None)]


def test_the_report_has_all_figures_of_programs():
    found = json.loads(report_of("cpu", "small", TAKEN).to_json())
    assert found["size"] == "small"
    assert found["programs"]["gemm"]["offloaded"]["regions"] == ["region 1: taken: 7"]
    assert {"gemm: cold", "gemm: sizes new", "gemm: later calls"} <= {figure["name"] for figure in found["figures"]}


@pytest.mark.parametrize(("size", "programs"), [("huge", ""), ("small", "gemm,nothing")])
def test_unknown_sizes_and_programs_are_refused(size, programs):
    with pytest.raises(InvalidArgs, match="there is no"):
        measure_offload("cpu", size=size, programs=programs)


def test_the_geometric_means_are_over_the_kernels_of_the_bars():
    assert len(PROGRAMS) == 35
    assert len(COUNTED) == 27


@pytest.mark.parametrize("program", read_programs("small", PROGRAMS), ids=lambda program: program.name)
def test_a_pair_of_calls_leaves_what_it_would_alone(program):
    # Otherwise memories after more and fewer calls could not be compared.
    with closing(WasmtimeGuest(program.wasm)) as once, closing(WasmtimeGuest(program.wasm)) as often:
        for guest, calls in ((once, [program.sizes]), (often, [program.other_sizes, program.sizes, program.sizes])):
            for sizes in calls:
                guest.call("init", sizes)
                guest.call("run", sizes)
        assert once.memory() == often.memory()


def test_kernels_are_measured_without_copies():
    report = measure_kernels("emulator", size="small", programs="jacobi-1d,gesummv")
    found = {figure.name: figure for figure in report.figures if figure.peer.endswith("fma off")}
    assert set(found) == {"jacobi-1d: speed", "gesummv: speed"}
    assert all(0 < figure.value < 60 and figure.ratio is None for figure in found.values())  # no GPU, no peer


def test_programs_without_kernels_by_hand_are_refused():
    with pytest.raises(InvalidArgs, match="adi"):
        measure_kernels("emulator", size="small", programs="adi")


def test_kernels_by_hand_are_there_for_all_programs_that_count():
    for name in COUNTED:
        assert (checkout_path(FOLDER) / f"{name}.cu").is_file()


def test_speeds_of_kernels_have_bars():
    times = {
        "gemm": KernelTimes(1.0, (2.0, 1.5)),
        "lu": KernelTimes(4.0, (1.0, 1.0)),
        "symm": KernelTimes(None, (1.0, 1.0)),
    }
    figures = {figure.name: figure for figure in make_kernel_report("a device", times).figures if figure.unit == "x"}
    mean, least = (figures[f"{what} speed of 2 programs, fma off"] for what in ("mean", "least"))
    assert (round(mean.value, 3), mean.met, least.value, least.met) == (0.707, False, 0.25, False)
    assert figures["mean speed of 2 programs, fma on"].bar is None


def test_a_missing_compiler_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPeer, match="nvcc"):
        build_handwritten(checkout_path(FOLDER), "gemm", tmp_path, fma=False)
