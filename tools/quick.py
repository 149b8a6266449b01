"""Runs the tests of what changed and of what depends on it, nearest first, for less than a minute.

What changed is what differs from a base, by default where this branch left ``main``, or the last commit; files that are
not committed count. A test is as near to a changed module as imports lead from one to the other. Tests for which the
time does not suffice are left out, and counted: ``make test`` runs all.

    python tools/quick.py [--base REVISION] [--seconds 50] [FILE ...]
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

import house

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ROOT / "tests"
NEAR: Final = 2
"""Most imports between a test and a changed module."""

ENDS: Final = "TENSOR_WASM_QUICK_ENDS"
"""Environment variable with the time, in seconds since the epoch, after which no further test begins."""

KINDS: Final = ("unit", "docs", "conformance", "system")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test to ``make test`` once the time is up; this file is a plugin of the run that it starts."""
    if time.time() > float(os.environ.get(ENDS, "inf")):
        pytest.skip(f"{item.nodeid.split('::')[0]} is left to make test: the time is up")


def changed_files(base: str | None) -> list[str]:
    """Return paths that differ from a revision, relative to the root."""
    base = base or _git("merge-base", "HEAD", "main").strip() or "HEAD"
    if base == _git("rev-parse", "HEAD").strip() and not _git("status", "--porcelain").strip():
        base = "HEAD~1"
    found = _git("diff", "--name-only", base).split() + _git("ls-files", "--others", "--exclude-standard").split()
    return sorted(set(found))


def distances(changed: Iterable[str]) -> dict[str, int]:
    """Return how many imports lead from each module of the package to the nearest changed one."""
    importers = defaultdict(set)
    for module, targets in house.imports().items():
        for target in targets:
            importers[target].add(module)
    found = dict.fromkeys(changed, 0)
    edge = list(found)
    for step in range(1, NEAR + 1):
        edge = [each for module in edge for each in importers[module] if each not in found]
        found |= dict.fromkeys(edge, step)
    return found


def choose(changed: Sequence[str]) -> list[Path]:
    """Return the files of tests that are near to changed files, the nearest first."""
    paths = {f"src/tensorwasm/{module.path}": module.name for module in house.modules()}
    near: Mapping[str, int] = distances(paths[path] for path in changed if path in paths)
    helpers = {path: _imports(path) for path in TESTS.rglob("*.py")}
    names = {_dotted(path): path for path in helpers}
    chosen: dict[Path, int] = {}
    for test in sorted(TESTS.rglob("test_*.py")):
        reached = _reach(test, helpers, names)
        steps = [near[name] for path in reached for name in helpers[path] if name in near]
        if any(str(path.relative_to(ROOT)) in changed for path in reached):
            steps.append(0)
        if steps:
            chosen[test] = min(steps)
    return sorted(chosen, key=lambda path: (chosen[path], KINDS.index(path.relative_to(TESTS).parts[0]), path))


def _reach(test: Path, helpers: Mapping[Path, frozenset[str]], names: Mapping[str, Path]) -> set[Path]:
    """Return a test's file, and the files under ``tests`` that it imports."""
    found, edge = {test}, [test]
    while edge:
        edge = [names[name] for path in edge for name in helpers[path] if name in names and names[name] not in found]
        found |= set(edge)
    return found


def _imports(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(TESTS).with_suffix("").parts)


def _git(*arguments: str) -> str:
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests; return pytest's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", help="revision that changes are counted from")
    parser.add_argument("--seconds", type=float, default=50.0, help="time in which tests begin")
    parser.add_argument("files", nargs="*", help="paths to take for changed instead")
    asked = parser.parse_args(arguments)
    changed = asked.files or changed_files(asked.base)
    tests = choose(changed)
    print(f"{len(changed)} files changed, {len(tests)} files of tests are near")
    if not tests:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "auto", "--dist", "load", "-p", "quick", "-rf"]
    environment = os.environ | {ENDS: str(time.time() + asked.seconds), "PYTHONPATH": _python_path()}
    return subprocess.run([*command, *map(str, tests)], cwd=ROOT, env=environment, check=False).returncode


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT / "tools"), os.environ.get("PYTHONPATH"))))


if __name__ == "__main__":
    sys.exit(main())
