"""Folders and single files that a guest is given: what it can do there, and what never."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from tensorwasm.errors import InvalidArgs
from tensorwasm.guest.engine.module import compile_module
from tensorwasm.guest.sandbox import wasi_io
from tensorwasm.guest.sandbox.instance import Instance
from tensorwasm.guest.sandbox.linker import Linker
from tensorwasm.guest.sandbox.wasi import MODULE, WasiConfig
from tensorwasm.guest.sandbox.wasi_io import Directory

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and modes as POSIX has them")
CREATE, DIRECTORY, EXCLUSIVE, TRUNCATE = 1, 2, 4, 8
READ, WRITE = 1 << 1, 1 << 6
ROOT = 3
SIGNATURES = {
    "fd_allocate": "i32 i64 i64",
    "fd_close": "i32",
    "fd_filestat_set_size": "i32 i64",
    "fd_filestat_set_times": "i32 i64 i64 i32",
    "fd_prestat_dir_name": "i32 i32 i32",
    "fd_prestat_get": "i32 i32",
    "fd_read": "i32 i32 i32 i32",
    "fd_readdir": "i32 i32 i32 i64 i32",
    "fd_write": "i32 i32 i32 i32",
    "path_create_directory": "i32 i32 i32",
    "path_filestat_set_times": "i32 i32 i32 i32 i64 i64 i32",
    "path_link": "i32 i32 i32 i32 i32 i32 i32",
    "path_open": "i32 i32 i32 i32 i32 i64 i64 i32 i32",
    "path_readlink": "i32 i32 i32 i32 i32 i32",
    "path_remove_directory": "i32 i32 i32",
    "path_rename": "i32 i32 i32 i32 i32 i32",
    "path_symlink": "i32 i32 i32 i32 i32",
    "path_unlink_file": "i32 i32 i32",
}


class Guest:
    """A sandbox whose exports are the functions of the table; paths are laid down in its memory."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.free = 1024

    def call(self, name: str, *args: int | str) -> int:
        """Call a function, each text as an address and a length."""
        self.free = 1024
        given: list[int] = []
        for arg in args:
            given += self.put(arg.encode()) if isinstance(arg, str) else [arg]
        [code] = self.instance.call(name, given)
        return int(code)

    def put(self, data: bytes) -> list[int]:
        at, self.free = self.free, self.free + len(data)
        self.instance.memory.write(at, data)
        return [at, len(data)]

    def open(self, path: str, flags: int = 0, rights: int = READ, follow: int = 1, root: int = ROOT) -> int | None:
        """Open a path; return the descriptor, None if that is refused."""
        code = self.call("path_open", root, follow, path, flags, rights, 0, 0, 16)
        return None if code else struct.unpack("<I", self.instance.memory.read(16, 4))[0]

    def read(self, path: str, root: int = ROOT) -> bytes | None:
        """Return what a file has, None if it cannot be opened."""
        descriptor = self.open(path, root=root)
        if descriptor is None:
            return None
        self.instance.memory.write(0, struct.pack("<II", 4096, 4096))
        assert self.call("fd_read", descriptor, 0, 1, 8) == 0
        assert self.call("fd_close", descriptor) == 0
        return self.instance.memory.read(4096, struct.unpack("<I", self.instance.memory.read(8, 4))[0])

    def names(self, root: int = ROOT) -> list[str]:
        """Return the names of the folders that it was given, from a descriptor on."""
        found = []
        while self.call("fd_prestat_get", root, 0) == 0:
            length = struct.unpack("<I", self.instance.memory.read(4, 4))[0]
            assert self.call("fd_prestat_dir_name", root, 64, length) == 0
            found.append(self.instance.memory.read(64, length).decode())
            root += 1
        return found


@pytest.fixture(scope="module")
def prepared(engine, wat):
    parts = []
    for name, params in SIGNATURES.items():
        gets = " ".join(f"(local.get {index})" for index in range(len(params.split())))
        parts.append((f'(import "{MODULE}" "{name}" (func ${name} (param {params}) (result i32)))', name, params, gets))
    exports = [f'(func (export "{n}") (param {p}) (result i32) (call ${n} {g}))' for _, n, p, g in parts]
    text = f'(module {" ".join(part[0] for part in parts)} (memory (export "memory") 2) {" ".join(exports)})'
    return Linker(engine).prepare(compile_module(engine, wat(text)))


