"""The comparison of two trees' benchmarks: what counts as worse."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare_benchmarks import LIMIT, compare, measure, run

VALUES = st.floats(1e-3, 1e6)


@given(VALUES, st.floats(1.2, 3), st.integers(3, 20))
def test_a_figure_that_is_steadily_slower_is_worse_and_the_same_rate_is_better(value, factor, rounds):
    pairs = [(value, value * factor)] * rounds
    slower = compare("b", "f", "ms", pairs)
    assert slower.worse
    assert slower.ratio == pytest.approx(factor)
    faster = compare("b", "f", "requests/s", pairs)
    assert not faster.worse
    assert faster.ratio == pytest.approx(1 / factor)


@given(st.lists(st.tuples(VALUES, st.floats(0.95, LIMIT)), min_size=1, max_size=30))
def test_a_figure_within_the_limit_is_not_worse(values):
    assert not compare("b", "f", "us", [(value, value * factor) for value, factor in values]).worse


def test_one_round_proves_nothing():
    assert not compare("b", "f", "us", [(1.0, 100.0)]).worse


def test_the_interval_is_student_s():
    found = compare("b", "f", "us", [(1.0, 1.1), (1.0, 1.2), (1.0, 1.3)])
    assert (found.low, found.ratio, found.high) == pytest.approx((0.9723, 1.1972, 1.4742), abs=1e-3)


@pytest.fixture
def tree(tmp_path):
    """Return a function that makes a source tree whose benchmark reports one figure."""

    def make(name, value, figure="speed"):
        package = tmp_path / name / "src" / "tensorwasm" / "cli"
        package.mkdir(parents=True)
        report = json.dumps({"figures": [{"name": figure, "unit": "us", "value": value}]})
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(f"import sys; open(sys.argv[-1], 'w').write({report!r})")
        return tmp_path / name

    return make


def test_figures_that_both_trees_have_are_compared_in_turn(tree, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["compare_benchmarks"], "ROOT", tree("after", 2.0))
    (found,) = run(tree("before", 1.0), ["any"], 3)
    assert (found.before, found.after, found.rounds, found.worse) == (1.0, 2.0, 3, True)
    assert "WORSE" in capsys.readouterr().out
    assert run(tree("other", 1.0, "another figure"), ["any"], 1) == []


def test_a_benchmark_that_writes_no_report_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="any"):
        measure(tmp_path, "any", tmp_path)
