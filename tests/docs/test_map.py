"""The generated blocks of docs/design.md."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("generate_map", ROOT / "tools" / "generate_map.py")
generate_map = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate_map)

SETTINGS = """
[[tool.importlinter.contracts]]
type = "layers"
containers = ["tensorwasm"]
layers = ["top", "left | right", "values"]

[[tool.importlinter.contracts]]
type = "layers"
containers = ["tensorwasm.top"]
layers = ["second", "module", "first"]
"""
MODULES = {
    "top/__init__.py": '"""The top. More of it.\n\nDetails."""',
    "top/module.py": '"""A module."""',
    "top/first/__init__.py": '"""The first\nfolder."""',
    "top/second/__init__.py": '"""The second."""',
    "left/__init__.py": '"""Left."""',
    "left/inner/__init__.py": '"""Left out: no contract orders it."""',
    "right/__init__.py": '"""Right."""',
    "values.py": '"""Values."""',
}
PAGE = "# A page\n\n<!-- generated: tree -->\nold\n<!-- end -->\n\n<!-- generated: paths -->\n<!-- end -->\n"


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    for name, text in MODULES.items():
        path = tmp_path / "src" / "tensorwasm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_tree_is_in_import_order_with_the_first_sentence_of_each_docstring(tree):
    assert generate_map.render_tree(tree).splitlines()[2:] == [
        "| **`top/`** | The top. |",
        "| `top/second/` | The second. |",
        "| `top/first/` | The first folder. |",
        "| **`left/`** | Left. |",
        "| **`right/`** | Right. |",
        "| `values.py` | Values. |",
    ]


def test_a_package_without_a_docstring_is_an_error(tree):
    (tree / "src" / "tensorwasm" / "right" / "__init__.py").write_text("")
    with pytest.raises(ValueError, match="no docstring"):
        generate_map.render_tree(tree)


def test_a_block_is_replaced_and_the_rest_stays():
    text = generate_map.fill_block(PAGE, "tree", "new \\1")
    assert generate_map.find_block(text, "tree") == "new \\1"
    assert generate_map.fill_block(text, "tree", "old").count("old") == 1
    assert generate_map.find_block(text, "paths") == ""
    with pytest.raises(ValueError, match="no block generated: other"):
        generate_map.fill_block(text, "other", "")


def test_the_paths_are_listed_in_their_order_and_must_exist(tree):
    measured = {name: {"files": ["top/module.py", "values.py"]} for name in generate_map.PATHS}
    text = generate_map.render_paths(measured)
    assert text.count("top/module.py > values.py") == len(generate_map.PATHS)
    assert generate_map.find_missing(text, tree / "src") == []
    assert generate_map.find_missing("top/gone.py > values.py", tree / "src") == ["top/gone.py"]
    with pytest.raises(ValueError, match="not measured: launch"):
        generate_map.render_paths({"invoke pure": measured["launch"]})


def test_check_reports_a_tree_that_has_drifted(tmp_path, monkeypatch, capsys):
    page = tmp_path / "design.md"
    page.write_text(PAGE)
    monkeypatch.setattr(generate_map, "PAGE", page)
    assert generate_map.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert generate_map.main([]) == 0
    assert generate_map.main(["--check"]) == 0
