"""Fill the generated blocks of docs/design.md: the tree of packages, and the files that an invoke and a launch pass.

The tree comes from the layers in pyproject.toml and the docstrings of the packages, in import order. The paths come
from the output of `tools/trace_paths.py --json`, which takes a minute to measure and is therefore read from a file:

    python tools/trace_paths.py --json > paths.json
    python tools/generate_map.py --paths paths.json

`--check` writes nothing; it fails if the tree has drifted, or if a listed file does not exist.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "design.md"
SOURCE: Final = ROOT / "src"
PACKAGE: Final = "tensorwasm"
WIDTH: Final = 120

PATHS: Final = {
    "invoke pure": "One HTTP invoke of a module without imports",
    "launch": "One kernel launch, from the host function to the emulator's call, without compiled code",
}
"""Which measured paths the page shows, and under which heading."""


def layers(root: Path = ROOT) -> dict[str, list[list[str]]]:
    """Return the layers of each package that has a contract, top first; each layer is a list of names."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    return {
        container: [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
        for container in contract["containers"]
    }


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring.

    Raises:
        ValueError: the module has no docstring.
    """
    text = ast.get_docstring(ast.parse(path.read_text()))
    if not text:
        raise ValueError(f"{path}: no docstring")
    return re.split(r"(?<=\.) ", " ".join(text.split("\n\n")[0].split()))[0]


def _ordered(package: str, contracts: Mapping[str, list[list[str]]], source: Path) -> Iterator[str]:
    """Yield the folders of a package in import order, or by name where no contract orders them."""
    folder = source / package.replace(".", "/")
    folders = sorted(child.parent.name for child in folder.glob("*/__init__.py"))
    named = [name for layer in contracts.get(package, []) for name in layer]
    yield from (name for name in named if name in folders)
    yield from (name for name in folders if name not in named)


def render_tree(root: Path = ROOT) -> str:
    """Return the table of packages and folders in import order."""
    contracts, source = layers(root), root / "src"
    rows = ["| Package | Contents |", "|---|---|"]
    for layer in contracts[PACKAGE]:
        for name in layer:
            folder = source / PACKAGE / name
            if not folder.is_dir():
                rows.append(f"| `{name}.py` | {summary(folder.with_suffix('.py'))} |")
                continue
            rows.append(f"| **`{name}/`** | {summary(folder / '__init__.py')} |")
            if f"{PACKAGE}.{name}" in contracts or name in {"server", "service"}:
                rows += [
                    f"| `{name}/{child}/` | {summary(folder / child / '__init__.py')} |"
                    for child in _ordered(f"{PACKAGE}.{name}", contracts, source)
                ]
    return "\n".join(rows)


def render_paths(measured: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """Return the files of the paths that the page shows, in the order in which each is first entered.

    Raises:
        ValueError: a path was not measured.
    """
    if missing := PATHS.keys() - measured.keys():
        raise ValueError(f"not measured: {', '.join(sorted(missing))}")
    parts = []
    for name, heading in PATHS.items():
        files = measured[name]["files"]
        wrapped = textwrap.fill(" > ".join(files), WIDTH, break_long_words=False, break_on_hyphens=False)
        parts.append(f"{heading} ({len(files)} files):\n```text\n{wrapped}\n```")
    return "\n\n".join(parts)


def find_block(text: str, name: str) -> str:
    """Return the content of a generated block.

    Raises:
        ValueError: the page has no such block.
    """
    found = _pattern(name).search(text)
    if found is None:
        raise ValueError(f"no block generated: {name}")
    return found[2].strip("\n")


def fill_block(text: str, name: str, content: str) -> str:
    """Return the page with another content of a generated block.

    Raises:
        ValueError: the page has no such block.
    """
    find_block(text, name)
    return _pattern(name).sub(lambda found: f"{found[1]}\n\n{content}\n\n{found[3]}", text)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- generated: {name} -->)(.*?)(<!-- end -->)", re.DOTALL)


def find_missing(paths: str, source: Path = SOURCE) -> list[str]:
    """Return the files that the block of paths lists and that do not exist."""
    listed = re.findall(r"[\w/]+\.py", paths)
    return [file for file in listed if not (source / PACKAGE / file).is_file()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the blocks, or with ``--check`` say what differs; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the tree differs")
    parser.add_argument("--paths", type=Path, help="output of tools/trace_paths.py --json")
    asked = parser.parse_args(arguments)
    text = PAGE.read_text()
    if asked.check:
        if find_block(text, "tree") != render_tree():
            print("docs/design.md: the tree is out of date; run make docs", file=sys.stderr)
            return 1
        if missing := find_missing(find_block(text, "paths")):
            print(f"docs/design.md: the paths list what is not there: {', '.join(missing)}", file=sys.stderr)
            return 1
        print("docs/design.md: ok")
        return 0
    text = fill_block(text, "tree", render_tree())
    if asked.paths is not None:
        text = fill_block(text, "paths", render_paths(json.loads(asked.paths.read_text())))
    PAGE.write_text(text)
    print("docs/design.md: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
