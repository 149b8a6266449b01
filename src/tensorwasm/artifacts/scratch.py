"""Files without a name, for what is put into a store as a whole: nothing is left of them, however a process ends."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from tensorwasm.artifacts import files


@contextmanager
def scratch() -> Iterator[BinaryIO]:
    """Give a new file, to write and to read, in the system's folder for such (``TMPDIR``).

    Raises:
        StoreUnavailable: it cannot be made, or the system says no inside: it has no room, for one.
    """
    with files.told("written"), tempfile.TemporaryFile() as file:
        yield file


def map_scratch(file: BinaryIO) -> memoryview:
    """Return all of a file that `scratch` gave, read-only; it stays until the view is gone, whatever the context does.

    Raises:
        OSError: it cannot be written or mapped.
    """
    file.flush()
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
