"""Folders and files that nobody but the user of this process may read or write."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorwasm.errors import UnsafeFile

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT: Final = 0
_POSIX: Final = hasattr(os, "geteuid")
_OPEN: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""A link is not followed, and a pipe in the place of a file does not make anybody wait."""


STATE: Final = "the state folder (TENSOR_WASM_STATE_DIR)"


def open_folder(above: Path, name: str, what: str = STATE) -> Path:
    """Return the folder ``name`` in ``above``, both made with mode 0700 if they are not there.

    ``above`` may be read by others, not written; ``name`` neither. Whoever can write to what is further up can only put
    folders of their own there, which are refused.

    Args:
        above: the folder above it.
        name: of the folder.
        what: how messages call ``above``.

    Raises:
        UnsafeFile: one of them belongs to somebody else, is open to others, is a link (``name``) or cannot be made; the
            message says what to do, and names no path of the host.
    """
    folder = above / name
    try:
        above.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        require_own(above.stat(), what, OTHERS_WRITE, "chmod go-w")
        with suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
        found = folder.lstat()
    except OSError as error:
        raise UnsafeFile(f"the folder {name} in {what} cannot be made or read: {error.strerror}") from None
    what = f"the folder {name} in {what}"
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFile(f"{what} is a link or no folder: remove it")
    require_own(found, what, OTHERS, "chmod 700")
    return folder


def require_own(found: os.stat_result, what: str, others: int, remedy: str) -> None:
    """Check that something is this user's and closed to others; Windows has neither notion and keeps it by its folder.

    Args:
        found: what is known of it.
        what: how to call it, without a path.
        others: bits of the mode that it must not have.
        remedy: what to do if it has.

    Raises:
        UnsafeFile: it is not.
    """
    if not _POSIX:
        return
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"{what} belongs to user {found.st_uid}, this process to {os.geteuid()}: chown it")
    if found.st_mode & others:
        raise UnsafeFile(f"{what} is open to others (mode {stat.S_IMODE(found.st_mode):o}): {remedy}")


def read_file(path: Path, what: str, cap_bytes: int, *, others: int = OTHERS, root: bool = False) -> bytes:
    """Return the bytes of a file that is this user's and closed to others: judged open, so it cannot change meanwhile.

    Args:
        path: of the file; a link is refused.
        what: how messages call it, without a path.
        cap_bytes: more bytes than these are refused.
        others: bits of the mode that it must not have.
        root: whether the superuser's file will do as well.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFile: it is somebody else's, open to others, no file, too long, or cannot be read.
    """
    try:
        handle = os.open(path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnsafeFile(f"{what} cannot be opened, or is a link: {error.strerror}") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFile(f"{what} is no regular file")
        if not (root and found.st_uid == _ROOT and not found.st_mode & others):
            require_own(found, what, others, "chmod 600")
        data = os.read(handle, cap_bytes + 1)
    finally:
        os.close(handle)
    if len(data) > cap_bytes:
        raise UnsafeFile(f"{what} has more than {cap_bytes} bytes")
    return data


def make_file(path: Path, data: bytes) -> None:
    """Make a file with mode 0600, whole or not at all, unless there is one of that name.

    It is on the disk when this returns. Of several processes that make it at once one does; nobody sees a part of it.

    Raises:
        OSError: the folder takes no file.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:  # noqa: PTH123 - the same
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; where folders cannot be opened, the system sees to that.

    Raises:
        OSError: the disk failed.
    """
    if not _POSIX:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
