"""The report of what a GPU has shown: of one GPU, one state of the sources, and of nothing that did not run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import gpu_suite

DEVICE = {"name": "a GPU"}


def report(path, suites, device=DEVICE, sources="abc"):
    path.write_text(json.dumps({"device": device, "sources": sources, "suites": suites}))
    return path


def test_only_what_ran_on_this_device_with_these_sources_is_kept(tmp_path):
    old, new = {"suite": "cuda", "ok": False}, {"suite": "cuda", "ok": True}
    reports = [
        report(tmp_path / "first", [old, {"suite": "job", "ok": True}]),
        report(tmp_path / "second", [new]),
        report(tmp_path / "elsewhere", [old], device={"name": "another"}),
        report(tmp_path / "earlier", [old], sources="abd"),
        tmp_path / "none",
    ]
    assert gpu_suite.kept(reports, DEVICE, "abc") == {"cuda": new, "job": {"suite": "job", "ok": True}}


@pytest.mark.parametrize("change", ["src/a.py", "src/b.py", "tests/test_a.py", "pyproject.toml"])
def test_any_change_of_the_sources_makes_another_digest(tmp_path, change):
    for name in ("src/a.py", "tests/test_a.py", "examples/a.c", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    before = gpu_suite.digest_sources(tmp_path)
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "src" / "__pycache__" / "a.pyc").write_text("compiled")
    assert gpu_suite.digest_sources(tmp_path) == before
    (tmp_path / change).write_text("two")
    assert gpu_suite.digest_sources(tmp_path) != before


def test_a_suite_that_hangs_is_ended_with_all_that_it_started():
    child = "import time; print(flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.read(1)  # the child is there
        assert gpu_suite.await_end(process, 0.0) < 0
        assert process.stdout.read() == b""  # nobody is there who could write
