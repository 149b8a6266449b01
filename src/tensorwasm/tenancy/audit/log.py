"""`AuditLog`: records are handed over in a third of a microsecond; a thread encodes, chains and writes them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.audit.chain import Chain, Head
from tensorwasm.tenancy.audit.record import AuditRecord, Notice, encode
from tensorwasm.tenancy.audit.rotation import full_name, surplus
from tensorwasm.tenancy.audit.sinks import FileSink, Sink, StdoutSink, open_file
from tensorwasm.tenancy.buckets import Buckets
from tensorwasm.values import MIB

FLUSH_LINES: Final = 1024
QUEUE_LINES: Final = 1 << 16
REFUSED_QPS: Final = 10
REFUSED_BURST: Final = 100

# Lines made in one turn of the thread, in which the event loop waits for the GIL: 2 µs for each. A busy loop lets the
# thread have a turn every 5 ms only (the interpreter's switch interval), so that more are made where more are waiting:
# 3,200 lines a second at the least, 51,200 at the most, for which the loop waits half a millisecond at a time.
_TURN_LINES: Final = range(16, 256 + 1)
_TURN_PART: Final = 16

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditStatistics:
    """A snapshot of a log.

    Attributes:
        written: lines.
        waiting: records handed over that are not written.
        dropped: records lost because there was no room for them.
        suppressed: refusals of credentials that were only counted.
        failing: whether what was last tried to be written could not.
    """

    written: int
    waiting: int
    dropped: int
    suppressed: int
    failing: bool


class AuditLog:
    """A chained log, buffered, written by a thread of its own.

    A record is on the disk ``flush_s`` after it was appended, or as soon as ``flush_lines`` are waiting; what was
    appended since is lost if the process is killed. Where the disk is full or does not answer, records wait, at most
    ``queue_lines``; what comes then is lost, and a line says how many were. Records without an actor are written at a
    bounded rate; a line says how many more there were. A file goes on with the chain that is in it; standard output
    begins a new one. A file that is full gets another name, and the next one goes on with its chain; the oldest of more
    than ``keep`` goes, once a line that says so is on the disk.

    Args:
        where: path of a file, ``stdout``, or None for nowhere.
        flush_s: as above.
        flush_lines: as above.
        queue_lines: as above.
        full_bytes: length from which a file is full; 0 for none.
        keep: full files that are kept; 0 for all.
        now_unix_ms: the clock of the log's own lines.

    Raises:
        UnsafeFile: the file is not a plain one, or has something else in it.
        StoreUnavailable: another process writes the file, or it cannot be opened.
    """

    def __init__(
        self,
        where: Path | str | None,
        *,
        flush_s: float = 1.0,
        flush_lines: int = FLUSH_LINES,
        queue_lines: int = QUEUE_LINES,
        full_bytes: int = 0,
        keep: int = 0,
        now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Open the sink, and start the thread."""
        self._flush_s = flush_s
        self._flush_lines = flush_lines
        self._queue_lines = queue_lines
        self._full_bytes = full_bytes
        self._keep = keep
        self._now_unix_ms = now_unix_ms
        self._queue: deque[AuditRecord] = deque()
        self._pending: list[bytes] = []  # records encoded, and not written yet
        self._refusals = Buckets(1)
        self._dropped = self._suppressed = 0
        self._told = [0, 0]  # of dropped and suppressed ones, as many as there are lines for
        self._head = Head()
        self._written = 0
        self._unsynced = self._failing = False
        self._closing = self._reopening = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        if where is None:
            return
        sink = self._open(where) if isinstance(where, Path) else self._print()
        self._thread = threading.Thread(target=self._run, args=(sink,), name="tensor-wasm-audit", daemon=True)
        self._thread.start()

    def append(self, record: AuditRecord) -> None:
        """Hand a record over; never blocks and never raises. For one thread, the event loop's."""
        if self._thread is None:
            return
        if record.actor is None and self._refusals.take(None, REFUSED_QPS, REFUSED_BURST, time.monotonic_ns()):
            self._suppressed += 1
            return
        queue = self._queue
        if len(queue) >= self._queue_lines:
            self._dropped += 1
            return
        queue.append(record)
        if len(queue) == self._flush_lines:
            self._wake.set()

    def reopen(self) -> None:
        """Go on in a new file where the old one was moved away; the thread does, soon."""
        self._reopening = True
        self._wake.set()

    def statistics(self) -> AuditStatistics:
        """Return a snapshot."""
        waiting = len(self._queue) + len(self._pending)
        return AuditStatistics(self._written, waiting, self._dropped, self._suppressed, self._failing)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is waiting, and let go of the file; what is appended then is dropped.

        Blocks, while the disk does not answer no longer than ``timeout_s``.
        """
        self._queue_lines = 0
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if lost := self.statistics().waiting:
                _LOG.error("the audit log ends with %d records that could not be written", lost)

    def _open(self, path: Path, head: Head | None = None) -> FileSink:
        """Open a file, and have its first line say what was found in it."""
        opened = open_file(path, head)
        found = (("torn", opened.torn_bytes), ("cut", opened.cut_lines))
        notices = [("opened" if opened.empty else "resumed", 0), *(each for each in found if each[1])]
        self._pending[:0] = [self._note(notice, count) for notice, count in notices]
        if opened.cut_lines:
            _LOG.error("the audit log lacks %d lines that had been flushed", opened.cut_lines)
        self._head = opened.head
        self._wake.set()
        return opened.sink

    def _print(self) -> StdoutSink:
        self._pending.append(self._note("opened", 0))
        return StdoutSink()

    def _run(self, sink: Sink) -> None:
        closing = False
        while not closing:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            closing = self._closing
            try:
                if self._reopening and isinstance(sink, FileSink):
                    sink = self._reopen(sink)
                self._flush(sink)
                if self._full_bytes and isinstance(sink, FileSink) and sink.length() >= self._full_bytes:
                    sink = self._rotate(sink)
                    self._trim(sink)
                    self._flush(sink)  # the new file's first line, even if this is the end
            except Exception as error:  # noqa: BLE001 - whatever it is, the thread lives, and tries again
                self._fail(error)
            else:
                self._mend()
        sink.close()

    def _flush(self, sink: Sink) -> None:
        """Write all that was appended until now, and have it on the disk."""
        left = len(self._queue) + len(self._pending)
        while left > 0:
            left -= self._write(sink)
        for number, (notice, count) in enumerate((("dropped", self._dropped), ("suppressed", self._suppressed))):
            if count > self._told[number]:
                self._pending.append(self._note(notice, count - self._told[number]))
                self._told[number] = count
        self._write(sink)
        if self._unsynced:
            sink.sync(self._head)
            self._unsynced = False

    def _write(self, sink: Sink) -> int:
        """Write some lines, and return how many; others have their turn then. The chain goes on once they are there."""
        pending, queue = self._pending, self._queue
        lines = max(_TURN_LINES.start, min(len(queue) // _TURN_PART, _TURN_LINES[-1]))
        while queue and len(pending) < lines:
            pending.append(encode(queue.popleft()))
        if not pending:
            return 0
        chain = Chain(self._head)
        sink.write(b"".join(map(chain.link, pending)))
        self._head = chain.head()
        self._unsynced = True
        written = len(pending)
        self._written += written
        pending.clear()
        return written

    def _note(self, notice: str, count: int) -> bytes:
        return encode(Notice(self._now_unix_ms(), notice, count))

    def _reopen(self, sink: FileSink) -> FileSink:
        """Return the file that has the path now; what cannot be written to the old one goes into it."""
        with contextlib.suppress(OSError):
            self._flush(sink)
        if not sink.moved():
            self._reopening = False
            return sink
        new = self._open(sink.path, self._head)
        self._reopening = False
        sink.close()
        return new

    def _rotate(self, sink: FileSink) -> FileSink:
        """Give a full file its name, and go on in a new one; where none can be made, the full one is written on."""
        if not sink.moved():
            sink.path.rename(full_name(sink.path, self._head.seq))
        new = self._open(sink.path, self._head)
        sink.close()
        return new

    def _trim(self, sink: FileSink) -> None:
        """Take the oldest of too many full files away, each after a line that says so is on the disk."""
        for each in tuple(surplus(sink.path, self._keep)) if self._keep else ():
            notice = Notice(self._now_unix_ms(), "removed", each.lines, each.last.seq, each.last.hash)
            self._pending.append(encode(notice))
            self._flush(sink)
            each.path.unlink(missing_ok=True)

    def _fail(self, error: Exception) -> None:
        if not self._failing:
            reason = getattr(error, "strerror", None) or type(error).__name__
            _LOG.error("the audit log cannot be written: %s; up to %d records wait", reason, self._queue_lines)
        self._failing = True

    def _mend(self) -> None:
        if self._failing:
            _LOG.warning("the audit log is written again")
        self._failing = False


def open_audit(settings: ServiceSettings, data: Path) -> AuditLog:
    """Open the log that the settings say, in the data folder unless they say where.

    Raises:
        InvalidArgs: they say none that there is.
        UnsafeFile: see `AuditLog`.
        StoreUnavailable: the same.
    """
    where = None if settings.audit_log == "none" else log_path(settings, data) or "stdout"
    full_bytes = settings.audit_rotate_mib * MIB
    return AuditLog(where, flush_s=settings.audit_flush_s, full_bytes=full_bytes, keep=settings.audit_keep)


def log_path(settings: ServiceSettings, data: Path) -> Path | None:
    """Return the file that the settings say, in the data folder unless they say where; None if it is none.

    Raises:
        InvalidArgs: they say nothing that there is.
    """
    said = settings.audit_log
    scheme, _, path = said.partition(":")
    if not said:
        return data / "audit.log"
    if said in {"none", "stdout"}:
        return None
    if scheme == "file" and path.startswith("/"):
        return Path(path)
    raise InvalidArgs(f"TENSOR_WASM_API_AUDIT_LOG is file:/path, stdout or none, not {said[:64]!r}")
