"""Snapshots in a store: with their modules, in chains, between tenants, with no room, dying in the middle, renewed."""

import shutil
import sys
from contextlib import contextmanager

import pytest
from wasmtime import wat2wasm

from fakes.calls import Died, DyingCalls
from strategies.live import GUEST
from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.backends.memory import MemoryBackend
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.keys import HmacKey, KeyRing
from tensorwasm.artifacts.snapshot.file import renew_snapshot
from tensorwasm.artifacts.snapshot.head import MAX_DEPTH
from tensorwasm.artifacts.store import ContentStore, TenantView
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import (
    ArtifactNotFound,
    InvalidArgs,
    InvalidSnapshot,
    QuotaExceeded,
    SealRefused,
    UnknownKey,
    WrongModule,
    WrongParent,
)
from tensorwasm.runtime import Runtime
from tensorwasm.runtime.snapshots.stored import fetch_module, fetch_snapshot, store_snapshot

MODULE = bytes(wat2wasm(GUEST))
RING = KeyRing.of(HmacKey(b"k" * 32))
NEW = HmacKey(b"n" * 32)


@pytest.fixture(scope="module")
def runtime():
    with Runtime("emulator") as made:
        yield made


@pytest.fixture(scope="module")
def function(runtime):
    return runtime.load(MODULE)


@pytest.fixture
def store():
    return ContentStore(MemoryBackend())


@pytest.fixture
def view(store):
    return TenantView(store, "alice")


@contextmanager
def at(function, address, value):
    """Give an instance that has stored something."""
    with function.open() as live:
        live.call("store", [address, value])
        yield live


def loaded(runtime, view, name, *addresses, ring=RING):
    """Return what a kept instance, restored in its own module, has at some addresses."""
    with fetch_snapshot(view, name).read(ring) as snapshot:
        function = runtime.load(fetch_module(view, snapshot))
        with runtime.restore(snapshot, function) as live:
            return [live.call("load", [address]).values[0] for address in addresses]


def keep_chain(function, view, length=2):
    """Keep states under the names 0, 1 and so on, each of which adds to the one before."""
    with function.open() as live:
        for step in range(length):
            live.call("store", [4096 * step + 4096, step + 1])
            store_snapshot(view, str(step), live, MODULE, parent=str(step - 1) if step else None, keys=RING)


def test_a_kept_snapshot_is_found_by_name_with_its_module_and_chain(runtime, function, view):
    keep_chain(function, view, 3)
    assert loaded(runtime, view, "2", 4096, 8192, 12288) == [1, 2, 3]
    assert loaded(runtime, view, "0", 4096, 8192, 12288) == [1, 0, 0]
    assert view.store.usage(view.tenant).count == 4
    found = fetch_snapshot(view, "2")
    assert len(found.files) == 3
    assert set(view.stat(found.digest).refers_to) == {blake3(MODULE), view.resolve("1")}


def test_a_name_may_be_moved_on_to_what_adds_to_it(runtime, function, view):
    with function.open() as live:
        store_snapshot(view, "state", live, MODULE, keys=RING)
        for step in range(3):
            live.call("store", [4096 * step + 4096, step + 1])
            store_snapshot(view, "state", live, MODULE, parent="state", keys=RING)
    assert loaded(runtime, view, "state", 4096, 8192, 12288) == [1, 2, 3]
    assert dict(view.store.names(view.tenant)).keys() == {"state"}


def test_only_what_a_name_leads_to_outlives_a_collection(runtime, function, store, view):
    keep_chain(function, view, 3)
    view.unbind("0")
    view.unbind("1")
    assert store.collect(0).artifacts == ()
    assert loaded(runtime, view, "2", 4096) == [1]
    view.unbind("2")
    assert len(store.collect(0).artifacts) == 4
    assert view.store.list(view.tenant) == ()


def test_a_snapshot_file_is_kept_after_all_of_it_was_verified(runtime, function, view, tmp_path):
    whole, added, bad = (tmp_path / name for name in ("whole", "added", "bad"))
    with at(function, 4096, 5) as live:
        done = runtime.snapshot(live, whole, keys=RING)
        live.call("store", [8192, 6])
        runtime.snapshot(live, added, parents=[whole], keys=RING)
    assert store_snapshot(view, "whole", whole, MODULE, keys=RING) == done
    with pytest.raises(WrongParent):
        store_snapshot(view, "added", added, MODULE, keys=RING)
    with pytest.raises(WrongParent):
        store_snapshot(view, "twice", whole, MODULE, parent="whole", keys=RING)
    store_snapshot(view, "added", added, MODULE, parent="whole", keys=RING)
    assert loaded(runtime, view, "added", 4096, 8192) == [5, 6]
    data = bytearray(whole.read_bytes())
    data[-1] ^= 1
    bad.write_bytes(data)
    for path, error in ((bad, SealRefused), (tmp_path / "nothing", InvalidArgs), (tmp_path, InvalidArgs)):
        with pytest.raises(error):
            store_snapshot(view, "bad", path, MODULE, keys=RING)
    with pytest.raises(WrongModule):
        store_snapshot(view, "bad", whole, b"another", keys=RING)
    assert view.store.names(view.tenant).keys() == {"whole", "added"}
    assert view.store.usage(view.tenant).count == 3


def test_a_module_that_an_instance_does_not_run_is_not_kept_with_it(function, view):
    with function.open() as live, pytest.raises(WrongModule):
        store_snapshot(view, "state", live, b"another", keys=RING)
    assert view.store.list(view.tenant) == ()


