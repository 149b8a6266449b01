"""The glossary: terms in order, each once, and each with classes or modules that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \|$", re.MULTILINE)
PLACE = re.compile(r"\[`([^`]+)`\]\(\.\./(src/tensorwasm/[\w/.]+?)(?:#(\w+))?\)")
ENTRIES = ROW.findall(PAGE.read_text())


def test_terms_are_sorted_and_unique():
    terms = [term.lower() for term, _, _ in ENTRIES]
    assert terms == sorted(set(terms)) != []


@pytest.mark.parametrize(("term", "meaning", "where"), ENTRIES, ids=[term for term, _, _ in ENTRIES])
def test_a_term_has_one_sentence_and_a_place_that_exists(term, meaning, where):
    assert meaning.endswith(".")
    assert ". " not in meaning
    places = PLACE.findall(where)
    assert places
    assert PLACE.sub("", where).strip(", ") == ""
    for text, path, name in places:
        file = ROOT / path
        assert file.exists(), path
        if name:
            assert text == name
            assert name in {node.name for node in ast.parse(file.read_text()).body if hasattr(node, "name")}
        else:
            assert path.endswith(text)
