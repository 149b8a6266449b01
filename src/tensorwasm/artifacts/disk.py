"""A place on a disk that several processes of one user share.

::

    <folder>/                   mode 0700, and everything below
      <tenant>/                 as `folder_of` spells it
        lock                    whoever exchanges the catalog, or looks for leftovers, has it locked
        catalog                 renamed into place, as a whole
        blobs/<key>             mode 0400, renamed into place, never changed; locked until the catalog tells of it
        blobs/draft-<key>       not yet
        aside/<key>             damaged

The lock is `flock`: the kernel gives it back when its holder dies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tensorwasm.artifacts import catalog, files
from tensorwasm.artifacts.backend import NOTHING, Loaded, Version, folder_of, tenant_of
from tensorwasm.artifacts.private import FOLDER_MODE
from tensorwasm.artifacts.store import Buffer
from tensorwasm.errors import NotSupported

_DRAFT: Final = "draft-"
_HEAD_BYTES: Final = len(catalog.MAGIC) + catalog.VERSION_BYTES


class DiskBackend:
    """Catalogs and bytes in files, safe against the end of the process or the machine at any instruction.

    Args:
        folder: where; made if it is not there. It must be on a file system with `flock` among all who use it.
        calls: the system.
    """

    def __init__(self, folder: Path, calls: files.Calls | None = None) -> None:
        """Open the place.

        Raises:
            StoreUnavailable: the folder cannot be made.
            UnsafeFile: others could write to it.
            NotSupported: the system has no `flock`.
        """
        if not hasattr(os, "geteuid"):
            raise NotSupported("artifacts on disk need flock, which this system lacks: use an object store")
        self._folder = folder
        self._calls = calls or files.SystemCalls()
        self._homes: set[str] = set()
        with files.told("opened"):
            folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            files.own_folder(self._calls, folder)

    @property
    def truth(self) -> DiskBackend:
        """Itself."""
        return self

    def tenants(self) -> Iterable[str]:
        """As `Backend.tenants`."""
        with files.told("listed"):
            found = ((tenant_of(entry.name), entry) for entry in os.scandir(self._folder))
            return tuple(tenant for tenant, entry in found if tenant and Path(entry, "catalog").exists())

    def load(self, tenant: str, known: Version) -> Loaded | None:
        """As `Backend.load`."""
        with files.told("read"):
            version = self._version(self._home(tenant))
            if version is None:
                return NOTHING
            if version == known:
                return None
            data = bytes(files.read(self._home(tenant) / "catalog", catalog.MAX_BYTES))
            return Loaded(catalog.version_of(data), data)

    @staticmethod
    def _version(home: Path) -> Version:
        """Return what the catalog's head says it is: a file's times would not tell two changes of one moment apart."""
        try:
            return catalog.version_of(files.read_head(home / "catalog", _HEAD_BYTES))
        except FileNotFoundError:
            return None

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        with files.told("written"):
            home = self._make_home(tenant)
            with files.turn(self._calls, home):
                if self._version(home) != known:
                    return None
                written = home / f"{_DRAFT}catalog"
                files.unlink_all(self._calls, home, [written.name])  # of somebody who died
                descriptor = files.draft(self._calls, written)
                try:
                    files.publish(self._calls, descriptor, written, home / "catalog", data)
                finally:
                    self._calls.close(descriptor)
                return catalog.version_of(data)

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`."""
        with files.told("written"):
            home = self._make_home(tenant)
            written = home / "blobs" / f"{_DRAFT}{key}"
            with files.turn(self._calls, home):  # so that nobody takes it for a leftover before it is locked
                descriptor = files.draft(self._calls, written)
            try:
                files.publish(self._calls, descriptor, written, home / "blobs" / key, data)
            except BaseException:
                self._calls.close(descriptor)
                raise
        try:
            yield
        finally:
            self._calls.close(descriptor)

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """As `Backend.read`."""
        with files.told("read"):
            try:
                return files.read(self._home(tenant) / "blobs" / key, stored_bytes, now_ns=time.time_ns())
            except FileNotFoundError:
                return None

    def used_ns(self, tenant: str, key: str) -> int | None:
        """As `Backend.used_ns`."""
        try:
            return (self._home(tenant) / "blobs" / key).stat().st_atime_ns
        except OSError:  # it is gone: nobody reads it
            return None

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        with files.told("written"):
            files.unlink_all(self._calls, self._home(tenant) / "blobs", list(keys))

    def set_aside(self, tenant: str, key: str) -> None:
        """As `Backend.set_aside`."""
        home = self._home(tenant)
        with files.told("written"):
            try:
                self._calls.rename(str(home / "blobs" / key), str(home / "aside" / key))
            except FileNotFoundError:  # somebody else did
                return
            files.sync_folder(self._calls, home / "aside")

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        home = self._home(tenant)
        with files.told("listed"), files.turn(self._calls, home):
            return tuple(path.name for path in (home / "blobs").iterdir() if self._idle(path))

    def _idle(self, path: Path) -> bool:
        """Whether no writer has a file."""
        try:
            descriptor = self._calls.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0)
        except FileNotFoundError:
            return False
        try:
            return self._calls.lock(descriptor, wait=False)
        finally:
            self._calls.close(descriptor)

    def clear_aside(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_aside`."""
        aside = self._home(tenant) / "aside"
        with files.told("written"):
            old = [entry.name for entry in os.scandir(aside) if entry.stat().st_ctime_ns < before_ns]
            return files.unlink_all(self._calls, aside, old)

    def _home(self, tenant: str) -> Path:
        return self._folder / folder_of(tenant)

    def _make_home(self, tenant: str) -> Path:
        home = self._home(tenant)
        if tenant not in self._homes:
            for folder in (home, home / "blobs", home / "aside"):
                files.own_folder(self._calls, folder)
            self._homes.add(tenant)
        return home
