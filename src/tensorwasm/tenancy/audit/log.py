"""`AuditLog`: the event loop makes chained lines of its records, and a thread writes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorwasm.errors import InvalidArgs
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.tenancy.audit.chain import ChainHead
from tensorwasm.tenancy.audit.lines import LineQueue
from tensorwasm.tenancy.audit.records import AuditRecord, Notice
from tensorwasm.tenancy.audit.sinks import AuditSink, FileSink, StdoutSink, full_name, open_file, surplus
from tensorwasm.tenancy.buckets import Buckets
from tensorwasm.tenancy.quotas import unix_ms
from tensorwasm.values import MIB
from tensorwasm.yielding import lower_priority

FLUSH_LINES: Final = 1 << 14
"""A flush has a dozen system calls, behind each of which the thread has to get the interpreter from a busy loop."""

NICE: Final = 3
"""How far the thread steps back, to half the weight of others: at a tenth it would fall behind on a busy machine."""

QUEUE_LINES: Final = 1 << 16
REFUSED_QPS: Final = 10
REFUSED_BURST: Final = 100

MADE_AT_ONCE: Final = 16
"""Lines that the event loop makes at a time, 1.5 µs each."""

# Lines that the thread makes in one turn, in which the event loop waits for it: more where more are waiting, behind a
# disk that did not answer, or in a process that gets the records of others.
_TURN_LINES: Final = range(16, 256 + 1)
_TURN_PART: Final = 16
_MOST_CHUNKS: Final = 256
"""Chunks that are written at once, 2 MB or so."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AuditStatistics:
    """Lines written, records waiting, records dropped for lack of room or only counted, and whether writing fails."""

    written: int
    waiting: int
    dropped: int
    suppressed: int
    failing: bool


