import pytest

from tensorwasm.bench import start
from tensorwasm.errors import InternalError


def test_runs_of_a_cached_module_are_measured_beside_the_peer(tmp_path):
    own, peer = start._run_figures(tmp_path, runs=1)
    assert own.bar == 200.0
    assert own.value > 0
    assert (peer.bar, peer.samples) == (None, 1)


def test_bars_belong_to_what_is_ready_and_to_the_first_answer():
    figures = start._start_figures([(1.0, 10.0, 0.5)], [(11.0, 20.0, 0.6)])
    assert [(figure.value, figure.bar) for figure in figures] == [
        (1.0, 2.0), (11.0, 12.0), (0.5, None), (0.6, None), (15.0, 100.0),
    ]  # fmt: skip
    assert all(figure.met is not False for figure in figures)


def test_a_process_that_says_something_else_is_no_figure():
    with pytest.raises(InternalError, match="code 0"):
        start._run(["/bin/echo", "41"], {})
