"""The table of isolations names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "subjects" / "guarded-kernels.md"


def test_each_cell_of_the_table_names_tests_that_exist():
    lines = PAGE.read_text(encoding="utf-8").split("## Which isolation keeps what apart")[1].splitlines()
    named = {name for line in lines if line.startswith("|") for name in re.findall(r"`(test_\w+)`", line)}
    sources = (path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    defined = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert len(named) >= 8
    assert named <= defined
