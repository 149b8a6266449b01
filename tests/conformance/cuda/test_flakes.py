"""Twelve runs in one process: what is left by one run would be found by the next."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

RUNS = 12
CONFORMANCE = Path(__file__).parents[1]

PROGRAM = """
import sys, pytest
for run in range(int(sys.argv[1])):
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--require-gpu", "-k", "cuda", sys.argv[2]])
    if code:
        raise SystemExit(f"run {run + 1}: {code}")
"""


@pytest.mark.hardware("BUG-flake")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        "cuda/test_cuda_memory.py",
        "cuda/test_cuda_work.py",
        "test_guests.py::test_a_guest_verifies_what_its_kernel_computed",
    ],
)
def test_a_file_runs_twelve_times_in_one_process_without_a_flake(name):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(RUNS), f"{CONFORMANCE}/{name}"],
        cwd=CONFORMANCE.parents[1],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
