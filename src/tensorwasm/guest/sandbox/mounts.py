"""Folders and single files of the host, as WASI can give them to a guest: as folders.

A folder is opened as it is. A single file is copied into a private folder, as it is when the guest starts, and the
guest gets that folder for reading: under the name of the folder in which it says the file is, with nothing else in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import MIB

MAX_FILE_BYTES: Final = 1024 * MIB
"""Longest single file; a longer one is given by its folder."""
_CHUNK_BYTES: Final = MIB

_made: Final[set[str]] = set()
"""Private folders of sandboxes that live."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder of the host that a guest may see, or a single file, which it may only read.

    Attributes:
        host_path: where it is.
        guest_path: what the guest calls it.
        writable: False for reading only: nothing is written, made, removed, renamed or dated.
    """

    host_path: str
    guest_path: str
    writable: bool = False


class Mounts:
    """What one sandbox sees of the file system.

    Attributes:
        preopened: host path, guest path and whether it is writable, for each folder to open.
    """

    def __init__(self, directories: Iterable[Directory]) -> None:
        """Look at every path, and copy the single files.

        Args:
            directories: what the guest may see.

        Raises:
            InvalidArgs: there is no such folder or file, or it cannot be given so; the message names it.
        """
        self.preopened: list[tuple[str, str, bool]] = []
        self._private: dict[str, str] = {}
        try:
            for each in directories:
                self._add(each)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copies. A second call does nothing."""
        private, self._private = self._private, {}
        for folder in private.values():
            _remove(folder)

    def _add(self, each: Directory) -> None:
        kind = _kind(each.host_path)
        if stat.S_ISDIR(kind):
            if each.guest_path in self._private:
                raise InvalidArgs(f"{each.guest_path!r} is a folder, and the folder of a single file")
            self.preopened.append((each.host_path, each.guest_path, each.writable))
            return
        if not stat.S_ISREG(kind):
            raise InvalidArgs(f"{each.host_path!r} is neither a folder nor a file")
        if each.writable:
            raise InvalidArgs(f"{each.host_path!r} is a file: a single file is for reading only; write :ro after it")
        folder, name = os.path.split(each.guest_path)
        if name in {"", ".", ".."}:
            raise InvalidArgs(f"{each.guest_path!r} is no name for a file")
        _copy(each.host_path, f"{self._folder(folder or '.')}{os.sep}{name}")

    def _folder(self, guest_path: str) -> str:
        """Return the private folder that the guest knows by a name, made when first asked for."""
        if guest_path not in self._private:
            import tempfile  # noqa: PLC0415 - seldom needed, and slow to import

            if any(guest_path == taken for _, taken, _ in self.preopened):
                raise InvalidArgs(f"{guest_path!r} is a folder, and the folder of a single file")
            made = self._private[guest_path] = tempfile.mkdtemp(prefix="tensor-wasm-")
            _made.add(made)
            self.preopened.append((made, guest_path, False))
        return self._private[guest_path]


def release_all() -> None:
    """Remove every copy, for a process that ends around its guests."""
    for folder in tuple(_made):
        _remove(folder)


def _remove(folder: str) -> None:
    import shutil  # noqa: PLC0415 - seldom needed, and slow to import

    _made.discard(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _kind(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - Path is not imported where a guest starts
    except OSError as error:
        raise InvalidArgs(f"{path!r} cannot be given to a guest: {error.strerror}") from None
    except ValueError:
        raise InvalidArgs(f"{path[:64]!r} is no path") from None


def _copy(source: str, target: str) -> None:
    """Copy a file that may change, or become something else, meanwhile."""
    try:
        # Opening a named pipe would wait for its writer.
        reading = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(reading, "rb", buffering=0) as file, open(target, "xb", buffering=0) as copy:  # noqa: PTH123
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgs(f"{source!r} is no file any more")
            left = MAX_FILE_BYTES
            while chunk := file.read(_CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise InvalidArgs(f"{source!r} has more than {MAX_FILE_BYTES} bytes: give the guest its folder")
                copy.write(chunk)
    except OSError as error:
        raise InvalidArgs(f"{source!r} cannot be given to a guest: {error.strerror}") from None
