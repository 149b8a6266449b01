"""The report of the GPU suites is of one GPU and one state of the sources, and only of suites that ran."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import gpu_suite
from tensorwasm.bench import BENCHMARKS

DEVICE = {"name": "a GPU"}


def report(path, suites, device=DEVICE, sources="abc"):
    path.write_text(json.dumps({"device": device, "sources": sources, "suites": suites}))
    return path


def test_only_results_of_this_device_and_these_sources_are_kept(tmp_path):
    old, new = {"suite": "cuda", "ok": False}, {"suite": "cuda", "ok": True}
    reports = [
        report(tmp_path / "first", [old, {"suite": "job", "ok": True}]),
        report(tmp_path / "second", [new]),
        report(tmp_path / "elsewhere", [old], device={"name": "another"}),
        report(tmp_path / "earlier", [old], sources="abd"),
        tmp_path / "none",
    ]
    assert gpu_suite.earlier_results(reports, DEVICE, "abc") == {"cuda": new, "job": {"suite": "job", "ok": True}}


@pytest.mark.parametrize("change", ["src/a.py", "src/b.py", "tests/test_a.py", "pyproject.toml"])
def test_a_change_of_the_sources_changes_the_digest(tmp_path, change):
    for name in ("src/a.py", "tests/test_a.py", "examples/a.c", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    before = gpu_suite.digest_sources(tmp_path)
    (tmp_path / "src" / "__pycache__").mkdir()
    (tmp_path / "src" / "__pycache__" / "a.pyc").write_text("compiled")
    assert gpu_suite.digest_sources(tmp_path) == before
    (tmp_path / change).write_text("two")
    assert gpu_suite.digest_sources(tmp_path) != before


def test_a_suite_that_is_run_again_finds_what_it_had_done(tmp_path):
    code = (
        "import sys; _, report, kept = sys.argv; open(kept, 'a').write('.'); open(report, 'w').write(open(kept).read())"
    )
    suite = gpu_suite.Suite("one", ("-c", code, "{report}", "{kept}"), 60, tests=False)
    assert [gpu_suite.run(suite, tmp_path, "gpu").ok for _ in range(2)] == [True, True]
    assert (tmp_path / "one-gpu.json").read_text() == ".."


def test_suites_name_benchmarks_and_tests_that_there_are():
    for suite in gpu_suite.SUITES:
        words = [word.removeprefix("--ignore=") for word in suite.command]
        assert all((gpu_suite.ROOT / word).exists() for word in words if word.startswith(("tests/", "tools/")))
        assert "bench" not in words or suite.name == words[words.index("bench") + 1] in BENCHMARKS


def test_a_suite_that_hangs_is_killed_with_its_children():
    child = "import time; print(flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    command = [sys.executable, "-c", parent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.read(1)  # the child runs
        assert gpu_suite.await_end(process, 0.0) < 0
        assert process.stdout.read() == b""  # no process is left that could write
