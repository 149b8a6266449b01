"""`LineQueue`: what is to be written to a log, in order, and the lines that were made of it.

The event loop's thread makes most lines, a few at a time. Were the log's own thread to make all of them, it would need
the interpreter for that, which a busy loop lets go of and takes back with every request: it would wake that thread in
vain again and again, which costs several times as much as a line.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tensorwasm.tenancy.audit.chain import Chain, ChainHead, hash_of, read_link, unlink
from tensorwasm.tenancy.audit.records import AuditRecord, Notice, decode_notice, encode

Entry = AuditRecord | Notice | bytes
"""What becomes a line; bytes are a record that was encoded already."""


class LineChunk(NamedTuple):
    """Lines that were made together: their text and number, and how many of them are records."""

    text: bytes
    lines: int
    records: int


class LineQueue:
    """Entries and lines of a log. Any thread appends entries and makes lines, one writes them.

    Attributes:
        entries: of which no lines were made.
        head: the last line that was written.
        records: number of records whose lines were written.
    """

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.head = ChainHead()
        self.records = 0
        self._made: list[LineChunk] = []
        self._chain = Chain(self.head.seq, self.head.hash)
        self._making = threading.Lock()

    def __len__(self) -> int:
        """Return how many lines are to be written, made or not."""
        return len(self.entries) + sum(chunk.lines for chunk in self.made())

    def begin(self, head: ChainHead, notices: Sequence[Notice]) -> None:
        """Continue the chain behind a line: with notices, then with all that was not written."""
        with self._making:
            for line in reversed(b"".join(chunk.text for chunk in self._made).splitlines()):
                link, body = read_link(line), unlink(line)
                self.entries.appendleft(decode_notice(body) if link is not None and link.notice else body)
            self.entries.extendleft(reversed(notices))
            self._made.clear()
            self.head, self._chain = head, Chain(head.seq, head.hash)

    def make(self, most: int, *, wait: bool) -> None:
        """Make so many lines at most; without waiting none if another thread makes some."""
        if not self._making.acquire(blocking=wait):
            return
        lines, notices = [], 0
        try:
            for _ in range(min(most, len(self.entries))):
                entry = self.entries.popleft()
                notices += isinstance(entry, Notice)
                lines.append(self._chain.link(encode(entry)))
        finally:
            if lines:
                self._made.append(LineChunk(b"".join(lines), len(lines), len(lines) - notices))
            self._making.release()

    def made(self) -> list[LineChunk]:
        """Return the lines that were made and not written."""
        return self._made.copy()

    def wrote(self, chunks: Sequence[LineChunk]) -> None:
        """Note that the first chunks of `made` were written."""
        if chunks:
            self.head = ChainHead(self.head.seq + sum(chunk.lines for chunk in chunks), hash_of(chunks[-1].text))
            self.records += sum(chunk.records for chunk in chunks)
            del self._made[: len(chunks)]
