"""The folder of compiled code is our own, or it is not used."""

from __future__ import annotations

import dataclasses
import logging
import os
import re

import pytest
from numba.core import config

from tensorwasm import settings
from tensorwasm.guest.engine import folders
from tensorwasm.guest.native import compiled


@pytest.fixture
def use(monkeypatch):
    """Return a function that makes a folder the setting."""

    def make(path) -> None:
        changed = dataclasses.replace(settings.current(), cache=str(path))
        monkeypatch.setattr(settings, "current", lambda: changed)

    return make


@pytest.mark.rule("11-cache")
def test_the_folder_is_for_its_owner_alone(tmp_path, use):
    use(tmp_path / "new")
    folder = compiled.open_folder(["a", 1])
    assert folder.parent == tmp_path / "new" / "native"
    assert [path.stat().st_mode & 0o777 for path in (folder.parent.parent, folder.parent, folder)] == [0o700] * 3
    assert compiled.open_folder(["a", 1]) == folder


def test_another_number_is_another_folder(tmp_path, use):
    use(tmp_path)
    assert compiled.open_folder([("ARMED", 8)]) != compiled.open_folder([("ARMED", 16)])


def test_the_user_has_a_cache(tmp_path, monkeypatch, use):
    use("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.open_folder([]).parent == tmp_path / "tensor-wasm" / "native"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiled.open_folder([]).parent == tmp_path / ".cache" / "tensor-wasm" / "native"


def link(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "native").symlink_to(tmp_path / "elsewhere")


def open_to_others(tmp_path):
    (tmp_path / "native").mkdir()
    (tmp_path / "native").chmod(0o755)


def parent_open_to_others(tmp_path):
    tmp_path.chmod(0o777)


def a_file(tmp_path):
    (tmp_path / "native").write_text("")


def inner_link(tmp_path):
    folder = compiled.open_folder([])
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere")


def inner_open_to_others(_tmp_path):
    compiled.open_folder([]).chmod(0o770)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (link, "link"),
        (open_to_others, "mode 755"),
        (parent_open_to_others, "written by others"),
        (a_file, "exists"),
        (inner_link, "link"),
        (inner_open_to_others, "mode 770"),
    ],
)
@pytest.mark.rule("11-cache")
def test_a_folder_that_others_could_write_to_is_refused(tmp_path, use, damage, reason):
    use(tmp_path)
    damage(tmp_path)
    with pytest.raises(OSError, match=reason):
        compiled.open_folder([])


@pytest.mark.rule("11-cache")
def test_a_folder_of_another_user_is_refused(tmp_path, use, monkeypatch):
    use(tmp_path)
    (tmp_path / "native").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OSError, match="belongs to another user"):
        compiled.open_folder([])


@pytest.mark.rule("11-cache")
def test_a_parent_folder_of_another_user_is_refused(tmp_path, use, monkeypatch):
    use(tmp_path / "mine")
    (tmp_path / "mine").mkdir(mode=0o700)
    monkeypatch.setattr(folders, "_ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OSError, match=f"{re.escape(str(tmp_path.resolve() / 'mine'))} belongs to another user"):
        compiled.open_folder([])


@pytest.mark.rule("11-cache")
def test_a_folder_that_others_could_move_is_refused_at_any_depth(tmp_path, use):
    use(tmp_path / "open" / "mine")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OSError, match="open can be written by others"):
        compiled.open_folder([])


def test_a_parent_with_the_sticky_bit_keeps_what_is_ours(tmp_path, use):
    use(tmp_path)
    tmp_path.chmod(0o1777)
    assert compiled.open_folder([]).is_dir()


def test_without_a_folder_things_are_compiled_and_not_kept(tmp_path, use, caplog):
    use(tmp_path)
    link(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert compiled.open_cache() is None
    assert "not kept" in caplog.text
    source = compiled.SOURCES["yield"]
    assert compiled.compile_function(source.function, compiled.open_cache()).address
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_compiled_code_is_found_again(tmp_path, use):
    use(tmp_path)
    folder = compiled.open_cache()
    source = compiled.SOURCES["deadline-remaining-ms"]
    assert [compiled.compile_function(source.function, folder).cache_hits for _ in range(2)] == [0, 1]


def test_numbas_own_settings_are_left_alone(tmp_path, use):
    use(tmp_path)
    before = config.CACHE_DIR
    compiled.compile_function(compiled.SOURCES["yield"].function, compiled.open_cache())
    assert before == config.CACHE_DIR
