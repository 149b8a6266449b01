"""A backend in an object store: S3, Google Cloud Storage, Azure, and what is compatible with them.

Catalogs are exchanged by conditional puts (``If-Match``, ``If-None-Match``), so any number of machines may share one
store and quotas are exact. `obstore` signs the requests, and finds credentials as each cloud's own tools do.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from tensorwasm.artifacts import catalog
from tensorwasm.artifacts.backends.port import NOTHING, Backend, StoredCatalog, Version, folder_of, tenant_of
from tensorwasm.artifacts.private_files import store_errors
from tensorwasm.artifacts.values import Buffer
from tensorwasm.errors import ArtifactCorrupt, NotSupported

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
_ALLOW_HTTP: Final = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
_RETRY: Final[Mapping[str, object]] = {"max_retries": 4}
LEFT_S: Final = 86400.0
"""Whether a remote writer is alive cannot be known: bytes without an artifact are garbage at this age."""


def connect(url: str) -> ObjectBackend:
    """Return the backend at a URL: a scheme of `SCHEMES`, a bucket or container, a path.

    Raises:
        NotSupported: `obstore` is not installed.
        StoreUnavailable: the URL or the settings of its cloud are invalid.
    """
    try:
        obstore, stores = importlib.import_module("obstore"), importlib.import_module("obstore.store")
    except ImportError:
        raise NotSupported("an object store needs obstore: pip install 'tensor-wasm[s3]'") from None
    # These options replace the library's own variables. Putting one artifact may take minutes.
    plain = any(os.environ.get(variable, "").lower() == "true" for variable in _ALLOW_HTTP)
    options = {"connect_timeout": "5s", "timeout": "300s", "allow_http": plain}
    with store_errors("opened", *_library_errors(obstore)):
        return ObjectBackend(stores.from_url(url, client_options=options, retry_config=_RETRY))


def _library_errors(obstore: Any) -> tuple[type[Exception], ...]:
    return obstore.exceptions.BaseError, ValueError, TypeError


class ObjectBackend(Backend):
    """Catalogs and bytes as objects. The time of the last read is not recorded: each read would be a write too."""

    def __init__(self, place: Any, left_s: float = LEFT_S) -> None:
        """Take an `obstore.store.ObjectStore` with conditional puts, without a request to it.

        ``left_s`` is the age at which bytes without an artifact are garbage.
        """
        self._obstore = importlib.import_module("obstore")
        self._place = place
        self._left_s = left_s

    def tenants(self) -> Iterable[str]:
        """As `Backend.tenants`."""
        with self._errors("listed"):
            folders = self._obstore.list_with_delimiter(self._place)["common_prefixes"]
        found = (tenant_of(folder.rsplit("/", 1)[-1]) for folder in folders)
        return tuple(tenant for tenant in found if tenant and self._has_catalog(tenant))

    def _has_catalog(self, tenant: str) -> bool:
        with self._errors("listed"), suppress(FileNotFoundError):
            self._obstore.head(self._place, self._catalog(tenant))
            return True
        return False

    def load(self, tenant: str, known: Version) -> StoredCatalog | None:
        """As `Backend.load`."""
        options = {"if_none_match": known} if isinstance(known, str) else None
        with self._errors("read"):
            try:
                answer = self._obstore.get(self._place, self._catalog(tenant), options=options)
            except self._obstore.exceptions.NotModifiedError:
                return None
            except FileNotFoundError:
                return NOTHING
            if answer.meta["size"] > catalog.MAX_BYTES:
                raise ArtifactCorrupt("the catalog of a tenant's artifacts is longer than one can be")
            return StoredCatalog(answer.meta["e_tag"], bytes(answer.bytes()))

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        errors = self._obstore.exceptions
        mode = "create" if known is None else {"e_tag": known}
        with self._errors("written"):
            try:
                answer = self._obstore.put(self._place, self._catalog(tenant), data, mode=mode, use_multipart=False)
            except (errors.AlreadyExistsError, errors.PreconditionError):
                # This very catalog may be there: then an answer was lost and the library sent the put again.
                there = self.load(tenant, None)
                return there.version if there and there.data == data else None
            return str(answer["e_tag"])

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`."""
        with self._errors("written"):
            self._obstore.put(self._place, self._blob(tenant, key), memoryview(data).cast("B"))
        yield  # `left_s` keeps it from being a leftover

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """As `Backend.read`."""
        with self._errors("read"), suppress(FileNotFoundError):
            answer = self._obstore.get(self._place, self._blob(tenant, key))
            return memoryview(answer.bytes()) if answer.meta["size"] == stored_bytes else b""
        return None

    def used_ns(self, tenant: str, key: str) -> int | None:  # noqa: ARG002 - not recorded
        """As `Backend.used_ns`."""
        return None

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        self._delete([self._blob(tenant, key) for key in keys])

    def quarantine(self, tenant: str, key: str) -> None:
        """As `Backend.quarantine`."""
        with self._errors("written"), suppress(FileNotFoundError):
            self._obstore.copy(self._place, self._blob(tenant, key), f"{folder_of(tenant)}/aside/{key}")
            self._obstore.delete(self._place, [self._blob(tenant, key)])

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        return tuple(path.rsplit("/", 1)[-1] for path in self._older(tenant, "blobs", time.time() - self._left_s))

    def clear_quarantine(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_quarantine`."""
        old = list(self._older(tenant, "aside", before_ns / 1e9))
        self._delete(old)
        return len(old)

    def _older(self, tenant: str, part: str, before_s: float) -> Iterator[str]:
        with self._errors("listed"):
            for some in self._obstore.list(self._place, f"{folder_of(tenant)}/{part}"):
                yield from (found["path"] for found in some if found["last_modified"].timestamp() < before_s)

    def _delete(self, paths: list[str]) -> None:
        with self._errors("written"):
            if paths:
                self._obstore.delete(self._place, paths)

    @staticmethod
    def _catalog(tenant: str) -> str:
        return f"{folder_of(tenant)}/catalog"

    @staticmethod
    def _blob(tenant: str, key: str) -> str:
        return f"{folder_of(tenant)}/blobs/{key}"

    def _errors(self, doing: str) -> AbstractContextManager[None]:
        return store_errors(doing, *_library_errors(self._obstore))
