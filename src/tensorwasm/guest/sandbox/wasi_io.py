"""What WASI gives a guest: folders and files of the host, and output streams.

A folder is opened as it is. A single file is copied into a private folder when the guest starts, and the guest may read
that folder: under the folder name of the file's guest path, with nothing else in it. Output is captured up to a limit,
passed to a sink, or inherited from the process.
"""

from __future__ import annotations

import ctypes
import enum
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.native.layout import OUTPUT_ROOM_BYTES, OutputRow
from tensorwasm.values import MIB

MAX_FILE_BYTES: Final = 1024 * MIB
"""Longest single file; a longer one is given by its folder."""
_CHUNK_BYTES: Final = MIB

_made: Final[set[str]] = set()
"""Private folders of sandboxes that live."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder of the host that a guest may see, or a single file, which it may only read.

    Without ``writable`` nothing can be written, made, removed or renamed, and no times changed.
    """

    host_path: str
    guest_path: str
    writable: bool = False


class Mounts:
    """What one sandbox sees of the file system: host path, guest path and writability of each folder to open."""

    def __init__(self, directories: Iterable[Directory]) -> None:
        """Check every path, and copy the single files; `InvalidArgs` names one that is missing or cannot be given."""
        self.preopened: list[tuple[str, str, bool]] = []
        self._private: dict[str, str] = {}
        try:
            for each in directories:
                self._add(each)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the copies. Idempotent."""
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
        if guest_path not in self._private:
            import tempfile  # noqa: PLC0415 - seldom needed, and slow to import

            if any(guest_path == taken for _, taken, _ in self.preopened):
                raise InvalidArgs(f"{guest_path!r} is a folder, and the folder of a single file")
            made = self._private[guest_path] = tempfile.mkdtemp(prefix="tensor-wasm-")
            _made.add(made)
            self.preopened.append((made, guest_path, False))
        return self._private[guest_path]


def release_all() -> None:
    """Remove every copy, for a process that exits without closing its sandboxes."""
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
    """Copy a file that may change or be replaced meanwhile."""
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


Sink = Callable[[bytes], object]


class Inherit(enum.Enum):
    """The type of `INHERIT`."""

    INHERIT = enum.auto()


INHERIT: Final = Inherit.INHERIT
"""A stream of the process's own instead of a value or a sink: read as the guest asks, written without a copy."""


class GuestOutput:
    """Destination of one of a guest's output streams, up to a limit.

    The write that exceeds the limit is cut there, and it and every later one fails in the guest: ``truncated`` is set.
    With an `OutputRow` compiled code captures what fits into that.
    """

    __slots__ = ("_captured", "_left_bytes", "_row", "_sink", "truncated")

    def __init__(self, limit_bytes: int, sink: Sink | None = None, row: OutputRow | None = None) -> None:
        self._sink = sink
        self._row = row
        self.renew(limit_bytes)

    @property
    def captured(self) -> bytes:
        """Everything taken so far; empty with a sink."""
        row = self._row
        held = ctypes.string_at(row.address, row.held_bytes) if row is not None and row.held_bytes else b""
        return bytes(self._captured) + held if self._captured else held

    def renew(self, limit_bytes: int) -> None:
        """Drop what was captured and set a new limit, for another call of the same guest."""
        self._captured = bytearray()
        self._left_bytes = limit_bytes
        self.truncated = False
        self._offer()

    def _offer(self) -> None:
        """Let compiled code capture into an empty row."""
        row, left_bytes = self._row, self._left_bytes
        if row is not None:
            row.held_bytes = 0
            row.left_bytes = 0 if self._sink is not None else min(left_bytes, OUTPUT_ROOM_BYTES)

    def _collect(self) -> None:
        """Take what compiled code has captured; until `_offer` it captures nothing."""
        row = self._row
        if row is not None:
            self._captured += ctypes.string_at(row.address, row.held_bytes)
            self._left_bytes -= row.held_bytes
            row.held_bytes = row.left_bytes = 0

    def detach(self) -> None:
        """Have compiled code capture nothing any more."""
        self._collect()
        self._row = None

    def take(self, chunk: bytes) -> bool:
        """Take a chunk, or as much of it as the limit allows; return whether all of it was taken."""
        self._collect()
        kept = chunk[: self._left_bytes]
        self._left_bytes -= len(kept)
        if self._sink is None:
            self._captured += kept
        elif kept:
            self._sink(kept)
        if len(kept) < len(chunk):
            self.truncated = True
        self._offer()
        return len(kept) == len(chunk)


@dataclass(slots=True)  # frozen ones take longer to make
class WasiState:
    """The WASI side of one sandbox; its monotonic clock was at 0 at ``clock_origin_ns`` of ``time.monotonic_ns()``.

    ``open_streams`` are those by descriptor where output does not go through wasmtime; None stands for standard input.
    """

    stdout: GuestOutput
    stderr: GuestOutput
    clock_origin_ns: int
    mounts: Mounts | None = None
    open_streams: dict[int, GuestOutput | None] = field(default_factory=dict)

    def detach(self) -> None:
        """Have all output go through Python, which knows what the descriptors mean, from now on."""
        self.stdout.detach()
        self.stderr.detach()

    def close(self) -> None:
        """Remove copied files."""
        if self.mounts is not None:
            self.mounts.close()
