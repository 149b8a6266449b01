"""Every version of the format that was ever released is read, and the present one is written to the byte.

``python tests/unit/artifacts/snapshot/test_golden.py`` writes the files of the present version, where one is missing:
none is ever replaced.
"""

import secrets
from contextlib import ExitStack
from pathlib import Path

import pytest
import zstandard

from oracles.snapshot_format import read_file
from oracles.snapshots import contents
from tensorwasm.artifacts.keys import CipherKey, Ed25519Key, HmacKey, KeyRing
from tensorwasm.artifacts.sealed.header import VERSION
from tensorwasm.artifacts.sealed.writer import Sealing
from tensorwasm.artifacts.snapshot.file import SnapshotFile, write_snapshot
from tensorwasm.saved import (
    PAGE_BYTES,
    SavedBuffer,
    SavedGlobal,
    SavedInstance,
    SavedKernel,
    SavedMemory,
    SavedRun,
    SavedSession,
    SavedTable,
)
from tensorwasm.values import WASM_PAGE_BYTES

GOLDEN = Path(__file__).parents[3] / "golden" / "snapshots"
VERSIONS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
ZSTD_VERSION = (1, 5, 7)
"""Whose output the compressed files have; what another version writes is different and means the same."""

KEY = bytes(range(32))
"""For tests only."""

SALT = bytes(range(100, 132))
MODULE = bytes(range(200, 232))
MADE_UNIX_MS = 1_767_225_600_000

MINIMAL = SavedInstance(MODULE, (SavedMemory(WASM_PAGE_BYTES, ()),), made_unix_ms=MADE_UNIX_MS)
FULL = SavedInstance(
    MODULE,
    (
        SavedMemory(
            2 * WASM_PAGE_BYTES,
            (
                SavedRun(0, bytes(i % 251 for i in range(PAGE_BYTES))),
                SavedRun(5 * PAGE_BYTES, b"\x5a" * PAGE_BYTES),
            ),
        ),
        SavedMemory(0, ()),
    ),
    (
        SavedGlobal(0, "i32", 0xFFFF_FFFF),
        SavedGlobal(1, "i64", 1 << 63),
        SavedGlobal(2, "f32", 0x7FC0_0001),
        SavedGlobal(3, "f64", 0xFFF8_0000_0000_0000),
        SavedGlobal(4, "v128", (1 << 128) - 1),
        SavedGlobal(5, "funcref", 3),
        SavedGlobal(9, "funcref", None),
    ),
    (SavedTable(0, (None, 1, 0, None)), SavedTable(2, ())),
    (0, 2),
    (1,),
    b"what was not read yet",
    ("cuda", "tensor"),
    SavedSession(
        (SavedBuffer(1, 1024, (SavedRun(0, bytes(i * 17 % 253 for i in range(1024))),)), SavedBuffer(7, 0, ())),
        (SavedKernel(3, b".version 7.0\n.target sm_70\n.address_size 64\n", "saxpy"),),
        (2, 5),
        (1,),
        (("handle", 8), ("kernel", 4)),
        "pinned",
    ),
    None,
    MADE_UNIX_MS,
)

HMAC = KeyRing.of(HmacKey(KEY))
PAIR = KeyRing.of(Ed25519Key(KEY))
SECRET = KeyRing.of(HmacKey(KEY), ciphers=[CipherKey(KEY)])
NOBODY = KeyRing.of(None)

RAW, ZSTD = Sealing(level=None), Sealing(level=3)
FILES = {
    "minimal-hmac-raw": (MINIMAL, HMAC, RAW),
    "full-hmac-raw": (FULL, HMAC, RAW),
    "full-hmac-zstd": (FULL, HMAC, ZSTD),
    "full-ed25519-zstd": (FULL, PAIR, ZSTD),
    "full-encrypted-raw": (FULL, SECRET, RAW),
    "full-encrypted-zstd": (FULL, SECRET, ZSTD),
    "full-unsigned-raw": (FULL, NOBODY, Sealing(level=None, signed=False)),
}
CHILD = "child-hmac-raw"


