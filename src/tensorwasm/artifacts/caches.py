"""Caches: artifacts that were read recently, in memory, and copies of the bytes of a remote backend on a local disk."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from tensorwasm.artifacts.backends import disk
from tensorwasm.artifacts.backends.port import Backend, folder_of
from tensorwasm.artifacts.values import Buffer
from tensorwasm.errors import UnsafeFile

BlobKey: TypeAlias = tuple[str, str]
"""A tenant and a key of its own: tenants share nothing here either."""

MAX_SHARE: Final = 4
"""An artifact longer than the capacity divided by this is not kept: it would displace too much else."""


class ReadCache:
    """Artifacts up to a total length; the least recently read go first. Thread-safe.

    Threads that miss the same artifact at once read it once.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """Begin empty; a capacity of 0 keeps nothing."""
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._views: OrderedDict[BlobKey, memoryview] = OrderedDict()
        self._reading: dict[BlobKey, Future[memoryview]] = {}
        self._lock = threading.Lock()

    def read(self, key: BlobKey, read: Callable[[], memoryview]) -> memoryview:
        """Return the cached view, or the result of ``read``, which is called without a lock.

        A caller that finds a read in progress waits for it, and gets its result or its error.
        """
        with self._lock:
            if (view := self._views.get(key)) is not None:
                self._views.move_to_end(key)
                return view[:]  # a view of its own: a caller may release it
            reading = self._reading.get(key)
            if reading is None:
                mine = self._reading[key] = Future()
        if reading is None:
            return self._read_first(key, read, mine)
        try:
            return reading.result()[:]
        except CancelledError:  # the reading thread was interrupted, which does not concern this caller
            return self.read(key, read)

    def _read_first(self, key: BlobKey, read: Callable[[], memoryview], mine: Future[memoryview]) -> memoryview:
        try:
            view = read()
        except BaseException as error:
            self._settle(key)
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        self._settle(key, view)
        mine.set_result(view)
        return view[:]

    def _settle(self, key: BlobKey, view: memoryview | None = None) -> None:
        """End a read, and keep what was read unless it is too long."""
        with self._lock:
            del self._reading[key]
            if view is None or view.nbytes * MAX_SHARE > self._capacity_bytes:
                return
            self._views[key] = view
            self._held_bytes += view.nbytes
            while self._held_bytes > self._capacity_bytes:
                _, oldest = self._views.popitem(last=False)
                self._held_bytes -= oldest.nbytes

    def drop(self, key: BlobKey) -> None:
        """Remove a key, if it is there."""
        with self._lock:
            if (view := self._views.pop(key, None)) is not None:
                self._held_bytes -= view.nbytes


_KEPT_PART: Final = 0.8  # of the capacity, after copies were deleted: so that this is not done at each write
_DEAD_S: Final = 86400.0  # a draft of this age has no writer any more


class DiskCache:
    """Copies of bytes up to a capacity; the least recently read go first. Several processes may share it.

    A copy is never the only one: any error here means that there is no copy.
    """

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        """Open the folder, or make it, as `disk.open_root` does; each write checks the capacity at its end."""
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._calls = disk.SystemCalls()
        disk.open_root(self._calls, folder)

    def find(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """Return a copy, None if there is none."""
        with suppress(OSError, UnsafeFile):
            return disk.read(self._path(tenant, key), stored_bytes, now_ns=time.time_ns())
        return None

    def keep(self, tenant: str, key: str, data: Buffer) -> None:
        """Keep a copy if there is room."""
        if memoryview(data).nbytes > self._capacity_bytes:
            return
        path = self._path(tenant, key)
        with suppress(OSError, UnsafeFile):
            disk.make_folder(self._calls, path.parent)
            disk.write_file(self._calls, path.with_name(f"{disk.DRAFT}{secrets.token_hex(8)}"), path, data)
            self._trim()

    def drop(self, tenant: str, key: str) -> bool:
        """Delete a copy, and return whether there was one."""
        with suppress(OSError):
            self._calls.unlink(str(self._path(tenant, key)))
            return True
        return False

    def _trim(self) -> None:
        """Delete the least recently read copies if there are more than the capacity."""
        found = []
        for folder in self._folder.iterdir():
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    dead = entry.name.startswith(disk.DRAFT) and about.st_mtime < time.time() - _DEAD_S
                    found.append((0 if dead else about.st_atime_ns, about.st_size, entry.path))
        held_bytes = sum(size_bytes for _, size_bytes, _ in found)
        if held_bytes <= self._capacity_bytes:
            return
        for _, size_bytes, path in sorted(found):
            if held_bytes <= _KEPT_PART * self._capacity_bytes:
                return
            with suppress(FileNotFoundError):
                self._calls.unlink(path)
            held_bytes -= size_bytes

    def _path(self, tenant: str, key: str) -> Path:
        return self._folder / folder_of(tenant) / key


class CachedBackend:
    """A remote backend with copies of its bytes nearby.

    Catalogs are always the remote backend's, so a copy never decides what exists.
    """

    def __init__(self, near: DiskCache, far: Backend) -> None:
        """Put a cache in front of a backend."""
        self._near = near
        self._far = far
        # The remote backend alone answers these.
        self.origin = far.origin
        self.tenants, self.load, self.swap = far.tenants, far.load, far.swap
        self.used_ns, self.leftovers, self.clear_quarantine = far.used_ns, far.leftovers, far.clear_quarantine

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`; a copy is kept after the context has ended without an error."""
        with self._far.write(tenant, key, data):
            yield
        self._near.keep(tenant, key, data)

    def read(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """As `Backend.read`: the copy, or else the original, of which a copy is kept."""
        if (copy := self._near.find(tenant, key, stored_bytes)) is not None:
            return copy
        data = self._far.read(tenant, key, stored_bytes)
        if data is not None:
            self._near.keep(tenant, key, data)
        return data

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        keys = tuple(keys)
        self._far.erase(tenant, keys)
        for key in keys:
            self._near.drop(tenant, key)

    def quarantine(self, tenant: str, key: str) -> None:
        """As `Backend.quarantine`: a damaged copy is deleted, and the original judged when it is read next."""
        if not self._near.drop(tenant, key):
            self._far.quarantine(tenant, key)
