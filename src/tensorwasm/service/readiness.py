"""Whether a server is ready: named checks (`Readiness`), and the one of the data folder's free space (`Storage`)."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from tensorwasm.errors import DatabaseUnavailable, NotReady, StorageFull
from tensorwasm.values import MIB

READY_S: Final = 2.0
"""Timeout of a check."""

TRIED_S: Final = 1.0
"""How long a result about the data folder is reused: each check writes, and requests without a token cause them."""

Check = Callable[[], Awaitable[object]]
"""Returns if the check passes, and raises the reason if it fails."""

_PROBE: Final = b"\0" * 4096
_OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Readiness:
    """Whether a server can serve requests: all checks, in order, pass. For one event loop.

    Requests without a token cause checks too, so concurrent requests share one run of each check.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)
        self._running: dict[str, asyncio.Future[object]] = {}
        self._loading: threading.Thread | None = None

    def load(self, work: Callable[[], None]) -> None:
        """Run `work` on a daemon thread; the server is not ready before it has ended, in whatever way."""
        self._loading = threading.Thread(target=work, name="tensorwasm-loading", daemon=True)
        self._loading.start()

    async def require(self) -> None:
        """Return once every check has passed, else raise the error of the first that fails.

        Raises:
            NotReady: `load` has not ended.
            DatabaseUnavailable: a check does not answer in time; the message names it.
        """
        if self._loading is not None and self._loading.is_alive():
            raise NotReady("compiled host functions are being made or loaded")
        for name, check in self._checks.items():
            await self._require(name, check)

    async def _require(self, name: str, check: Check) -> None:
        if name not in self._running:
            running = self._running[name] = asyncio.ensure_future(check())
            running.add_done_callback(lambda done: self._forget(name, done))
        done, _ = await asyncio.wait((self._running[name],), timeout=READY_S)
        if not done:
            raise DatabaseUnavailable(f"the {name} does not answer in time")
        done.pop().result()

    def _forget(self, name: str, done: asyncio.Future[object]) -> None:
        del self._running[name]
        if not done.cancelled():
            done.exception()  # mark it as retrieved: all callers may have left


class Storage:
    """Whether the data folder can be written and has `reserve_mib` of free space. For one event loop."""

    def __init__(self, folder: Path, reserve_mib: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._reserve_mib = reserve_mib
        self._monotonic_s = monotonic_s
        self._until_s = float("-inf")
        self._found: StorageFull | None = None
        self._lock = asyncio.Lock()

    async def require(self) -> None:
        """Return if the data folder can be written and has its reserve free; else raise StorageFull."""
        async with self._lock:
            if self._monotonic_s() >= self._until_s:
                self._found = await asyncio.to_thread(_storage_error, self._folder, self._reserve_mib)
                self._until_s = self._monotonic_s() + TRIED_S
        if self._found is not None:
            raise StorageFull(self._found.message)


def _storage_error(folder: Path, reserve_mib: int) -> StorageFull | None:
    try:
        if _has_space(folder, reserve_mib):
            return None
    except OSError as error:
        return StorageFull(f"the data folder cannot be written: {error.strerror}")
    return StorageFull(f"the data folder has less room than its reserve of {reserve_mib} MiB")


def lacks_space(folder: Path, reserve_mib: int) -> bool:
    """Return whether a folder, existing or still to be made, lacks free space, so that waiting may help. Blocks."""
    existing = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    try:
        return not _has_space(existing, reserve_mib)
    except OSError as error:
        return error.errno in _OUT_OF_SPACE


def _has_space(folder: Path, reserve_mib: int) -> bool:
    """Return whether more than the reserve is free, and a file can be written; raise OSError if it cannot."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < reserve_mib * MIB:
        return False
    with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
        probe.write(_PROBE)
        os.fsync(probe.fileno())
    return True
