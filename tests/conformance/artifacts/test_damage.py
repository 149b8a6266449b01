"""What is damaged, in every place: found, set aside, mended; and what is renewed on the way."""

import sys

import pytest

from strategies.store import outcome
from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.backends.memory import MemoryBackend
from tensorwasm.artifacts.caches import CachedBackend, DiskCache
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import ArtifactCorrupt, InvalidSnapshot


def _key(store, tenant="t"):
    """Return the key of a tenant's only artifact."""
    (entry,) = store._load(tenant)[1].artifacts.values()
    return entry.blob


def _damage(store, change, tenant="t"):
    """Change the bytes of a tenant's only artifact where they are kept, and in no copy of them."""
    place, key = store._backend.origin, _key(store, tenant)
    if isinstance(place, DiskBackend):
        path = place._home(tenant) / "blobs" / key
        path.chmod(0o600)
        path.write_bytes(change(path.read_bytes()))
    elif isinstance(place, MemoryBackend):
        place._blobs[tenant, key] = change(place._blobs[tenant, key])
    else:
        path = place._blob(tenant, key)
        obstore = place._obstore
        obstore.put(place._place, path, change(bytes(obstore.get(place._place, path).bytes())))


def _flip(data):
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGE = [_flip, lambda data: data[:-1], lambda data: data + b"\0", lambda _: b"", lambda data: bytes(len(data))]


@pytest.mark.parametrize("kind", ["module", "code"])
@pytest.mark.parametrize("change", DAMAGE)
def test_damaged_bytes_are_set_aside_reported_and_mended_by_putting_them_again(open_backend, change, kind):
    backend = open_backend().origin
    store = ContentStore(backend)
    data = b"precious" * 500
    digest = store.put("t", kind, data)
    store.bind("t", "main", digest)
    _damage(store, change)
    assert [(f.state, f.digest) for f in store.verify().findings] == [("corrupt", digest)]
    for _ in range(2):  # also once it is set aside
        with pytest.raises(ArtifactCorrupt):
            store.get("t", digest)
    assert [(f.state, f.digest) for f in store.verify().findings] == [("missing", digest)]
    assert store.put("t", kind, data) == digest
    assert store.get("t", digest) == data
    assert store.verify().ok
    assert store.usage("t").artifact_bytes == len(data)
    assert store.resolve("t", "main") == digest


def test_a_flipped_bit_never_gives_a_wrong_byte():
    backend = MemoryBackend()
    store = ContentStore(backend)
    data = b"abcdefgh" * 64
    digest = store.put("t", "module", data)
    key = _key(store)
    whole = backend._blobs["t", key]
    assert len(whole) < 100
    outcomes = set()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        backend._blobs["t", key] = bytes(flipped)
        outcomes.add(outcome(store.get, "t", digest))
    assert outcomes <= {ArtifactCorrupt, data}  # a frame has bits that mean nothing


@pytest.mark.skipif(sys.platform == "win32", reason="copies on disk need flock")
def test_a_damaged_copy_is_thrown_away_and_the_original_given_out(tmp_path):
    backend = CachedBackend(DiskCache(tmp_path / "near", 300), MemoryBackend())
    store = ContentStore(backend)
    digest = store.put("t", "module", b"m" * 100)
    copy = tmp_path / "near" / "t" / _key(store)
    copy.chmod(0o600)
    copy.write_bytes(b"rot")
    assert store.get("t", digest) == b"m" * 100
    assert len(copy.read_bytes()) == store.stat("t", digest).stored_bytes  # a new copy
    assert store.verify().ok


def test_putting_again_repairs_undetected_damage(backend):
    store = ContentStore(backend)
    digest = store.put("t", "module", b"m" * 100)
    _damage(store, _flip)
    if isinstance(backend, CachedBackend):
        backend._near.drop("t", _key(store))
    store.put("t", "module", b"m" * 100)
    assert store.verify().findings[0].state == "unreachable"
    assert store.get("t", digest) == b"m" * 100


def test_a_verification_finds_everything_and_changes_nothing(store):
    bad = {}
    for tenant in ("a", "b"):
        bad[tenant] = store.put(tenant, "module", tenant.encode() * 50)
        _damage(store, _flip, tenant)
    for tenant in ("a", "b"):
        good = store.put(tenant, "module", b"good")
        store.bind(tenant, "good", good)
        store.bind(tenant, "bad", bad[tenant])
    told = []
    found = store.verify(lambda *numbers: told.append(numbers))
    assert {(f.tenant, f.digest, f.state) for f in found.findings} == {(t, bad[t], "corrupt") for t in ("a", "b")}
    assert (found.count, found.ok) == (4, False)
    assert told[-1] == (found.artifact_bytes, found.artifact_bytes)
    assert store.verify() == found


def test_a_renewed_artifact_keeps_its_names_and_references(store):
    parent = store.put("t", "snapshot", b"1:parent")
    child = store.put("t", "snapshot", b"1:child", [parent])
    module = store.put("t", "module", b"1:module")
    other = store.put("u", "snapshot", b"2:other")
    store.bind("t", "latest", child)
    done = store.renew(["snapshot"], lambda _, old: b"2:" + bytes(old[2:]) if old[:2] == b"1:" else None)
    assert (done.renewed, done.kept, done.findings) == (2, 1, ())
    assert {stat.digest for stat in store.list("t")} == {blake3(b"2:parent"), blake3(b"2:child"), module}
    assert store.resolve("t", "latest") == blake3(b"2:child")
    assert store.stat("t", blake3(b"2:child")).refers_to == (blake3(b"2:parent"),)
    assert store.list("u")[0].digest == other
    assert store.verify().ok


def test_a_renewal_goes_on_after_what_it_cannot_renew(store):
    store.put("t", "snapshot", b"bad signature")
    store.put("t", "snapshot", b"good")

    def renew(_, old):
        if old == b"bad signature":
            raise InvalidSnapshot("the signature is wrong")
        return b"better"

    done = store.renew(["snapshot"], renew)
    assert (done.renewed, done.findings[0].state) == (1, "refused")
    assert {bytes(store.get("t", stat.digest)) for stat in store.list("t")} == {b"bad signature", b"better"}


def test_artifacts_that_become_equal_become_one(store):
    store.bind("t", "a", store.put("t", "snapshot", b"1"))
    store.bind("t", "b", store.put("t", "snapshot", b"2"))
    assert store.renew(["snapshot"], lambda *_: b"one").renewed == 2
    assert store.names("t") == {"a": blake3(b"one"), "b": blake3(b"one")}
    assert store.usage("t").artifact_bytes == 3


def test_a_full_quota_does_not_hold_up_a_renewal(backend):
    store = ContentStore(backend, Quota(artifact_bytes=4, count=1))
    store.put("t", "snapshot", b"full")
    assert store.renew(["snapshot"], lambda *_: b"longer than that").renewed == 1