@pytest.mark.rule("8-artifacts")
def test_a_tenant_finds_nothing_of_anothers(function, store, view):
    keep_chain(function, view)
    other = TenantView(store, "bob")
    with pytest.raises(ArtifactNotFound):
        fetch_snapshot(other, "0")
    with function.open() as live, pytest.raises(ArtifactNotFound):
        store_snapshot(other, "mine", live, MODULE, parent="0", keys=RING)
    with fetch_snapshot(view, "0").read(RING) as snapshot, pytest.raises(ArtifactNotFound):
        fetch_module(other, snapshot)


def test_signatures_count_in_a_store_too(function, view):
    keep_chain(function, view)
    with pytest.raises(UnknownKey):
        fetch_snapshot(view, "1").open(KeyRing.of(NEW))
    view.bind("raw", view.put("snapshot", b"no snapshot"))
    with pytest.raises(SealRefused):
        fetch_snapshot(view, "raw").read(RING)


def test_a_name_of_something_else_is_no_snapshot(view):
    view.bind("module", view.put("module", MODULE))
    with pytest.raises(InvalidArgs, match="module"):
        fetch_snapshot(view, "module")


def test_a_parent_that_is_not_the_one_is_refused(function, view):
    keep_chain(function, view)
    with at(function, 8192, 9) as live:
        store_snapshot(view, "other", live, MODULE, keys=RING)
    bytes_of_child = bytes(fetch_snapshot(view, "1").files[0])
    view.unbind("1")
    view.delete(blake3(bytes_of_child))
    view.bind("forged", view.put("snapshot", bytes_of_child, [view.resolve("other")]))
    with pytest.raises(WrongParent):
        fetch_snapshot(view, "forged").open(RING)


def test_no_chain_is_followed_for_ever(view):
    digest = view.put("snapshot", b"0")
    for step in range(MAX_DEPTH):
        digest = view.put("snapshot", b"%d" % (step + 1), [digest])
    view.bind("deep", digest)
    assert len(fetch_snapshot(view, "deep").files) == MAX_DEPTH + 1
    view.bind("deeper", view.put("snapshot", b"deeper", [digest]))
    with pytest.raises(InvalidSnapshot):
        fetch_snapshot(view, "deeper")


@pytest.mark.parametrize("quota", [Quota(len(MODULE) - 1, 9), Quota(len(MODULE) + 1, 9), Quota(1 << 20, 1)])
def test_a_failed_save_leaves_the_name_as_it_was(function, quota):
    view = TenantView(ContentStore(MemoryBackend(), quota), "alice")
    view.bind("state", old := view.put("kernel", b""))
    with function.open() as live, pytest.raises(QuotaExceeded):
        store_snapshot(view, "state", live, MODULE, keys=RING)
    assert view.resolve("state") == old


@pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")
def test_whoever_dies_while_keeping_leaves_the_old_state_or_the_new_one(runtime, function, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    with at(function, 4096, 1) as live:
        store_snapshot(TenantView(ContentStore(DiskBackend(before)), "alice"), "state", live, MODULE, keys=RING)
        live.call("store", [8192, 2])
        seen = set()
        for step in range(1, 200):
            shutil.copytree(before, after)
            calls = DyingCalls(step, late=bool(step % 2))
            try:
                view = TenantView(ContentStore(DiskBackend(after, calls)), "alice")
                store_snapshot(view, "state", live, MODULE, parent="state", keys=RING)
            except Died:
                pass
            store = ContentStore(DiskBackend(after))
            store.collect(0)
            assert store.verify().findings == ()
            view = TenantView(store, "alice")
            seen.add((len(fetch_snapshot(view, "state").files), view.store.usage(view.tenant).count))
            assert loaded(runtime, view, "state", 4096) == [1]
            shutil.rmtree(after)
            if not calls.dead:
                break
    assert not calls.dead
    assert seen == {(1, 2), (2, 3)}


def test_chains_stay_whole_under_a_new_key_and_the_old_one_may_go(runtime, function, store, view):
    keep_chain(function, view, 3)
    hashes = [fetch_snapshot(view, name).open(RING).content_hash for name in "012"]
    both, new = KeyRing.of(NEW, *RING.verifiers.values()), KeyRing.of(NEW)
    done = store.renew(["snapshot"], lambda _, data: renew_snapshot(data, both))
    assert (done.renewed, done.kept, done.findings) == (3, 0, ())
    assert loaded(runtime, view, "2", 4096, 8192, 12288, ring=new) == [1, 2, 3]
    assert [fetch_snapshot(view, name).open(new).content_hash for name in "012"] == hashes
    done = store.renew(["snapshot"], lambda _, data: renew_snapshot(data, new))
    assert (done.renewed, done.kept) == (0, 3)
    view.unbind("0")
    assert store.collect(0).artifacts == ()


@pytest.mark.parametrize("method", ["resolve", "stat", "get"])
def test_a_key_can_be_replaced_while_a_reader_reads(runtime, function, store, view, method):
    keep_chain(function, view)
    both = KeyRing.of(NEW, *RING.verifiers.values())

    class Interrupted(TenantView):
        __slots__ = ()

    def interrupted(self, given):
        found = getattr(TenantView, method)(self, given)
        store.renew(["snapshot"], lambda _, data: renew_snapshot(data, both))
        return found

    setattr(Interrupted, method, interrupted)
    assert loaded(runtime, Interrupted(store, "alice"), "1", 4096, 8192, ring=both) == [1, 2]
