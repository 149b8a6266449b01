"""Where the lines go: a locked file and its full predecessors, or standard output.

A full file is renamed after its last line's number, such as ``audit.log.0000000000012345``; a new file at the path
continues the chain. A full file is deleted only after a line with the number and hash of its last line is on the disk,
so that a missing beginning of a log is either documented or a manipulation.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tensorwasm.errors import StoreUnavailable, UnsafeFile
from tensorwasm.tenancy.audit.chain import HEAD_SUFFIX, MAX_LINE_BYTES, ChainHead, last_link, read_head, read_link

_LOOK_BYTES: Final = 1 << 20  # of the end of a file, in which a line must be found
_DIGITS: Final = 16
_NAME: Final = re.compile(rf"[0-9]{{{_DIGITS}}}", re.ASCII)
_BEGIN: Final = b'{"seq":'
_NO_LINKS: Final = getattr(os, "O_NOFOLLOW", 0)
_CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A file that was opened, and the head after which its chain continues.

    Attributes:
        torn_bytes: length of an incomplete last line, which was removed.
        cut_lines: number of flushed lines that are missing.
    """

    sink: FileSink
    head: ChainHead
    empty: bool = True
    torn_bytes: int = 0
    cut_lines: int = 0


@dataclass(slots=True)
class FileSink:
    """A file, open, locked and appending, and beside it the small one that has the head.

    Attributes:
        torn_at: length up to which the lines are whole, after a failed write; None while all are.
        headless: whether the head's file is still to be written, which is done before the first line.
    """

    path: Path
    descriptor: int = field(repr=False)
    torn_at: int | None = None
    headless: bool = False

    def write(self, lines: bytes) -> None:
        """Write whole lines, all of them or, with OSError, none: the part that was written is cut off."""
        if self.headless:
            write_head(self.path, ChainHead())
            self.headless = False
        if self.torn_at is not None:
            os.ftruncate(self.descriptor, self.torn_at)
            self.torn_at = None
        length = self.length()
        try:
            write_all(self.descriptor, lines)
        except OSError:
            self.torn_at = length
            os.ftruncate(self.descriptor, length)
            self.torn_at = None
            raise

    def sync(self, head: ChainHead) -> None:
        """Make the lines and then the head durable, so that the head is never ahead of the lines."""
        os.fsync(self.descriptor)
        write_head(self.path, head)

    def length(self) -> int:
        """Return the length of the file."""
        return os.fstat(self.descriptor).st_size

    def moved(self) -> bool:
        """Return whether the path leads to another file now, or to none."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self.descriptor))  # noqa: PTH116 - beside os.fstat
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close and unlock the file."""
        os.close(self.descriptor)


class StdoutSink:
    """Standard output, which has no head and needs no flush."""

    def write(self, lines: bytes) -> None:
        """Write lines; what a reader does not take is lost."""
        write_all(1, lines)

    def sync(self, head: ChainHead) -> None:
        """Do nothing: the lines were handed over when they were written."""

    def close(self) -> None:
        """Do nothing: standard output stays open."""


AuditSink = FileSink | StdoutSink


def open_file(path: Path, head: ChainHead | None = None) -> OpenedLog:
    """Open a log, or create one with mode 0600, and remove an incomplete last line.

    Unless the head after which the chain continues is given, it is read from the file and the one beside it.

    Raises:
        UnsafeFile: it is not a plain file, or has other content.
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


def write_head(path: Path, head: ChainHead) -> None:
    """Replace the head beside a log atomically."""
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
    """Write all of some bytes; after an OSError a part may be written."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def full_name(path: Path, last_seq: int) -> Path:
    """Return the name of a full file."""
    return path.with_name(f"{path.name}.{last_seq:0{_DIGITS}}")


def log_files(path: Path) -> tuple[Path, ...]:
    """Return the existing files of a log, from the oldest to the one at the path; may raise OSError."""
    return (*_full_files(path), path)


def surplus(path: Path, keep: int) -> Iterator[tuple[Path, int, ChainHead]]:
    """Yield the oldest full files except ``keep`` of them, with their numbers of lines and last lines.

    Files without lines of a log are skipped. May raise OSError.
    """
    found = _full_files(path)
    for each in found[: max(0, len(found) - keep)]:
        with each.open("rb") as file:
            first = read_link(file.readline(MAX_LINE_BYTES).rstrip(b"\n"))
            file.seek(max(0, each.stat().st_size - _LOOK_BYTES))
            last = last_link(file.read())
        if first is not None and last is not None:
            yield each, last.seq - first.seq + 1, ChainHead(last.seq, last.hash)


def _full_files(path: Path) -> list[Path]:
    start = f"{path.name}."
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    found = (each for each in beside if each.name.startswith(start))
    return sorted(each for each in found if _NAME.fullmatch(each.name.removeprefix(start)))


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable; a system that cannot open folders does that itself."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | _CLOSE_ON_EXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Keep other processes from writing the file, if the system has such locks."""
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


def _recover(sink: FileSink, known: ChainHead | None) -> OpenedLog:
    """Return where a file's chain continues.

    Whole lines stay, whatever they are. Where lines are missing, the numbers continue after the missing ones, so that
    the gap stays visible.
    """
    beside = known or read_head(sink.path) or ChainHead()
    size = sink.length()
    end = os.pread(sink.descriptor, _LOOK_BYTES, max(0, size - _LOOK_BYTES))
    whole, _, torn = end.rpartition(b"\n")
    if len(torn) > MAX_LINE_BYTES or not (torn.startswith(_BEGIN[: len(torn)]) or not torn.strip(b"\0")):
        raise UnsafeFile("the file for the audit log has other content")
    if torn:
        os.ftruncate(sink.descriptor, size - len(torn))
    last = last_link(whole)
    if last is None:
        if whole:
            raise UnsafeFile("the file for the audit log has other content")
        sink.headless = beside == ChainHead()
        return OpenedLog(sink, beside, torn_bytes=len(torn))
    cut = max(0, beside.seq - last.seq)
    return OpenedLog(sink, ChainHead(last.seq + cut, last.hash), empty=False, torn_bytes=len(torn), cut_lines=cut)