def child_of(parent):
    """FULL with a page written, a page cleared and a global changed."""
    runs = (SavedRun(0, bytes(PAGE_BYTES)), SavedRun(9 * PAGE_BYTES, b"\x01" * PAGE_BYTES))
    memories = (SavedMemory(3 * WASM_PAGE_BYTES, runs), SavedMemory(0, ()))
    return SavedInstance(
        MODULE, memories, (SavedGlobal(0, "i32", 7),), parent=parent.content_hash, made_unix_ms=MADE_UNIX_MS + 1
    )


def write_all(folder, monkeypatch):
    """Write every file of the present version."""
    monkeypatch.setattr("tensorwasm.artifacts.sealed.writer.secrets", type("Salt", (), {"token_bytes": lambda _: SALT}))
    for name, (instance, ring, sealing) in FILES.items():
        write_snapshot(folder / f"{name}.tws", instance, ring, sealing)
    with SnapshotFile.open(folder / "full-hmac-raw.tws", HMAC) as parent:
        write_snapshot(folder / f"{CHILD}.tws", child_of(parent), HMAC, RAW, parent=parent)


def test_the_present_version_has_its_files():
    assert [f"v{number}" for number in range(1, VERSION + 1)] == VERSIONS
    for version in VERSIONS:
        names = sorted(path.stem for path in (GOLDEN / version).iterdir())
        assert names == sorted([*FILES, CHILD])


def test_the_present_version_is_written_to_the_byte(tmp_path, monkeypatch):
    write_all(tmp_path, monkeypatch)
    for path in sorted(tmp_path.iterdir()):
        if "zstd" in path.name and zstandard.ZSTD_VERSION != ZSTD_VERSION:
            continue
        assert path.read_bytes() == (GOLDEN / f"v{VERSION}" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_every_version_is_read(version, name):
    instance, ring, sealing = FILES[name]
    path = GOLDEN / version / f"{name}.tws"
    with SnapshotFile.open(path, ring, module_hash=MODULE, allow_unsigned=not sealing.signed) as snapshot:
        assert snapshot.load() == instance
        snapshot.check_content()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", FILES)
def test_a_reader_made_from_the_document_reads_them(version, name):
    data = (GOLDEN / version / f"{name}.tws").read_bytes()
    found = read_file(data, KEY, Ed25519Key(KEY).public.raw)
    instance = FILES[name][0]
    assert found.module_hash == instance.module_hash
    assert found.memories == contents(instance)["memories"]
    assert found.buffers == contents(instance)["buffers"]
    assert found.input == instance.input
    assert found.texts == [kernel.text for kernel in instance.session.kernels] if instance.session else not found.texts
    assert found.globals == [(each.index, each.kind, each.bits) for each in instance.globals]
    assert found.tables == [(table.index, list(table.functions)) for table in instance.tables]
    assert (found.grants, found.made_unix_ms) == (list(instance.grants), instance.made_unix_ms)
    with SnapshotFile.open(GOLDEN / version / f"{name}.tws", FILES[name][1], allow_unsigned=True) as snapshot:
        assert found.content_hash == snapshot.content_hash


@pytest.mark.parametrize("version", VERSIONS)
def test_every_versions_child_is_read(version):
    folder = GOLDEN / version
    with ExitStack() as stack:
        parent = stack.enter_context(SnapshotFile.open(folder / "full-hmac-raw.tws", HMAC))
        found = {parent.content_hash: folder / "full-hmac-raw.tws"}
        child = stack.enter_context(SnapshotFile.open(folder / f"{CHILD}.tws", HMAC, find_parent=found.get))
        assert child.load() == child_of(parent)
        into = bytearray(3 * WASM_PAGE_BYTES)
        child.place(0, memoryview(into))
        assert into[:PAGE_BYTES] == bytes(PAGE_BYTES)
        assert into[5 * PAGE_BYTES : 6 * PAGE_BYTES] == b"\x5a" * PAGE_BYTES
        assert into[9 * PAGE_BYTES : 10 * PAGE_BYTES] == b"\x01" * PAGE_BYTES
        child.check_content()


if __name__ == "__main__":
    present = GOLDEN / f"v{VERSION}"
    present.mkdir(exist_ok=True)
    draft = present / secrets.token_hex(4)
    draft.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        write_all(draft, patch)
    for made in draft.iterdir():
        if (present / made.name).exists():
            made.unlink()
        else:
            made.rename(present / made.name)
    draft.rmdir()
