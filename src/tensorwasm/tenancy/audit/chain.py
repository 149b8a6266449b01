"""Lines that contain the hash of the line before, and the verification that every line of a log is there and unchanged.

A line is ``{"seq":N,"prev":"P",...,"hash":"H"}``: P is the hash of the line before, and H the BLAKE2b-256 of the line
up to and without ``,"hash"``, both as 64 hex digits. Numbers go up by one, and the first line's P is all zeros.

Source: RFC 7693 (BLAKE2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tensorwasm.errors import StoreUnavailable

HASH_BYTES: Final = 32
GENESIS: Final = "0" * (2 * HASH_BYTES)
MAX_LINE_BYTES: Final = 32 << 10
"""Longest line; what is longer is not a line."""

HEAD_SUFFIX: Final = ".head"

_PREV: Final = b',"prev":"'
_END: Final = b',"hash":"'
_TAIL_BYTES: Final = len(_END) + 2 * HASH_BYTES + len(b'"}')


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Number, 0 for none, and hash of a chain's last line."""

    seq: int = 0
    hash: str = GENESIS

    def encode(self) -> bytes:
        """Return the content of the head's file."""
        return msgspec.json.encode({"seq": self.seq, "hash": self.hash}) + b"\n"

    @classmethod
    def decode(cls, text: bytes) -> ChainHead | None:
        """Return the head in a file; None if the content is invalid."""
        try:
            return _decode_head(text)
        except (msgspec.MsgspecError, UnicodeError):
            return None


class ChainLink(msgspec.Struct):
    """The members of a line that concern the chain."""

    seq: int
    prev: str
    hash: str
    notice: str = ""
    last_seq: int = 0
    last_hash: str = ""


@dataclass(slots=True)
class Chain:
    """A growing chain, by number and hash of its last line."""

    seq: int
    hash: str

    def link(self, body: bytes) -> bytes:
        """Return the next line, with its newline, made from a JSON object that has members."""
        self.seq += 1
        text = b'{"seq":%d,"prev":"%s",%s' % (self.seq, self.hash.encode(), body[1:-1])
        self.hash = blake2b(text, digest_size=HASH_BYTES).hexdigest()
        return b'%s,"hash":"%s"}\n' % (text, self.hash.encode())


def unlink(line: bytes) -> bytes:
    """Return the JSON object of which `Chain.link` made a line, given without its newline."""
    return b"{" + line[line.index(_PREV) + len(_PREV) + 2 * HASH_BYTES + len(b'",') : -_TAIL_BYTES] + b"}"


def hash_of(line: bytes) -> str:
    """Return the hash in the last of some lines, with its newline."""
    return line[-_TAIL_BYTES - 1 + len(_END) : -len(b'"}\n')].decode()


_decode = msgspec.json.Decoder(ChainLink).decode
_decode_head = msgspec.json.Decoder(ChainHead).decode


def read_link(line: bytes) -> ChainLink | None:
    """Return the link of a line without its newline; None if it is not a line, or was changed."""
    if len(line) > MAX_LINE_BYTES or line[-_TAIL_BYTES:][: len(_END)] != _END:
        return None
    try:
        link = _decode(line)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    good = blake2b(line[:-_TAIL_BYTES], digest_size=HASH_BYTES).hexdigest()
    return link if line[-_TAIL_BYTES:] == b'%s%s"}' % (_END, good.encode()) and link.hash == good else None


def last_link(lines: bytes) -> ChainLink | None:
    """Return the link of the last valid line; None if there is none."""
    return next(filter(None, map(read_link, reversed(lines.split(b"\n")))), None)


def read_head(path: Path) -> ChainHead | None:
    """Return the head beside a log; None if there is no valid one."""
    try:
        return ChainHead.decode(Path(f"{path}{HEAD_SUFFIX}").read_bytes()[:4096])
    except OSError:
        return None


