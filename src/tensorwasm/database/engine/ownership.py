"""File locks by which a server owns an SQLite file or a data folder.

The owner of an SQLite file knows that all state of earlier processes is abandoned. Where several servers share a
database, each learns from its data folder which process it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tensorwasm.errors import DatabaseUnavailable, UnsafeFile

_OPEN: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def own_database(url: str) -> Iterator[bool]:
    """Own an SQLite database within the context, and yield whether this process is the only server. Blocks.

    It yields False for a database that several may use, or without file locks. The lock ends with the process.

    Raises:
        DatabaseUnavailable: another process owns it.
        UnsafeFile: the lock file cannot be created.
    """
    path = _file_of(url)
    if path is None or os.name != "posix":
        yield False
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path.with_name(f"{path.name}.lock"), _OPEN, 0o600)
    except OSError as error:
        raise UnsafeFile(f"the lock file of the database cannot be made: {error.strerror}") from None
    try:
        try:
            alone = _lock(handle)
        except BlockingIOError:
            raise DatabaseUnavailable("another server has the file of the database") from None
        yield alone
    finally:
        os.close(handle)


@contextmanager
def claim_data_folder(folder: Path, process: str) -> Iterator[str]:
    """Own a data folder within the context, and record this process's UUID in it. Blocks.

    It yields the UUID of the last owner, which has ended; empty if there was none or it is unknown.
    """
    try:
        handle = os.open(folder / "server", _OPEN, 0o600)
    except OSError:
        yield ""
        return
    try:
        yield _replace_owner(handle, process.encode("ascii")).decode("ascii", "replace")
    finally:
        os.close(handle)


def _replace_owner(handle: int, text: bytes) -> bytes:
    try:
        if not _lock(handle):
            return b""
        before = os.pread(handle, len(text), 0)
        os.pwrite(handle, text, 0)
    except OSError:  # another process owns it, or the disk is full: the old owner's lease expires instead
        return b""
    return before


def _file_of(url: str) -> Path | None:
    """Return the file of an SQLite database; None for others, and for an invalid URL, which is reported elsewhere."""
    try:
        parsed = make_url(url)
        return Path(parsed.database).absolute() if parsed.get_backend_name() == "sqlite" and parsed.database else None
    except (ArgumentError, ValueError):
        return None


def _lock(handle: int) -> bool:
    """Lock a file, and return False on a file system without locks; a BlockingIOError says that it is locked."""
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
