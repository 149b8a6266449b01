import builtins
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorwasm.artifacts import private_files

KILLS = """
import os, signal, sys
from pathlib import Path
from tensorwasm.artifacts.keys import HmacKey
from tensorwasm.artifacts.keys import KeyRing
from tensorwasm.artifacts.sealed.writer import Sealing
from tensorwasm.artifacts.snapshot.file import write_snapshot
from tensorwasm.saved import SavedInstance, SavedMemory, SavedRun

ring = KeyRing.of(HmacKey(bytes(32)))
def write(path, fill):
    memory = SavedMemory(65536, (SavedRun(0, fill * 9000),))
    write_snapshot(path, SavedInstance(bytes(32), (memory,)), ring, Sealing(threads=1))

folder = Path(sys.argv[1])
path = folder / "snapshot"
write(path, b"o")
old = path.read_bytes()
write(folder / "new", b"n")
new = (folder / "new").read_bytes()
(folder / "new").unlink()
seen, at, status = [], 0, 9
while status:
    at += 1
    pid = os.fork()
    if pid == 0:
        calls = 0
        def count(frame, event, called):
            global calls
            if event == "c_call":
                calls += 1
                if calls == at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(count)
        write(path, b"n")
        sys.setprofile(None)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    found = path.read_bytes()
    assert found in (old, new), at
    seen.append(found == new)
    if found == new:
        path.write_bytes(old)
    for other in folder.iterdir():
        assert other == path or other.name.endswith(".part"), other
        if other != path:
            other.unlink()
assert seen == sorted(seen), "the new one, once there, stays"
print(len(seen), seen.count(True))
"""


CALLS = {
    "open": (os, "open"),
    "file": (builtins, "open"),
    "fsync": (os, "fsync"),
    "replace": (Path, "replace"),
}


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_kill_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path):
    said = subprocess.run([sys.executable, "-c", KILLS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    points, new = map(int, said.stdout.split())
    assert points > 100
    assert 1 < new < points


@pytest.mark.parametrize("call", [*CALLS, "write"])
def test_a_call_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    def replace():
        with private_files.replace_file(path) as file:
            file.write(b"new")
            if call == "write":
                fail()

    with monkeypatch.context() as patch:
        if call != "write":
            patch.setattr(*CALLS[call], fail)
        with pytest.raises(OSError, match="No space"):
            replace()
    assert path.read_bytes() == b"old"
    assert leftovers(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_synchronised_is_reported(tmp_path, monkeypatch):
    path = tmp_path / "file"
    monkeypatch.setattr(private_files, "sync_folder", lambda folder: os.close(1 << 20))
    with pytest.raises(OSError, match="Bad file descriptor"), private_files.replace_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders cannot be opened here")
def test_the_file_and_its_folder_are_on_the_disk_when_it_returns(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), fsync(handle)))
    with private_files.replace_file(tmp_path / "file") as file:
        file.write(b"new")
        inode = os.fstat(file.fileno()).st_ino
    assert synced == [inode, tmp_path.stat().st_ino]
    assert (tmp_path / "file").stat().st_mode & 0o777 == private_files.FILE_MODE


def test_the_longest_file_name_is_accepted(tmp_path):
    with private_files.replace_file(tmp_path / ("n" * 255)) as file:
        file.write(b"new")
    assert leftovers(tmp_path) == ["n" * 255]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("way", [Path, "link"])
def test_a_path_that_is_not_a_file_is_not_replaced(tmp_path, way):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe"
    if way == "link":
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    with pytest.raises(OSError, match="no file"), private_files.replace_file(path):
        pass
    assert (tmp_path / "pipe").is_fifo()
    assert leftovers(tmp_path) == sorted({"pipe", path.name})


@pytest.mark.parametrize("name", ["", "a\0b", "."])
def test_an_impossible_path_raises_oserror(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"), private_files.replace_file(Path(name)):
        pass
    assert leftovers(tmp_path) == []
