"""A place in an object store: S3, Google Cloud Storage, Azure, and what speaks like them.

Catalogs are exchanged by conditional puts (``If-Match``, ``If-None-Match``), so any number of machines may share one
place and quotas are exact. The requests are signed by `obstore`, which finds credentials as each cloud's own tools do.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tensorwasm.artifacts import catalog
from tensorwasm.artifacts.backend import NOTHING, Loaded, Version, folder_of, tenant_of
from tensorwasm.artifacts.store import Buffer
from tensorwasm.errors import ArtifactCorrupt, NotSupported, StoreUnavailable

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")
_PLAIN: Final = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP")
_RETRY: Final[Mapping[str, object]] = {"max_retries": 4}
LEFT_S: Final = 86400.0
"""Nobody can tell whether a writer far away is alive: bytes without an artifact are garbage when they are this old."""


def connect(url: str) -> ObjectBackend:
    """Return the place at a URL: a scheme of `SCHEMES`, a bucket or container, a path.

    Raises:
        NotSupported: `obstore` is not installed.
        StoreUnavailable: the URL or the settings of its cloud make no sense.
    """
    try:
        obstore = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError:
        raise NotSupported("an object store needs obstore: pip install 'tensor-wasm[s3]'") from None
    with _told(obstore, "opened"):
        return ObjectBackend(stores.from_url(url, client_options=_client(os.environ), retry_config=_RETRY))


def _client(environment: Mapping[str, str]) -> dict[str, object]:
    """Return how to speak: an artifact may take minutes, and options take the place of the library's own variables."""
    plain = any(environment.get(variable, "").lower() == "true" for variable in _PLAIN)
    return {"connect_timeout": "5s", "timeout": "300s", "allow_http": plain}


@contextmanager
def _told(obstore: Any, doing: str) -> Iterator[None]:
    """Let the library's errors inside be `StoreUnavailable`; its texts have host names and belong into a log."""
    try:
        yield
    except (obstore.exceptions.BaseError, OSError, ValueError, TypeError) as error:
        raise StoreUnavailable(f"the artifact store cannot be {doing}: {type(error).__name__}") from error


class ObjectBackend:
    """Catalogs and bytes as objects. When something was last read is not recorded: each read would be a write too.

    Args:
        place: an `obstore.store.ObjectStore`, with conditional puts.
        left_s: age at which bytes without an artifact are garbage.
    """

    def __init__(self, place: Any, left_s: float = LEFT_S) -> None:
        """Open the place; nothing is asked of it yet."""
        self._obstore = importlib.import_module("obstore")
        self._place = place
        self._left_s = left_s

    @property
    def truth(self) -> ObjectBackend:
        """Itself."""
        return self

    def tenants(self) -> Iterable[str]:
        """As `Backend.tenants`."""
        with self._told("listed"):
            folders = self._obstore.list_with_delimiter(self._place)["common_prefixes"]
        found = (tenant_of(folder.rsplit("/", 1)[-1]) for folder in folders)
        return tuple(tenant for tenant in found if tenant and self._has_catalog(tenant))

    def _has_catalog(self, tenant: str) -> bool:
        with self._told("listed"):
            try:
                self._obstore.head(self._place, self._catalog(tenant))
            except FileNotFoundError:
                return False
            return True

    def load(self, tenant: str, known: Version) -> Loaded | None:
        """As `Backend.load`."""
        options = {"if_none_match": known} if isinstance(known, str) else None
        with self._told("read"):
            try:
                answer = self._obstore.get(self._place, self._catalog(tenant), options=options)
            except self._obstore.exceptions.NotModifiedError:
                return None
            except FileNotFoundError:
                return NOTHING
            if answer.meta["size"] > catalog.MAX_BYTES:
                raise ArtifactCorrupt("the catalog of a tenant's artifacts is longer than one can be")
            return Loaded(answer.meta["e_tag"], bytes(answer.bytes()))

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        errors = self._obstore.exceptions
        mode = "create" if known is None else {"e_tag": known}
        with self._told("written"):
            try:
                answer = self._obstore.put(self._place, self._catalog(tenant), data, mode=mode, use_multipart=False)
            except (errors.AlreadyExistsError, errors.PreconditionError):
                return self._mine(tenant, data)
            return str(answer["e_tag"])

    def _mine(self, tenant: str, data: bytes) -> Version:
        """Return a version after all if this very catalog is there: an answer was lost, and the put sent again."""
        there = self.load(tenant, None)
        return there.version if there and there.data == data else None

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`."""
        with self._told("written"):
            self._obstore.put(self._place, self._blob(tenant, key), memoryview(data).cast("B"))
        yield  # `left_s` keeps it from being a leftover

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """As `Backend.read`."""
        with self._told("read"):
            try:
                answer = self._obstore.get(self._place, self._blob(tenant, key))
            except FileNotFoundError:
                return None
            return memoryview(answer.bytes()) if answer.meta["size"] == stored_bytes else b""

    def used_ns(self, tenant: str, key: str) -> int | None:  # noqa: ARG002 - not recorded
        """As `Backend.used_ns`."""
        return None

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        self._delete([self._blob(tenant, key) for key in keys])

    def set_aside(self, tenant: str, key: str) -> None:
        """As `Backend.set_aside`."""
        with self._told("written"):
            try:
                self._obstore.copy(self._place, self._blob(tenant, key), f"{folder_of(tenant)}/aside/{key}")
            except FileNotFoundError:
                return
        self._delete([self._blob(tenant, key)])

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        return tuple(path.rsplit("/", 1)[-1] for path in self._older(tenant, "blobs", time.time() - self._left_s))

    def clear_aside(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_aside`."""
        old = list(self._older(tenant, "aside", before_ns / 1e9))
        self._delete(old)
        return len(old)

    def _older(self, tenant: str, part: str, before_s: float) -> Iterator[str]:
        with self._told("listed"):
            for some in self._obstore.list(self._place, f"{folder_of(tenant)}/{part}"):
                yield from (found["path"] for found in some if found["last_modified"].timestamp() < before_s)

    def _delete(self, paths: list[str]) -> None:
        with self._told("written"):
            if paths:
                self._obstore.delete(self._place, paths)

    @staticmethod
    def _catalog(tenant: str) -> str:
        return f"{folder_of(tenant)}/catalog"

    @staticmethod
    def _blob(tenant: str, key: str) -> str:
        return f"{folder_of(tenant)}/blobs/{key}"

    def _told(self, doing: str) -> Any:
        return _told(self._obstore, doing)
