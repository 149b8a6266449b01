"""A backend on a disk that several processes of one user share.

::

    <folder>/                   mode 0700, and everything below
      <tenant>/                 as `folder_of` spells it
        lock                    locked by the process that exchanges the catalog or looks for leftovers
        catalog                 renamed into place, as a whole
        blobs/<key>             mode 0400, renamed into place, never changed; locked until it is in the catalog
        blobs/draft-<key>       incomplete
        aside/<key>             damaged

The lock is `flock`: the kernel releases it when its holder dies. `SystemCalls` is all that changes anything: tests
replace it by one that stops after any of them.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorwasm.artifacts import catalog
from tensorwasm.artifacts.backends.port import NOTHING, Backend, StoredCatalog, Version, folder_of, tenant_of
from tensorwasm.artifacts.private_files import FILE_MODE, FOLDER_MODE, open_own, require_own_folder, store_errors
from tensorwasm.artifacts.values import Buffer
from tensorwasm.errors import NotSupported

DRAFT: Final = "draft-"
"""Beginning of the names of files that are not complete."""

_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_WRITE_BYTES: Final = 64 << 20  # per call: Linux takes no more than 2 GiB, and an interrupted call begins again there
_MINUTE_NS: Final = 60 * 10**9
_MAP_BYTES: Final = 1 << 20
"""Files of this length or more are mapped: a process may have 65,530 mappings, and its sandboxes need them."""


class SystemCalls:
    """The operating system's calls that change files. Each may raise OSError."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    write = staticmethod(os.write)
    sync = staticmethod(os.fsync)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)

    @staticmethod
    def lock(descriptor: int, *, wait: bool) -> bool:
        """Lock a file against other descriptors, this process's included; False if one has it and this must not wait.

        Closing the descriptor releases the lock.
        """
        import fcntl  # noqa: PLC0415 - Windows has none; `disk` refuses there

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True


@contextmanager
def opened(calls: SystemCalls, path: Path, flags: int, mode: int = 0) -> Iterator[int]:
    """Yield the descriptor of a file or folder; a link is not followed."""
    descriptor = calls.open(str(path), flags | _NO_LINK, mode)
    try:
        yield descriptor
    finally:
        calls.close(descriptor)


@contextmanager
def locked(calls: SystemCalls, folder: Path) -> Iterator[None]:
    """Exclude all other threads and processes from this context for a folder. Blocks."""
    with opened(calls, folder / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE) as descriptor:
        calls.lock(descriptor, wait=True)
        yield


@contextmanager
def new_draft(calls: SystemCalls, draft: Path) -> Iterator[int]:
    """Yield a new file's descriptor, locked; for all others the file is read-only."""
    with opened(calls, draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400) as descriptor:
        calls.lock(descriptor, wait=True)
        yield descriptor


def publish(calls: SystemCalls, descriptor: int, draft: Path, path: Path, data: Buffer) -> None:
    """Fill a draft and rename it to its path, replacing what is there; it is durable when this returns.

    If anything fails before that, the draft is deleted.
    """
    view, done = memoryview(data).cast("B"), 0
    try:
        while done < view.nbytes:
            done += calls.write(descriptor, view[done : done + _WRITE_BYTES])
        calls.sync(descriptor)
        calls.rename(str(draft), str(path))
    except OSError:
        with suppress(OSError):  # the first error is the one to report
            calls.unlink(str(draft))
        raise
    sync_folder(calls, path.parent)


def write_file(calls: SystemCalls, draft: Path, path: Path, data: Buffer) -> None:
    """Write a file through a draft, as `publish` says."""
    with new_draft(calls, draft) as descriptor:
        publish(calls, descriptor, draft, path, data)


