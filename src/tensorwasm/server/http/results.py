"""Replies of calls: results, what the guest wrote, and how it failed.

Encoding much output at once would delay every other request, so it is encoded piece by piece. Its length is computed
before the first byte is sent, so the connection stays open. A piece is encoded when the client takes it: beside the
output itself a reply needs the memory of one piece, and sent output is freed at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from tensorwasm.errors import GuestExit, GuestTrap, TensorWasmError
from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.http.long_work import return_rest_soon, run_slice
from tensorwasm.server.http.routing import Reply, SendChunk, StreamedReply, StreamEnd
from tensorwasm.server.http.schemas import Output, StackFrame, encode
from tensorwasm.telemetry.timeline import CURRENT

LONG_BYTES: Final = 128 << 10
"""Longest output that is encoded at once: about 0.2 ms."""

PIECE_BYTES: Final = 96 << 10
"""Bytes encoded at a time; a multiple of three, so that base64 continues without padding."""

_NO_RESULTS: Final = '"ok"'

ENDING_BYTES: Final = 64 << 10
"""Most bytes of standard output in an error's reply, and as many of standard error."""


async def result_reply(field: str, called: str, outcome: Invocation) -> Reply | StreamedReply:
    """Return the reply to a call as `immediate_reply` does; much output is encoded in pieces."""
    if is_long(outcome):
        return await chunked_reply(_head(field, called, outcome).encode(), outcome)
    return immediate_reply(field, called, outcome)


def immediate_reply(field: str, called: str, outcome: Invocation) -> Reply:
    """Return the reply to a call whose guest did not write much; raise as `require_success` does.

    The UUID of what was called is in a field such as ``function_id``.
    """
    head = _head(field, called, outcome)
    if not (outcome.stdout or outcome.stderr or outcome.chunks):
        return Reply((head + "}").encode())
    written = {"stdout": outcome.stdout, "stderr": outcome.stderr, "output": b"".join(outcome.chunks)}
    more = encode({name: output_of(each) for name, each in written.items() if each})[1:-1]
    return Reply(b"%b,%b}" % (head.encode(), more))


def require_success(outcome: Invocation) -> Invocation:
    """Return the outcome of a call; raise `GuestExit` if the guest exited with a failure."""
    if outcome.exit_code:
        raise GuestExit(outcome.exit_code, outcome.stdout, outcome.stderr)
    return outcome


def encode_result(outcome: Invocation) -> bytes:
    """Return the results as JSON, with every digit; ``"ok"`` for an export without results."""
    return (outcome.to_json() if outcome.result_types else _NO_RESULTS).encode()


def output_of(written: bytes) -> Output:
    """Return the JSON of output."""
    try:
        return Output(text=written.decode())
    except UnicodeDecodeError:
        return Output(base64=base64.b64encode(written).decode())


def end_of_output(written: bytes, most_bytes: int = ENDING_BYTES) -> Output:
    """Return the JSON of the end of output, where failures are reported."""
    if len(written) <= most_bytes:
        return output_of(written)
    kept = written[-most_bytes:]
    # A UTF-8 character that the cut divided is dropped.
    start = next((index for index in range(min(4, len(kept))) if kept[index] & 0xC0 != 0x80), 0)
    output = output_of(kept[start:])
    output.truncated = True
    return output


def failure_fields(error: TensorWasmError) -> dict[str, Any]:
    """Return the fields of `FailureOutput` that an error has."""
    written = {name: getattr(error, name, b"") for name in ("stdout", "stderr")}
    found: dict[str, Any] = {name: end_of_output(data) for name, data in written.items() if data}
    if isinstance(error, GuestExit):
        found["exit_code"] = error.code
    if isinstance(error, GuestTrap) and error.backtrace:
        found["backtrace"] = [StackFrame.of(frame) for frame in error.backtrace]
    return found


def _head(field: str, called: str, outcome: Invocation) -> str:
    """Return a reply's JSON without the guest's output and the closing brace."""
    timeline = CURRENT.get()
    if timeline is not None:
        timeline.end_guest(outcome.elapsed_s, outcome.device_s, outcome.offload_s)
    if outcome.exit_code:
        require_success(outcome)  # raises
    head = f'{{"{field}":"{called}","result":{outcome.to_json() if outcome.result_types else _NO_RESULTS}'
    if outcome.stdout_truncated or outcome.stderr_truncated:
        head += "".join(f',"{name}_truncated":true' for name in outcome.truncated)
    return head


def is_long(outcome: Invocation) -> bool:
    """Return whether a guest wrote too much to encode at once."""
    written = len(outcome.stdout) + len(outcome.stderr)
    return written + (sum(map(len, outcome.chunks)) if outcome.chunks else 0) > LONG_BYTES


async def chunked_reply(head: bytes, outcome: Invocation) -> StreamedReply:
    """Return the reply to a call whose guest wrote much. Sent output is freed if the caller drops the outcome.

    `head` is the JSON so far, an object that has fields and is not closed.
    """
    written: Mapping[str, Sequence[bytes]] = {
        "stdout": (outcome.stdout,), "stderr": (outcome.stderr,), "output": outcome.chunks
    }  # fmt: skip
    parts = {name: deque(chunks) for name, chunks in written.items() if any(chunks)}
    kinds, length = await asyncio.to_thread(_measure, parts)

    async def send(give: SendChunk) -> StreamEnd:
        pieces = _render(head, parts, kinds)
        try:
            while (piece := await run_slice(partial(next, pieces, None))) is not None:
                if not await give(piece):
                    return StreamEnd(whole=False)
            return StreamEnd()
        finally:
            return_rest_soon()

    return StreamedReply(send, Reply().content_type, length=len(head) + length)


def _measure(parts: Mapping[str, Iterable[bytes]]) -> tuple[dict[str, str], int]:
    """Return the encoding of each part, and the length of the JSON after the head. Runs on a worker thread."""
    kinds: dict[str, str] = {}
    length = len("}")
    for name, chunks in parts.items():
        try:
            kinds[name], size = "text", sum(map(len, _write_text(chunks)))
        except UnicodeDecodeError:
            kinds[name], size = "base64", (sum(map(len, chunks)) + 2) // 3 * 4
        length += len(f',"{name}":{{"{kinds[name]}":""}}') + size
    return kinds, length


def _render(head: bytes, parts: Mapping[str, deque[bytes]], kinds: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the JSON of a reply; each chunk is removed from its part before it is written."""
    yield head
    for name, chunks in parts.items():
        yield b',"%b":{"%b":"' % (name.encode(), kinds[name].encode())
        yield from (_write_text if kinds[name] == "text" else _write_base64)(_drain(chunks))
        yield b'"}'
    yield b"}"


def _write_text(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the JSON of UTF-8; raise `UnicodeDecodeError` for other bytes."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    for piece in _cut(chunks):
        if text := decode(piece):
            yield encode(text)[1:-1]
    decode(b"", final=True)


def _write_base64(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in _cut(chunks):
        data = rest + piece
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        if whole:
            yield binascii.b2a_base64(data[:whole], newline=False)
    if rest:
        yield binascii.b2a_base64(rest, newline=False)


def _drain(chunks: deque[bytes]) -> Iterator[bytes]:
    while chunks:
        yield chunks.popleft()


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at most `PIECE_BYTES`."""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            yield chunk[start : start + PIECE_BYTES]
