import dataclasses
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.snapshots import contents
from strategies.snapshots import INSTANCES, data, runs
from tensorwasm.artifacts.keys import CipherKey, Ed25519Key, HmacKey, KeyRing
from tensorwasm.artifacts.sealed.header import Content
from tensorwasm.artifacts.sealed.writer import Sealing, write_sealed
from tensorwasm.artifacts.snapshot.file import SnapshotFile, write_snapshot
from tensorwasm.artifacts.snapshot.head import decode_head, encode_head
from tensorwasm.artifacts.snapshot.inspection import compare, summarize
from tensorwasm.errors import InvalidSnapshot, SealRefused, UnknownVersion, WrongParent
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

SECRET = bytes(range(32))
RING = KeyRing.of(HmacKey(SECRET))
MODULE = b"m" * 32
RINGS = st.sampled_from(
    [RING, KeyRing.of(Ed25519Key(SECRET)), KeyRing.of(HmacKey(SECRET), ciphers=[CipherKey(bytes(32))])]
)
SEALINGS = st.builds(Sealing, st.none() | st.integers(1, 5), threads=st.integers(1, 3))


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def by_hash(*paths, ring=RING):
    """Find files by the hash of their content."""
    known = {}
    for path in paths:
        with SnapshotFile.open(path, ring) as snapshot:
            known[snapshot.content_hash] = path
    return known.get


def load_whole(snapshot):
    """The instance with all that it adds to, each memory and buffer as one run."""

    def load(size_bytes, place, which):
        into = bytearray(size_bytes)
        place(which, memoryview(into))
        return (SavedRun(0, bytes(into)),) if size_bytes else ()

    instance = snapshot.instance
    memories = tuple(
        dataclasses.replace(memory, runs=load(memory.size_bytes, snapshot.place, index))
        for index, memory in enumerate(instance.memories)
    )
    session = instance.session
    if session is not None:
        buffers = (
            dataclasses.replace(buffer, runs=load(buffer.size_bytes, snapshot.place_buffer, buffer.handle))
            for buffer in session.buffers
        )
        session = dataclasses.replace(session, buffers=tuple(buffers))
    return dataclasses.replace(instance, memories=memories, session=session, parent=None)


def subtract(instance, parent):
    """The instance as one that adds to a snapshot: runs of the pages that differ."""
    then, now = contents(load_whole(parent)), contents(instance)

    def differing(old, new):
        old = old.ljust(len(new), b"\0")
        pages = (slice(at, at + PAGE_BYTES) for at in range(0, len(new), PAGE_BYTES))
        return tuple(SavedRun(page.start, new[page]) for page in pages if new[page] != old[page])

    memories = tuple(
        dataclasses.replace(memory, runs=differing(old, new))
        for memory, old, new in zip(instance.memories, then["memories"], now["memories"], strict=True)
    )
    session = instance.session
    if session is not None:
        olds = ((buffer, then["buffers"].get(buffer.handle, b"")) for buffer in session.buffers)
        buffers = (
            dataclasses.replace(buffer, runs=differing(old, now["buffers"][buffer.handle]))
            if len(old) == buffer.size_bytes
            else buffer
            for buffer, old in olds
        )
        session = dataclasses.replace(session, buffers=tuple(buffers))
    return dataclasses.replace(instance, memories=memories, session=session, parent=parent.content_hash)


def whole(path, *others, ring=RING):
    with SnapshotFile.open(path, ring, find_parent=by_hash(*others, ring=ring)) as snapshot:
        return contents(load_whole(snapshot))


@st.composite
def changed(draw, instance):
    """An instance some calls later: pages written, cleared, memories grown, buffers freed and made."""
    memories = []
    for memory in instance.memories:
        size_bytes = memory.size_bytes + draw(st.sampled_from([0, 0, WASM_PAGE_BYTES]))
        kept = tuple(run for run in memory.runs if draw(st.booleans()))
        memories.append(SavedMemory(size_bytes, kept if draw(st.booleans()) else draw(runs(size_bytes))))
    session = instance.session
    if session is not None:
        kept = [buffer for buffer in session.buffers if draw(st.booleans())]
        written = tuple(
            dataclasses.replace(buffer, runs=draw(runs(buffer.size_bytes)) if draw(st.booleans()) else buffer.runs)
            for buffer in kept
        )
        session = dataclasses.replace(session, buffers=written)
    return dataclasses.replace(instance, memories=tuple(memories), session=session, input=draw(st.binary(max_size=9)))


