"""Sends a streamed reply: to the connection itself where the protocol allows it, else through the server.

Over HTTP/2 the server writes to the connection and accepts any amount of data without waiting, so a slow client has to
be noticed here. The kernel reports what was written; the rest waits in the server's memory and must stay bounded.
Streams of one connection share an account. Other data that the server writes there counts as theirs, which only lets
them have more waiting.

Source: RFC 9112 7.1, 8; tcp(7) TCP_INFO, SIOCOUTQ; linux/tcp.h, struct tcp_info.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, Self

from tensorwasm.errors import InternalError, InvalidRequest
from tensorwasm.server.exchange import DisconnectWatcher
from tensorwasm.server.http.routing import SendChunk, StreamedReply
from tensorwasm.server.streaming.connection import STALL_S, Connection, parse_address
from tensorwasm.values import MIB

HeaderFields = Sequence[tuple[str, str]]

MAX_WAITING_BYTES: Final = MIB
"""Most bytes that wait in the server for one connection."""

LOOK_S: Final = 0.01
"""Seconds between two looks at a connection whose limit is reached."""

_OWN: Final = frozenset({"connection", "content-length", "date", "transfer-encoding"})
"""Head fields that are written here."""


@dataclass(slots=True)
class _SentBytes:
    """What the streams of one connection have sent."""

    given_bytes: int
    streams: int = 0


_accounts: Final[dict[str, _SentBytes]] = {}
"""By the client's address, while it has streams; of the one event loop."""


class SendPacer:
    """Makes one stream wait for a slow client. Use it in ``with``, which closes the connection.

    The client is given up after `stall_s` seconds without progress.
    """

    __slots__ = ("_account", "_client", "_connection", "_stall_s")

    def __init__(self, client: str, connection: Connection, stall_s: float = STALL_S) -> None:
        self._client = client
        self._connection = connection
        self._stall_s = stall_s
        self._account = _accounts.setdefault(client, _SentBytes(connection.written_bytes()))

    async def keep(self, size_bytes: int) -> bool:
        """Wait until earlier data is written but for `MAX_WAITING_BYTES`; return False if the client stalls.

        `size_bytes` is the size of the next data.
        """
        waited_s, seen = 0.0, -1
        while (written := self._connection.written_bytes()) + MAX_WAITING_BYTES < self._account.given_bytes:
            waited_s = waited_s + LOOK_S if written == seen else 0.0
            if waited_s > self._stall_s:
                return False
            seen = written
            await asyncio.sleep(LOOK_S)
        self._account.given_bytes = max(self._account.given_bytes, written) + size_bytes
        return True

    def __enter__(self) -> Self:
        self._account.streams += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._account.streams -= 1
        if not self._account.streams:
            _accounts.pop(self._client, None)
        self._connection.close()


async def send_streamed(scope: Any, protocol: Any, status: int, headers: HeaderFields, streamed: StreamedReply) -> None:
    """Send a streamed reply; cancel its ``send`` when the client disconnects.

    Args:
        scope: RSGI's, of a request whose body has been read.
        protocol: RSGI's, without a reply so far.
        status: HTTP status.
        headers: the common ones; the reply's own follow them.
        streamed: the reply.

    Raises:
        InvalidRequest: its ending matters, and this connection cannot express it. Nothing was sent.
        CapacityExhausted: this process has no descriptor left. Nothing was sent.
    """
    fields = (*headers, ("content-type", streamed.content_type), *streamed.headers)
    try:
        connection = await Connection.find(scope.client, scope.server)
    except BaseException:
        await streamed.send(_disconnected)
        raise
    # The connection is written to directly over plain TCP with HTTP/1.1 only.
    plain = scope.http_version == "1.1" and scope.scheme == "http" and parse_address(scope.client) is not None
    if streamed.length is None and plain:
        if connection is None:  # the client has disconnected
            await streamed.send(_disconnected)
        else:
            with connection:
                await _watch(protocol, _send_chunked(connection, status, fields, streamed))
        protocol.response_empty(status, [])  # closes the server's side, which can write no more
    elif streamed.exact:
        if connection is not None:
            connection.close()
        await streamed.send(_disconnected)
        raise InvalidRequest("a raw stream needs HTTP/1.1; over HTTP/2 ask for text/event-stream")
    else:
        allowed = [(name, value) for name, value in fields if name.lower() not in (*_OWN, "trailer")]
        if streamed.length is not None:
            allowed.append(("content-length", str(streamed.length)))
        with nullcontext() if connection is None else SendPacer(scope.client, connection) as pacer:
            await _watch(protocol, streamed.send(_sender(protocol.response_stream(status, allowed), pacer)))


async def _disconnected(_: bytes) -> bool:
    """Stand for a client that has disconnected."""
    return False


def _sender(transport: Any, pacer: SendPacer | None) -> SendChunk:
    async def send(data: bytes) -> bool:
        if pacer is not None and not await pacer.keep(len(data)):
            return False
        try:
            await transport.send_bytes(data)
        except Exception:  # noqa: BLE001 - any error of the server means that it takes no more
            return False
        return True

    return send


async def _watch(protocol: Any, sending: Awaitable[object]) -> None:
    """Wait until everything is sent, or the client disconnects. In a task."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine that waits runs in a task
    departure = DisconnectWatcher(protocol, task)
    try:
        await sending
    except asyncio.CancelledError:
        if not departure.left or task.uncancel():  # the task was cancelled for another reason, too
            raise
    finally:
        departure.close()


async def _send_chunked(connection: Connection, status: int, fields: HeaderFields, streamed: StreamedReply) -> None:
    """Send head, chunks and end; the head goes with the first chunk, even if that is empty."""
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


def render_head(status: int, fields: HeaderFields) -> bytes:
    """Return the head of a reply whose body is chunked and ends the connection."""
    own = (
        *((name, value) for name, value in fields if name.lower() not in _OWN),
        ("date", formatdate(usegmt=True)),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
    )
    return b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode()) + _render_fields(own) + b"\r\n"


def _render_fields(fields: HeaderFields) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    if lines.count("\r") != len(fields) or lines.count("\n") != len(fields) or not lines.isascii():
        raise InternalError("a field of the reply's head has a line break, or is not ASCII")
    return lines.encode("ascii")
