"""gzip both ways: bodies of requests that come so, and answers to those who take them so.

What is long is compressed and decompressed on another thread. What a request's body becomes counts against the limits
of a body that comes as it is, piece by piece, so a small one that would become a large one is refused on the way.

Source: RFC 9110, 8.4 "Content-Encoding", 12.5.3 "Accept-Encoding"; RFC 1952.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Final

from tensorwasm.errors import InvalidRequest, UnsupportedMediaType
from tensorwasm.server.exchange import ASIDE

GZIP_BYTES: Final = 1400
"""Shortest answer that is compressed: a shorter one is a packet of a network anyway."""

INLINE_BYTES: Final = 8 << 10
"""Longest answer that is compressed on the event loop, and longest body that is decompressed there: 0.2 ms."""

_SLICE_BYTES: Final = 64 << 10
"""What is taken of a compressed body at a time: zlib copies what it has not used after every piece."""

_PIECE_BYTES: Final = 1 << 20
"""What comes of it at a time."""

_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 4
_NAMES: Final = frozenset({"gzip", "x-gzip"})
_NO_WEIGHT: Final = re.compile(r"\s*q\s*=\s*0(\.0{0,3})?\s*", re.IGNORECASE)


class UnknownCoding(UnsupportedMediaType):
    """A body is compressed in another way; the answer says in a header which is taken."""


def is_gzip(coding: str | None) -> bool:
    """Return whether the value of a Content-Encoding is gzip; False for a body that comes as it is.

    Raises:
        UnknownCoding: it is something else.
    """
    name = (coding or "").strip().lower()
    if name in _NAMES:
        return True
    if name not in {"", "identity"}:
        raise UnknownCoding("a body is compressed with gzip, or not at all")
    return False


async def inflate(body: bytes, hold: Callable[[int], None]) -> bytes:
    """Return what a gzip stream of one member stands for.

    Args:
        body: it.
        hold: is told how much each piece has before the next one is made, and raises where that is too much.

    Raises:
        InvalidRequest: it is none, is cut off, or has something after it.
        TensorWasmError: what `hold` raises.
    """
    engine = zlib.decompressobj(_GZIP)
    inline = len(body) <= INLINE_BYTES
    parts: list[bytes] = []
    for start in range(0, len(body), _SLICE_BYTES):
        rest = body[start : start + _SLICE_BYTES]
        while rest and not engine.eof:
            if inline:
                piece = _step(engine, rest, INLINE_BYTES)
                inline = len(piece) < INLINE_BYTES  # more may come of it than the event loop has time for
            else:
                await ASIDE
                piece = await asyncio.to_thread(_step, engine, rest, _PIECE_BYTES)
            hold(len(piece))
            parts.append(piece)
            rest = engine.unconsumed_tail
        if engine.eof and (engine.unused_data or start + _SLICE_BYTES < len(body)):
            raise InvalidRequest("the body has something after its gzip stream")
    if not engine.eof:
        raise InvalidRequest("the body's gzip stream is cut off")
    return b"".join(parts)


def accepts_gzip(header: str | None) -> bool:
    """Return whether a client takes gzip, by its Accept-Encoding; one that says nothing does not."""
    if header is None:
        return False
    weights: dict[str, bool] = {}
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = not _NO_WEIGHT.fullmatch(weight)
    return next((weights[name] for name in ("gzip", "x-gzip", "*") if name in weights), False)


def is_compressible(content_type: str, size_bytes: int) -> bool:
    """Return whether an answer is worth compressing, for whoever takes it so."""
    return size_bytes >= GZIP_BYTES and content_type.startswith(("application/json", "text/"))


async def deflate(body: bytes) -> bytes:
    """Return a body as a gzip stream."""
    if len(body) <= INLINE_BYTES:
        return _pack(body)
    await ASIDE
    return await asyncio.to_thread(_pack, body)


def _pack(body: bytes) -> bytes:
    return zlib.compress(body, _LEVEL, wbits=_GZIP)


def _step(engine: zlib._Decompress, data: bytes, most_bytes: int) -> bytes:
    try:
        return engine.decompress(data, most_bytes)
    except zlib.error:
        raise InvalidRequest("the body is no gzip stream") from None