@given(instance=INSTANCES, ring=RINGS, sealing=SEALINGS)
def test_written_values_are_read_back(instance, ring, sealing):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        digest = write_snapshot(path, instance, ring, sealing)
        with SnapshotFile.open(path, ring, module_hash=instance.module_hash) as snapshot:
            assert snapshot.load() == instance
            assert snapshot.content_hash == digest.content_hash
            assert snapshot.file_bytes == digest.file_bytes == path.stat().st_size
            assert contents(load_whole(snapshot)) == contents(instance)
            for index, memory in enumerate(instance.memories):
                into = bytearray(memory.size_bytes)
                snapshot.place(index, memoryview(into))
                assert into == contents(instance)["memories"][index]
            for buffer in instance.session.buffers if instance.session else ():
                into = bytearray(buffer.size_bytes)
                snapshot.place_buffer(buffer.handle, memoryview(into))
                assert into == contents(instance)["buffers"][buffer.handle]
            snapshot.check_content()


@given(instance=INSTANCES, one=SEALINGS, two=SEALINGS)
@settings(max_examples=30)
def test_the_hash_is_of_the_content_and_nothing_else(instance, one, two):
    cipher = KeyRing.of(Ed25519Key(SECRET), ciphers=[CipherKey(SECRET)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        assert (
            write_snapshot(path, instance, RING, one).content_hash
            == write_snapshot(path, instance, cipher, two).content_hash
        )
        other = dataclasses.replace(instance, made_unix_ms=instance.made_unix_ms ^ 1)
        assert write_snapshot(path, other, RING, one).content_hash != write_snapshot(path, instance, RING).content_hash


@given(data=st.data(), first=INSTANCES, ring=RINGS)
@settings(deadline=None)
def test_a_chain_reads_as_its_last_instance(data, first, ring):
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        write_snapshot(root / "0", first, ring)
        now, known = first, {}
        for step in range(1, data.draw(st.integers(2, 4))):
            parent = stack.enter_context(SnapshotFile.open(root / str(step - 1), ring, find_parent=known.get))
            known[parent.content_hash] = root / str(step - 1)
            now = data.draw(changed(now))
            added = subtract(now, parent)
            assert contents(added, contents(load_whole(parent))) == contents(now)
            write_snapshot(root / str(step), added, ring, parent=parent)
            with SnapshotFile.open(root / str(step), ring, find_parent=known.get) as snapshot:
                assert snapshot.depth == step
                assert snapshot.load() == added
                assert contents(load_whole(snapshot)) == contents(now)
                write_snapshot(root / "flat", load_whole(snapshot), ring)
                snapshot.check_content()
                with SnapshotFile.open(root / "flat", ring) as flat:
                    assert flat.depth == 0
                    assert contents(flat.load()) == contents(now)
                    assert compare(flat, snapshot) == compare(snapshot, flat)
                    assert compare(flat, snapshot).pages == 0


def filled(pages=8, fill=b"x", **others):
    memory = SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, fill * (pages * PAGE_BYTES)),))
    return SavedInstance(MODULE, (memory,), **others)