class AuditLog:
    """A chained log, written by a thread of its own.

    A record is on the disk ``flush_s`` after it was appended, or as soon as ``flush_lines`` wait; what was appended
    since is lost if the process is killed. While the disk is full or blocks, at most ``queue_lines`` records
    wait; further ones are dropped, and a line says how many. Records without an actor are written at a bounded rate; a
    line says how many more there were. A file continues the chain in it; standard output begins a new one. A file is
    renamed once it has ``full_bytes`` (0 for never), and the next one continues its chain; the oldest of more than
    ``keep`` (0 for all) is deleted, after a line that says so is on the disk.

    ``where`` is the path of a file, ``stdout``, or None for no log.

    Raises:
        UnsafeFile: the file is not a plain one, or has other content.
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
        now_unix_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._flush_s = flush_s
        self._flush_lines = flush_lines
        self._queue_lines = queue_lines
        self._full_bytes = full_bytes
        self._keep = keep
        self._now_unix_ms = now_unix_ms
        self._lines = LineQueue()
        self._refusals = Buckets(1)
        self._dropped = self._suppressed = 0
        self._noticed = {"dropped": 0, "suppressed": 0}  # how many of them the log's lines account for
        self._written = 0
        self._appended = self._durable = 0  # records: ever queued, and of those on the disk
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._unsynced = self._failing = self._closing = self._reopening = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if where is None:
            return
        if isinstance(where, Path):
            sink: AuditSink = self._open(where)
        else:
            sink = StdoutSink()
            self._note("opened")
        self._thread = threading.Thread(target=self._run, args=(sink,), name="tensor-wasm-audit", daemon=True)
        self._thread.start()

    def append(self, record: AuditRecord | bytes) -> None:
        """Append a record, encoded or not, without blocking or raising. For one thread, the event loop's."""
        if self._thread is None:
            return
        anonymous = not isinstance(record, bytes) and record.actor is None
        if anonymous and self._refusals.take(None, REFUSED_QPS, REFUSED_BURST, time.monotonic_ns()):
            self._suppressed += 1
            return
        lines = self._lines
        waiting = self._appended - lines.records
        if waiting >= self._queue_lines:
            self._dropped += 1
            return
        lines.entries.append(record)
        self._appended += 1
        if len(lines.entries) >= MADE_AT_ONCE:
            lines.make(MADE_AT_ONCE, wait=False)
        if waiting + 1 == self._flush_lines:
            self._wake.set()

    async def extend(self, encoded: Sequence[bytes], dropped: int, suppressed: int, *, hurry: bool) -> None:
        """Append records that another process has encoded, and count those that it lost or only counted.

        Returns once they are on the disk, as `append` has it, or sooner in a hurry. For one event loop.
        """
        waiting = self._appended - self._lines.records
        room = max(0, self._queue_lines - waiting) if self._thread is not None else len(encoded)
        self._dropped += dropped + len(encoded[room:])
        self._suppressed += suppressed
        if self._thread is not None:
            self._lines.entries.extend(encoded[:room])
            self._appended += len(encoded[:room])
            if hurry or waiting + len(encoded) >= self._flush_lines:
                self._wake.set()
            await self._until_durable(self._appended)

    async def _until_durable(self, count: int) -> None:
        """Wait until so many records are on the disk."""
        self._loop = asyncio.get_running_loop()
        while self._durable < count:
            durable = self._loop.create_future()
            self._waiting.append((count, durable))
            if self._durable >= count:  # the thread may not have seen it
                self._settle()
            await durable

    def _settle(self) -> None:
        """Go on with those whose records are on the disk."""
        while self._waiting and self._waiting[0][0] <= self._durable:  # those that came first wait for less
            durable = self._waiting.popleft()[1]
            if not durable.done():
                durable.set_result(None)

    def reopen(self) -> None:
        """Make the thread continue in a new file if the old one was moved away."""
        self._reopening = True
        self._wake.set()

    def statistics(self) -> AuditStatistics:
        """Return the counters."""
        return AuditStatistics(self._written, len(self._lines), self._dropped, self._suppressed, self._failing)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the waiting records, and close the file; later records are dropped.

        Blocks, for ``timeout_s`` at most if the disk blocks.
        """
        self._queue_lines = 0
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if lost := self.statistics().waiting:
                _LOG.error("the audit log ends with %d records that could not be written", lost)

    def _open(self, path: Path, head: ChainHead | None = None) -> FileSink:
        """Open a file, and make its first lines say what was found in it."""
        opened = open_file(path, head)
        found = (("torn", opened.torn_bytes), ("cut", opened.cut_lines))
        notices = [("opened" if opened.empty else "resumed", 0), *(each for each in found if each[1])]
        self._lines.begin(opened.head, [Notice(self._now_unix_ms(), notice, count) for notice, count in notices])
        if opened.cut_lines:
            _LOG.error("the audit log lacks %d lines that had been flushed", opened.cut_lines)
        self._wake.set()
        return opened.sink

    def _run(self, sink: AuditSink) -> None:
        lower_priority(nice=NICE)  # a write takes milliseconds, for which it would take an event loop's processor
        closing = False
        while not closing:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            closing = self._closing
            try:
                if self._reopening and isinstance(sink, FileSink):
                    with contextlib.suppress(OSError):  # what cannot be written to the old file goes into the new one
                        self._flush(sink)
                    sink = self._continue(sink)
                    self._reopening = False
                self._flush(sink)
                if self._full_bytes and isinstance(sink, FileSink) and sink.length() >= self._full_bytes:
                    if not sink.moved():
                        sink.path.rename(full_name(sink.path, self._lines.head.seq))
                    sink = self._continue(sink)
                    self._delete_surplus(sink)
                    self._flush(sink)  # the new file's first line, even if this is the end
            except Exception as error:  # noqa: BLE001 - the thread must survive any error, and try again
                if not self._failing:
                    reason = getattr(error, "strerror", None) or type(error).__name__
                    _LOG.error("the audit log cannot be written: %s; up to %d records wait", reason, self._queue_lines)
                self._failing = True
            else:
                if self._failing:
                    _LOG.warning("the audit log is written again")
                self._failing = False
        sink.close()

    def _flush(self, sink: AuditSink) -> None:
        """Write all that was appended until now, and make it durable."""
        left = len(self._lines)
        while left > 0 and (written := self._write(sink)):
            left -= written
        for notice, count in (("dropped", self._dropped), ("suppressed", self._suppressed)):
            if count > self._noticed[notice]:
                self._note(notice, count - self._noticed[notice])
                self._noticed[notice] = count
        self._write(sink)
        if self._unsynced:
            sink.sync(self._lines.head)
            self._unsynced = False
            self._durable = self._lines.records
            if self._waiting and self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    self._loop.call_soon_threadsafe(self._settle)

    def _write(self, sink: AuditSink) -> int:
        """Write lines, and return how many; they count once they are written."""
        queue = self._lines
        queue.make(max(_TURN_LINES.start, min(len(queue.entries) // _TURN_PART, _TURN_LINES[-1])), wait=True)
        chunks = queue.made()[:_MOST_CHUNKS]
        if not chunks:
            return 0
        sink.write(b"".join([chunk.text for chunk in chunks]))
        queue.wrote(chunks)
        self._unsynced = True
        written = sum(chunk.lines for chunk in chunks)
        self._written += written
        return written

    def _note(self, notice: str, count: int = 0, last: ChainHead | None = None) -> None:
        removed = () if last is None else (last.seq, last.hash)
        self._lines.entries.append(Notice(self._now_unix_ms(), notice, count, *removed))

    def _continue(self, sink: FileSink) -> FileSink:
        """Open the file that has the path now, if the old one was moved; if that fails, the old one stays open."""
        if not sink.moved():
            return sink
        new = self._open(sink.path, self._lines.head)
        sink.close()
        return new

    def _delete_surplus(self, sink: FileSink) -> None:
        """Delete the oldest of too many full files, each after a line that says so is on the disk."""
        for path, lines, last in tuple(surplus(sink.path, self._keep)) if self._keep else ():
            self._note("removed", lines, last)
            self._flush(sink)
            path.unlink(missing_ok=True)


def open_audit(settings: ServiceSettings, data: Path) -> AuditLog:
    """Open the log of the settings; raises as `AuditLog` and `log_path` do."""
    where = None if settings.audit_log == "none" else log_path(settings, data) or "stdout"
    full_bytes = settings.audit_rotate_mib * MIB
    return AuditLog(where, flush_s=settings.audit_flush_s, full_bytes=full_bytes, keep=settings.audit_keep)


def log_path(settings: ServiceSettings, data: Path) -> Path | None:
    """Return the log's file, by default in the data folder; None for standard output or no log.

    Raises:
        InvalidArgs: the setting is invalid.
    """
    chosen = settings.audit_log
    scheme, _, path = chosen.partition(":")
    if not chosen:
        return data / "audit.log"
    if chosen in {"none", "stdout"}:
        return None
    if scheme == "file" and path.startswith("/"):
        return Path(path)
    raise InvalidArgs(f"TENSOR_WASM_API_AUDIT_LOG is file:/path, stdout or none, not {chosen[:64]!r}")
