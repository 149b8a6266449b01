"""One suite over every place that artifacts can be kept in."""

import importlib.util
import itertools
import sys
import threading
import urllib.request

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fakes import s3_server
from strategies.store import outcome, store_machine
from tensorwasm.artifacts.content import ContentStore
from tensorwasm.artifacts.disk import DiskBackend
from tensorwasm.artifacts.hashing import blake3
from tensorwasm.artifacts.kinds import KINDS
from tensorwasm.artifacts.layered import Layered, NearFolder
from tensorwasm.artifacts.memory import MemoryBackend
from tensorwasm.artifacts.objects import ObjectBackend, connect
from tensorwasm.artifacts.store import MAX_NAME_BYTES, MAX_REFERENCES, MAX_TENANT_BYTES, Quota, TenantView
from tensorwasm.errors import (
    ArtifactCorrupt,
    ArtifactNotFound,
    InvalidArgs,
    InvalidSnapshot,
    QuotaExceeded,
    TensorWasmError,
    TooLarge,
)

posix = pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")


def memory(_folder):
    return MemoryBackend()


def disk(folder):
    return DiskBackend(folder / "store")


def objects(_folder):
    stores = pytest.importorskip("obstore.store", reason="obstore is not installed: pip install 'tensor-wasm[s3]'")
    return ObjectBackend(stores.MemoryStore())


def layered(folder):
    return Layered(NearFolder(folder / "near", 300), objects(folder))


def s3(folder):
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in s3.environment.items():
            patch.setenv(variable, value)
        return connect(f"s3://{s3_server.BUCKET}/under/{folder.name}")


PLACES = [memory, pytest.param(disk, marks=posix), objects, pytest.param(layered, marks=posix), s3]