def test_another_parent_is_refused(folder):
    write_snapshot(folder / "a", filled(), RING)
    write_snapshot(folder / "b", filled(fill=b"y"), RING)
    with SnapshotFile.open(folder / "a", RING) as a, SnapshotFile.open(folder / "b", RING) as b:
        child = subtract(filled(fill=b"z"), a)
        with pytest.raises(WrongParent):
            write_snapshot(folder / "c", child, RING)
        with pytest.raises(WrongParent):
            write_snapshot(folder / "c", child, RING, parent=b)
        write_snapshot(folder / "c", child, RING, parent=a)
    for wrong in (lambda _: None, lambda _: folder / "b", lambda _: folder / "none", lambda _: folder / "c"):
        with pytest.raises(WrongParent):
            SnapshotFile.open(folder / "c", RING, find_parent=wrong)
    with SnapshotFile.open(folder / "c", RING) as alone:
        assert alone.load() == child
        for use in (lambda: alone.place(0, bytearray(WASM_PAGE_BYTES)), lambda: load_whole(alone), alone.check_content):
            with pytest.raises(WrongParent, match="not opened"):
                use()


def test_a_parent_is_of_the_same_module_and_no_larger(folder):
    write_snapshot(folder / "a", filled(), RING)
    with SnapshotFile.open(folder / "a", RING) as a:
        other = SavedInstance(b"n" * 32, (SavedMemory(WASM_PAGE_BYTES, ()),), parent=a.content_hash)
        with pytest.raises(WrongParent, match="same module"):
            write_snapshot(folder / "c", other, RING, parent=a)
        for memories in ((), (SavedMemory(0, ()),)):
            with pytest.raises(WrongParent, match="memories"):
                write_snapshot(folder / "c", SavedInstance(MODULE, memories, parent=a.content_hash), RING, parent=a)


def test_a_chain_has_an_end_that_writer_and_reader_agree_on(folder, monkeypatch):
    monkeypatch.setattr("tensorwasm.artifacts.snapshot.head.MAX_DEPTH", 3)
    known = {}
    write_snapshot(folder / "0", filled(), RING)
    for step in range(1, 5):
        with SnapshotFile.open(folder / str(step - 1), RING, find_parent=known.get) as parent:
            known[parent.content_hash] = folder / str(step - 1)
            child = dataclasses.replace(subtract(filled(), parent), made_unix_ms=step)
            if step == 4:
                with pytest.raises(InvalidSnapshot, match="save a whole one"):
                    write_snapshot(folder / "4", child, RING, parent=parent)
                write_snapshot(folder / "4", load_whole(parent), RING)
            else:
                write_snapshot(folder / str(step), child, RING, parent=parent)
    assert whole(folder / "4") == whole(folder / "3", *(folder / str(n) for n in range(3)))
    monkeypatch.setattr("tensorwasm.artifacts.snapshot.head.MAX_DEPTH", 2)
    with pytest.raises(InvalidSnapshot, match="save a whole one"):
        SnapshotFile.open(folder / "3", RING, find_parent=known.get)


def test_a_buffer_of_another_size_is_another_buffer(folder):
    def held(size_bytes, *runs):
        return SavedInstance(MODULE, session=SavedSession((SavedBuffer(1, size_bytes, runs),)))

    write_snapshot(folder / "a", held(100, SavedRun(0, b"x" * 100)), RING)
    with SnapshotFile.open(folder / "a", RING) as a:
        child = subtract(held(200, SavedRun(150, b"y")), a)
        assert child.session.buffers[0].runs == (SavedRun(150, b"y"),)
        write_snapshot(folder / "b", child, RING, parent=a)
    assert whole(folder / "b", folder / "a")["buffers"][1] == bytes(150) + b"y" + bytes(49)


