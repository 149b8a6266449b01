"""Bodies of requests: how much comes in, how long that may take, how much of memory all of them have, and their base64.

A body that is short comes in one piece, read ahead by whoever took the request in. A longer one is read chunk by chunk,
and every byte counts against one budget for all connections until the request is answered: who comes when it is used up
is sent away and may come again, so that a thousand uploads at once cost no more memory than a few. No tenant has more
of it than is left for the others.
"""

from __future__ import annotations

import asyncio
import binascii
import io
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from tensorwasm.errors import (
    BodyTooLarge,
    CapacityExhausted,
    InvalidBase64,
    InvalidRequest,
    RequestTimeout,
)
from tensorwasm.server.pieces import do_piece
from tensorwasm.values import MIB

SHORT_BYTES: Final = 16 << 10
"""Longest body that is read in one piece and counts against no budget: what a connection's buffers cost anyway."""

AT_ONCE_BYTES: Final = 128 << 10
"""How much of a body is put together without waiting for a turn (`tensorwasm.server.pieces`): some 20 us."""

BUDGET_BYTES: Final = 512 * MIB
"""What all longer bodies may have of memory at a time, unless one alone may have more."""

LINGER_S: Final = 2.0
"""How long the rest of a refused body is taken and dropped, so that its sender gets to read the answer."""

LINGERING: Final = 64
"""Refused bodies whose rest is taken at a time."""

INLINE_BYTES: Final = 32 << 10
"""Longest base64 that is decoded on the event loop: 20 us."""


class Budget:
    """Memory for bodies, shared by all connections; for one event loop.

    Args:
        limit_bytes: how much there is.
    """

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        """Begin with all of it free."""
        self.free_bytes = limit_bytes
        self.lingering = 0
        self._held: dict[int, int] = {}

    def take(self, size_bytes: int, tenant: int | None = None) -> None:
        """Take some.

        Args:
            size_bytes: how much.
            tenant: who has it then, never more than is left for others; None is nobody.

        Raises:
            CapacityExhausted: there is not so much.
        """
        left = self.free_bytes - size_bytes
        held = 0 if tenant is None else self._held.get(tenant, 0) + size_bytes
        if left < held:
            raise CapacityExhausted("too many long requests are coming in at once")
        self.free_bytes = left
        if tenant is not None:
            self._held[tenant] = held

    def give(self, size_bytes: int, tenant: int | None = None) -> None:
        """Give it back."""
        self.free_bytes += size_bytes
        if tenant is not None:
            left = self._held.pop(tenant, 0) - size_bytes
            if left > 0:
                self._held[tenant] = left


def declared_bytes(length: str | None) -> int | None:
    """Return how long a body says it is; None if it does not.

    Raises:
        InvalidRequest: that is no length.
    """
    if length is None:
        return None
    if not (length.isascii() and length.isdigit()) or len(length) > 18:
        raise InvalidRequest("Content-Length is no number of bytes")
    return int(length)


def require_whole(body: bytes, length: str | None) -> None:
    """Hold a body against the length that it said it has: to the server a client that leaves has sent all there is.

    Raises:
        RequestTimeout: it is shorter.
    """
    declared = declared_bytes(length)
    if declared is not None and len(body) < declared:
        raise RequestTimeout("the request did not come in whole")


class Held:
    """What one long body has of memory.

    Args:
        budget: what it has it of; given back by `close`.
        limit_bytes: longest body.
        tenant: whose it is; None is nobody's.
    """

    def __init__(self, budget: Budget, limit_bytes: int, tenant: int | None = None) -> None:
        """Take nothing yet."""
        self._budget = budget
        self._limit_bytes = limit_bytes
        self._tenant = tenant
        self._held_bytes = 0

    def close(self) -> None:
        """Give the budget back; the body is not used any more."""
        self._budget.give(self._held_bytes, self._tenant)
        self._held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Take memory for that much more of the body.

        Raises:
            BodyTooLarge: it is longer than the limit.
            CapacityExhausted: all bodies together have as much memory as they may.
        """
        if self._held_bytes + size_bytes > self._limit_bytes:
            raise too_large(self._limit_bytes)
        self._budget.take(size_bytes, self._tenant)
        self._held_bytes += size_bytes


class Reader(Held):
    """Reads one long body.

    Args:
        chunks: RSGI's: an empty one ends it.
        budget: as of `Held`, like what follows.
        limit_bytes: longest body.
        tenant: whose it is.
    """

    def __init__(
        self, chunks: AsyncIterator[bytes], budget: Budget, limit_bytes: int, tenant: int | None = None
    ) -> None:
        """Take nothing yet."""
        super().__init__(budget, limit_bytes, tenant)
        self._chunks = chunks

    async def read(self, timeout_s: float, declared: int | None = None) -> bytes:
        """Return the whole body.

        Args:
            timeout_s: in which it must have come.
            declared: the length that it said it has, by which `require_whole` judges it afterwards. Empty chunks say
                nothing then: over HTTP/2 a whole body often ends in an empty frame, just as one that broke off does.

        Raises:
            BodyTooLarge: it is longer than the limit; the rest is not taken.
            RequestTimeout: it did not come in time, or may have broken off where no length tells.
            CapacityExhausted: all bodies together have as much memory as they may.
        """
        whole = io.BytesIO()  # grows where it is, and gives away what it has: to join parts would copy all at once
        try:
            async with asyncio.timeout(timeout_s):
                while (chunk := await _step(self._chunks)) is not None:
                    if not chunk and declared is None:
                        await _require_end(self._chunks)
                        break
                    self.hold(len(chunk))
                    if self._held_bytes <= AT_ONCE_BYTES:
                        whole.write(chunk)
                    else:
                        await do_piece(partial(whole.write, chunk))
        except TimeoutError:
            raise RequestTimeout("the request did not come in whole in time") from None
        return whole.getvalue()


async def linger(chunks: AsyncIterator[bytes], budget: Budget) -> None:
    """Take what still comes of a refused body and drop it, for a while.

    A connection that is closed while its client sends takes the answer down with it.
    """
    if budget.lingering >= LINGERING:
        return
    budget.lingering += 1
    try:
        async with asyncio.timeout(LINGER_S):
            while await _step(chunks):
                pass
    except (TimeoutError, RuntimeError):  # the client sends on and on, or has left
        return
    finally:
        budget.lingering -= 1


async def _step(chunks: AsyncIterator[bytes]) -> bytes | None:
    """Return the next chunk, None where there are no more.

    RSGI's own cannot be cancelled in `anext` with a default, nor be asked for an iterator twice, as ``async for`` does.
    """
    try:
        return await chunks.__anext__()
    except StopAsyncIteration:
        return None


async def _require_end(chunks: AsyncIterator[bytes]) -> None:
    """See to it that an empty chunk was the end: RSGI's has another one for a body that broke off, or has trailers.

    Raises:
        RequestTimeout: it was not.
    """
    try:
        await chunks.__anext__()
    except StopAsyncIteration:
        return
    raise RequestTimeout("the request did not come in whole, or has trailers, which are not taken")


def too_large(limit_bytes: int) -> BodyTooLarge:
    """Return the error of a body over the limit."""
    return BodyTooLarge(f"the body is longer than {limit_bytes} bytes")


async def decode_base64(text: str) -> bytes:
    """Return what a field of standard base64 stands for; what is long is decoded on another thread.

    Raises:
        InvalidBase64: it is not base64, or not padded.
    """
    return _decode(text) if len(text) < INLINE_BYTES else await asyncio.to_thread(_decode, text)


def _decode(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise InvalidBase64("a field is not base64") from None
