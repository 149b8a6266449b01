import pytest

from tensorwasm.bench import startup
from tensorwasm.errors import InternalError


def test_deploys_are_measured_in_processes_that_never_saw_the_module():
    report = startup.measure_deploy(samples=1, code_bytes=2000)
    assert [figure.bar for figure in report.figures] == [5.0, 5.0, None, None]
    assert all(figure.value > 0 and figure.samples == 1 for figure in report.figures)
    assert report.figures[2].ratio is not None


def test_a_process_that_fails_fails_the_benchmark(monkeypatch):
    monkeypatch.setattr(startup, "_DEPLOY", "raise SystemExit(3)")
    with pytest.raises(InternalError, match="code 3"):
        startup.measure_deploy(samples=1, code_bytes=100)


def test_runs_of_a_cached_module_are_measured_beside_the_peer(tmp_path):
    own, peer = startup._run_figures(tmp_path, runs=1)
    assert own.bar == 200.0
    assert own.value > 0
    assert (peer.bar, peer.samples) == (None, 1)


def test_readiness_and_the_first_answer_have_bars():
    figures = startup._start_figures([(1.0, 10.0, 0.5)], [(11.0, 20.0, 0.6)])
    assert [(figure.value, figure.bar) for figure in figures] == [
        (1.0, 2.0), (11.0, 12.0), (0.5, None), (0.6, None), (15.0, 100.0),
    ]  # fmt: skip
    assert all(figure.met is not False for figure in figures)


def test_a_process_that_prints_a_wrong_result_fails_the_benchmark():
    with pytest.raises(InternalError, match="instead of 42"):
        startup._run_ms(["-c", "print(41)"], {})
