"""Tables of claims and the tests that show them: a missing, unknown or duplicate claim is an error."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and the tables' imports find it
    spec.loader.exec_module(module)
    return module


claims = _load("claims")
safety = _load("safety")
TABLE = claims.Table("rule", "Rules", "Why.", (claims.Claim("1-a", "One."), claims.Claim("2", "Two.")))

SHOWN = {
    "unit/test_one.py": """
@pytest.mark.rule("1-a")
def test_first(): ...

@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.rule("2")), pytest.param(2, marks=pytest.mark.gpu)])
@pytest.mark.rule("1-a")
@pytest.mark.hardware("other")
def test_second(n): ...

class TestThird:
    @pytest.mark.rule("2")
    async def test_inside(self): ...
""",
    "test_file.py": "pytestmark = [pytest.mark.gpu, pytest.mark.rule('2')]\n\ndef test(): ...\n",
    "rules.py": "@pytest.mark.rule('no test at all')\ndef test(): ...\n",
}


@pytest.fixture
def folder(tmp_path):
    return _write(tmp_path, SHOWN)


def _write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_page_lists_every_claim_with_its_tests_once(folder):
    assert claims.render(TABLE, folder).splitlines() == [
        "# Rules",
        "",
        "Why.",
        "",
        "| Claim | What is shown | Tests |",
        "|---|---|---|",
        "| 1-a | One. | `unit/test_one.py::test_first`<br>`unit/test_one.py::test_second` |",
        "| 2 | Two. | `test_file.py`<br>`unit/test_one.py::test_second`<br>`unit/test_one.py::test_inside` |",
    ]


@pytest.mark.parametrize(
    ("marks", "complaint"),
    [
        (["1-a"], "no test shows 2: mark one with pytest.mark.rule"),
        (["1-a", "2", "3"], "not on the list of pytest.mark.rule: 3"),
        ([], "no test shows 1-a, 2"),
    ],
)
def test_a_claim_without_a_test_and_a_mark_without_a_claim_are_errors(tmp_path, marks, complaint):
    text = "".join(f"@pytest.mark.rule({mark!r})\n" for mark in marks) + "def test(): ...\n"
    with pytest.raises(ValueError, match=complaint):
        claims.render(TABLE, _write(tmp_path, {"test_it.py": text}))


def test_a_duplicate_claim_is_an_error(folder):
    twice = claims.Table("rule", "Rules", "Why.", (*TABLE.claims, claims.Claim("2", "Two again.")))
    with pytest.raises(ValueError, match=r"more than one 2"):
        claims.render(twice, folder)


def test_marks_of_other_tables_are_ignored(folder):
    other = claims.Table("hardware", "Silicon", "Why.", (claims.Claim("other", "It."),))
    assert claims.render(other, folder).endswith("| other | It. | `unit/test_one.py::test_second` |\n")


def test_the_claims_have_the_numbers_of_the_safety_rules():
    rules = re.findall(r"^- \*\*(\d+)\.\*\* ", (ROOT / "docs" / "safety-rules.md").read_text(), re.MULTILINE)
    parts = [claim.id.partition("-")[0] for claim in safety.SAFETY.claims]
    assert rules == sorted(set(rules), key=int) != []
    assert list(dict.fromkeys(parts)) == rules
