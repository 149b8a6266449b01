"""What only an object store does; the suite over every place is in tests/conformance/artifacts."""

import sys

import pytest

from tensorwasm.artifacts.backends import objects
from tensorwasm.artifacts.backends.objects import ObjectBackend, connect
from tensorwasm.artifacts.catalog import EMPTY, encode
from tensorwasm.artifacts.store import ContentStore
from tensorwasm.errors import NotSupported, StoreUnavailable

stores = pytest.importorskip("obstore.store", reason="obstore is not installed: pip install 'tensor-wasm[s3]'")

KEY = f"{bytes(32).hex()}-{bytes(8).hex()}"
FIRST, SECOND, THIRD = (encode(EMPTY, bytes([n]) * 16) for n in range(3))


@pytest.fixture
def place():
    return ObjectBackend(stores.MemoryStore())


def test_an_exchange_whose_answer_was_lost_succeeds(place):
    """The library sends a put again when no answer comes; the second is refused because the first was done."""
    first = place.swap("t", None, FIRST)
    assert place.swap("t", None, FIRST) == first
    second = place.swap("t", first, SECOND)
    assert place.swap("t", first, SECOND) == second


def test_an_exchange_after_another_one_fails(place):
    first = place.swap("t", None, FIRST)
    assert place.swap("t", None, SECOND) is None
    assert place.swap("t", first, SECOND) is not None
    assert place.swap("t", first, THIRD) is None
    assert place.load("t", None).data == SECOND


def test_a_known_catalog_is_not_sent_again(place):
    version = place.swap("t", None, FIRST)
    assert place.load("t", version) is None
    assert place.load("t", None).version == version


def test_bytes_without_an_artifact_are_leftovers_only_when_they_are_old(place):
    with place.write("t", KEY, b"not told of"):
        assert place.leftovers("t") == ()
    assert place.leftovers("t") == ()
    place._left_s = -1
    assert place.leftovers("t") == (KEY,)
    place.swap("t", None, FIRST)
    assert ContentStore(place).collect(0).leftovers == 1
    assert place.leftovers("t") == ()


def test_longer_bytes_than_were_written_are_not_read(place):
    with place.write("t", KEY, b"ten bytes."):
        pass
    assert place.read("t", KEY, 10) == b"ten bytes."
    assert place.read("t", KEY, 9) == b""


def test_an_unreachable_store_is_reported_without_its_address(monkeypatch):
    monkeypatch.setattr(objects, "_RETRY", {"max_retries": 0})
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    store = ContentStore(connect("s3://bucket"))
    for use in (lambda: store.put("t", "module", b"m"), store.tenants, lambda: store.list("t")):
        with pytest.raises(StoreUnavailable) as caught:
            use()
        assert "127.0.0.1" not in caught.value.message
        assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["s3://", "gs:///", "az://", "s3:", "s3://bucket?nonsense=1\0"])
def test_an_invalid_url_is_refused(url, monkeypatch):
    monkeypatch.setattr(objects, "_RETRY", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(StoreUnavailable):
        ContentStore(connect(url)).list("t")


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotSupported, match=r"tensor-wasm\[s3\]"):
        connect("s3://bucket")
