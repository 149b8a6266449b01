"""Generated documents are up to date, links resolve, and the example of the README runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


@pytest.mark.parametrize("tool", ["generate_docs.py", "generate_abi.py"])
def test_generated_files_have_not_drifted(tool):
    command = [sys.executable, ROOT / "tools" / tool, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page):
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_example_in_the_readme_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TENSOR_WASM_DEVICE", "emulator")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out.splitlines()
    assert "verified" in out[0]
    assert out[-1] == "0"
