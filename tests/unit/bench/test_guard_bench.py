"""`tools/guard_bench.py` times each kernel in processes of its own and puts what they found together."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).resolve().parents[3] / "tools" / "guard_bench.py"


def test_each_kernel_is_timed_in_every_process(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    given = ["--device", "emulator", "--size", "small", "--rounds", "1", "--processes", "2", "--only", "copy4"]
    subprocess.run([sys.executable, str(TOOL), *given, "--report", str(report)], check=True, capture_output=True)
    found = json.loads(report.read_text())
    (row,) = [each for each in found["cases"] if each["case"] == "copy4"]
    assert len(row["ratios"]) == 2
    assert min(row["ratios"]) <= row["ratio"] <= max(row["ratios"])
    assert row["same"]
    assert row["repeatable"]
    summary = found["written_in_cuda"]
    assert summary == {"kernels": 1, "geometric_mean": row["ratio"], "median": row["ratio"], "worst": row["ratio"]}
    assert found["different"] == found["refused"] == []
