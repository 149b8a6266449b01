"""Where the lines go: a file that only one process writes, or standard output."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tensorwasm.errors import StoreUnavailable, UnsafeFile
from tensorwasm.tenancy.audit.chain import MAX_LINE_BYTES, Head, read_link

HEAD_SUFFIX: Final = ".head"
_LOOK_BYTES: Final = 1 << 20  # of the end of a file, in which a line is to be found
_BEGIN: Final = b'{"seq":'
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0)
_CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)


class Sink(Protocol):
    """What lines are written to, by one thread."""

    def write(self, lines: bytes) -> None:
        """Write whole lines, all of them or none.

        Raises:
            OSError: none was written.
        """

    def sync(self, head: Head) -> None:
        """Return once all that was written, and the head, would survive the machine.

        Raises:
            OSError: that cannot be said.
        """

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that was opened, and what was found in it.

    Attributes:
        sink: to write to.
        head: where its chain goes on.
        empty: whether it has no lines.
        torn_bytes: of a last line that was not whole, and was taken away.
        cut_lines: that had been flushed and are not there.
    """

    sink: FileSink
    head: Head
    empty: bool = True
    torn_bytes: int = 0
    cut_lines: int = 0


@dataclass(slots=True)
class FileSink:
    """A file, and beside it the small one that has the head.

    Attributes:
        path: of the file.
        descriptor: open, locked and appending.
        torn_at: length up to which its lines are whole, after a write that failed; None while all are.
        headless: whether there is no head beside it yet.
    """

    path: Path
    descriptor: int = field(repr=False)
    torn_at: int | None = None
    headless: bool = False

    def write(self, lines: bytes) -> None:
        """See `Sink`; what was written of them is taken away again, and no line is there before a head."""
        if self.headless:
            write_head(self.path, Head())
            self.headless = False
        if self.torn_at is not None:
            os.ftruncate(self.descriptor, self.torn_at)
            self.torn_at = None
        length = os.fstat(self.descriptor).st_size
        try:
            write_all(self.descriptor, lines)
        except OSError:
            self.torn_at = length
            os.ftruncate(self.descriptor, length)
            self.torn_at = None
            raise

    def sync(self, head: Head) -> None:
        """See `Sink`. The head is never ahead of the lines."""
        os.fsync(self.descriptor)
        write_head(self.path, head)

    def length(self) -> int:
        """Return how many bytes the file has."""
        return os.fstat(self.descriptor).st_size

    def moved(self) -> bool:
        """Return whether the path leads to another file now, or to none."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))  # noqa: PTH116 - beside os.fstat
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the file, and let others write it."""
        os.close(self.descriptor)


class StdoutSink:
    """Standard output: there is no head beside it, and nothing to wait for."""

    def write(self, lines: bytes) -> None:
        """See `Sink`; a reader that takes half of it and goes has lost it."""
        write_all(1, lines)

    def sync(self, head: Head) -> None:
        """Do nothing: lines were handed over when they were written."""

    def close(self) -> None:
        """Leave it open."""


def open_file(path: Path, head: Head | None = None) -> Opened:
    """Open a log, or make one that only its owner may read; take away a last line that is not whole.

    Args:
        path: of the file, which must not be a link.
        head: where the chain goes on, if that is known already; else the file and its head say.

    Raises:
        UnsafeFile: it is not a plain file, or has something else in it.
        StoreUnavailable: another process writes it, or it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_LINKS | _CLOSE_ON_EXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"the audit log cannot be opened: {error.strerror}") from None
    try:
        _lock(descriptor)
        _sync_folder(path.parent)
        return _recover(FileSink(path, descriptor), head)
    except BaseException:
        os.close(descriptor)
        raise


def read_head(path: Path) -> Head | None:
    """Return the head beside a log; None if there is none, or none that can be."""
    try:
        return Head.decode(Path(f"{path}{HEAD_SUFFIX}").read_bytes()[:4096])
    except OSError:
        return None


def write_head(path: Path, head: Head) -> None:
    """Put a head beside a log: the one before or this one is there at any moment."""
    target = f"{path}{HEAD_SUFFIX}"
    temporary = f"{target}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # noqa: PTH108 - beside its equals of os, which paths lack
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS | _CLOSE_ON_EXEC, 0o600)
    try:
        write_all(descriptor, head.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, target)  # noqa: PTH105 - the same


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of some bytes.

    Raises:
        OSError: some were not written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    """Have a new file's name survive the machine; a system that opens no folders sees to that itself."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | _CLOSE_ON_EXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Keep other processes from writing the file; where the system has no such lock, nothing does."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UnsafeFile("the audit log is not a plain file")
    try:
        import fcntl  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise StoreUnavailable("the audit log cannot be locked: another process writes it") from None


def _recover(sink: FileSink, known: Head | None) -> Opened:
    """Return where a file's chain goes on.

    Lines that are whole stay, whatever they are. Where lines are missing, the numbers go on after the missing ones, so
    that the gap shows for ever.
    """
    beside = known or read_head(sink.path) or Head()
    size = os.fstat(sink.descriptor).st_size
    end = os.pread(sink.descriptor, _LOOK_BYTES, max(0, size - _LOOK_BYTES))
    whole, _, torn = end.rpartition(b"\n")
    if len(torn) > MAX_LINE_BYTES or not (torn.startswith(_BEGIN[: len(torn)]) or not torn.strip(b"\0")):
        raise UnsafeFile("the file that is to be the audit log has something else in it")
    if torn:
        os.ftruncate(sink.descriptor, size - len(torn))
    last = next(filter(None, map(read_link, reversed(whole.split(b"\n")))), None)
    if last is None:
        if whole:
            raise UnsafeFile("the file that is to be the audit log has something else in it")
        sink.headless = beside == Head()
        return Opened(sink, beside, torn_bytes=len(torn))
    cut = max(0, beside.seq - last.seq)
    return Opened(sink, Head(last.seq + cut, last.hash), empty=False, torn_bytes=len(torn), cut_lines=cut)
