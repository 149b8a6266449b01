"""Answers with so much output that encoding them at once would hold up every other request: encoded piece by piece.

What the whole answer has is known before its first byte is sent, so it has a length and the connection stays open. A
piece is encoded when the client takes it; beside the output itself an answer has the memory of one piece, and what was
sent of the output is freed at once (`tensorwasm.server.pieces`).
"""

from __future__ import annotations

import asyncio
import binascii
import codecs
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from tensorwasm.runtime.invoke.invocation import Invocation
from tensorwasm.server.memory import return_rest_soon
from tensorwasm.server.pieces import do_piece
from tensorwasm.server.routing import Ending, Reply, Send, Streamed

LONG_BYTES: Final = 128 << 10
"""Longest output that is encoded at once: some 0.2 ms."""

PIECE_BYTES: Final = 96 << 10
"""What is encoded at a time; a multiple of three, so that base64 goes on without a gap."""

_encode: Final = msgspec.json.Encoder().encode
_Pieces = Callable[[Iterable[bytes]], Iterator[bytes]]


def is_long(outcome: Invocation) -> bool:
    """Return whether what a guest wrote is too much to be encoded at once."""
    written = len(outcome.stdout) + len(outcome.stderr)
    return written + (sum(map(len, outcome.chunks)) if outcome.chunks else 0) > LONG_BYTES


def cuts_of(outcome: Invocation) -> bytes:
    """Return the fields of an answer's JSON that say which output was cut."""
    return b"".join(b',"%b_truncated":true' % name.encode() for name in outcome.truncated)


async def answer_in_pieces(head: bytes, outcome: Invocation) -> Streamed:
    """Return the answer to a call whose guest wrote much. What was sent is freed, once nobody else has the outcome.

    Args:
        head: the JSON so far, an object that has fields and is not closed.
        outcome: what came of the call.
    """
    written: Mapping[str, Sequence[bytes]] = {
        "stdout": (outcome.stdout,), "stderr": (outcome.stderr,), "output": outcome.chunks
    }  # fmt: skip
    parts = {name: chunks for name, chunks in written.items() if any(chunks)}
    kinds, length = await asyncio.to_thread(_measure, parts)
    left = {name: deque(chunks) for name, chunks in parts.items()}

    async def send(give: Send) -> Ending:
        pieces = _render(head, left, kinds)
        try:
            while (piece := await do_piece(partial(next, pieces, None))) is not None:
                if not await give(piece):
                    return Ending(whole=False)
            return Ending()
        finally:
            return_rest_soon()

    return Streamed(send, Reply().content_type, length=len(head) + length)


def _measure(parts: Mapping[str, Sequence[bytes]]) -> tuple[dict[str, str], int]:
    """Return how each part is written, and how long what follows the head is. For another thread than the loop's."""
    kinds = {name: "text" if _is_text(chunks) else "base64" for name, chunks in parts.items()}
    frame = sum(len(name) + len(kinds[name]) + len(',"":{"":""}') for name in parts) + len("}")
    return kinds, frame + sum(_LENGTHS[kinds[name]](chunks) for name, chunks in parts.items())


def _is_text(chunks: Sequence[bytes]) -> bool:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for piece in _cut(chunks):
            decode(piece)
        decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _render(head: bytes, parts: Mapping[str, deque[bytes]], kinds: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the JSON of an answer; each chunk leaves its part before it is written."""
    yield head
    for name, chunks in parts.items():
        kind = kinds[name]
        yield b',"%b":{"%b":"' % (name.encode(), kind.encode())
        yield from _WRITERS[kind](_drain(chunks))
        yield b'"}'
    yield b"}"


def _write_text(chunks: Iterable[bytes]) -> Iterator[bytes]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    for piece in _cut(chunks):
        if text := decode(piece):
            yield _encode(text)[1:-1]


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


_WRITERS: Final[Mapping[str, _Pieces]] = {"text": _write_text, "base64": _write_base64}
_LENGTHS: Final[Mapping[str, Callable[[Sequence[bytes]], int]]] = {
    "text": lambda chunks: sum(map(len, _write_text(chunks))),
    "base64": lambda chunks: (sum(map(len, chunks)) + 2) // 3 * 4,
}


def _drain(chunks: deque[bytes]) -> Iterator[bytes]:
    while chunks:
        yield chunks.popleft()


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are not too long."""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE_BYTES):
            yield chunk[start : start + PIECE_BYTES]
