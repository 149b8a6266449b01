"""Files and folders of this user alone: checked before they are read, and written whole or not at all.

`store_errors` makes the store's error of what the system, or the library of an object store, raises.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from tensorwasm.errors import StoreUnavailable, UnsafeFile

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
STATE: Final = "the state folder (TENSOR_WASM_STATE_DIR)"

_POSIX: Final = hasattr(os, "geteuid")
_BINARY: Final = getattr(os, "O_BINARY", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY
"""A link is not followed, and opening a pipe in the place of a file does not block."""


def open_folder(above: Path, name: str, what: str = STATE) -> Path:
    """Return the folder ``name`` in ``above``; both are made with mode 0700 if they do not exist.

    ``above`` may be readable by others but not writable, ``name`` neither. A user who can write further up can only
    put folders of their own there, which are refused. Messages call ``above`` ``what``.

    UnsafeFile if a folder belongs to another user, is open to others, is a link (``name``) or cannot be made; the
    message says what to do, and contains no path.
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
    require_own_folder(found, f"the folder {name} in {what}")
    return folder


def require_own_folder(found: os.stat_result, what: str) -> None:
    """Check that something is a folder, not a link, that `require_own` accepts."""
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFile(f"{what} is a link or no folder: remove it")
    require_own(found, what, OTHERS, "chmod 700")


def require_own(found: os.stat_result, what: str, others: int, remedy: str) -> None:
    """Check that a file or folder belongs to this user and is closed to others; does nothing on Windows.

    UnsafeFile if it belongs to another user, or has mode bits of ``others``: then ``remedy`` says what to do. Messages
    call it ``what``, without a path.
    """
    if not _POSIX:
        return
    if found.st_uid != os.geteuid():
        raise UnsafeFile(f"{what} belongs to user {found.st_uid}, this process to {os.geteuid()}: chown it")
    if found.st_mode & others:
        raise UnsafeFile(f"{what} is open to others (mode {stat.S_IMODE(found.st_mode):o}): {remedy}")


@contextmanager
def open_own(
    path: Path, what: str, remedy: str, *, others: int = OTHERS, root: bool = False
) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file of this user for reading, not a link; yield its descriptor, and its status taken from the descriptor.

    The check is made on the open file, so the file cannot be exchanged between check and use.

    Args:
        path: of the file.
        what: its name in messages, without a path.
        remedy: what to do if it is open to others.
        others: mode bits that it must not have.
        root: whether a file of the superuser is accepted too.

    Raises:
        OSError: it cannot be opened, or is a link.
        UnsafeFile: it is not a regular file, or not this user's alone.
    """
    descriptor = os.open(path, _READ)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeFile(f"{what} is no regular file: remove it")
        if not (root and found.st_uid == 0 and not found.st_mode & others):
            require_own(found, what, others, remedy)
        yield descriptor, found
    finally:
        os.close(descriptor)


def read_file(path: Path, what: str, cap_bytes: int, *, others: int = OTHERS, root: bool = False) -> bytes:
    """Return the bytes of a file that `open_own` accepts.

    Raises:
        FileNotFoundError: there is no such file.
        UnsafeFile: `open_own` refuses it, it has more than ``cap_bytes``, or it cannot be read.
    """
    try:
        with open_own(path, what, "chmod 600", others=others, root=root) as (descriptor, _):
            data = os.read(descriptor, cap_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnsafeFile(f"{what} cannot be opened or read, or is a link: {error.strerror}") from None
    if len(data) > cap_bytes:
        raise UnsafeFile(f"{what} has more than {cap_bytes} bytes")
    return data


def make_file(path: Path, data: bytes) -> None:
    """Make a file with mode 0600, whole or not at all, unless one of that name exists. It is durable when this returns.

    If several processes make it at once, one succeeds. OSError if the folder takes no file.
    """
    with _draft(path, replacing=False) as file:
        file.write(data)


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write; at the end of the context it replaces what is at the path. Blocks until it is on the disk.

    Even if the process or the machine ends, the path has its old content or all of the new one. A killed process may
    leave a file ``.*.part`` beside it. A link is replaced, not its target.

    OSError if it cannot be written, or the path is a device, a pipe or a folder. The path keeps its old content then,
    unless only its folder could not be synchronised.
    """
    if not path.name or "\0" in path.name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if path.exists() and not path.is_file():  # the superuser could replace a device
        raise OSError(errno.EEXIST, "it is no file")
    with _draft(path, replacing=True) as file:
        yield file


@contextmanager
def _draft(path: Path, *, replacing: bool) -> Iterator[BinaryIO]:
    """Yield a new file next to a path; once it is complete and on the disk, give it the path's name."""
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, FILE_MODE)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - of a descriptor
            yield file
            file.flush()
            os.fsync(handle)
        if replacing:
            draft.replace(path)
        else:
            with suppress(FileExistsError):
                path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; does nothing where folders cannot be opened."""
    if not _POSIX:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def store_errors(doing: str, *others: type[Exception]) -> Iterator[None]:
    """Translate OSError, and errors of a library, into `StoreUnavailable`: the store cannot be ``doing`` (read, ...).

    The message has the system's reason without a path, of a library's error its class: its text may have host names.
    """
    errors: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except errors as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StoreUnavailable(f"the artifact store cannot be {doing}: {reason}") from error


@contextmanager
def scratch() -> Iterator[BinaryIO]:
    """Yield a new file without a name, in the system's temporary folder; nothing is left when the process ends.

    OSError within the context, such as for want of space, becomes StoreUnavailable.
    """
    import tempfile  # noqa: PLC0415 - a call of a function needs none

    with store_errors("written"), tempfile.TemporaryFile() as file:
        yield file


def map_scratch(file: BinaryIO) -> memoryview:
    """Return all of a `scratch` file, read-only; the mapping outlives the file's context."""
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
