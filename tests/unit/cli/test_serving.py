"""`tensor-wasm serve` and `reload`, up to where they begin."""

import os

import pytest

from tensorwasm.cli.entry import dispatch
from tensorwasm.cli.local import serving
from tensorwasm.server.process import supervisor


@pytest.mark.parametrize(
    ("device", "processors", "gpus", "expected"),
    [
        ("auto", 1, 0, 1),
        ("auto", 2, 0, 1),
        ("auto", 16, 0, 15),
        ("auto", 16, 2, 13),
        ("cuda", 16, 2, 13),
        ("cuda:1", 16, 2, 14),
        ("emulator", 16, 2, 15),
        ("auto", 2, 8, 1),
        ("auto", 1024, 0, serving.MAX_WORKERS),
    ],
)
def test_as_many_processes_as_processors_that_have_nothing_else_to_do(monkeypatch, device, processors, gpus, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(processors)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    monkeypatch.setattr(serving.Path, "glob", lambda _folder, pattern: [pattern] * gpus)
    assert serving.default_workers(device) == expected


class Begun(Exception):
    """The supervisor was made."""


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [(["--workers", "3"], "", 3), ([], "5", 5), (["--workers", "1"], "5", 1)],
)
def test_the_number_of_processes_can_be_said(monkeypatch, tmp_path, arguments, variable, expected):
    found = {}

    def make(_address, _environment, _body, **more):
        found.update(more)
        raise Begun

    monkeypatch.setattr(supervisor, "Supervisor", make)
    monkeypatch.setenv("TENSOR_WASM_WORKERS", variable)
    monkeypatch.setenv("TENSOR_WASM_API_DRAIN", "7")
    assert dispatch(["serve", "--data", str(tmp_path), *arguments]) == 1
    assert found == {"workers": expected, "drain_s": 7.0, "folder": tmp_path}


@pytest.mark.parametrize("number", ["0", "201", "x"])
def test_numbers_of_processes_that_make_no_sense_are_refused(number, capsys):
    assert dispatch(["serve", "--workers", number]) == 2
    assert "workers" in capsys.readouterr().err


def test_a_reload_needs_a_server(tmp_path, capsys):
    assert dispatch(["reload", "--data", str(tmp_path)]) == 1
    assert "server_unreachable" in capsys.readouterr().err
