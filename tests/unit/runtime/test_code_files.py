"""Files of precompiled code: whole and ours, or not there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.runtime.deploy import code_files
from tensorwasm.runtime.deploy.code_files import DRAFT_S, CodeFolder, UnfitFile

KEY, NAME, CODE = HmacKey(b"k" * 32), b"n" * 32, b"\x7fELF" + bytes(range(256)) * 20
CAP_BYTES = 1 << 20


@pytest.fixture
def folder(tmp_path):
    return CodeFolder(tmp_path, KEY, CAP_BYTES)


def path_of(tmp_path, name=NAME):
    return tmp_path / f"{name.hex()}.cwasm"


def read(folder, name=NAME):
    found = folder.open(name)
    if found is None:
        return None
    with found:
        return bytes(found.code)


def rewrite(path, data, mode=0o400):
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


@given(code=st.binary(min_size=1), name=st.binary(min_size=32, max_size=32))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_get_finds_exactly_what_was_put(folder, code, name):
    folder.put(name, code)
    assert read(folder, name) == code
    assert read(folder, bytes(byte ^ 1 for byte in name)) is None


@pytest.mark.rule("6-key")
def test_a_file_can_only_be_read_and_only_by_us(folder, tmp_path):
    folder.put(NAME, CODE)
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME.hex()}.cwasm"]
    assert path_of(tmp_path).stat().st_mode & 0o7777 == 0o400


def test_a_file_is_replaced_not_written_to(folder, tmp_path):
    folder.put(NAME, CODE)
    with folder.open(NAME) as old:
        before = path_of(tmp_path).stat().st_ino
        folder.put(NAME, CODE[::-1])
        assert path_of(tmp_path).stat().st_ino != before
        assert bytes(old.code) == CODE
    assert read(folder) == CODE[::-1]


@pytest.mark.rule("6-key")
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_a_file_with_any_byte_changed_cut_or_added_is_refused(folder, tmp_path, data):
    folder.put(NAME, CODE)
    path = path_of(tmp_path)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :],
                whole[:place],
                whole[place + 1 :],
                whole[:place] + b"x" + whole[place:],
                whole + b"x",
                whole[:place] + whole[place + 1 :] + b"\0",
            ]
        )
    )
    if damaged == whole:
        return
    rewrite(path, damaged)
    with pytest.raises(UnfitFile):
        folder.open(NAME)


@pytest.mark.rule("6-key")
@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(4096), CODE, bytes(88), bytes(1 << 16)])
def test_a_planted_file_without_a_signature_is_refused(folder, tmp_path, data):
    rewrite(path_of(tmp_path), data)
    with pytest.raises(UnfitFile):
        folder.open(NAME)


@pytest.mark.rule("6-key")
def test_another_machines_key_and_another_entrys_file_are_refused(folder, tmp_path):
    CodeFolder(tmp_path, HmacKey(b"other" + bytes(27)), CAP_BYTES).put(NAME, CODE)
    with pytest.raises(UnfitFile, match="this machine's key did not sign it"):
        folder.open(NAME)
    folder.put(b"m" * 32, CODE)
    path_of(tmp_path, b"m" * 32).replace(path_of(tmp_path))
    with pytest.raises(UnfitFile, match="another file"):
        folder.open(NAME)


def make_link(path, elsewhere):
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.rule("6-key")
@pytest.mark.parametrize(
    "change",
    [
        make_link,
        lambda path, _: (path.unlink(), path.symlink_to("/nowhere")),
        lambda path, _: (path.unlink(), os.mkfifo(path, 0o400)),
        lambda path, _: (path.unlink(), path.mkdir()),
        lambda path, _: path.chmod(0o600),
        lambda path, _: path.chmod(0o440),
    ],
)
def test_a_file_that_is_not_a_code_file_is_refused_without_blocking(folder, tmp_path, change):
    folder.put(NAME, CODE)
    change(path_of(tmp_path), tmp_path / "elsewhere")
    with pytest.raises(UnfitFile):
        folder.open(NAME)


@pytest.mark.rule("6-key")
def test_a_file_of_another_user_is_refused(folder, monkeypatch):
    folder.put(NAME, CODE)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnfitFile, match="of this user"):
        folder.open(NAME)


def test_a_system_that_opens_no_file_is_no_fault_of_the_file(folder, monkeypatch):
    def fail(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    folder.put(NAME, CODE)
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Too many"):
        folder.open(NAME)


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(folder, tmp_path):
    target = tmp_path / "precious"
    target.write_bytes(b"mine")
    path_of(tmp_path).symlink_to(target)
    folder.put(NAME, CODE)
    assert read(folder) == CODE
    assert target.read_bytes() == b"mine"


def test_the_least_recently_used_file_is_evicted_first(tmp_path):
    names = [bytes([number]) * 32 for number in range(5)]
    one_bytes = len(CODE) + code_files._TRAILER.size
    folder = CodeFolder(tmp_path, KEY, 3 * one_bytes)
    for number, name in enumerate(names[:3]):
        assert folder.put(name, CODE) == (number + 1) * one_bytes
        os.utime(path_of(tmp_path, name), (number, number))
    assert read(folder, names[0]) is not None  # which makes it the one that was used last
    assert folder.put(names[3], CODE) == 3 * one_bytes
    assert [read(folder, name) is not None for name in names] == [True, False, True, True, False]


def test_an_entry_over_the_cap_is_not_kept_and_evicts_nothing(tmp_path):
    folder = CodeFolder(tmp_path, KEY, 10_000)
    folder.put(NAME, CODE)
    before = {path.name for path in tmp_path.iterdir()}
    folder.put(b"m" * 32, bytes(10_000))
    assert {path.name for path in tmp_path.iterdir()} == before


def test_old_unfinished_files_are_removed(folder, tmp_path):
    old, new, foreign = (tmp_path / name for name in ("a.1.draft", "b.2.draft", "notes.txt"))
    for path in (old, new, foreign):
        path.write_bytes(b"x")
    long_ago = old.stat().st_mtime - DRAFT_S - 1
    for path in (old, foreign):
        os.utime(path, (long_ago, long_ago))
    folder.put(NAME, CODE)
    assert {path.name for path in tmp_path.iterdir()} == {new.name, foreign.name, path_of(tmp_path).name}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_behind(folder, tmp_path, monkeypatch, step):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder.put(NAME, CODE)
    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (code_files.Path, "replace")}[step], fail)
    with pytest.raises(OSError, match="No space"):
        folder.put(NAME, CODE[::-1])
    assert read(folder) == CODE
    assert len(list(tmp_path.iterdir())) == 1


WRITER = """
    import os, pathlib, signal, sys
    from tensorwasm.artifacts.keys import HmacKey
    from tensorwasm.runtime.deploy import code_files as codefiles
    def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
    def after(function):
        def run(*args, **options):
            function(*args, **options)
            die()
        return run
    {patch}
    folder = codefiles.CodeFolder(pathlib.Path({path!r}), HmacKey(b"k" * 32), 1 << 30)
    folder.put(b"n" * 32, b"new" * 1_000_000)
"""


# The system kills it at the first byte past a MiB.
MIDWAY = (
    "import resource; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, [1 << 20] * 2)"
)


@pytest.mark.parametrize("state", ["old", None])
@pytest.mark.parametrize(
    ("patch", "written"),
    [
        ("os.open = after(os.open)", False),
        (MIDWAY, False),
        ("os.fsync = die", False),
        ("os.fsync = after(os.fsync)", False),
        ("pathlib.Path.replace = after(pathlib.Path.replace)", True),
        ("os.scandir = die", True),
    ],
)
def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new_one(folder, tmp_path, state, patch, written):
    if state:
        folder.put(NAME, CODE)
    script = textwrap.dedent(WRITER).format(patch=patch, path=str(tmp_path))
    assert -subprocess.run([sys.executable, "-c", script], check=False).returncode in {signal.SIGKILL, signal.SIGXFSZ}
    expected = b"new" * 1_000_000 if written else CODE if state else None
    assert read(folder) == expected
