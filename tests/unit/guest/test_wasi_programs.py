"""Programs of WASI preview 1, one behaviour each: the exit code and the output that their manifests name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tensorwasm import Runtime

PROGRAMS = Path(__file__).parents[2] / "golden/wasi"
NAMED = {"poll_oneoff_closed"}
"""What differs by intention: docs/abi.md says why."""
NAMES = sorted(each.stem for each in PROGRAMS.glob("*.wasm") if each.stem not in NAMED)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and open files as POSIX has them")


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as made:
        yield made


def test_every_program_is_compiled_and_has_a_manifest():
    sources = {each.stem for each in PROGRAMS.glob("*.c")}
    assert len(sources) > 50
    assert sources == {each.stem for each in PROGRAMS.glob("*.wasm")} == {each.stem for each in PROGRAMS.glob("*.json")}


@pytest.mark.parametrize("name", NAMES)
def test_a_program_of_wasi(runtime, tmp_path, name):
    said = json.loads((PROGRAMS / f"{name}.json").read_text(encoding="utf-8"))
    for folder in said.get("dirs", ()):
        shutil.copytree(PROGRAMS / folder, tmp_path / folder)
    outcome = runtime.load((PROGRAMS / f"{name}.wasm").read_bytes(), name).invoke(
        "_start",
        argv=(f"{name}.wasm", *said.get("args", ())),
        env=said.get("env", {}),
        grants=[f"dir:{tmp_path / folder}::{folder}" for folder in said.get("dirs", ())],
    )
    assert (outcome.stdout.decode(), outcome.exit_code) == (said["stdout"], said.get("exit_code", 0))
