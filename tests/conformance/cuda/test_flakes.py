"""Twelve runs in one process: what is left by one run would be found by the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

RUNS = 12

PROGRAM = """
import sys, pytest
for run in range(int(sys.argv[1])):
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--require-gpu", sys.argv[2]])
    if code:
        raise SystemExit(f"run {run + 1}: {code}")
"""


@pytest.mark.hardware("BUG-flake")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["test_cuda_memory.py", "test_cuda_work.py"])
def test_a_file_runs_twelve_times_in_one_process_without_a_flake(name):
    place = Path(__file__).parent / name
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(RUNS), str(place)],
        cwd=place.parents[3],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
