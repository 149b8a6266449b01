"""Measures the tree: its size, names, folders, files and functions, and what breaks its rules.

The rules are held by `tests/docs/test_house.py`; sizes are printed only.

    python tools/house.py [--rules]
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src" / "tensorwasm"

MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 50
SMALL_LINES: Final = 130
MAX_SMALL: Final = 30
MAX_MODULES: Final = 16
"""Modules of one folder, ``__init__`` not counted."""

WIDE: Final = ("gpu/emulator", "gpu/cuda")
"""Folders that are wide by nature: an instruction set, and a driver's API."""

LEFT_ALONE: Final = frozenset(
    {
        "server/arrivals.py", "server/exchange.py", "server/silence.py", "server/sending.py", "server/serving.py",
        "server/streaming/connection.py", "runtime/workers/conversation/conversation.py",
        "runtime/workers/conversation/flight.py",
        "gpu/staging.py", "gpu/reach.py", "gpu/windows.py", "gpu/cuda/dues.py",
        "gpu/cuda/delays.py",
    }
)  # fmt: skip
"""Files that are about to be replaced: no rule holds for them."""

SHARED_NAMES: Final[Mapping[str, str]] = {
    "Cursor": "a reader's position: in PTX text, and in a Wasm binary",
    "Function": "a PTX function, and the Python API's",
    "Module": "a PTX module, and a Wasm module",
    "Place": "of a variable in a state space of PTX, and of a process among those that serve",
    "Vector": "a PTX vector operand, and OpenAI's embedding",
}
"""Top-level classes that share a name, and why: each is the field's own word in packages that no file imports together,
or one role in two back ends."""

LONG_FUNCTIONS: Final[Mapping[str, str]] = {
    "runtime/api/function.py:invoke": "fourteen documented keywords of the public call",
    "runtime/api/runtime.py:__init__": "ten documented keywords of the public constructor",
    "guest/sandbox/oneshot_python.py:make_executor": "one closure, the steps of compiled code in their order",
}
"""Functions longer than `MAX_FUNCTION_LINES`, and why."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source file.

    Attributes:
        path: below the package.
        name: dotted.
        lines: how many it has.
        tree: parsed.
    """

    path: str
    name: str
    lines: int
    tree: ast.Module

    def classes(self) -> Iterator[str]:
        """Yield the names of its top-level classes."""
        return (node.name for node in self.tree.body if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the number of lines of each function and method."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


@cache
def modules() -> tuple[Module, ...]:
    """Return all source files."""
    found = []
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        path = file.relative_to(SOURCE).as_posix()
        name = "tensorwasm." + path.removesuffix(".py").replace("/", ".")
        found.append(Module(path, name.removesuffix(".__init__"), len(text.splitlines()), ast.parse(text)))
    return tuple(found)


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the modules of this package that each imports, for types and lazily, too."""
    known = {module.name for module in modules()}
    return {
        module.name: frozenset(
            target
            for node in ast.walk(module.tree)
            for target in _targets(node, known)
            if target in known and target != module.name
        )
        for module in modules()
    }


def _targets(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in known else node.module


def shared_classes() -> dict[str, list[str]]:
    """Return the modules of each top-level class whose name another one has."""
    found = defaultdict(list)
    for module in modules():
        if module.path not in LEFT_ALONE:
            for name in module.classes():
                found[name].append(module.name)
    return {name: where for name, where in found.items() if len(where) > 1}


def small_files() -> list[str]:
    """Return files under `SMALL_LINES` lines that one file of their own folder imports, and no other."""
    importers = defaultdict(set)
    for module, targets in imports().items():
        for target in targets:
            importers[target].add(module)
    paths = {module.name: Path(module.path) for module in modules()}
    return [
        module.path
        for module in modules()
        if module.lines < SMALL_LINES
        and not module.path.endswith(("__init__.py", "__main__.py"))
        and module.path not in LEFT_ALONE
        and len(importers[module.name]) == 1
        and paths[min(importers[module.name])].parent == Path(module.path).parent
    ]


def long_files() -> list[str]:
    """Return files with more than `MAX_FILE_LINES` lines."""
    return [each.path for each in modules() if each.lines > MAX_FILE_LINES and each.path not in LEFT_ALONE]


def wide_folders() -> dict[str, int]:
    """Return folders with more than `MAX_MODULES` modules."""
    counts = Counter(
        Path(module.path).parent.as_posix() for module in modules() if not module.path.endswith("__init__.py")
    )
    return {folder: count for folder, count in counts.items() if count > MAX_MODULES and not folder.startswith(WIDE)}


def long_functions() -> dict[str, int]:
    """Return functions with more than `MAX_FUNCTION_LINES` lines, as ``path:name``."""
    return {
        f"{module.path}:{name}": lines
        for module in modules()
        if module.path not in LEFT_ALONE
        for name, lines in module.functions()
        if lines > MAX_FUNCTION_LINES
    }


def docstrings(tree: ast.AST) -> list[ast.Expr]:
    """Return all strings that stand for themselves: docstrings, and those behind attributes."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def sizes() -> dict[str, tuple[int, int, int, int]]:
    """Return files, statements without docstrings, lines of docstrings and lines of each top-level package."""
    found: dict[str, tuple[int, int, int, int]] = {}
    for module in modules():
        package = module.path.split("/")[0] if "/" in module.path else "."
        texts = docstrings(module.tree)
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(module.tree)) - len(texts)
        lines = sum((text.end_lineno or text.lineno) - text.lineno + 1 for text in texts)
        before = found.get(package, (0, 0, 0, 0))
        found[package] = (before[0] + 1, before[1] + statements, before[2] + lines, before[3] + module.lines)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print sizes, and what breaks a rule; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", action="store_true", help="print what breaks a rule alone")
    asked = parser.parse_args(arguments)
    if not asked.rules:
        found = sizes()
        total = tuple(sum(row[index] for row in found.values()) for index in range(4))
        for package, row in [*sorted(found.items(), key=lambda item: -item[1][1]), ("total", total)]:
            print(f"{package:12}{row[0]:5} files{row[1]:7} statements{row[2]:7} docstring lines{row[3]:7} lines")
    small = small_files()
    print(f"small files with one importer in their folder: {len(small)}, at most {MAX_SMALL}", *small, sep="\n  ")
    print("files over 400 lines:", *long_files(), sep="\n  ")
    print("folders over 16 modules:", *wide_folders().items(), sep="\n  ")
    print("functions over 50 lines:", *sorted(long_functions().items(), key=lambda item: -item[1]), sep="\n  ")
    print("class names shared without a reason:", *(shared_classes().keys() - SHARED_NAMES.keys()), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
