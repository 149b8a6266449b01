"""A backend on a disk that several processes of one user share.

::

    <folder>/                   mode 0700, and everything below
      <tenant>/                 as `folder_of` spells it
        lock                    locked by the process that exchanges the catalog or looks for leftovers
        catalog                 renamed into place, as a whole
        blobs/<key>             mode 0400, renamed into place, never changed; locked until it is in the catalog
        blobs/draft-<key>       incomplete
        aside/<key>             damaged

The lock is `flock`: the kernel releases it when its holder dies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorwasm.artifacts import catalog
from tensorwasm.artifacts.backends import files
from tensorwasm.artifacts.backends.port import NOTHING, Backend, StoredCatalog, Version, folder_of, tenant_of
from tensorwasm.artifacts.values import Buffer, store_errors
from tensorwasm.errors import NotSupported

_HEAD_BYTES: Final = len(catalog.MAGIC) + catalog.VERSION_BYTES


class DiskBackend(Backend):
    """Catalogs and bytes in files, safe against the end of the process or the machine at any instruction."""

    def __init__(self, folder: Path, calls: files.SystemCalls | None = None) -> None:
        """Open the folder, or make it. It must be on a file system with `flock` among all its users.

        NotSupported if the system has no `flock`; other errors are as for `files.open_root`.
        """
        if not hasattr(os, "geteuid"):
            raise NotSupported("artifacts on disk need flock, which this system lacks: use an object store")
        self._folder = folder
        self._calls = calls or files.SystemCalls()
        self._homes: set[str] = set()
        files.open_root(self._calls, folder)

    def tenants(self) -> Iterable[str]:
        """As `Backend.tenants`."""
        with store_errors("listed"):
            found = ((tenant_of(entry.name), entry) for entry in os.scandir(self._folder))
            return tuple(tenant for tenant, entry in found if tenant and Path(entry, "catalog").exists())

    def load(self, tenant: str, known: Version) -> StoredCatalog | None:
        """As `Backend.load`."""
        with store_errors("read"):
            version = self._version(self._home(tenant))
            if version is None:
                return NOTHING
            if version == known:
                return None
            data = bytes(files.read(self._home(tenant) / "catalog", catalog.MAX_BYTES))
            return StoredCatalog(catalog.version_of(data), data)

    @staticmethod
    def _version(home: Path) -> Version:
        """Return the version in the catalog's head: a file's times are the same for two changes of one moment."""
        with suppress(FileNotFoundError), files.open_stored(home / "catalog") as (descriptor, _):
            return catalog.version_of(os.read(descriptor, _HEAD_BYTES))
        return None

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        with store_errors("written"):
            home = self._make_home(tenant)
            with files.locked(self._calls, home):
                if self._version(home) != known:
                    return None
                draft = home / f"{files.DRAFT}catalog"
                files.unlink_all(self._calls, home, [draft.name])  # of a process that died
                files.write_file(self._calls, draft, home / "catalog", data)
                return catalog.version_of(data)

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`."""
        with ExitStack() as stack:
            with store_errors("written"):
                blobs = self._make_home(tenant) / "blobs"
                draft = blobs / f"{files.DRAFT}{key}"
                with files.locked(self._calls, blobs.parent):  # else it could be taken for a leftover before its lock
                    descriptor = stack.enter_context(files.new_draft(self._calls, draft))
                files.publish(self._calls, descriptor, draft, blobs / key, data)
            yield

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """As `Backend.read`."""
        with store_errors("read"), suppress(FileNotFoundError):
            return files.read(self._home(tenant) / "blobs" / key, stored_bytes, now_ns=time.time_ns())
        return None

    def used_ns(self, tenant: str, key: str) -> int | None:
        """As `Backend.used_ns`."""
        with suppress(OSError):  # it was deleted
            return (self._home(tenant) / "blobs" / key).stat().st_atime_ns
        return None

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        with store_errors("written"):
            files.unlink_all(self._calls, self._home(tenant) / "blobs", list(keys))

    def quarantine(self, tenant: str, key: str) -> None:
        """As `Backend.quarantine`."""
        home = self._home(tenant)
        with store_errors("written"), suppress(FileNotFoundError):  # another thread or process did
            self._calls.rename(str(home / "blobs" / key), str(home / "aside" / key))
            files.sync_folder(self._calls, home / "aside")

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        home = self._home(tenant)
        with store_errors("listed"), files.locked(self._calls, home):
            return tuple(path.name for path in (home / "blobs").iterdir() if self._is_idle(path))

    def _is_idle(self, path: Path) -> bool:
        """Whether a file exists and no writer holds it."""
        flags = os.O_RDONLY | os.O_NONBLOCK  # opening a pipe must not block
        with suppress(FileNotFoundError), files.opened(self._calls, path, flags) as descriptor:
            return self._calls.lock(descriptor, wait=False)
        return False

    def clear_quarantine(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_quarantine`."""
        aside = self._home(tenant) / "aside"
        with store_errors("written"):
            old = [entry.name for entry in os.scandir(aside) if entry.stat().st_ctime_ns < before_ns]
            return files.unlink_all(self._calls, aside, old)

    def _home(self, tenant: str) -> Path:
        return self._folder / folder_of(tenant)

    def _make_home(self, tenant: str) -> Path:
        home = self._home(tenant)
        if tenant not in self._homes:
            for folder in (home, home / "blobs", home / "aside"):
                files.make_folder(self._calls, folder)
            self._homes.add(tenant)
        return home