NONSENSE = {
    "a short hash": SavedInstance(b"m" * 31),
    "part of a page": SavedInstance(MODULE, (SavedMemory(1000, ()),)),
    "a run beyond the end": SavedInstance(
        MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(WASM_PAGE_BYTES - 1, b"xx"),)),)
    ),
    "an empty run": SavedInstance(MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, b""),)),)),
    "runs that overlap": SavedInstance(
        MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, b"xx"), SavedRun(1, b"x"))),)
    ),
    "runs out of order": SavedInstance(MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(9, b"x"), SavedRun(1, b"x"))),)),
    "a run before the beginning": SavedInstance(MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(-1, b"xx"),)),)),
    "a memory without end": SavedInstance(MODULE, (SavedMemory(1 << 62, ()),)),
    "a size without sense": SavedInstance(MODULE, (SavedMemory(1 << 64, ()),)),
    "a kind without name": SavedInstance(MODULE, globals=(SavedGlobal(0, "i16", 0),)),
    "too many bits": SavedInstance(MODULE, globals=(SavedGlobal(0, "i32", 1 << 32),)),
    "far too many bits": SavedInstance(MODULE, globals=(SavedGlobal(0, "v128", 1 << 128),)),
    "fewer bits than none": SavedInstance(MODULE, globals=(SavedGlobal(0, "i32", -1),)),
    "a null number": SavedInstance(MODULE, globals=(SavedGlobal(0, "i32", None),)),
    "one global twice": SavedInstance(MODULE, globals=(SavedGlobal(1, "i32", 0), SavedGlobal(1, "i32", 0))),
    "an index too high": SavedInstance(MODULE, globals=(SavedGlobal(1 << 32, "i32", 0),)),
    "tables out of order": SavedInstance(MODULE, tables=(SavedTable(1, ()), SavedTable(0, ()))),
    "a function too high": SavedInstance(MODULE, tables=(SavedTable(1, (1 << 32,)),)),
    "a segment too high": SavedInstance(MODULE, dropped_data=(1 << 32,)),
    "a segment below zero": SavedInstance(MODULE, dropped_elements=(-1,)),
    "half a character": SavedInstance(MODULE, grants=("\ud800",)),
    "a name without end": SavedInstance(MODULE, grants=("x" * 4097,)),
    "a time before time": SavedInstance(MODULE, made_unix_ms=-1),
    "a handle of nothing": SavedInstance(MODULE, session=SavedSession((SavedBuffer(0, 1, ()),))),
    "handles out of order": SavedInstance(MODULE, session=SavedSession((SavedBuffer(2, 1, ()), SavedBuffer(1, 1, ())))),
    "a handle too high": SavedInstance(MODULE, session=SavedSession((SavedBuffer(1 << 63, 1, ()),))),
    "a kernel of no number": SavedInstance(MODULE, session=SavedSession(kernels=(SavedKernel(-1, b"", "k"),))),
    "no such memory": SavedInstance(MODULE, session=SavedSession(memory_kind="swap")),
    "bytes in pieces": SavedInstance(
        MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, memoryview(bytes(8))[::2]),)),)
    ),
    "text for bytes": SavedInstance(MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, "x"),)),)),
    "a number as text": SavedInstance(MODULE, session=SavedSession(streams=("1",))),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_invalid_instances_are_not_written(folder, name):
    with pytest.raises(InvalidSnapshot):
        write_snapshot(folder / "a", NONSENSE[name], RING)
    assert not list(folder.iterdir())


def test_a_parent_that_is_not_given_is_refused(folder):
    with pytest.raises(WrongParent):
        write_snapshot(folder / "a", SavedInstance(MODULE, parent=b"p" * 32), RING)


@pytest.mark.parametrize(
    ("cap", "instance"),
    [
        (
            "MAX_RUNS",
            SavedInstance(
                MODULE, (SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, b"x"), SavedRun(2, b"x"), SavedRun(4, b"x"))),)
            ),
        ),
        ("MAX_BLOB_BYTES", SavedInstance(MODULE, input=b"xxx")),
        ("MAX_FUNCTIONS", SavedInstance(MODULE, tables=(SavedTable(0, (1, 2, None)),))),
        ("MAX_PART_BYTES", SavedInstance(MODULE, session=SavedSession((SavedBuffer(1, 3, ()),)))),
    ],
)
def test_writer_and_reader_keep_the_same_caps(folder, monkeypatch, cap, instance):
    place = f"tensorwasm.artifacts.snapshot.head.{cap}"
    monkeypatch.setattr(place, 3)
    write_snapshot(folder / "a", instance, RING)
    with SnapshotFile.open(folder / "a", RING) as snapshot:
        assert snapshot.load() == instance
    monkeypatch.setattr(place, 2)
    with pytest.raises(InvalidSnapshot, match="at most 2"):
        write_snapshot(folder / "b", instance, RING)
    with pytest.raises(InvalidSnapshot, match="at most 2"):
        SnapshotFile.open(folder / "a", RING)


