"""The system calls of a store on disk, and how they make a file appear whole or not at all.

`SystemCalls` is all that changes anything: tests replace it by one that stops after any of them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorwasm.artifacts.private_files import FILE_MODE, FOLDER_MODE, open_own, require_own_folder
from tensorwasm.artifacts.values import Buffer, store_errors

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
