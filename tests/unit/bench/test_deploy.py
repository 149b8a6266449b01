import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import Engine, Module

from tensorwasm.bench.deploy import measure_deploy
from tensorwasm.bench.modules import FUNCTION_BYTES, make_module
from tensorwasm.errors import InternalError


def test_a_deploy_is_measured_in_processes_that_never_saw_the_module(monkeypatch):
    report = measure_deploy(samples=1, code_bytes=2000)
    bars = [figure.bar for figure in report.figures]
    assert bars == [5.0, 5.0, None, None]
    assert all(figure.value > 0 and figure.samples == 1 for figure in report.figures)
    assert report.figures[2].ratio is not None


def test_a_process_that_fails_is_no_figure(monkeypatch):
    monkeypatch.setattr("tensorwasm.bench.deploy._DEPLOY", "raise SystemExit(3)")
    with pytest.raises(InternalError, match="code 3"):
        measure_deploy(samples=1, code_bytes=100)


@given(seed=st.integers(0, 1000), functions=st.integers(1, 300))
def test_modules_of_every_size_are_valid(seed, functions):
    wasm = make_module(functions * FUNCTION_BYTES, seed)
    Module.validate(Engine(), wasm)
    assert wasm == make_module(functions * FUNCTION_BYTES, seed)


def test_a_module_has_about_the_code_that_was_asked_for():
    assert 0.9e6 < len(make_module(1_000_000)) < 1.1e6