def test_placing_needs_an_existing_part_and_enough_room(folder):
    instance = SavedInstance(
        MODULE, (SavedMemory(WASM_PAGE_BYTES, ()),), session=SavedSession((SavedBuffer(7, 9, ()),))
    )
    write_snapshot(folder / "a", instance, RING)
    with SnapshotFile.open(folder / "a", RING) as snapshot:
        for use in (
            lambda: snapshot.place(0, bytearray(WASM_PAGE_BYTES - 1)),
            lambda: snapshot.place(1, bytearray(WASM_PAGE_BYTES)),
            lambda: snapshot.place_buffer(7, bytearray(8)),
            lambda: snapshot.place_buffer(8, bytearray(8)),
        ):
            with pytest.raises(LookupError):
                use()


def test_a_comparison_names_what_differs(folder):
    one = filled(8, globals=(SavedGlobal(0, "i32", 1), SavedGlobal(2, "i64", 2)), tables=(SavedTable(0, (1,)),))
    two = dataclasses.replace(
        filled(9, input=b"x"),
        globals=(SavedGlobal(0, "i32", 1), SavedGlobal(2, "i64", 3), SavedGlobal(5, "i32", 0)),
        session=SavedSession((SavedBuffer(3, 5000, (SavedRun(4500, b"x"),)),)),
    )
    write_snapshot(folder / "a", one, RING)
    write_snapshot(folder / "b", two, RING)
    with SnapshotFile.open(folder / "a", RING) as a, SnapshotFile.open(folder / "b", RING) as b:
        found = compare(a, b)
        assert found.memories == ((0, ((8 * PAGE_BYTES, 9 * PAGE_BYTES),)),)
        assert found.buffers == ((3, ((0, 5000),)),)
        assert (found.globals, found.tables, found.fields) == ((2, 5), (0,), ("input", "session"))
        assert found.pages == 3
        assert compare(a, a) == type(found)()


def test_a_summary_contains_no_secrets(folder):
    secret = b"correct horse"
    instance = SavedInstance(
        MODULE,
        (SavedMemory(WASM_PAGE_BYTES, (SavedRun(0, secret),)),),
        (SavedGlobal(0, "v128", int.from_bytes(secret, "little")),),
        input=secret,
        grants=("cuda",),
        session=SavedSession((SavedBuffer(1, 64, (SavedRun(0, secret),)),), (SavedKernel(1, secret, "saxpy"),)),
        made_unix_ms=1_767_225_600_000,
    )
    ring = KeyRing.of(Ed25519Key(SECRET), ciphers=[CipherKey(SECRET)])
    digest = write_snapshot(folder / "a", instance, ring)
    with SnapshotFile.open(folder / "a", ring) as snapshot:
        found = summarize(snapshot)
    text = repr(found)
    assert "correct" not in text
    assert str(int.from_bytes(secret, "little")) not in text
    assert SECRET.hex() not in text
    assert found.content_hash == digest.content_hash.hex()
    assert (found.signature, found.cipher, found.compression) == ("ed25519", "chacha20_poly1305", "zstd")
    assert (found.memory_bytes, found.memory_stored_bytes) == ((WASM_PAGE_BYTES,), (len(secret),))
    assert (found.input_bytes, found.buffers, found.buffer_bytes, found.kernels) == (len(secret), 1, 64, ("saxpy",))


@given(data(100_000), st.integers(1, 3))
@settings(max_examples=10)
def test_large_and_small_runs_go_to_their_places(content, threads):
    size_bytes = 3 * (4 << 20)
    spans = [SavedRun(i * 3 * PAGE_BYTES, content[: PAGE_BYTES + i]) for i in range(64)]
    spans.append(SavedRun(4 << 20, content * 80))
    instance = SavedInstance(MODULE, (SavedMemory(size_bytes, tuple(spans)),))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write_snapshot(path, instance, RING, Sealing(threads=threads))
        with SnapshotFile.open(path, RING, threads=threads) as snapshot:
            assert snapshot.load() == instance
            into = bytearray(size_bytes)
            snapshot.place(0, memoryview(into))
            assert into == contents(instance)["memories"][0]


