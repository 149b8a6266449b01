"""Sending an answer in pieces: to the connection itself where the protocol allows it, else as the server does it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.errors import InternalError, InvalidRequest
from tensorwasm.server.exchange import Departure
from tensorwasm.server.streaming.connection import Connection, parse_address
from tensorwasm.server.streaming.pacing import Pace

if TYPE_CHECKING:
    from tensorwasm.server.routing import Send, Streamed

Headers = Sequence[tuple[str, str]]

_OWN: Final = frozenset({"connection", "content-length", "date", "transfer-encoding"})
"""Fields of the head that are written here."""


async def answer(scope: Any, protocol: Any, status: int, headers: Headers, streamed: Streamed) -> None:
    """Send all of an answer in pieces. Ends its ``send`` when the client leaves.

    Args:
        scope: RSGI's, of a request whose body has been read.
        protocol: RSGI's, without an answer so far.
        status: of HTTP.
        headers: those that every answer has; the answer's own come after them.
        streamed: the answer.

    Raises:
        InvalidRequest: its ending matters, and cannot be told over this connection. Nothing was sent.
        CapacityExhausted: this process has no descriptor left. Nothing was sent.
    """
    fields = (*headers, ("content-type", streamed.content_type), *streamed.headers)
    connection = await _find(scope, streamed)
    if streamed.length is None and _is_plain(scope):
        if connection is None:  # the client has left
            await streamed.send(_left)
        else:
            with connection:
                await _watch(protocol, _send_chunked(connection, status, fields, streamed))
        protocol.response_empty(status, [])  # closes the server's side, which can write no more
    elif streamed.exact:
        if connection is not None:
            connection.close()
        await streamed.send(_left)
        raise InvalidRequest("a raw stream needs HTTP/1.1; over HTTP/2 ask for text/event-stream")
    else:
        plain = [(name, value) for name, value in fields if name.lower() not in (*_OWN, "trailer")]
        if streamed.length is not None:
            plain.append(("content-length", str(streamed.length)))
        with nullcontext() if connection is None else Pace(scope.client, connection) as pace:
            await _watch(protocol, streamed.send(_sender(protocol.response_stream(status, plain), pace)))


def _is_plain(scope: Any) -> bool:
    """Return whether an answer can be written to the connection: no other is, and it is TCP and not encrypted."""
    return scope.http_version == "1.1" and scope.scheme == "http" and parse_address(scope.client) is not None


async def _find(scope: Any, streamed: Streamed) -> Connection | None:
    """Return the connection, None if there is none; whatever prevents that ends what was to be sent, too."""
    try:
        return await Connection.find(scope.client, scope.server)
    except BaseException:
        await streamed.send(_left)
        raise


async def _left(_: bytes) -> bool:
    return False


def _sender(transport: Any, pace: Pace | None) -> Send:
    async def send(data: bytes) -> bool:
        if pace is not None and not await pace.keep(len(data)):
            return False
        try:
            await transport.send_bytes(data)
        except Exception:  # noqa: BLE001 - whatever the server says, it takes no more
            return False
        return True

    return send


async def _watch(protocol: Any, sending: Awaitable[object]) -> None:
    """Wait until all is sent; end it when the client leaves. In a task."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - whoever awaits a coroutine that waits is in one
    departure = Departure(protocol, task)
    try:
        await sending
    except asyncio.CancelledError:
        if not departure.left or task.uncancel():  # somebody else has ended it, too
            raise
    finally:
        departure.close()


async def _send_chunked(connection: Connection, status: int, fields: Headers, streamed: Streamed) -> None:
    """Send head, chunks and end. Without its end, a chunked body is not whole.

    The head goes with what comes first, even if that is nothing.

    Source: RFC 9112 7.1, 8.
    """
    waiting = render_head(status, fields)

    async def send(data: bytes) -> bool:
        nonlocal waiting
        ready, waiting = waiting, b""
        return await connection.send(b"%b%x\r\n%b\r\n" % (ready, len(data), data) if data else ready)

    try:
        ending = await streamed.send(send)
        if ending.whole:
            await connection.send(waiting + b"0\r\n" + _render_fields(ending.trailers) + b"\r\n")
        elif waiting:
            await connection.send(waiting)
    finally:
        connection.finish()


def render_head(status: int, fields: Headers) -> bytes:
    """Return the head of an answer whose body comes in chunks and ends the connection."""
    own = (
        *((name, value) for name, value in fields if name.lower() not in _OWN),
        ("date", formatdate(usegmt=True)),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
    )
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode()) + _render_fields(own) + b"\r\n"


def _render_fields(fields: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    if lines.count("\r") != len(fields) or lines.count("\n") != len(fields) or not lines.isascii():
        raise InternalError("a field of the answer's head has a line break, or is not ASCII")
    return lines.encode("ascii")
