"""`Storage`: whether the data folder takes what is written to it, and has more room than its reserve."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tensorwasm.errors import StorageFull
from tensorwasm.values import MIB

TRIED_S: Final = 1.0
"""How long what was found counts: anybody may ask, and asking writes."""

_PROBE: Final = b"\0" * 4096
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Storage:
    """The data folder's room. For one event loop.

    Args:
        folder: the data folder.
        reserve_mib: room below which the service is not ready, though it goes on while there is any.
        monotonic_s: a clock.
    """

    def __init__(self, folder: Path, reserve_mib: int, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Try nothing yet."""
        self._folder = folder
        self._reserve_mib = reserve_mib
        self._monotonic_s = monotonic_s
        self._until_s = float("-inf")
        self._found: StorageFull | None = None
        self._turn = asyncio.Lock()

    async def require(self) -> None:
        """Return if the data folder can be written and has room.

        Raises:
            StorageFull: it cannot, or has not.
        """
        async with self._turn:
            if self._monotonic_s() >= self._until_s:
                self._found = await asyncio.to_thread(find_full, self._folder, self._reserve_mib)
                self._until_s = self._monotonic_s() + TRIED_S
        if self._found is not None:
            raise StorageFull(self._found.message)


def find_full(folder: Path, reserve_mib: int) -> StorageFull | None:
    """Return what is wrong with the room of a folder, None if nothing is. Blocks."""
    try:
        if _has_room(folder, reserve_mib):
            return None
    except OSError as error:
        return StorageFull(f"the data folder cannot be written: {error.strerror}")
    return StorageFull(f"the data folder has less room than its reserve of {reserve_mib} MiB")


def lacks_room(folder: Path, reserve_mib: int) -> bool:
    """Return whether it is room that a folder lacks, be it there or still to be made: waiting may help. Blocks."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    try:
        return not _has_room(there, reserve_mib)
    except OSError as error:
        return error.errno in _NO_ROOM


def _has_room(folder: Path, reserve_mib: int) -> bool:
    """Return whether a folder has room beyond the reserve, once something was written to it.

    Raises:
        OSError: it cannot be written.
    """
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < reserve_mib * MIB:
        return False
    with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
        probe.write(_PROBE)
        os.fsync(probe.fileno())
    return True
