"""The files that requests and a launch pass through: no more than their bounds, and those that the map lists."""

import json
import os
import re
import subprocess
import sys

import pytest

from generate_map import PAGE, PATHS, find_block
from trace_paths import ROOT

BOUNDS = {
    "invoke pure": (25, 10),
    "invoke imports": (35, 60),
    "invoke cuda": (36, 84),
    "deploy": (45, 160),
    "launch": (16, 14),
}
"""Most files of each path, and most returns to a file that was left."""

ATTEMPTS = 3
"""Measurements of which one must be within the bounds: on a busy machine slices end early, and calls go elsewhere."""


def _measure():
    own = {name: value for name, value in os.environ.items() if not name.startswith("TENSOR_WASM")}
    command = [sys.executable, ROOT / "tools" / "trace_paths.py", "--json"]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=300, env=own)
    return json.loads(printed.stdout)


def _listed():
    """Return the files of each path of the page."""
    blocks = re.findall(r"```text\n(.*?)\n```", find_block(PAGE.read_text(), "paths"), re.DOTALL)
    return {name: set(re.split(r"\s*>\s*", block)) for name, block in zip(PATHS, blocks, strict=True)}


def _faults(paths):
    """Return what is wrong with measured paths, in words."""
    listed = _listed()
    for name, (files, returns) in BOUNDS.items():
        path = paths[name]
        if len(path["files"]) > files or path["returns"] > returns:
            yield f"{name}: {len(path['files'])} files and {path['returns']} returns, of {files} and {returns}"
        if name in listed and listed[name] != set(path["files"]):
            yield f"{name}: docs/design.md differs in {sorted(listed[name] ^ set(path['files']))}"


@pytest.mark.timeout(1000)
def test_paths_are_within_their_bounds_and_as_the_map_lists_them():
    faults = []
    for _ in range(ATTEMPTS):
        faults = list(_faults(_measure()))
        if not faults:
            return
    raise AssertionError("; ".join(faults))


def test_a_path_that_grew_or_drifted_is_found():
    paths = {
        name: {"files": [f"{index}.py" for index in range(files + 1)], "returns": 0}
        for name, (files, _) in BOUNDS.items()
    }
    found = list(_faults(paths))
    assert len(found) == len(BOUNDS) + len(PATHS)
