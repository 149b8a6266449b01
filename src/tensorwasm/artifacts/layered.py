"""Copies on a disk nearby, in front of a place that is far away."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorwasm.artifacts import files
from tensorwasm.artifacts.backend import Backend, Loaded, Version, folder_of
from tensorwasm.artifacts.private import FOLDER_MODE
from tensorwasm.artifacts.store import Buffer
from tensorwasm.errors import UnsafeFile

_DRAFT: Final = "draft-"
_ROOM: Final = 0.8  # of the capacity is left full when copies are thrown away, so that this is not done each time
_DEAD_S: Final = 86400.0  # a draft of this age has no writer any more


class NearFolder:
    """Copies of bytes, at most so many. A copy is never the only one: whatever goes wrong here, there is none.

    Several processes may share it. What was not read for longest goes first.

    Args:
        folder: where; made if it is not there.
        capacity_bytes: the most that is kept, but for what was written since the last look.
        calls: the system.
    """

    def __init__(self, folder: Path, capacity_bytes: int, calls: files.Calls | None = None) -> None:
        """Open the folder.

        Raises:
            StoreUnavailable: it cannot be made.
            UnsafeFile: others could write to it.
        """
        self._folder = folder
        self._capacity_bytes = capacity_bytes
        self._calls = calls or files.SystemCalls()
        with files.told("opened"):
            folder.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            files.own_folder(self._calls, folder)

    def find(self, tenant: str, key: str, stored_bytes: int) -> Buffer | None:
        """Return a copy, None if there is none."""
        with suppress(OSError, UnsafeFile):
            return files.read(self._path(tenant, key), stored_bytes, now_ns=time.time_ns())
        return None

    def keep(self, tenant: str, key: str, data: Buffer) -> None:
        """Keep a copy if there is room."""
        size_bytes = memoryview(data).nbytes
        if size_bytes > self._capacity_bytes:
            return
        path = self._path(tenant, key)
        with suppress(OSError, UnsafeFile):
            files.own_folder(self._calls, path.parent)
            written = path.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
            descriptor = files.draft(self._calls, written)
            try:
                files.publish(self._calls, descriptor, written, path, data)
            finally:
                self._calls.close(descriptor)
            self._trim()

    def drop(self, tenant: str, key: str) -> bool:
        """Throw a copy away, and return whether there was one."""
        with suppress(OSError):
            self._calls.unlink(str(self._path(tenant, key)))
            return True
        return False

    def _trim(self) -> None:
        """Throw away what was not read for longest, if there is more than there may be."""
        found = []
        for folder in self._folder.iterdir():
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    dead = entry.name.startswith(_DRAFT) and about.st_mtime < time.time() - _DEAD_S
                    found.append((0 if dead else about.st_atime_ns, about.st_size, entry.path))
        held_bytes = sum(size_bytes for _, size_bytes, _ in found)
        if held_bytes <= self._capacity_bytes:
            return
        for _, size_bytes, path in sorted(found):
            if held_bytes <= _ROOM * self._capacity_bytes:
                return
            with suppress(FileNotFoundError):
                self._calls.unlink(path)
            held_bytes -= size_bytes

    def _path(self, tenant: str, key: str) -> Path:
        return self._folder / folder_of(tenant) / key


class Layered:
    """A place with copies in front of it. Catalogs are always asked of the place, so a copy never says what there is.

    Args:
        near: the copies.
        far: the place.
    """

    def __init__(self, near: NearFolder, far: Backend) -> None:
        """Join the two."""
        self._near = near
        self._far = far

    @property
    def truth(self) -> Backend:
        """The place."""
        return self._far.truth

    def tenants(self) -> Iterable[str]:
        """As `Backend.tenants`."""
        return self._far.tenants()

    def load(self, tenant: str, known: Version) -> Loaded | None:
        """As `Backend.load`."""
        return self._far.load(tenant, known)

    def swap(self, tenant: str, known: Version, data: bytes) -> Version:
        """As `Backend.swap`."""
        return self._far.swap(tenant, known, data)

    @contextmanager
    def write(self, tenant: str, key: str, data: Buffer) -> Iterator[None]:
        """As `Backend.write`; a copy is kept once it is told of."""
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

    def used_ns(self, tenant: str, key: str) -> int | None:
        """As `Backend.used_ns`."""
        return self._far.used_ns(tenant, key)

    def erase(self, tenant: str, keys: Iterable[str]) -> None:
        """As `Backend.erase`."""
        keys = tuple(keys)
        self._far.erase(tenant, keys)
        for key in keys:
            self._near.drop(tenant, key)

    def set_aside(self, tenant: str, key: str) -> None:
        """As `Backend.set_aside`: a damaged copy is thrown away, and the original judged when it is read next."""
        if not self._near.drop(tenant, key):
            self._far.set_aside(tenant, key)

    def leftovers(self, tenant: str) -> tuple[str, ...]:
        """As `Backend.leftovers`."""
        return self._far.leftovers(tenant)

    def clear_aside(self, tenant: str, before_ns: int) -> int:
        """As `Backend.clear_aside`."""
        return self._far.clear_aside(tenant, before_ns)
