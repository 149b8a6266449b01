"""`Relay`: a front gives requests that the primary answers to it, and its answers to their clients.

It speaks HTTP/1.1 over a Unix socket that only processes of this server reach. Bodies pass in pieces, at the pace of
whoever takes them. Who the client is goes along in two fields that no client can send: the front drops them.

Each request takes a connection here and one at the primary, so only so many are relayed at a time. One more takes the
place of the oldest that waits for its client.

Source: RFC 9110 7.6.1 (fields of one connection alone); RFC 9112 6 (length of a body), 7.1 (chunks, trailers).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httptools

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidRequest, NotReady
from tensorwasm.server.connection.fields import RELAYED_CERTIFICATE, RELAYED_CLIENT
from tensorwasm.server.exchange import BECOME_TASK, DisconnectWatcher, Exchange
from tensorwasm.server.http.long_work import run_slice
from tensorwasm.telemetry.timeline import add_relay

if TYPE_CHECKING:
    from tensorwasm.server.connection.request import AnswerWriter, RequestHead, WireRequest

READ_BYTES: Final = 64 << 10
IDLE_S: Final = 10.0
"""How long a connection to the primary may have been idle to be used again: less than it waits for a head."""

MOST: Final = 1024
MOST_IDLE: Final = 64
_DROPPED: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "content-length",
        "upgrade",
        "expect",
        RELAYED_CLIENT,
        RELAYED_CERTIFICATE,
    }
)
_OWN: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date"})
"""Fields of an answer that each connection has of its own."""

_SAFE: Final = "/-._~!$&'()*+,;=:@"


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection to the primary, and since when it is idle."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Relayed:
    """A request that is being relayed: whether more of its body, or its client's taking of the answer, is waited for.

    ``answered`` says that its answer has begun, ``ended`` that another one took its place.
    """

    exchange: Exchange
    sending: bool = False
    taking: bool = False
    answered: bool = False
    ended: bool = False


class Relay:
    """Relays requests to the socket at a path. For one event loop.

    Attributes:
        most: requests at a time.
    """

    def __init__(self, path: str, most: int = MOST) -> None:
        self._path, self.most = path, most
        self._idle: list[_Connection] = []
        self._running: dict[asyncio.Task[Any], _Relayed] = {}

    async def forward(self, exchange: Exchange) -> None:
        """Have a request answered. Cancelling it ends the request, as its client's leaving does.

        Raises:
            NotReady: the primary has ended before it answered.
            CapacityExhausted: too many requests are relayed.
            TensorWasmError: the body broke off; nothing was answered.
        """
        await BECOME_TASK
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it has become one
        self._make_room()
        self._running[task] = relayed = _Relayed(exchange)
        watcher = DisconnectWatcher(exchange.wire, task)
        try:
            await self._forward(relayed)
        except asyncio.CancelledError:
            if not relayed.ended:
                raise
            if not relayed.answered:
                raise _no_room() from None
        finally:
            self._running.pop(task, None)
            watcher.close()
            exchange.left = watcher.left

    def _make_room(self) -> None:
        """End the oldest requests that wait for their clients if there are too many; raise if there are none."""
        while len(self._running) >= self.most:
            waiting = (task for task, each in self._running.items() if each.sending or each.taking)
            task = next(waiting, None)
            if task is None:
                raise _no_room()
            self._running.pop(task).ended = True
            task.cancel()

    def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            self._idle.pop().writer.close()

    async def _forward(self, relayed: _Relayed) -> None:
        connection = await self._connect()
        sending = asyncio.get_running_loop().create_task(_send(relayed, connection.writer))
        again = False
        try:
            again = (
                await _answer(relayed, connection.reader, sending) and sending.done() and sending.exception() is None
            )
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            if again and len(self._idle) < MOST_IDLE:
                connection.idle_s = time.monotonic()
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof() and time.monotonic() - connection.idle_s < IDLE_S:
                return connection
            connection.writer.close()
        try:
            return _Connection(*await asyncio.open_unix_connection(self._path, limit=READ_BYTES))
        except OSError as error:
            raise NotReady(f"the primary process cannot be reached: {error.strerror}") from None


def _no_room() -> CapacityExhausted:
    return CapacityExhausted("too many requests wait for the primary process")


async def _send(relayed: _Relayed, writer: asyncio.StreamWriter) -> None:
    """Send a request; what it raises is for the client."""
    wire = relayed.exchange.wire
    if not wire.long:
        body = wire.whole()
        writer.write(_head(wire, f"content-length: {len(body)}\r\n" if body or wire.long is not None else "") + body)
        return
    length = wire.head.fields.get("content-length")
    chunked = length is None
    writer.write(_head(wire, "transfer-encoding: chunked\r\n" if chunked else f"content-length: {length}\r\n"))
    while True:
        relayed.sending = True
        piece = await wire.read()
        relayed.sending = False
        if piece is None:
            break
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        with suppress(ConnectionError):  # it is seen where the answer is read
            await writer.drain()
    if chunked:
        writer.write(b"0\r\n\r\n")


def _head(wire: WireRequest, framing: str) -> bytes:
    head: RequestHead = wire.head
    target = quote(head.path, _SAFE) + (f"?{head.query}" if head.query else "")
    method = "GET" if head.method == "HEAD" else head.method  # only the first has a length that its end shows
    fields = [(name, value) for name, value in head.fields.pairs() if name not in _DROPPED]
    if any("\r" in value or "\n" in value for _, value in fields):
        raise InvalidRequest("a field of the head has a line break")
    lines = [f"{name}: {value}\r\n" for name, value in fields]
    if "host" not in head.fields:
        lines.append("host: \r\n")
    client, certificate = wire.peer
    peer = f"{RELAYED_CLIENT}: {client}\r\n{RELAYED_CERTIFICATE}: {quote(certificate)}\r\n"
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}{peer}{framing}\r\n".encode("latin-1")


class _AnswerParts:
    """What has come of an answer; filled by llhttp."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns  # when the request had come
        self.headed = self.whole = False
        self.fields: list[tuple[str, str]] = []
        self.trailers: list[tuple[str, str]] = []
        self.length: int | None = None
        self._pieces: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; called by llhttp, as all of these."""
        field = name.decode("ascii").lower(), value.decode("latin-1")
        if self.headed:
            self.trailers.append(field)
        elif field[0] == "content-length":
            self.length = int(field[1])
        elif field[0] == "server-timing":
            self.fields.append((field[0], add_relay(field[1], time.perf_counter_ns() - self._began_ns)))
        elif field[0] not in _OWN:
            self.fields.append(field)

    def on_headers_complete(self) -> None:
        """Note that the head has come."""
        self.headed = True

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Note that all has come."""
        self.whole = True

    def take(self) -> bytes:
        """Return what has come of the body since the last call."""
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


