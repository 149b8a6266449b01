import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from wasmtime import wat2wasm

from oracles.live import outcome_of, state_now
from strategies.live import GUEST, programs
from tensorwasm.artifacts.keys import HmacKey, KeyRing
from tensorwasm.errors import InvalidArgs, NotCapturable, TensorWasmError, WrongParent
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.snapshots import archive as archive_module
from tensorwasm.runtime.snapshots.archive import SnapshotCache
from tensorwasm.runtime.snapshots.snapshot import Snapshot
from tensorwasm.values import MIB, Limits

resource = pytest.importorskip("resource")

RING = KeyRing.of(HmacKey(b"k" * 32))
OTHER = KeyRing.of(HmacKey(b"o" * 32))


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator", limits=Limits(memory_bytes=4 * MIB)) as made:
        yield made


@pytest.fixture(scope="module")
def function(runtime):
    return runtime.load(bytes(wat2wasm(GUEST)), "stateful")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("snapshots")


def list_files() -> set[int]:
    """Return the descriptors of this process, and perhaps one that reading them took."""
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()}


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """Let this process open only so many more files."""
    used, limits = list_files(), resource.getrlimit(resource.RLIMIT_NOFILE)
    unused = [number for number in range(len(used) + free + 1) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (unused[free], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def outcome_or_kind(act: Callable[[], object]) -> str | None:
    """Return the kind of the error of ours that something raises, None if it raises none."""
    try:
        act()
    except TensorWasmError as error:
        return error.kind
    return None


@given(before=programs(), after=programs(10))
@settings(max_examples=25)
def test_an_instance_saved_to_a_file_continues_like_one_that_was_not(runtime, function, folder, before, after):
    path = folder / "one.tws"
    with function.open(input=b"an input") as live:
        for export, args in before:
            outcome_of(live, export, args)
        runtime.snapshot(live, path, keys=RING)
        with runtime.restore(path, function, keys=RING) as restored:
            assert state_now(restored) == state_now(live)
            for export, args in after:
                assert outcome_of(restored, export, args) == outcome_of(live, export, args)
            assert state_now(restored) == state_now(live)


@given(first=programs(15), second=programs(15), third=programs(15))
@settings(max_examples=20)
def test_a_chain_of_what_changed_is_the_last_state(runtime, function, folder, first, second, third):
    names = [folder / f"{number}.tws" for number in range(3)]
    with function.open() as live:
        for number, program in enumerate((first, second, third)):
            for export, args in program:
                outcome_of(live, export, args)
            runtime.snapshot(live, names[number], keys=RING, parents=names[:number][::-1])
        with runtime.restore(names[2], function, keys=RING, parents=[names[1], names[0]]) as restored:
            assert state_now(restored) == state_now(live)


def test_only_what_changed_is_written(runtime, function, folder):
    whole, added = folder / "whole.tws", folder / "added.tws"
    with function.open() as live:
        live.call("grow", (30,))
        live.call("fill", (0, 7, 70_000))
        for page in range(30):
            live.call("store", (page << 16, int.from_bytes(os.urandom(8), "little")))
        runtime.snapshot(live, whole, keys=RING)
        live.call("store", (100_000, 1))
        digest = runtime.snapshot(live, added, keys=RING, parents=[whole])
        assert digest.content_bytes < 8192 + 1000
        with pytest.raises(WrongParent):
            runtime.restore(added, function, keys=RING)


@pytest.mark.rule("7-tenant")
def test_a_file_is_read_once_and_again_when_it_changed(runtime, function, folder):
    path = folder / "changing.tws"
    with function.open() as live:
        live.call("store", (8, 1))
        runtime.snapshot(live, path, keys=RING)
        first = runtime.open_snapshot(path, keys=RING)
        assert runtime.open_snapshot(path, keys=RING) is first
        assert runtime.open_snapshot(path, keys=RING, tenant="other") is not first
        live.call("store", (8, 2))
        runtime.snapshot(live, path, keys=RING)
        assert runtime.open_snapshot(path, keys=RING) is not first
        assert runtime.invoke(path, function, "load", (8,), keys=RING).values == (2,)
        assert runtime.invoke(first, function, "load", (8,)).values == (1,)


def test_no_key_no_restore(runtime, function, folder):
    path = folder / "signed.tws"
    with function.open() as live:
        runtime.snapshot(live, path, keys=RING)
    runtime.open_snapshot(path, keys=RING)
    with pytest.raises(TensorWasmError, match="key"):
        runtime.open_snapshot(path, keys=OTHER)
    data = path.read_bytes()
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])
        with pytest.raises(TensorWasmError):
            runtime.open_snapshot(path, keys=RING)