@given(instance=INSTANCES, ring=RINGS, sealing=SEALINGS, data=st.data())
def test_no_damaged_snapshot_is_parsed_or_decompressed(instance, ring, sealing, data):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "a"
        write_snapshot(path, instance, ring, sealing)
        good = path.read_bytes()
        at = data.draw(st.integers(0, len(good) - 1))
        damage = data.draw(st.sampled_from(["flip", "cut", "add", "drop"]))
        path.write_bytes(
            {
                "flip": good[:at] + bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))]) + good[at + 1 :],
                "cut": good[:at],
                "add": good[:at] + data.draw(st.binary(min_size=1, max_size=9)) + good[at:],
                "drop": good[:at] + good[at + 1 :],
            }[damage]
        )
        seen = []
        patch.setattr("tensorwasm.artifacts.snapshot.file.decode_head", lambda *_: seen.append("parsed"))
        patch.setattr("tensorwasm.artifacts.sealed.blocks._decompress", lambda *_: seen.append("decompressed"))
        patch.setattr("tensorwasm.artifacts.sealed.blocks.Coder.decrypt", lambda *_: seen.append("decrypted"))
        with pytest.raises(SealRefused):
            SnapshotFile.open(path, ring)
        assert not seen


def test_a_head_of_a_later_version_or_of_none_is_refused(folder):
    instance = SavedInstance(MODULE)
    head = encode_head(instance, 0)
    for changed, error in (
        (b"TWSN" + b"\x02\0\0\0" + head[8:], UnknownVersion),
        (b"TWSX" + head[4:], InvalidSnapshot),
        (head[:5], InvalidSnapshot),
        (b"", InvalidSnapshot),
        (head + b"\0", InvalidSnapshot),
        (head[:-1], InvalidSnapshot),
        (head[:8] + b"\xdf\xff\xff\xff\xff", InvalidSnapshot),
        (head[:8] + b"\x91" * 5000, InvalidSnapshot),
        (encode_head(SavedInstance(MODULE, grants=("k",)), 0).replace(b"\xa1k", b"\xa1\x80"), InvalidSnapshot),
        (head[:8] + b"\x9d" + head[9:] + b"\xc0", InvalidSnapshot),
    ):
        write_sealed(folder / "a", changed, (), RING, content=Content.SNAPSHOT, module_hash=MODULE)
        with pytest.raises(error):
            SnapshotFile.open(folder / "a", RING)


def test_the_head_names_the_module_of_its_file(folder):
    head = encode_head(SavedInstance(MODULE), 0)
    write_sealed(folder / "a", head, (), RING, content=Content.SNAPSHOT, module_hash=b"n" * 32)
    with pytest.raises(InvalidSnapshot, match="another module"):
        SnapshotFile.open(folder / "a", RING)


@given(st.binary(max_size=60))
def test_a_signed_head_of_any_bytes_is_only_ever_refused(data):
    head = encode_head(SavedInstance(MODULE), 0)[:8] + data
    with pytest.raises(InvalidSnapshot):
        decode_head(head, len(head))


@given(st.integers(8, 150), st.binary(min_size=1, max_size=3))
def test_a_signed_head_with_other_bytes_in_it_makes_sense_or_is_refused(at, other):
    instance = SavedInstance(
        MODULE,
        (SavedMemory(WASM_PAGE_BYTES, (SavedRun(1, b"x"),)),),
        (SavedGlobal(0, "funcref", None),),
        (SavedTable(0, (1, None)),),
        session=SavedSession((SavedBuffer(1, 2, (SavedRun(0, b"x"),)),), (SavedKernel(1, b"k", "k"),)),
    )
    head = encode_head(instance, 0)
    changed = head[:at] + other + head[at + len(other) :]
    with suppress(InvalidSnapshot):
        layout = decode_head(changed, len(head) + 3)
        assert encode_head(layout.instance, layout.depth)
