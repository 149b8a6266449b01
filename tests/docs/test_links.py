"""Every relative link of every page leads somewhere: to a file, a heading, or a name that a Python file defines.

The same holds for modules and folders of the package that a page names, as `gpu/session/` or `gpu/session/kernels.py`.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")})
PACKAGE = ROOT / "src" / "tensorwasm"
FOLDERS = sorted({each.parent.name for each in PACKAGE.glob("*/__init__.py")} - {"bench"})  # bench/results/ is another
NAMED = re.compile(f"`((?:{'|'.join(FOLDERS)})/[\\w/]*(?:\\.py)?)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def targets(page):
    """Return the targets of a page's relative links; code is left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [target for target in LINK.findall(text) if "://" not in target and not target.startswith("mailto:")]


@cache
def headings(page):
    """Return the fragments of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = []
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        same = found.count(slug)
        found.append(f"{slug}-{same}" if same else slug)
    return frozenset(found)


@cache
def names(module):
    """Return what a Python file defines: functions, classes and constants, and with a dot what classes define."""
    return frozenset(_names(ast.parse(module.read_text()).body, ""))


def _names(body, before):
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield before + name
            case ast.ClassDef(name=name):
                yield before + name
                yield from _names(node.body, f"{before}{name}.")
                yield from (f"{before}{name}.{attribute}" for attribute in _own_attributes(node))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield before + name
            case ast.Assign():
                yield from (before + target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.If() | ast.Try():
                yield from _names(node.body, before)


def _own_attributes(owner):
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def broken(page, root=ROOT):
    """Return the targets of a page's links that lead nowhere."""
    found = []
    for target in targets(page):
        path, _, fragment = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        defined = {".py": names, ".md": headings}.get(place.suffix)
        there = place.exists() and place.is_relative_to(root)
        if not there or (fragment and defined is not None and fragment not in defined(place)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    assert broken(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_and_folder_that_a_page_names_exists(page):
    assert [name for name in NAMED.findall(page.read_text()) if not (PACKAGE / name).exists()] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "code.py").write_text("X: int = 1\n\nclass A:\n    def run(self):\n        self.at = 1\n")
    (tmp_path / "page.md").write_text(
        "# One heading\n\n[a](code.py) [b](code.py#A.run) [c](code.py#A.at) [d](code.py#X) [e](#one-heading)\n"
        "[`x`](code.py#A) `[no](link.md)`\n\n```\n[no](code.md)\n```\n\n"
        "[f](gone.md) [g](code.py#B) [h](code.py#A.stop) [i](#two) [j](../page.md)\n"
    )
    assert broken(tmp_path / "page.md", tmp_path) == ["gone.md", "code.py#B", "code.py#A.stop", "#two", "../page.md"]
