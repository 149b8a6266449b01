"""A backend in this process's memory: for tests, and for what need not outlive the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tensorwasm.artifacts.backends.port import NOTHING, Backend, StoredCatalog, Version
from tensorwasm.artifacts.catalog import version_of
from tensorwasm.artifacts.values import Buffer


class MemoryBackend(Backend):
    """Catalogs and copies of bytes in dictionaries."""

    def __init__(self) -> None:
        """Begin empty."""
        self._catalogs: dict[str, StoredCatalog] = {}
        self._blobs: dict[tuple[str, str], bytes] = {}
        self._used_ns: dict[tuple[str, str], int] = {}
        self._held: set[tuple[str, str]] = set()
        self._aside: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def tenants(self) -> Iterable[str]:
        """As `Backend.tenants`."""
        return tuple(self._catalogs)

    def load(self, tenant: str, known: Version) -> StoredCatalog | None:
        """As `Backend.load`."""
        loaded = self._catalogs.get(tenant, NOTHING)
        return None if known is not None and loaded.version == known else loaded

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        with self._lock:
            if self._catalogs.get(tenant, NOTHING).version != known:
                return None
            self._catalogs[tenant] = StoredCatalog(version_of(data), data)
            return version_of(data)

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`."""
        with self._lock:
            self._held.add((tenant, key))
            self._blobs[tenant, key] = bytes(data)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard((tenant, key))

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:  # noqa: ARG002 - it is in memory already
        """As `Backend.read`."""
        with self._lock:
            if (data := self._blobs.get((tenant, key))) is not None:
                self._used_ns[tenant, key] = time.time_ns()
        return data

    def used_ns(self, tenant: str, key: str) -> int | None:
        """As `Backend.used_ns`."""
        return self._used_ns.get((tenant, key))

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        with self._lock:
            for key in keys:
                self._blobs.pop((tenant, key), None)
                self._used_ns.pop((tenant, key), None)

    def quarantine(self, tenant: str, key: str) -> None:
        """As `Backend.quarantine`: the bytes are dropped, and counted."""
        with self._lock:
            if self._blobs.pop((tenant, key), None) is not None:
                self._aside[tenant, key] = time.time_ns()

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        with self._lock:
            return tuple(key for owner, key in self._blobs if owner == tenant and (owner, key) not in self._held)

    def clear_quarantine(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_quarantine`."""
        with self._lock:
            old = [at for at, since_ns in self._aside.items() if at[0] == tenant and since_ns < before_ns]
            for at in old:
                del self._aside[at]
        return len(old)
