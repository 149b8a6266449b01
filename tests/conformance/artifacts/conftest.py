"""Every place that artifacts can be kept in, each empty and new."""

import importlib.util
import sys
import urllib.request

import pytest

from fakes import s3_server
from tensorwasm.artifacts.backends.disk import DiskBackend
from tensorwasm.artifacts.backends.memory import MemoryBackend
from tensorwasm.artifacts.backends.objects import ObjectBackend, connect
from tensorwasm.artifacts.caches import CachedBackend, DiskCache
from tensorwasm.artifacts.store import ContentStore

posix = pytest.mark.skipif(sys.platform == "win32", reason="artifacts on disk need flock")


def memory(_folder):
    return MemoryBackend()


def disk(folder):
    return DiskBackend(folder / "store")


def objects(_folder):
    stores = pytest.importorskip("obstore.store", reason="obstore is not installed: pip install 'tensor-wasm[s3]'")
    return ObjectBackend(stores.MemoryStore())


def layered(folder):
    return CachedBackend(DiskCache(folder / "near", 300), objects(folder))


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
