"""Reading a log again: is every line there that was written, as it was written?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tensorwasm.errors import StoreUnavailable
from tensorwasm.tenancy.audit.chain import GENESIS, MAX_LINE_BYTES, Head, Link, read_link
from tensorwasm.tenancy.audit.sinks import read_head

MAX_FINDINGS: Final = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be.

    Attributes:
        path: which file.
        line: which line of it, from 1; 0 for the file as a whole.
        detail: for people.
    """

    path: str
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found.

    Attributes:
        lines: that hold.
        first_seq: number of the first; 0 without any. More than 1 where earlier files are not among those read.
        last: number and hash of the last.
        removed: number and hash of the line before the first, where the log itself says that it removed what led to
            there; None where it does not.
        torn_bytes: of a last line that a process was writing, or had when it died: it was never promised.
        findings: in order, 100 at most.
    """

    lines: int
    first_seq: int
    last: Head
    removed: Head | None
    torn_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def verify(*paths: Path, head: bool = True) -> Verification:
    """Read files of one log, in order, and check every line of them.

    A line that was changed, removed, moved or put between shows; so does a beginning or an end that was cut off, the
    end by the head beside the last file. Whoever can write all the files, the head too, can make up another chain: only
    a head that was kept elsewhere shows that.

    Args:
        paths: of the files, the oldest first. Those before the first are not missed.
        head: the last one has its head beside it; False for a file that was moved away.

    Raises:
        StoreUnavailable: a file cannot be read.
    """
    reading = _Reading(read_head(paths[-1]) if head and paths else None)
    for path in paths:
        try:
            with path.open("rb") as file:
                reading.read(str(path), file)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from None
    if head and paths:
        reading.compare(str(paths[-1]))
    return Verification(
        reading.lines,
        reading.first_seq,
        reading.last,
        reading.removed,
        reading.torn_bytes,
        tuple(reading.findings),
    )


class _Reading:
    """What has been read so far; the head was before, so that a log may grow meanwhile."""

    def __init__(self, head: Head | None) -> None:
        self.lines = 0
        self.first_seq = 0
        self.last = Head()
        self.removed: Head | None = None
        self.torn_bytes = 0
        self.findings: list[Finding] = []
        self._head = head
        self._before = Head()
        self._bad = 0  # lines that do not hold since the last one that does

    def read(self, path: str, file: BinaryIO) -> None:
        """Read a file; each goes on where the one before has ended."""
        self.torn_bytes = 0
        for number, line in _lines(file):
            if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                self.torn_bytes = len(line)
                break
            link = read_link(line.removesuffix(b"\n"))
            if link is None:
                self._find(path, number, "not a line as it was written")
                self._bad += 1
                continue
            if not self.lines:
                self._begin(path, number, link)
            self._place(path, number, link)

    def compare(self, path: str) -> None:
        """Check that what has been flushed is there."""
        if self._head is None:
            self._find(path, 0, "there is no head beside it: an end that was cut off would not show")
        elif self._head.seq > self.last.seq:
            missing = self._head.seq - self.last.seq
            self._find(path, 0, f"the end is cut off: {missing} lines had been flushed that are not there")

    def _begin(self, path: str, number: int, link: Link) -> None:
        """Check the first line of all."""
        self.first_seq = link.seq
        self._before = Head(link.seq - 1, link.prev)
        if link.notice != "opened" and not self._bad:
            self._find(path, number, "no file begins with this line: what was before it is gone")
        if link.seq == 1 and link.prev != GENESIS:
            self._find(path, number, "the first line of all goes on from another")
        self.last = Head(link.seq - 1, link.prev)
        self._match(path, number)

    def _place(self, path: str, number: int, link: Link) -> None:
        """Check that a line follows the one before, and whether it is the head's."""
        after = link.seq - self.last.seq - 1
        if not 0 <= after <= self._bad:
            self._find(path, number, f"line {link.seq} of the log follows line {self.last.seq}")
        elif not after and link.prev != self.last.hash:
            self._find(path, number, "the line before was changed, moved or removed")
        if link.notice == "removed" and link.last_seq == self._before.seq:
            self.removed = Head(link.last_seq, link.last_hash)
            if self.removed != self._before:
                self._find(path, number, "what was removed is not what the first line here goes on from")
        self.lines += 1
        self.last = Head(link.seq, link.hash)
        self._bad = 0
        self._match(path, number)

    def _match(self, path: str, number: int) -> None:
        """Check the line that the head is of."""
        if self._head is not None and self._head.seq == self.last.seq and self._head != self.last:
            self._find(path, number, "the head beside the log is of another line of this number: the log was rewritten")

    def _find(self, path: str, line: int, detail: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(path, line, detail))


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        yield number, line
