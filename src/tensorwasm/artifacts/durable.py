"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tensorwasm.artifacts.private import FILE_MODE, sync_folder


@contextmanager
def replace(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write, which takes a path's place once it is complete and on the disk.

    Whatever happens meanwhile, the end of the process or of the machine included, the path has what it had before, or
    all that was written. A process that is killed may leave a file ``.*.part`` beside it. Blocks until the disk has it.

    What is no file, such as a device or a pipe, is not replaced. A link is, not what it leads to.

    Raises:
        OSError: it cannot be written; the path has what it had before, or, if only its folder could not be made to
            last, what is new.
    """
    _require_file(path)
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(draft, flags, FILE_MODE)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - of a descriptor
            yield file
            file.flush()
            os.fsync(handle)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _require_file(path: Path) -> None:
    """Check that something may be put in the place of what a path leads to: the superuser could replace a device."""
    if not path.name or "\0" in path.name:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    try:
        found = path.stat()
    except OSError:  # nothing, or nothing that can be told: then writing says why
        return
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EEXIST, "it is no file")
