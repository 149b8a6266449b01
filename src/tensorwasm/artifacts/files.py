"""The few things that a store on disk asks of the system, and how they make a file appear whole or not at all.

`Calls` is all that changes anything: a test puts another in its place that stops after any of them.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from tensorwasm.artifacts.private import FILE_MODE, FOLDER_MODE, require_own
from tensorwasm.artifacts.store import Buffer
from tensorwasm.errors import StoreUnavailable, UnsafeFile

_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_READ_ONLY: Final = 0o400
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_WRITE_BYTES: Final = 64 << 20  # at once: Linux takes no more than 2 GiB, and an interrupted call begins again there
MAP_BYTES: Final = 1 << 20
"""Files of this length or more are mapped: a process may have 65,530 mappings, and its sandboxes need them."""


class Calls(Protocol):
    """What changes files. Each may raise OSError."""

    def open(self, path: str, flags: int, mode: int) -> int:
        """Open a file, and return its descriptor."""
        ...

    def close(self, descriptor: int) -> None:
        """Close it, which also gives back its lock."""
        ...

    def lock(self, descriptor: int, *, wait: bool) -> bool:
        """Lock a file against other descriptors, this process's too; False if one has it and this must not wait."""
        ...

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the bytes, and return how many."""
        ...

    def sync(self, descriptor: int) -> None:
        """Wait until a file, or the names in a folder, are on the disk."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Put a file in the place of another."""
        ...

    def unlink(self, path: str) -> None:
        """Take a name away."""
        ...

    def mkdir(self, path: str, mode: int) -> None:
        """Make a folder."""
        ...


class SystemCalls:
    """The operating system's own."""

    def open(self, path: str, flags: int, mode: int) -> int:
        """As `Calls.open`."""
        return os.open(path, flags, mode)

    def close(self, descriptor: int) -> None:
        """As `Calls.close`."""
        os.close(descriptor)

    def lock(self, descriptor: int, *, wait: bool) -> bool:
        """As `Calls.lock`."""
        import fcntl  # noqa: PLC0415 - Windows has none; `disk` refuses there

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def write(self, descriptor: int, data: memoryview) -> int:
        """As `Calls.write`."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """As `Calls.sync`."""
        os.fsync(descriptor)

    def rename(self, old: str, new: str) -> None:
        """As `Calls.rename`."""
        Path(old).replace(new)

    def unlink(self, path: str) -> None:
        """As `Calls.unlink`."""
        Path(path).unlink()

    def mkdir(self, path: str, mode: int) -> None:
        """As `Calls.mkdir`."""
        Path(path).mkdir(mode)


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Let the system's errors inside be `StoreUnavailable`: what was tried and what it said, without a path."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"the artifact store cannot be {doing}: {error.strerror or type(error).__name__}"
        ) from error


@contextmanager
def turn(calls: Calls, folder: Path) -> Iterator[None]:
    """Be the only one, of all threads and processes, who is inside this for a folder. Waits."""
    descriptor = calls.open(str(folder / "lock"), os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), FILE_MODE)
    try:
        calls.lock(descriptor, wait=True)
        yield
    finally:
        calls.close(descriptor)


def draft(calls: Calls, path: Path) -> int:
    """Return a new file's descriptor, locked; the file is read-only to everybody who opens it."""
    descriptor = calls.open(str(path), _MAKE, _READ_ONLY)
    try:
        calls.lock(descriptor, wait=True)
    except OSError:
        calls.close(descriptor)
        raise
    return descriptor


def publish(calls: Calls, descriptor: int, written: Path, path: Path, data: Buffer) -> None:
    """Fill a draft and give it its name, which another file may have: whole, and on the disk when this returns.

    If anything fails before that, the draft is taken away.
    """
    try:
        _write(calls, descriptor, memoryview(data).cast("B"))
        calls.sync(descriptor)
        calls.rename(str(written), str(path))
    except OSError:
        with suppress(OSError):  # the first error is the one to tell
            calls.unlink(str(written))
        raise
    sync_folder(calls, path.parent)


def _write(calls: Calls, descriptor: int, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        done += calls.write(descriptor, view[done : done + _WRITE_BYTES])


def sync_folder(calls: Calls, folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = calls.open(str(folder), os.O_RDONLY, 0)
    try:
        calls.sync(descriptor)
    finally:
        calls.close(descriptor)


def unlink_all(calls: Calls, folder: Path, names: list[str]) -> int:
    """Take files away, durably, and return how many were there."""
    gone = 0
    for name in names:
        with suppress(FileNotFoundError):
            calls.unlink(str(folder / name))
            gone += 1
    if gone:
        sync_folder(calls, folder)
    return gone


def own_folder(calls: Calls, folder: Path) -> None:
    """Make a folder with mode 0700 if it is not there; if it is, it has to be this user's alone.

    Raises:
        UnsafeFile: it is not, or is a link.
    """
    with suppress(FileExistsError):
        calls.mkdir(str(folder), FOLDER_MODE)
    sync_folder(calls, folder.parent)  # whoever made it may have died before
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFile("a folder of the artifact store is a link or no folder: remove it")
    require_own(found, "a folder of the artifact store", _OTHERS, "chmod 700")


def read(path: Path, limit_bytes: int, *, now_ns: int | None = None) -> Buffer:
    """Return a file's bytes, mapped if they are many; a longer file's are none.

    Args:
        path: of the file; links are not followed.
        limit_bytes: the most it may have.
        now_ns: when it is read, to be remembered to the minute; None leaves no trace.

    Raises:
        OSError: it cannot be read, or is not there.
        UnsafeFile: it is no file of this user's alone, so that it might change under whoever reads it.
    """
    with _opened(path) as (descriptor, found):
        if now_ns is not None and abs(now_ns - found.st_atime_ns) > _MINUTE_NS:
            with suppress(OSError):  # of a disk that is read-only
                os.utime(descriptor, ns=(now_ns, found.st_mtime_ns))
        if found.st_size > limit_bytes:
            return b""
        if found.st_size >= MAP_BYTES:
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
        return os.read(descriptor, limit_bytes + 1)


def read_head(path: Path, size_bytes: int) -> bytes:
    """Return the first bytes of a file, as many as that or all it has; nothing is remembered of it.

    Raises:
        OSError: it cannot be read, or is not there.
        UnsafeFile: as for `read`.
    """
    with _opened(path) as (descriptor, _):
        return os.read(descriptor, size_bytes)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file that is this user's alone; a pipe in its place makes nobody wait."""
    descriptor = os.open(path, _READ)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFile("a file of the artifact store is no regular file: remove it")
        require_own(found, "a file of the artifact store", _OTHERS, "chmod 400")
        yield descriptor, found
    finally:
        os.close(descriptor)


_MINUTE_NS: Final = 60 * 10**9
