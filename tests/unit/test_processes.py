"""How the package starts processes: spawned, with nothing run in between, or forked from a template."""

import ast
from pathlib import Path

import pytest

import tensorwasm

FORBIDDEN = {"fork", "forkpty", "preexec_fn", "multiprocessing", "ProcessPoolExecutor"}
SPAWNED = {("neighbours.py", "multiprocessing"), ("pauses.py", "multiprocessing")}
"""Clients of benchmarks, by ``get_context("spawn")``."""
TEMPLATES = {("template.py", "fork"), ("templates.py", "fork"), ("fork_server.py", "fork"), ("plan_process.py", "fork")}
"""Templates fork servers, workers and plans before any event loop, engine or device is there; others ask them to."""
FILES = sorted(Path(tensorwasm.__file__).parent.rglob("*.py"))


def words(tree):
    """Yield every name, attribute, keyword and module that a file uses."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=str(word)) | ast.alias(name=word):
                yield from word.split(".")
            case ast.ImportFrom(module=str(word)):
                yield from word.split(".")


@pytest.mark.parametrize("text", ["os.fork()", "run([], preexec_fn=f)", "from multiprocessing import Process"])
def test_each_forbidden_word_is_found(text):
    assert FORBIDDEN & set(words(ast.parse(text)))


@pytest.mark.rule("11-spawn")
def test_only_templates_fork():
    assert len(FILES) > 100
    found = {(path.name, word) for path in FILES for word in FORBIDDEN & set(words(ast.parse(path.read_text())))}
    assert found == SPAWNED | TEMPLATES