@pytest.fixture
def guest(prepared):
    """Return a function: folders to a guest that sees them."""
    made = []

    def make(*directories: Directory) -> Guest:
        made.append(Instance(prepared, wasi_config=WasiConfig(directories=directories)))
        return Guest(made[-1])

    yield make
    for instance in made:
        instance.close()
    assert not wasi_io._made


@pytest.fixture
def shown(tmp_path):
    folder = tmp_path / "shown"
    (folder / "inner").mkdir(parents=True)
    (folder / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    return folder


def changes(guest: Guest) -> dict[str, bool]:
    """Try everything that changes a folder; return what could be done."""
    done = {
        "create": guest.open("new", CREATE, READ | WRITE) is not None,
        "exclusive": guest.open("other", CREATE | EXCLUSIVE, READ | WRITE) is not None,
        "truncate": guest.open("file", TRUNCATE, READ | WRITE) is not None,
        "truncate for reading": guest.open("file", TRUNCATE, READ) is not None,
        "append": guest.open("file", 0, WRITE) is not None,
        "mkdir": guest.call("path_create_directory", ROOT, "made") == 0,
        "rmdir": guest.call("path_remove_directory", ROOT, "inner") == 0,
        "times": guest.call("path_filestat_set_times", ROOT, 1, "file", 5, 5, 5) == 0,
        "symlink": guest.call("path_symlink", "file", ROOT, "sym") == 0,
        "link": guest.call("path_link", ROOT, 0, "file", ROOT, "hard") == 0,
        "rename": guest.call("path_rename", ROOT, "file", ROOT, "moved") == 0,
        "unlink": guest.call("path_unlink_file", ROOT, "moved") == 0
        or guest.call("path_unlink_file", ROOT, "file") == 0,
    }
    descriptor = guest.open("kept")
    done["size of an open file"] = guest.call("fd_filestat_set_size", descriptor, 1) == 0
    done["times of an open file"] = guest.call("fd_filestat_set_times", descriptor, 5, 5, 5) == 0
    guest.instance.memory.write(0, struct.pack("<II", 4096, 3))
    done["write to an open file"] = guest.call("fd_write", descriptor, 0, 1, 8) == 0
    return done


@POSIX
def test_nothing_changes_in_a_folder_for_reading(guest, shown):
    (shown / "kept").write_bytes(b"as it is")
    os.utime(shown / "kept", (1e9, 1e9))
    os.utime(shown / "file", (1e9, 1e9))
    done = changes(guest(Directory(str(shown), "/d")))
    assert [what for what, could in done.items() if could] == []
    assert sorted(path.name for path in shown.iterdir()) == ["file", "inner", "kept"]
    for name, data in (("file", b"inside"), ("kept", b"as it is")):
        assert (shown / name).read_bytes() == data
        assert (shown / name).stat().st_mtime == 1e9


@POSIX
def test_a_writable_folder_is_changed_as_asked(guest, shown):
    (shown / "kept").write_bytes(b"as it is")
    done = changes(guest(Directory(str(shown), "/d", writable=True)))
    refused = [what for what, could in done.items() if not could]
    # The descriptor was opened for reading; what a date needs is the folder's right, not the descriptor's.
    assert refused in (["write to an open file"], ["size of an open file", "write to an open file"])


@POSIX
def test_no_way_leads_out_of_a_folder(guest, shown, tmp_path):
    (shown / "absolute").symlink_to(tmp_path / "secret")
    (shown / "relative").symlink_to("../secret")
    (shown / "up").symlink_to("..")
    (shown / "within").symlink_to("file")
    inside = guest(Directory(str(shown), "/d", writable=True))
    ways = [
        "../secret",
        "inner/../../secret",
        "absolute",
        "relative",
        "up/secret",
        "/etc/passwd",
        str(tmp_path / "secret"),
    ]
    for way in ways:
        assert inside.read(way) is None, way
        assert inside.open(way, CREATE, READ | WRITE) is None, way
        if way not in {"absolute", "relative"}:  # which are entries of the folder: they may go, what they lead to not
            assert inside.call("path_unlink_file", ROOT, way) != 0, way
            assert inside.call("path_rename", ROOT, "file", ROOT, way) != 0, way
    assert inside.call("path_symlink", "/etc/passwd", ROOT, "mine") != 0
    assert inside.call("path_link", ROOT, 1, "../secret", ROOT, "hard") != 0
    assert inside.read("within") == b"inside"
    assert inside.open("within", follow=0) is None
    assert (tmp_path / "secret").read_bytes() == b"outside"


def test_folders_have_the_names_that_they_are_given(guest, shown):
    names = ["/", ".", "/a/b", "data"]
    inside = guest(*(Directory(str(shown), name) for name in names))
    assert inside.names() == names
    assert [inside.read("file", root=ROOT + index) for index in range(4)] == [b"inside"] * 4


@POSIX
def test_the_root_of_the_host_can_be_given(guest, shown):
    assert guest(Directory("/", "/")).read(str(shown / "file").lstrip("/")) == b"inside"


@pytest.mark.parametrize(
    ("guest_path", "folder", "name"),
    [("/conf/app.json", "/conf", "app.json"), ("app.json", ".", "app.json"), ("/app.json", "/", "app.json")],
)
def test_a_single_file_is_all_there_is(guest, shown, guest_path, folder, name):
    inside = guest(Directory(str(shown / "file"), guest_path))
    assert inside.names() == [folder]
    assert inside.read(name) == b"inside"
    assert inside.read("../secret") is None
    assert inside.open(name, 0, WRITE) is None
    assert inside.open("new", CREATE, WRITE) is None
    assert inside.call("path_unlink_file", ROOT, name) != 0
    assert (shown / "file").read_bytes() == b"inside"


def test_single_files_of_one_folder_lie_together_and_go_with_the_sandbox(guest, shown):
    (shown / "more").write_bytes(b"more")
    inside = guest(Directory(str(shown / "file"), "/d/one"), Directory(str(shown / "more"), "/d/two"))
    assert inside.names() == ["/d"]
    assert (inside.read("one"), inside.read("two")) == (b"inside", b"more")
    [private] = wasi_io._made
    assert Path(private).stat().st_mode & 0o77 == 0
    inside.instance.close()
    assert not Path(private).exists()


def test_a_process_that_ends_around_a_guest_leaves_no_copy(guest, shown):
    guest(Directory(str(shown / "file"), "/d/one"))
    [private] = wasi_io._made
    wasi_io.release_all()
    assert not Path(private).exists()


@POSIX
def test_a_folder_that_cannot_be_mounted_is_refused_by_name_and_leaves_nothing(guest, shown, engine):
    os.mkfifo(shown / "pipe")
    free = engine.free_slots
    kept = Directory(str(shown / "file"), "/d/one")
    for bad, words in [
        (Directory(str(shown / "file"), "/d/one", writable=True), "for reading only"),
        (Directory(str(shown / "pipe"), "/p"), "neither a folder nor a file"),
        (Directory("/dev/null", "/null"), "neither a folder nor a file"),
        (Directory(str(shown / "nowhere"), "/n"), "No such file"),
        (Directory(str(shown / "file"), "/d/"), "no name for a file"),
        (Directory(str(shown / "file"), ".."), "no name for a file"),
        (Directory(str(shown / "file"), "/d/one"), "File exists"),
        (Directory(str(shown), "/d"), "and the folder of a single file"),
        (Directory("x\0y", "/d"), "no path"),
    ]:
        with pytest.raises(InvalidArgs, match=words):
            guest(kept, bad)
        assert not wasi_io._made
    with pytest.raises(InvalidArgs, match="and the folder of a single file"):
        guest(Directory(str(shown), "/d"), kept)
    assert engine.free_slots == free


def test_a_file_that_is_too_long_is_given_by_its_folder(guest, shown, monkeypatch):
    monkeypatch.setattr(wasi_io, "MAX_FILE_BYTES", 5)
    with pytest.raises(InvalidArgs, match="give the guest its folder"):
        guest(Directory(str(shown / "file"), "/d/one"))
    assert not wasi_io._made