def test_a_store_keeps_what_was_used_last_within_its_size(runtime, function, folder):
    names = [folder / f"kept{number}.tws" for number in range(3)]
    with function.open() as live:
        for number, name in enumerate(names):
            live.call("store", (8, number))
            live.call("fill", (1000, number + 1, 100_000))
            runtime.snapshot(live, name, keys=RING)
    archive = SnapshotCache(250_000)
    one, two, three = (archive.get(name, "default", RING) for name in names)
    assert archive.get(names[2], "default", RING) is three
    assert archive.get(names[1], "default", RING) is two
    assert archive.get(names[0], "default", RING) is not one
    with runtime.restore(one, function) as restored:
        assert restored.call("load", (8,)).values == (0,)


def test_files_that_are_not_there_are_the_callers_mistake(runtime, function, folder):
    with pytest.raises(InvalidArgs, match="cannot read"):
        runtime.restore(folder / "nothing.tws", function, keys=RING)
    with pytest.raises(InvalidArgs):
        runtime.restore(Path("\0"), function, keys=RING)
    with function.open() as live, pytest.raises(InvalidArgs, match="cannot write"):
        runtime.snapshot(live, folder / "no" / "folder.tws", keys=RING)


def test_a_refused_snapshot_leaves_the_file_unchanged(runtime, function, folder):
    path = folder / "kept.tws"
    with function.open() as live:
        runtime.snapshot(live, path, keys=RING)
    before = path.read_bytes()
    with pytest.raises(NotCapturable):
        runtime.snapshot(live, path, keys=RING)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_path_that_no_file_can_have_is_the_callers_mistake_too(runtime, function, name):
    with function.open() as live, pytest.raises(InvalidArgs, match="cannot write"):
        runtime.snapshot(live, name, keys=RING)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc/self/fd to list open files")
@pytest.mark.parametrize("free", range(3))
def test_running_out_of_files_is_reported_at_any_step_of_a_restore(runtime, function, folder, free):
    path = folder / "scarce.tws"
    with function.open() as live:
        live.call("fill", (1000, 1, 100_000))
        runtime.snapshot(live, path, keys=RING)
    gc.collect()  # files that earlier tests left
    archive, held = SnapshotCache(0), len(list_files())
    with few_files(free):
        found = outcome_or_kind(lambda: archive.get(path, "default", RING).close())
    assert found in (["capacity_exhausted", "invalid_args"] if free < 2 else [None])
    gc.collect()
    assert len(list_files()) == held


def test_threads_that_want_one_file_at_once_read_it_once(runtime, function, folder, monkeypatch):
    path = folder / "wanted.tws"
    with function.open() as live:
        runtime.snapshot(live, path, keys=RING)
    reads, ready, read_file = [], threading.Barrier(8), archive_module.read_file
    monkeypatch.setattr(archive_module, "read_file", lambda *args: (reads.append(args), read_file(*args))[1])
    archive = SnapshotCache(1 << 20)

    def want(_: int) -> Snapshot:
        ready.wait()
        return archive.get(path, "default", RING)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(want, range(8)))) == 1
    assert len(reads) == 1


def test_the_cache_leaves_file_descriptors_to_the_rest_of_the_process(runtime, function, folder):
    with few_files(60):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        paths = [folder / f"many{number}.tws" for number in range(most + 8)]
        with function.open() as live:
            for number, path in enumerate(paths):
                live.call("store", (8, number))
                runtime.snapshot(live, path, keys=RING)
        gc.collect()
        held, archive = len(list_files()), SnapshotCache(MIB)
        for path in paths:
            archive.get(path, "default", RING)
        gc.collect()
        assert len(list_files()) - held <= most
