"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
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

    Raises:
        OSError: it cannot be written; the path has what it had before, or, if only its folder could not be made to
            last, what is new.
    """
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
