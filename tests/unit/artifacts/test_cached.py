"""Copies nearby; the suite over every place is in tests/conformance/artifacts."""

import os
import sys

import pytest

from fakes.calls import FailingCalls
from tensorwasm import settings
from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.backends.memory import MemoryBackend
from tensorwasm.artifacts.caches import CachedBackend, DiskCache
from tensorwasm.artifacts.opening import open_backend, open_store
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.artifacts.values import Quota
from tensorwasm.errors import ArtifactNotFound, InvalidArgs, QuotaExceeded

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")


class Far(MemoryBackend):
    """Counts what is read of it."""

    reads = 0

    def read(self, *arguments):
        self.reads += 1
        return super().read(*arguments)


@pytest.fixture
def far():
    return Far()


def test_cached_bytes_are_not_read_from_the_remote_backend(tmp_path, far):
    store = ContentStore(CachedBackend(DiskCache(tmp_path / "near", 1000), far))
    digest = store.put("t", "code", b"x" * 100)
    assert store.get("t", digest) == b"x" * 100
    assert far.reads == 0
    elsewhere = ContentStore(CachedBackend(DiskCache(tmp_path / "other", 1000), far))
    for _ in range(3):
        assert elsewhere.get("t", digest) == b"x" * 100
    assert far.reads == 1


def test_an_artifact_deleted_by_another_process_is_gone_despite_a_copy(tmp_path, far):
    here, there = (ContentStore(CachedBackend(DiskCache(tmp_path / name, 1000), far)) for name in ("here", "there"))
    digest = here.put("t", "code", b"x" * 100)
    there.delete("t", digest)
    assert here.list("t") == ()
    with pytest.raises(ArtifactNotFound):
        here.get("t", digest)


def test_the_cache_keeps_its_capacity_and_deletes_the_oldest(tmp_path):
    near = DiskCache(tmp_path / "near", 1000)
    for n in range(8):
        near.keep("t", f"key{n}", bytes([n]) * 100)
        os.utime(tmp_path / "near" / "t" / f"key{n}", (n, n))
    near.keep("u", "large", bytes(400))
    kept = {path.name for path in (tmp_path / "near").rglob("*") if path.is_file()}
    assert kept == {"key4", "key5", "key6", "key7", "large"}
    near.keep("u", "too large", bytes(1001))
    assert near.find("u", "too large", 1001) is None
    assert near.find("t", "key7", 100) == bytes([7]) * 100


@pytest.mark.parametrize("at", range(1, 15))
def test_a_copy_that_cannot_be_made_is_no_error(tmp_path, far, at):
    near = DiskCache(tmp_path / "near", 1000)
    near._calls = FailingCalls(at)
    store = ContentStore(CachedBackend(near, far))
    digest = store.put("t", "code", b"x" * 100)
    assert store.get("t", digest) == b"x" * 100
    assert near._calls.opened == {}


@pytest.mark.parametrize("where", ["{}/a/b", "file://{}/a/b"])
def test_a_folder_is_opened_by_path_or_url(tmp_path, where):
    place = open_backend(where.format(tmp_path))
    assert isinstance(place, DiskBackend)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_memory_is_a_backend():
    assert isinstance(open_backend("memory:"), MemoryBackend)


@pytest.mark.parametrize("where", ["ftp://host/x", "http://host/x", ":x", "data:x"])
def test_an_unknown_scheme_is_refused(where):
    with pytest.raises(InvalidArgs):
        open_backend(where)


def test_an_object_store_is_cached_in_the_cache_folder(tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'tensor-wasm[s3]'")
    monkeypatch.setattr(settings, "cache_dir", lambda: tmp_path)
    place = open_backend("s3://bucket/prefix")
    assert isinstance(place, CachedBackend)
    assert (tmp_path / "artifacts").is_dir()


def test_location_and_quotas_come_from_the_settings(tmp_path, monkeypatch):
    said = settings.Settings.from_environment(
        {
            "TENSOR_WASM_ARTIFACTS": str(tmp_path / "said"),
            "TENSOR_WASM_ARTIFACTS_QUOTA": "1",
            "TENSOR_WASM_ARTIFACTS_COUNT": "2",
        }
    )
    monkeypatch.setattr(settings, "current", lambda: said)
    store = open_store()
    assert (tmp_path / "said").is_dir()
    with pytest.raises(QuotaExceeded, match="1048576"):
        store.put("t", "code", bytes((1 << 20) + 1))
    for n in range(2):
        store.put("t", "code", bytes([n]))
    with pytest.raises(QuotaExceeded, match="at most 2"):
        store.put("t", "code", b"third")
    assert store._quota("t") == Quota(1 << 20, 2)