MAX_FINDINGS: Final = 100


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A fault in a line of a file, counted from 1, or with line 0 in the file as a whole."""

    path: str
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class AuditVerification:
    """The result of a verification.

    Attributes:
        lines: number of valid lines.
        first_seq: number of the first; 0 without any, and more than 1 if earlier files were not read.
        removed: the line before the first, if the log itself says that it removed that file.
        torn_bytes: length of an incomplete last line, which is no fault: its record was never acknowledged.
    """

    lines: int
    first_seq: int
    last: ChainHead
    removed: ChainHead | None
    torn_bytes: int
    findings: tuple[AuditFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def verify(*paths: Path, head: bool = True) -> AuditVerification:
    """Read files of one log, the oldest first, and check every line.

    Changed, removed, moved and inserted lines are found, and so are a cut beginning, and a cut end by the head beside
    the last file. A writer of all the files, and of the head, can make up another chain: only a copy of the head that
    is kept elsewhere shows that. Files before the first one may be missing. ``head`` is False for a file that was moved
    away from its head.

    Raises:
        StoreUnavailable: a file cannot be read.
    """
    # The head is read before the lines, so that the log may grow meanwhile.
    reader = _Reader(read_head(paths[-1]) if head and paths else None)
    for path in paths:
        try:
            with path.open("rb") as file:
                reader.read(str(path), file)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from None
    if head and paths:
        reader.compare(str(paths[-1]))
    return AuditVerification(
        reader.lines, reader.first_seq, reader.last, reader.removed, reader.torn_bytes, tuple(reader.findings)
    )


@dataclass(slots=True)
class _Reader:
    """What has been read so far; ``before`` is the line before the first, ``bad`` counts bad lines since a good one."""

    head: ChainHead | None
    lines: int = 0
    first_seq: int = 0
    last: ChainHead = field(default_factory=ChainHead)
    removed: ChainHead | None = None
    torn_bytes: int = 0
    findings: list[AuditFinding] = field(default_factory=list)
    before: ChainHead = field(default_factory=ChainHead)
    bad: int = 0

    def read(self, path: str, file: BinaryIO) -> None:
        """Read a file, which continues the one before."""
        self.torn_bytes = 0
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                self.torn_bytes = len(line)
                break
            link = read_link(line.removesuffix(b"\n"))
            if link is None:
                self._find(path, number, "not a line as it was written")
                self.bad += 1
                continue
            if not self.lines:
                self._begin(path, number, link)
            self._place(path, number, link)

    def compare(self, path: str) -> None:
        """Check that all flushed lines are there."""
        if self.head is None:
            self._find(path, 0, "there is no head beside it: a cut end would not be found")
        elif self.head.seq > self.last.seq:
            missing = self.head.seq - self.last.seq
            self._find(path, 0, f"the end is cut off: {missing} lines had been flushed that are not there")

    def _begin(self, path: str, number: int, link: ChainLink) -> None:
        """Check the first line of all."""
        self.first_seq = link.seq
        self.before = ChainHead(link.seq - 1, link.prev)
        if link.notice != "opened" and not self.bad:
            self._find(path, number, "no file begins with this line: the lines before it are missing")
        if link.seq == 1 and link.prev != GENESIS:
            self._find(path, number, "the first line of the log continues another one")
        self.last = self.before
        self._match(path, number)

    def _place(self, path: str, number: int, link: ChainLink) -> None:
        """Check that a line continues the line before, and whether it is the head's."""
        after = link.seq - self.last.seq - 1
        if not 0 <= after <= self.bad:
            self._find(path, number, f"line {link.seq} of the log follows line {self.last.seq}")
        elif not after and link.prev != self.last.hash:
            self._find(path, number, "the line before was changed, moved or removed")
        if link.notice == "removed" and link.last_seq == self.before.seq:
            self.removed = ChainHead(link.last_seq, link.last_hash)
            if self.removed != self.before:
                self._find(
                    path, number, "the removed file does not end with the line that the first line here continues"
                )
        self.lines += 1
        self.last = ChainHead(link.seq, link.hash)
        self.bad = 0
        self._match(path, number)

    def _match(self, path: str, number: int) -> None:
        if self.head is not None and self.head.seq == self.last.seq and self.head != self.last:
            self._find(path, number, "the head beside the log has another hash for this line: the log was rewritten")

    def _find(self, path: str, line: int, detail: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(AuditFinding(path, line, detail))
