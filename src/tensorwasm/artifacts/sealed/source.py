"""Where the bytes of a sealed file are: in a file, or in memory that whoever holds it does not change."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from tensorwasm.errors import Damaged, NotSealed

Source: TypeAlias = Path | memoryview
"""A path, or all of a file's bytes. Bytes that change after they were verified are noticed as in a file."""

_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Bytes(Protocol):
    """Bytes that are read at any offset from any thread.

    Attributes:
        size_bytes: how many there are.
    """

    size_bytes: int

    def read_into(self, at_bytes: int, into: memoryview) -> None:
        """Fill a buffer.

        Raises:
            Damaged: they end before that.
            OSError: they cannot be read.
        """

    def close(self) -> None:
        """Let go of them; doing so twice is once."""


def open_source(source: Source) -> Bytes:
    """Return what reads a source.

    Raises:
        NotSealed: a path does not lead to a file.
        OSError: it cannot be opened.
    """
    return _View(source) if isinstance(source, memoryview) else _File(source)


class _File:
    """A file. It is not mapped: whoever cuts a mapped file kills its reader."""

    __slots__ = ("_file", "_lock", "size_bytes")

    def __init__(self, path: Path) -> None:
        handle = os.open(path, _FLAGS)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(handle)
            raise NotSealed("this is no file")
        self._file = open(handle, "rb", buffering=0)  # noqa: PTH123, SIM115 - of a descriptor, closed by `close`
        self._lock = threading.Lock()
        self.size_bytes = found.st_size

    def read_into(self, at_bytes: int, into: memoryview) -> None:
        while len(into):
            count = self._read(at_bytes, into)
            if not count:
                raise Damaged("the file was cut while it was read")
            at_bytes, into = at_bytes + count, into[count:]

    def _read(self, at_bytes: int, into: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [into], at_bytes)
        with self._lock:
            self._file.seek(at_bytes)
            return self._file.readinto(into) or 0

    def close(self) -> None:
        self._file.close()


class _View:
    """Memory, which stays where it is."""

    __slots__ = ("_view", "size_bytes")

    def __init__(self, view: memoryview) -> None:
        self._view = view.cast("B")
        self.size_bytes = view.nbytes

    def read_into(self, at_bytes: int, into: memoryview) -> None:
        part = self._view[at_bytes : at_bytes + len(into)]
        if len(part) != len(into):
            raise Damaged("the file ends before what is read of it")
        into[:] = part

    def close(self) -> None:
        self._view = memoryview(b"")
