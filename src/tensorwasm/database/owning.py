"""Who serves a database: one server of a file of SQLite owns it, and so knows that whatever others left is lost.

Where several servers share a database, each knows from its data folder which process it takes the place of.
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
def owning(url: str) -> Iterator[bool]:
    """Own a database for as long as the context lasts, if it is a file and nobody else does. Blocks.

    The system ends it with the process, however that ends.

    Args:
        url: of the database, as `tensorwasm.database.opening.open_database` takes it.

    Yields:
        Whether this is the one; False where several may be, or where that cannot be known.

    Raises:
        DatabaseUnavailable: another process owns it.
        UnsafeFile: the file that says so cannot be made.
    """
    path = _file_of(url)
    if path is None or os.name != "posix":
        yield False
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path.with_name(f"{path.name}.lock"), _OPEN, 0o600)
    except OSError as error:
        raise UnsafeFile(f"the file that says whose the database is cannot be made: {error.strerror}") from None
    try:
        try:
            alone = _lock(handle)
        except BlockingIOError:
            raise DatabaseUnavailable("another server has the file of the database") from None
        yield alone
    finally:
        os.close(handle)


@contextmanager
def succeeding(folder: Path, process: str) -> Iterator[str]:
    """Own a data folder for as long as the context lasts, and leave a word of this process in it. Blocks.

    Args:
        folder: that one server at a time uses.
        process: UUID of this process.

    Yields:
        UUID of the process that owned it last, which has ended; empty where there was none or that cannot be known.
    """
    try:
        handle = os.open(folder / "server", _OPEN, 0o600)
    except OSError:
        yield ""
        return
    try:
        yield _swap(handle, process.encode("ascii")).decode("ascii", "replace")
    finally:
        os.close(handle)


def _swap(handle: int, text: bytes) -> bytes:
    """Return what a file says, and have it say something else; nothing if another process has it or it has no room."""
    try:
        if not _lock(handle):
            return b""
        before = os.pread(handle, len(text), 0)
        os.pwrite(handle, text, 0)
    except OSError:  # another process has it, or there is no room: the lease runs out instead
        return b""
    return before


def _file_of(url: str) -> Path | None:
    """Return the file of an SQLite database; None for others, and for what is no URL, which is told elsewhere."""
    try:
        parsed = make_url(url)
        return Path(parsed.database).absolute() if parsed.get_backend_name() == "sqlite" and parsed.database else None
    except (ArgumentError, ValueError):
        return None


def _lock(handle: int) -> bool:
    import fcntl  # noqa: PLC0415 - POSIX only

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks
        return False
    return True