def sync_folder(calls: SystemCalls, folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    with opened(calls, folder, os.O_RDONLY) as descriptor:
        calls.sync(descriptor)


def unlink_all(calls: SystemCalls, folder: Path, names: list[str]) -> int:
    """Delete files durably, and return how many existed."""
    gone = 0
    for name in names:
        with suppress(FileNotFoundError):
            calls.unlink(str(folder / name))
            gone += 1
    if gone:
        sync_folder(calls, folder)
    return gone


def open_root(calls: SystemCalls, folder: Path) -> None:
    """Make the top folder of a store, as `make_folder` does, and those above it.

    StoreUnavailable if it cannot be made.
    """
    with store_errors("opened"):
        folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        make_folder(calls, folder)


def make_folder(calls: SystemCalls, folder: Path) -> None:
    """Make a folder with mode 0700 unless it exists; UnsafeFile unless it is a folder of this user alone."""
    with suppress(FileExistsError):
        calls.mkdir(str(folder), FOLDER_MODE)
    sync_folder(calls, folder.parent)  # the process that made it may have died before
    require_own_folder(folder.lstat(), "a folder of the artifact store")


def open_stored(path: Path) -> AbstractContextManager[tuple[int, os.stat_result]]:
    """Open a file of the store for reading, as `open_own` does."""
    return open_own(path, "a file of the artifact store", "chmod 400")


def read(path: Path, limit_bytes: int, *, now_ns: int | None = None) -> Buffer:
    """Return a file's bytes, mapped if it is long; none if it is longer than ``limit_bytes``. Errors as for `open_own`.

    ``now_ns`` is recorded as the time of access, to the minute; None records nothing.
    """
    with open_stored(path) as (descriptor, found):
        if now_ns is not None and abs(now_ns - found.st_atime_ns) > _MINUTE_NS:
            with suppress(OSError):  # a read-only disk
                os.utime(descriptor, ns=(now_ns, found.st_mtime_ns))
        if found.st_size > limit_bytes:
            return b""
        if found.st_size >= _MAP_BYTES:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        return os.read(descriptor, limit_bytes + 1)


_HEAD_BYTES: Final = len(catalog.MAGIC) + catalog.VERSION_BYTES


class DiskBackend(Backend):
    """Catalogs and bytes in files, safe against the end of the process or the machine at any instruction."""

    def __init__(self, folder: Path, calls: SystemCalls | None = None) -> None:
        """Open the folder, or make it. It must be on a file system with `flock` among all its users.

        NotSupported if the system has no `flock`; other errors are as for `open_root`.
        """
        if not hasattr(os, "geteuid"):
            raise NotSupported("artifacts on disk need flock, which this system lacks: use an object store")
        self._folder = folder
        self._calls = calls or SystemCalls()
        self._homes: set[str] = set()
        open_root(self._calls, folder)

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
            data = bytes(read(self._home(tenant) / "catalog", catalog.MAX_BYTES))
            return StoredCatalog(catalog.version_of(data), data)

    @staticmethod
    def _version(home: Path) -> Version:
        """Return the version in the catalog's head: a file's times are the same for two changes of one moment."""
        with suppress(FileNotFoundError), open_stored(home / "catalog") as (descriptor, _):
            return catalog.version_of(os.read(descriptor, _HEAD_BYTES))
        return None

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        with store_errors("written"):
            home = self._make_home(tenant)
            with locked(self._calls, home):
                if self._version(home) != known:
                    return None
                draft = home / f"{DRAFT}catalog"
                unlink_all(self._calls, home, [draft.name])  # of a process that died
                write_file(self._calls, draft, home / "catalog", data)
                return catalog.version_of(data)

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`."""
        with ExitStack() as stack:
            with store_errors("written"):
                blobs = self._make_home(tenant) / "blobs"
                draft = blobs / f"{DRAFT}{key}"
                with locked(self._calls, blobs.parent):  # else it could be taken for a leftover before its lock
                    descriptor = stack.enter_context(new_draft(self._calls, draft))
                publish(self._calls, descriptor, draft, blobs / key, data)
            yield

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """As `Backend.read`."""
        with store_errors("read"), suppress(FileNotFoundError):
            return read(self._home(tenant) / "blobs" / key, stored_bytes, now_ns=time.time_ns())
        return None

    def used_ns(self, tenant: str, key: str) -> int | None:
        """As `Backend.used_ns`."""
        with suppress(OSError):  # it was deleted
            return (self._home(tenant) / "blobs" / key).stat().st_atime_ns
        return None

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        with store_errors("written"):
            unlink_all(self._calls, self._home(tenant) / "blobs", list(keys))

    def quarantine(self, tenant: str, key: str) -> None:
        """As `Backend.quarantine`."""
        home = self._home(tenant)
        with store_errors("written"), suppress(FileNotFoundError):  # another thread or process did
            self._calls.rename(str(home / "blobs" / key), str(home / "aside" / key))
            sync_folder(self._calls, home / "aside")

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        home = self._home(tenant)
        with store_errors("listed"), locked(self._calls, home):
            return tuple(path.name for path in (home / "blobs").iterdir() if self._is_idle(path))

    def _is_idle(self, path: Path) -> bool:
        """Whether a file exists and no writer holds it."""
        flags = os.O_RDONLY | os.O_NONBLOCK  # opening a pipe must not block
        with suppress(FileNotFoundError), opened(self._calls, path, flags) as descriptor:
            return self._calls.lock(descriptor, wait=False)
        return False

    def clear_quarantine(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_quarantine`."""
        aside = self._home(tenant) / "aside"
        with store_errors("written"):
            old = [entry.name for entry in os.scandir(aside) if entry.stat().st_ctime_ns < before_ns]
            return unlink_all(self._calls, aside, old)

    def _home(self, tenant: str) -> Path:
        return self._folder / folder_of(tenant)

    def _make_home(self, tenant: str) -> Path:
        home = self._home(tenant)
        if tenant not in self._homes:
            for folder in (home, home / "blobs", home / "aside"):
                make_folder(self._calls, folder)
            self._homes.add(tenant)
        return home
