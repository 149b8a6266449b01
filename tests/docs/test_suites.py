"""The script that runs public suites: programs of WASI by the product and by wasmtime, and its report."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import suites

PROGRAMS = Path(__file__).parents[1] / "golden/wasi"


@pytest.mark.skipif(sys.platform == "win32", reason="links and open files as POSIX has them")
def test_programs_of_wasi_are_compared_with_the_package_without_a_binary(tmp_path, monkeypatch, capsys):
    for name in ("exit_code_33", "exit_code_200", "poll_oneoff_closed"):
        for ending in ("wasm", "json"):
            shutil.copy(PROGRAMS / f"{name}.{ending}", tmp_path)
    monkeypatch.setattr(suites.shutil, "which", lambda _name: None)
    tally = suites.run_wasi(Namespace(folder=tmp_path, wasmtime=None))
    assert tally.passed == 2
    assert [failure.partition(":")[0] for failure in tally.failures] == ["poll_oneoff_closed.wasm"]
    assert "exit_code_200.wasm: passed here" in capsys.readouterr().out
