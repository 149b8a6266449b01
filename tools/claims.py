"""Claims, and the tests that show them: each table of claims is a page of the reference.

At least one test must show each claim, and name it with the table's mark, as `pytest.mark.rule("ID")`.
The page is made from both; a claim without a test, or a mark without a claim, is an error.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final = ROOT / "tests"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement that tests show; marks name its ``id``."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Claims of one kind.

    Attributes:
        mark: name of the mark whose arguments are ids of claims.
        title: of the page.
        text: what the page says before the claims.
        claims: in the order of the page.
    """

    mark: str
    title: str
    text: str
    claims: tuple[Claim, ...]


def marked(folder: Path = TESTS) -> Iterator[tuple[str, str, str]]:
    """Yield mark, claim and test, as ``path::name``, for every mark with text; a module's mark names the file."""
    for path in sorted(folder.rglob("test_*.py")):
        place = path.relative_to(folder).as_posix()
        for node in _parse(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for decorator in node.decorator_list:
                    yield from ((mark, claim, f"{place}::{node.name}") for mark, claim in _claims(decorator))
            elif isinstance(node, ast.Assign) and "pytestmark" in map(ast.unparse, node.targets):
                yield from ((mark, claim, place) for mark, claim in _claims(node.value))


@cache
def _parse(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text())))


def _claims(node: ast.AST) -> Iterator[tuple[str, str]]:
    for call in ast.walk(node):
        match call:
            case ast.Call(func=ast.Attribute(attr=mark, value=ast.Attribute(attr="mark"))):
                yield from ((mark, arg.value) for arg in call.args if _is_text(arg))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def render(table: Table, folder: Path = TESTS) -> str:
    """Return the page of a table.

    Raises:
        ValueError: a claim that no test shows or that is listed twice, or a mark that names no claim.
    """
    shown: defaultdict[str, list[str]] = defaultdict(list)
    for mark, claim, test in marked(folder):
        if mark == table.mark:
            shown[claim].append(test)
    known = [claim.id for claim in table.claims]
    if missing := sorted(set(known) - shown.keys()):
        raise ValueError(f"no test shows {', '.join(missing)}: mark one with pytest.mark.{table.mark}")
    if strange := sorted(shown.keys() - set(known)):
        raise ValueError(f"tests show what is not on the list of pytest.mark.{table.mark}: {', '.join(strange)}")
    if twice := sorted({each for each in known if known.count(each) > 1}):
        raise ValueError(f"the list of pytest.mark.{table.mark} has more than one {', '.join(twice)}")
    rows = (f"| {claim.id} | {claim.text} | {_list(shown[claim.id])} |" for claim in table.claims)
    head = ("| Claim | What is shown | Tests |", "|---|---|---|")
    return "\n".join((f"# {table.title}", "", table.text, "", *head, *rows)) + "\n"


def _list(tests: list[str]) -> str:
    return "<br>".join(f"`{test}`" for test in dict.fromkeys(tests))
