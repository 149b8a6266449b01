import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.artifacts import catalog
from tensorwasm.artifacts.backends.memory import MemoryBackend
from tensorwasm.artifacts.backends.port import folder_of, tenant_of
from tensorwasm.artifacts.catalog import CatalogEntry, TenantCatalog
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import ArtifactCorrupt, QuotaExceeded

HASHES = st.binary(min_size=32, max_size=32)
KEYS = st.from_regex("[0-9a-f]{64}-[0-9a-f]{16}", fullmatch=True)
SIZES = st.integers(0, (1 << 63) - 1)
ENTRIES = st.builds(
    CatalogEntry,
    kind=st.text(max_size=9),
    size_bytes=SIZES,
    stored_bytes=SIZES,
    encoding=st.sampled_from(["raw", "zstd"]),
    blob=KEYS,
    made_ns=SIZES,
    refers_to=st.lists(HASHES, max_size=3).map(tuple),
)
CATALOGS = st.builds(
    TenantCatalog,
    artifacts=st.dictionaries(HASHES, ENTRIES, max_size=4),
    names=st.dictionaries(st.text(), HASHES, max_size=4),
)
VERSION = bytes(range(16))


def entry(blob="0" * 64 + "-" + "0" * 16, made_ns=0, refers_to=(), size_bytes=1):
    return CatalogEntry("module", size_bytes, size_bytes, "raw", blob, made_ns, refers_to)


@given(CATALOGS)
def test_a_catalog_comes_back_as_it_was(kept):
    data = catalog.encode(kept, VERSION)
    assert catalog.decode(data) == kept
    assert catalog.version_of(data) == VERSION


@given(CATALOGS, st.data())
def test_a_catalog_that_was_changed_anywhere_is_refused(kept, data):
    whole = bytearray(catalog.encode(kept, VERSION))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ArtifactCorrupt):
        catalog.decode(bytes(whole))


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_catalog_are_refused(data):
    with pytest.raises(ArtifactCorrupt):
        catalog.decode(data)


@pytest.mark.parametrize(
    "blob", ["../../../etc/passwd", "", "0" * 64 + "-" + "0" * 16 + "/x", "0" * 64 + "-" + "0" * 16 + "\n"]
)
def test_a_catalog_that_leads_out_of_its_folder_is_refused(blob):
    with pytest.raises(ArtifactCorrupt):
        catalog.decode(catalog.encode(TenantCatalog({bytes(32): entry(blob)}), VERSION))


@pytest.mark.parametrize("change", [{"size_bytes": -1}, {"made_ns": "now"}, {"refers_to": (b"short",)}])
def test_a_catalog_of_another_shape_is_refused(change):
    odd = msgspec.structs.replace(entry(), **change)
    with pytest.raises(ArtifactCorrupt):
        catalog.decode(catalog.encode(TenantCatalog({bytes(32): odd}), VERSION))


@given(st.text(min_size=1, max_size=30).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_a_tenants_folder_is_plain_and_leads_back_to_it(tenant):
    folder = folder_of(tenant)
    assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    assert tenant_of(folder) == tenant


@pytest.mark.parametrize("folder", ["", "_", "_4", "_zz", "A", "_61", "..", "_2E", "_ff", "a_"])
def test_other_folders_belong_to_no_tenant(folder):
    assert tenant_of(folder) is None


def test_young_artifacts_keep_their_references_and_old_cycles_are_collected():
    a, b, c, d = (bytes([n]) * 32 for n in range(4))
    kept = TenantCatalog(
        {
            a: entry(made_ns=0),
            b: entry(made_ns=100, refers_to=(a,)),
            c: entry(made_ns=0, refers_to=(d,)),
            d: entry(made_ns=0, refers_to=(c,)),  # no hash refers to itself, but a catalog could say so
        }
    )
    assert set(kept.sweeping(100).artifacts) == {a, b}
    assert set(kept.sweeping(101).artifacts) == set()
    assert kept.reached([c]) == {c, d}


def test_making_an_artifact_new_never_makes_it_older():
    assert entry(made_ns=100).renewed(50).made_ns == 100


def test_a_name_that_is_there_can_be_moved_when_no_more_fit():
    kept = TenantCatalog({bytes(32): entry()}, {"a": bytes(32)})
    assert kept.binding("a", bytes(32), Quota(count=1)) == kept


def test_a_catalog_longer_than_its_cap_is_not_written(monkeypatch):
    store = ContentStore(MemoryBackend())
    digest = store.put("t", "module", b"m")
    monkeypatch.setattr(catalog, "MAX_BYTES", 500)
    with pytest.raises(QuotaExceeded):
        store.bind("t", "n" * 400, digest)
    assert store.list("t")[0].digest == digest
