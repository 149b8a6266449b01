"""The file of an SQLite database: nobody but the user of this process may write to it, or put another in its place."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorwasm.errors import UnsafeFile

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_POSIX: Final = hasattr(os, "geteuid")
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


def make_file(path: Path) -> None:
    """Make the file with mode 0600 and its folder with mode 0700, or look at those that are there.

    A file that is there is never opened: closing it would give up the locks that SQLite holds on it in this process.

    Raises:
        UnsafeFile: others can write to one of them, it is somebody else's, a link or no file, or cannot be made; the
            message names no path.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(path.parent.stat(), "the folder of the database", "chmod 700")
        with suppress(FileExistsError):
            os.close(os.open(path, _CREATE, 0o600))
            _sync_folder(path.parent)
        found = path.lstat()
    except OSError as error:
        raise UnsafeFile(f"the database file cannot be made or read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile("the database file is a link or no file")
    _require_own(found, "the database file", "chmod 600")


def _require_own(found: os.stat_result, what: str, remedy: str) -> None:
    if not _POSIX:
        return
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"{what} belongs to user {found.st_uid}, this process to {os.geteuid()}: chown it")
    if found.st_mode & _OTHERS_WRITE:
        raise UnsafeFile(f"others can write to {what} (mode {stat.S_IMODE(found.st_mode):o}): {remedy}")


def _sync_folder(folder: Path) -> None:
    """Let the file's name outlast the machine's going down; Windows sees to that itself."""
    if not _POSIX:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
