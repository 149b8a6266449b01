"""The benchmark of programs that offloading cannot help: what it measures, and when a bar is missed."""

import pytest

from tensorwasm.bench.offload import overhead
from tensorwasm.bench.offload.overhead import SIZES, WARM_PAIRS, measure_overhead
from tensorwasm.bench.offload.programs import PROGRAMS
from tensorwasm.runtime.invoke.offloading import Offloading


def test_a_program_is_measured_with_guards_beside_wasmtime(monkeypatch):
    made = []
    monkeypatch.setattr(Offloading, "__init__", _noting(made, Offloading.__init__))
    report = measure_overhead("cpu", sizes={"trisolv": (120,)}, count=3)
    (figure,) = report.figures
    assert (figure.name, figure.samples, figure.bar, figure.judged) == ("trisolv", 3, 0.98, "ratio")
    assert figure.ratio > 0
    (offloading,) = made
    assert [sum(each.declined.values()) + each.taken > 0 for each in offloading.statistics] == [True, True]


@pytest.mark.parametrize(("alone_s", "met"), [(0.98, True), (0.97, False)])
def test_the_bar_is_on_the_median_of_pairs(monkeypatch, alone_s, met):
    times = [(alone_s, 1.0)] * 3
    monkeypatch.setattr(overhead, "_pairs", lambda *_: [(9.0, 1.0)] * WARM_PAIRS + times)
    assert measure_overhead("cpu", sizes={"trisolv": (8,)}, count=3).met is met


def test_all_programs_are_there():
    assert set(SIZES) <= set(PROGRAMS)


def _noting(made, init):
    def noting(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    return noting