@pytest.fixture(scope="session")
def s3_environment():
    missing = [name for name in ("obstore", "moto", "flask", "flask_cors") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"NO OBJECT STORE TESTED: {', '.join(missing)} not installed; pip install 'tensor-wasm[dev]'")
    with s3_server.running() as environment:
        request = urllib.request.Request(f"{environment['AWS_ENDPOINT_URL']}/{s3_server.BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield environment


@pytest.fixture(params=PLACES, ids=lambda place: place.__name__)
def open_backend(request, tmp_path_factory):
    if request.param is s3:
        s3.environment = request.getfixturevalue("s3_environment")
    return lambda: request.param(tmp_path_factory.mktemp("place"))


@pytest.fixture
def backend(open_backend):
    return open_backend()


@pytest.fixture
def store(backend):
    return ContentStore(backend)


def test_it_does_what_the_model_does(open_backend, request):
    examples = 4 if "[s3]" in request.node.name else 25  # some 5 ms a request
    run_state_machine_as_test(
        store_machine(open_backend), settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )


@pytest.mark.rule("8-artifacts")
def test_the_same_bytes_of_two_tenants_have_nothing_to_do_with_each_other(store):
    secret = b"of one tenant" * 1000
    digest = store.put("one", "module", secret)
    store.bind("one", "main", digest)
    for use in (store.get, store.stat, store.delete):
        with pytest.raises(ArtifactNotFound):
            use("two", digest)
    with pytest.raises(ArtifactNotFound):
        store.bind("two", "main", digest)
    with pytest.raises(ArtifactNotFound):
        store.put("two", "snapshot", b"refers", [digest])
    with pytest.raises(ArtifactNotFound):
        store.resolve("two", "main")
    assert (store.list("two"), store.names("two"), store.usage("two").count) == ((), {}, 0)
    assert store.put("two", "module", secret) == digest
    assert store.usage("two").artifact_bytes == len(secret)  # charged in full, whoever has them too
    store.delete("two", digest)
    assert store.get("one", digest) == secret


class _Told:
    """A place that writes down what it was asked."""

    def __init__(self, backend):
        self._backend = backend
        self.asked = []

    def __getattr__(self, name):
        value = getattr(self._backend, name)
        if not callable(value):
            return value

        def ask(tenant, *arguments):
            self.asked.append((name, tenant))
            return value(tenant, *arguments)

        return ask


@pytest.mark.rule("8-artifacts")
def test_what_another_tenant_has_changes_nothing_of_what_a_put_does(open_backend):
    asked = []
    for others in ((), ("one",)):
        told = _Told(open_backend())
        store = ContentStore(told)
        for other in others:
            store.put(other, "module", b"the same" * 100)
        told.asked.clear()
        digest = store.put("two", "module", b"the same" * 100)
        store.get("two", digest)
        asked.append(told.asked)
    assert asked[0] == asked[1]
    assert {tenant for _, tenant in asked[0]} == {"two"}


HOSTILE = [
    "..",
    ".",
    "/",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "con",
    "lock",
    "catalog",
    "blobs",
    "-rf",
    "%2e%2e",
    "_2e",
    "A",
    "a",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "e\N{COMBINING ACUTE ACCENT}",
    "\u202egnp.exe",
    " ",
    "\n",
    "x" * MAX_TENANT_BYTES,
    "\N{SNOWMAN}" * (MAX_TENANT_BYTES // 3),
]


def test_hostile_tenants_are_tenants_like_all_others(store):
    digests = {tenant: store.put(tenant, "module", tenant.encode()) for tenant in HOSTILE}
    assert set(store.tenants()) == set(HOSTILE)
    for tenant in HOSTILE:
        assert [stat.digest for stat in store.list(tenant)] == [digests[tenant]]
        assert store.get(tenant, digests[tenant]) == tenant.encode()


def test_hostile_names_are_names_like_all_others(store):
    digest = store.put("t", "module", b"m")
    names = [*HOSTILE, "x" * MAX_NAME_BYTES]
    for name in names:
        store.bind("t", name, digest)
    assert set(store.names("t")) == set(names)
    assert all(store.resolve("t", name) == digest for name in names)


@pytest.mark.parametrize("text", ["", "\ud800", "x" * 1000])
def test_what_cannot_be_a_tenant_or_a_name_is_refused(store, text):
    digest = store.put("t", "module", b"m")
    with pytest.raises(InvalidArgs):
        store.put(text, "module", b"m")
    with pytest.raises(InvalidArgs):
        store.get(text, digest)
    with pytest.raises(InvalidArgs):
        store.bind("t", text, digest)


def test_an_artifact_is_described_without_being_read(store):
    module = store.put("t", "module", b"module" * 1000)
    snapshot = store.put("t", "snapshot", b"s", [module, module])
    stat = store.stat("t", snapshot)
    assert (stat.kind, stat.size_bytes, stat.refers_to) == ("snapshot", 1, (module,))
    assert store.stat("t", module).stored_bytes < 600  # compressed
    assert 0 < stat.made_ns <= stat.used_ns
    assert {stat.digest for stat in store.list("t")} == {module, snapshot}


@pytest.mark.parametrize("length", [0, 1, 4095, 1 << 20, (5 << 20) + 3])
def test_bytes_come_back_read_only_whatever_their_length_and_kind(store, length):
    data = bytes(itertools.islice(itertools.cycle(b"0123456789abcde"), length))
    for tenant, kind in (("t", "code"), ("u", "module")):
        view = store.get(tenant, store.put(tenant, kind, bytearray(data)))
        assert view.readonly
        assert view == data


def test_what_was_got_stays_whole_when_the_artifact_goes(store):
    data = bytes(range(256)) * 8192
    digest = store.put("t", "code", data)
    view = store.get("t", digest)
    store.delete("t", digest)
    assert view == data


def test_a_longer_artifact_than_its_kind_may_be_is_refused_before_it_is_hashed(store, monkeypatch):
    monkeypatch.setitem(vars(sys.modules["tensorwasm.artifacts.content"]), "blake3", lambda _: pytest.fail("hashed"))
    with pytest.raises(TooLarge):
        store.put("t", "kernel", bytes(KINDS["kernel"].max_bytes + 1))


def test_too_many_references_are_refused(store):
    with pytest.raises(InvalidArgs, match="refers to at most"):
        store.put("t", "snapshot", b"s", [bytes([n % 256, n // 256]) * 16 for n in range(MAX_REFERENCES + 1)])


@pytest.mark.parametrize("grace_s", [-1, float("nan"), float("inf")])
def test_a_grace_that_is_no_time_is_refused(store, grace_s):
    with pytest.raises(InvalidArgs):
        store.collect(grace_s)


def test_a_tenants_view_is_the_store_without_the_others(store):
    view = TenantView(store, "t")
    digest = view.put("module", b"m")
    view.bind("main", digest)
    assert (view.resolve("main"), bytes(view.get(digest)), view.usage().count) == (digest, b"m", 1)
    assert view.names() == {"main": digest}
    assert view.stat(digest) == view.list()[0]
    view.unbind("main")
    view.delete(digest)
    assert store.list("t") == ()


# Damage


def _key(store, tenant="t"):
    """Return the key of a tenant's only artifact."""
    (entry,) = store._load(tenant)[1].artifacts.values()
    return entry.blob


def _damage(store, change, tenant="t"):
    """Change the bytes of a tenant's only artifact where they are kept, and in no copy of them."""
    place, key = store._backend.truth, _key(store, tenant)
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
    backend = open_backend().truth
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


def test_whatever_bit_is_flipped_no_wrong_byte_is_given_out():
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


@posix
def test_a_damaged_copy_is_thrown_away_and_the_original_given_out(tmp_path):
    backend = layered(tmp_path)
    store = ContentStore(backend)
    digest = store.put("t", "module", b"m" * 100)
    copy = tmp_path / "near" / "t" / _key(store)
    copy.chmod(0o600)
    copy.write_bytes(b"rot")
    assert store.get("t", digest) == b"m" * 100
    assert len(copy.read_bytes()) == store.stat("t", digest).stored_bytes  # a new copy
    assert store.verify().ok


def test_putting_again_mends_what_nobody_had_noticed(backend):
    store = ContentStore(backend)
    digest = store.put("t", "module", b"m" * 100)
    _damage(store, _flip)
    if isinstance(backend, Layered):
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


# Renewing


def test_what_is_renewed_keeps_its_names_and_references(store):
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


def test_what_becomes_the_same_becomes_one(store):
    store.bind("t", "a", store.put("t", "snapshot", b"1"))
    store.bind("t", "b", store.put("t", "snapshot", b"2"))
    assert store.renew(["snapshot"], lambda *_: b"one").renewed == 2
    assert store.names("t") == {"a": blake3(b"one"), "b": blake3(b"one")}
    assert store.usage("t").artifact_bytes == 3


def test_a_full_quota_does_not_hold_up_a_renewal(backend):
    store = ContentStore(backend, lambda _: Quota(artifact_bytes=4, count=1))
    store.put("t", "snapshot", b"full")
    assert store.renew(["snapshot"], lambda *_: b"longer than that").renewed == 1


# Threads


def _together(*actions):
    """Run actions at the same time, and return what they raised."""
    errors = []
    gate = threading.Barrier(len(actions))

    def run(action):
        gate.wait()
        try:
            action()
        except TensorWasmError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_quotas_are_exact_under_contention(backend):
    stores = [
        ContentStore(backend, lambda _: Quota(artifact_bytes=130, count=100)) for _ in range(4)
    ]  # as if processes

    def fill(number):
        for n in range(8):
            stores[number % 4].put("t", "module", bytes([number, n]) * 5)

    errors = _together(*(lambda number=number: fill(number) for number in range(8)))
    assert {type(error) for error in errors} == {QuotaExceeded}
    assert stores[0].usage("t").artifact_bytes == 130
    assert stores[0].verify().count == 13
    assert stores[0].collect(0).leftovers == 0


def test_the_same_bytes_put_at_once_are_one_artifact(backend):
    stores = [ContentStore(backend) for _ in range(4)]
    assert _together(*(lambda s=s: s.put("t", "module", b"same" * 100) for s in stores * 2)) == []
    assert stores[0].usage("t").count == 1
    assert stores[0].verify().findings[0].state == "unreachable"
    assert len(backend.truth.leftovers("t")) <= 1


def test_what_was_just_put_is_never_collected(backend):
    clock = itertools.count(10**18, 100 * 10**9)
    now_ns = [next(clock)]
    putting, collecting = (ContentStore(backend, now_ns=lambda: now_ns[0]) for _ in range(2))
    done = threading.Event()

    def put():
        try:
            for _ in range(40):
                now_ns[0] = next(clock)  # what is there is old now, and put again at the same moment as collected
                digest = putting.put("t", "module", b"again and again")
                assert putting.get("t", digest) == b"again and again"
                putting.delete("t", putting.put("t", "module", b"another"))
        finally:
            done.set()

    def collect():
        while not done.is_set():
            collecting.collect(60)

    assert _together(put, collect) == []
