"""`TraceLog`: appends traces to a file, one JSON object a line, on a thread of its own.

The file is opened for each batch: it may be moved away or emptied at any time, and several processes may write to it.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
from pathlib import Path
from typing import Final

import msgspec

from tensorwasm.errors import InvalidArgs
from tensorwasm.values import MIB

MAX_LOG_BYTES: Final = 64 * MIB
"""Size from which nothing more is written to the file."""

MAX_QUEUE: Final = 1024
"""Traces that wait to be written; further ones are dropped."""

_BATCH: Final = 64
_log = logging.getLogger(__name__)


class Trace(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        ts_unix_ms: when its reply was sent.
        pid: the process that answered it.
        total_us: from its arrival to its reply.
        spans: name, start after the arrival and length, both in microseconds.
    """

    ts_unix_ms: int
    pid: int
    trace_id: str
    request_id: str
    tenant_id: int | None
    route: str
    status: int
    total_us: float
    spans: list[tuple[str, float, float]]


class TraceLog:
    """Appends traces to a file of `max_bytes` at most, beside one batch of each process. Thread-safe. Close it."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_LOG_BYTES, queue_traces: int = MAX_QUEUE) -> None:
        """Start the thread."""
        self._path, self._max_bytes = path, max_bytes
        self._queue: queue.Queue[Trace | None] = queue.Queue(queue_traces)
        self._encode = msgspec.json.Encoder().encode
        self._failing = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="tensorwasm-traces", daemon=True)
        self._thread.start()

    def append(self, trace: Trace) -> None:
        """Write a trace soon; drop it if too many wait."""
        try:
            self._queue.put_nowait(trace)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what waits, and end. Blocks."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            ended = None in batch
            lines = b"".join([self._encode(trace) + b"\n" for trace in batch if trace is not None])
            try:
                written = not lines or self._write(lines)
            except OSError as error:
                if not self._failing:
                    _log.warning("traces cannot be written to %s: %s", self._path, error)
                self._failing = True
            else:
                self._failing = not written

    def _write(self, lines: bytes) -> bool:
        """Append lines in one write; return False if the file is full."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError("it is not a plain file")
            if found.st_size < self._max_bytes:
                file.write(lines)
                return True
        if not self._failing:
            _log.warning("no more traces are written: %s is full; move it away to go on", self._path)
        return False


def open_trace_log(where: str) -> TraceLog | None:
    """Return the log that the setting ``TENSOR_WASM_API_TRACE_LOG`` names; None for none.

    Raises:
        InvalidArgs: it is not ``file:/path``.
    """
    if not where:
        return None
    kind, _, path = where.partition(":")
    if kind != "file" or not path.startswith("/"):
        raise InvalidArgs(f"TENSOR_WASM_API_TRACE_LOG is file:/path, not {where[:64]!r}")
    return TraceLog(Path(path))
