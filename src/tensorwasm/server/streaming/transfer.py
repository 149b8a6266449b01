"""Sends a streamed reply at the client's pace, and ends its ``send`` when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.connection.fields import Fields
from tensorwasm.server.connection.request import AnswerWriter, WireRequest
from tensorwasm.server.exchange import DisconnectWatcher
from tensorwasm.server.http.routing import StreamedReply

_Value = TypeVar("_Value")


async def send_streamed(wire: WireRequest, status: int, headers: Fields, streamed: StreamedReply) -> None:
    """Send a streamed reply; cancel its ``send`` when the client disconnects.

    Args:
        wire: a request whose body has been read, and that has no reply so far.
        status: HTTP status.
        headers: the common ones; the reply's own follow them.
        streamed: the reply.

    Raises:
        InvalidRequest: its ending matters, and this connection cannot express it. Nothing was sent.
        InternalError: a field of the head cannot be sent. Nothing was.
    """
    if wire.left:
        await streamed.send(_disconnected)
        return
    try:
        writer = _begin(wire, status, (*headers, ("content-type", streamed.content_type), *streamed.headers), streamed)
    except BaseException:
        await streamed.send(_disconnected)
        raise
    try:
        ending = await _watch(wire, streamed.send(writer.send))
        if ending is not None and ending.whole:
            writer.end(ending.trailers)
    finally:
        writer.abort()


def _begin(wire: WireRequest, status: int, fields: Fields, streamed: StreamedReply) -> AnswerWriter:
    if streamed.exact and wire.head.version != "1.1":
        raise InvalidRequest("a raw stream needs HTTP/1.1; otherwise ask for text/event-stream")
    return wire.begin_body(status, fields, streamed.length)


async def _disconnected(_: bytes) -> bool:
    """Stand for a client that has disconnected."""
    return False


async def _watch(wire: WireRequest, sending: Awaitable[_Value]) -> _Value | None:
    """Return what sending returns, None if the client disconnects meanwhile. In a task."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine that waits runs in a task
    departure = DisconnectWatcher(wire, task)
    try:
        return await sending
    except asyncio.CancelledError:
        if not departure.left or task.uncancel():  # the task was cancelled for another reason, too
            raise
        return None
    finally:
        departure.close()