async def _answer(relayed: _Relayed, reader: asyncio.StreamReader, sending: asyncio.Task[None]) -> bool:
    """Answer with what comes; return whether the primary's connection can be used again."""
    wire, parts = relayed.exchange.wire, _AnswerParts(relayed.exchange.began_ns)
    parser = httptools.HttpResponseParser(parts)
    writer: AnswerWriter | None = None
    try:
        while not parts.whole:
            data = await _read(reader, sending, began=parts.headed)
            if not data:
                if relayed.answered:
                    return False
                raise NotReady("the primary process has ended while it had this request: it may be done or not")
            if writer is None:
                parser.feed_data(data)
            else:  # of many long answers one goes on in each round of the event loop
                await run_slice(partial(parser.feed_data, data))
            if parts.whole and writer is None:
                body = parts.take()
                relayed.answered = True
                shown = b"" if wire.head.method == "HEAD" else body
                wire.answer(parser.get_status_code(), parts.fields, shown, length=len(body))
                break
            if parts.headed:
                writer = writer or wire.begin_body(parser.get_status_code(), parts.fields, parts.length)
                relayed.answered = relayed.taking = True
                if not await writer.send(parts.take()):
                    return False
                relayed.taking = False
        if writer is not None:
            writer.end(parts.trailers)
        return bool(parser.should_keep_alive())
    except httptools.HttpParserError as error:
        raise InternalError(f"the primary's answer is none: {error}") from None
    finally:
        if writer is not None:
            writer.abort()  # does nothing behind its end


async def _read(reader: asyncio.StreamReader, sending: asyncio.Task[None], *, began: bool) -> bytes:
    """Return what comes next; raise what ended the body, unless an answer has begun."""
    reading = asyncio.ensure_future(reader.read(READ_BYTES))
    try:
        if not began and not sending.done():
            await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
        if not began and sending.done() and sending.exception() is not None and not reading.done():
            raise sending.exception() or InternalError("no error")
        with suppress(ConnectionError):
            return await reading
        return b""
    finally:
        reading.cancel()
