"""``wasi:tensor/host`` and ``wasi:scheduler/host``: a call's input, its stream of output, and the time it has left.

The compiled form of the scheduler is in `guest.native.system`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from tensorwasm.errors import InternalError, InvalidPointer
from tensorwasm.guest.imports.abi import (
    MAX_CHUNK_BYTES,
    MAX_TOTAL_STREAM_BYTES,
    UNBOUNDED_MS,
    YIELD_NEAR_MS,
    StreamCode,
    YieldVerdict,
)
from tensorwasm.guest.imports.host_function import HostCall

INPUT_SERVICE: Final = "input"
"""Name under which the caller attaches the input, as bytes."""

STREAM_SERVICE: Final = "stream"
"""Name under which the caller attaches an `OutputStream`, a new one for each call."""
_MILLISECOND_NS: Final = 1_000_000


class ChunkSink(Protocol):
    """Where chunks go."""

    def send(self, chunk: bytes) -> bool:
        """Take a chunk; return False if the client has gone."""

    def flush(self) -> None:
        """Push out what was taken."""


class OutputStream:
    """The output stream of one call, into a sink."""

    def __init__(self, sink: ChunkSink) -> None:
        self._sink = sink
        self.sent_bytes = 0

    def emit(self, chunk: bytes) -> int:
        """Send a chunk, whole or not at all; return 0 or a `StreamCode`. An empty chunk sends nothing."""
        if self.sent_bytes + len(chunk) > MAX_TOTAL_STREAM_BYTES:
            return StreamCode.REFUSED
        if chunk and not self._sink.send(chunk):
            return StreamCode.CLIENT_GONE
        self.sent_bytes += len(chunk)
        return 0

    def flush(self) -> None:
        """Push out what was sent."""
        self._sink.flush()


def _stream(call: HostCall) -> OutputStream | None:
    stream = call.service(STREAM_SERVICE)
    if stream is not None and not isinstance(stream, OutputStream):
        raise InternalError("the service stream is not an OutputStream")
    return stream


def _input(call: HostCall) -> bytes:
    data = call.service(INPUT_SERVICE)
    if data is not None and not isinstance(data, bytes):
        raise InternalError("the service input is not bytes")
    return data or b""


def emit_chunk(call: HostCall, ptr: int, length: int) -> int:
    """Send a chunk."""
    stream = _stream(call)
    if stream is None:
        return StreamCode.STREAMING_OFF
    if not 0 <= length <= MAX_CHUNK_BYTES:
        return StreamCode.REFUSED
    try:
        chunk = call.memory.read(ptr & 0xFFFF_FFFF, length)
    except InvalidPointer:
        return StreamCode.REFUSED
    return stream.emit(chunk)


def flush(call: HostCall) -> int:
    """Push out what was sent."""
    stream = _stream(call)
    if stream is None:
        return StreamCode.STREAMING_OFF
    stream.flush()
    return 0


def input_len(call: HostCall) -> int:
    """Return the length of the input."""
    return len(_input(call))


def read_input(call: HostCall, ptr: int, length: int) -> int:
    """Copy the start of the input; only what is copied has to fit the memory."""
    data = _input(call)[: length & 0xFFFF_FFFF]
    if not data:
        return 0
    try:
        call.memory.write(ptr & 0xFFFF_FFFF, data)
    except InvalidPointer:
        return StreamCode.REFUSED
    return len(data)


def yield_(call: HostCall) -> int:
    """Return a `YieldVerdict`."""
    left_ns = _remaining_ns(call)
    if left_ns is None:
        return YieldVerdict.CONTINUE
    if left_ns <= 0:
        return YieldVerdict.STOP
    return YieldVerdict.DEADLINE_NEAR if left_ns < YIELD_NEAR_MS * _MILLISECOND_NS else YieldVerdict.CONTINUE


def deadline_remaining_ms(call: HostCall) -> int:
    """Return whole milliseconds left, as the signed number that a Wasm i32 is."""
    left_ns = _remaining_ns(call)
    if left_ns is None:
        return _signed(UNBOUNDED_MS)
    return _signed(min(max(left_ns, 0) // _MILLISECOND_NS, UNBOUNDED_MS - 1))


def _remaining_ns(call: HostCall) -> int | None:
    """Return nanoseconds left, negative after the deadline, None without one; integers, as in the compiled form."""
    at_ns = call.deadline.at_ns
    return None if at_ns is None else at_ns - time.monotonic_ns()


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


BODIES: Final[dict[str, Callable[..., int]]] = {
    "emit-chunk": emit_chunk,
    "flush": flush,
    "input-len": input_len,
    "read-input": read_input,
    "yield": yield_,
    "deadline-remaining-ms": deadline_remaining_ms,
}
"""Bodies by import field."""
