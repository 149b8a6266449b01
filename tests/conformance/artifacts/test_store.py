"""One suite over every place that artifacts can be kept in."""

import itertools
import sys

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from strategies.store import store_machine
from tensorwasm.artifacts.packing import KINDS
from tensorwasm.artifacts.store import ContentStore, TenantView
from tensorwasm.artifacts.values import MAX_NAME_BYTES, MAX_REFERENCES, MAX_TENANT_BYTES
from tensorwasm.errors import ArtifactNotFound, InvalidArgs, TooLarge


def test_the_store_behaves_as_its_model(open_backend, request):
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
def test_artifacts_of_another_tenant_do_not_affect_a_put(open_backend):
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
def test_an_invalid_tenant_or_name_is_refused(store, text):
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


def test_data_already_read_stays_whole_after_a_delete(store):
    data = bytes(range(256)) * 8192
    digest = store.put("t", "code", data)
    view = store.get("t", digest)
    store.delete("t", digest)
    assert view == data


def test_a_longer_artifact_than_its_kind_may_be_is_refused_before_it_is_hashed(store, monkeypatch):
    monkeypatch.setitem(vars(sys.modules["tensorwasm.artifacts.store"]), "blake3", lambda _: pytest.fail("hashed"))
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
    assert (view.resolve("main"), bytes(view.get(digest)), view.store.usage(view.tenant).count) == (digest, b"m", 1)
    assert view.store.names(view.tenant) == {"main": digest}
    assert view.stat(digest) == view.store.list(view.tenant)[0]
    view.unbind("main")
    view.delete(digest)
    assert store.list("t") == ()
