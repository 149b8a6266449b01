"""``wasi:tensor/host``: the input of a call, and a stream of output while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tensorwasm.errors import InternalError, InvalidPointer
from tensorwasm.guest.imports.abi import MAX_CHUNK_BYTES, MAX_TOTAL_STREAM_BYTES, StreamCode
from tensorwasm.guest.imports.host_function import HostCall

INPUT_SERVICE: Final = "input"
"""Name under which the caller attaches the input, as bytes."""

STREAM_SERVICE: Final = "stream"
"""Name under which the caller attaches an `OutputStream`, a new one for each call."""


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


BODIES: Final[dict[str, Callable[..., int]]] = {
    "emit-chunk": emit_chunk,
    "flush": flush,
    "input-len": input_len,
    "read-input": read_input,
}
"""Bodies by import field."""
