"""Generated documents are up to date, and the example of the README runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tool", ["generate_docs.py", "generate_abi.py", "generate_map.py"])
def test_generated_files_have_not_drifted(tool):
    command = [sys.executable, ROOT / "tools" / tool, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_in_the_readme_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TENSOR_WASM_DEVICE", "emulator")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out.splitlines()
    assert "verified" in out[0]
    assert out[-1] == "0"
