"""`WireRequest`: one request on its connection, with its body as it arrives and the way for its answer.

Source: RFC 9112 6 (message body), 7.1 (chunked), 9.3 (persistence); RFC 9110 10.1.1 (Expect).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, unquote_to_bytes

from tensorwasm.errors import RequestTimeout, TensorWasmError
from tensorwasm.server.connection.fields import (
    RELAYED_CERTIFICATE,
    RELAYED_CLIENT,
    Fields,
    RequestFields,
    write_fields,
    write_head,
)

if TYPE_CHECKING:
    from tensorwasm.server.connection.connection import HttpConnection

MOST_UNREAD_BYTES: Final = 64 << 10
"""Body that has come and is not read yet, past which the connection is read no further."""

MAX_KNOWN_BYTES: Final = 2 << 10
MOST_KNOWN: Final = 1024
"""Heads that are kept so that they need not be parsed again, and how long each may be."""

_HEAD_END: Final = b"\r\n\r\n"
_END_BYTES: Final = len(_HEAD_END)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_KEEP_1_0: Final = b"connection: keep-alive\r\n"
_REFUSED: Final = 300
_NO_LENGTH: Final = frozenset({204, 304})
"""Statuses whose answers have no body, nor a length."""


class RequestHead:
    """The head of a request; requests whose heads are the same to the byte share one.

    Attributes:
        method: of HTTP, such as ``GET``.
        path: with percent signs decoded; bytes that are not UTF-8 become U+FFFD.
        query: as it came.
        host: who is asked: the target's authority, else the field Host; None if there is neither.
        version: ``1.0`` or ``1.1``.
        fields: all of them.
        keeps: whether the client lets the connection stay open behind the answer.
        websocket: whether it asks for a WebSocket.
        body_bytes: length of the body; None if the head does not say, or the body is not short.
        plan: what the pipeline made of it; None until then.
    """

    __slots__ = ("body_bytes", "fields", "host", "keeps", "method", "path", "plan", "query", "version", "websocket")

    def __init__(self, method: str, version: str, fields: RequestFields, *, keeps: bool = True) -> None:
        """Begin with fields; the target is set by `aim`."""
        self.method, self.version, self.fields, self.keeps = method, version, fields, keeps
        self.path = self.query = ""
        self.host: str | None = None
        self.websocket = False
        self.body_bytes: int | None = 0
        self.plan: Any = None

    def aim(self, path: bytes, query: bytes, authority: bytes) -> None:
        """Set the target."""
        plain = path if b"%" not in path else unquote_to_bytes(path)
        self.path = plain.decode(errors="replace")
        self.query = query.decode("latin-1")
        self.host = authority.decode("latin-1") if authority else self.fields.get("host")


class WireRequest:
    """One request. Owned by its connection; used on the event loop's thread.

    Attributes:
        head: what came first.
        seen: the bytes of its head, if it came by itself and in whole: one that begins with the same bytes need not be
            parsed.
        keeps: whether the connection stays open behind the answer.
        continues: whether the client waits to be told that its body is wanted.
        long: whether its body is read while it runs; None without a body.
        ended: whether all of its body has come.
        broken: why no more of its body comes; None while more may.
        waiting_bytes: how much of it came before its turn, about.
    """

    __slots__ = (
        "_answered",
        "_chunks",
        "_connection",
        "_leaving",
        "_reader",
        "_unread_bytes",
        "broken",
        "continues",
        "ended",
        "head",
        "keeps",
        "long",
        "seen",
        "waiting_bytes",
    )

    def __init__(self, connection: HttpConnection, head: RequestHead, body: bytes | None = None) -> None:
        """Begin with a request whose head has come, and its body if it is given."""
        self._connection = connection
        self.head = head
        self.seen = b""
        self.waiting_bytes = 0
        self.keeps = head.keeps
        self.continues = False
        self.ended = body is not None
        self._chunks: deque[bytes] = deque((body,) if body else ())
        self._unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self.broken: TensorWasmError | None = None
        self.long: bool | None = None
        self._leaving: list[Callable[[], object]] = []
        self._answered = False

    # ---------------------------------------------------------------------------------- what the connection does

    def take(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        self._chunks.append(chunk)
        self._unread_bytes += len(chunk)
        self._wake()

    @property
    def full(self) -> bool:
        """Whether so much of the body waits for its reader that the connection is to be read no further."""
        return self._unread_bytes > MOST_UNREAD_BYTES

    def end(self) -> None:
        """Note that all of the body has come."""
        self.ended = True
        self._wake()

    def break_off(self, error: TensorWasmError) -> None:
        """Note that no more of the body comes, and why."""
        self.broken = error
        self._wake()

    def leave(self) -> None:
        """Note that the client has left."""
        leaving, self._leaving = self._leaving, []
        for tell in leaving:
            tell()

    def send_continue(self) -> None:
        """Tell the client that its body is wanted."""
        self.continues = False
        self._connection.write(_CONTINUE)

    def whole(self) -> bytes:
        """Return the body of a request that has come in whole, and was not read."""
        chunks = self._chunks
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # ------------------------------------------------------------------------------------------------- the body

    async def read(self) -> bytes | None:
        """Return the next piece of the body, None behind the last; waits for it. One coroutine at a time.

        Raises:
            RequestTimeout: the body broke off.
            InvalidRequest: it is malformed.
        """
        if self.continues:
            self.send_continue()
        while not self._chunks:
            if self.broken is not None:
                raise self.broken
            if self.ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        chunk = self._chunks.popleft()
        self._unread_bytes -= len(chunk)
        if self._unread_bytes <= MOST_UNREAD_BYTES // 2:
            self._connection.read_on()
        return chunk

    # ---------------------------------------------------------------------------------------------- the client

    @property
    def peer(self) -> tuple[str, str]:
        """The client's address without its port, empty on a Unix socket; and whom its certificate names, if any."""
        connection = self._connection
        if connection.relayed:
            fields = self.head.fields
            return fields.get(RELAYED_CLIENT, ""), unquote(fields.get(RELAYED_CERTIFICATE, ""))
        return connection.client, connection.certificate

    @property
    def left(self) -> bool:
        """Whether the client has left."""
        return self._connection.left

    def on_leaving(self, tell: Callable[[], object]) -> None:
        """Call a function once, when the client leaves; at once if it has."""
        if self.left:
            tell()
        else:
            self._leaving.append(tell)

    def stay(self, tell: Callable[[], object]) -> None:
        """Do not call it any more."""
        if tell in self._leaving:
            self._leaving.remove(tell)

    async def gone(self) -> None:
        """Return when the client has left."""
        left = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not left.done():
                left.set_result(None)

        self.on_leaving(tell)
        try:
            await left
        finally:
            self.stay(tell)

    # ---------------------------------------------------------------------------------------------- the answer

    def answer(self, status: int, fields: Fields, body: bytes = b"", length: int | None = None) -> None:
        """Answer in one piece; ``length`` is that of the body which a HEAD does not get. Once.

        Raises:
            InternalError: a field cannot be sent; nothing was.
        """
        self.answer_written(status, write_fields(fields), body, len(body) if length is None else length)

    def answer_written(self, status: int, lines: bytes, body: bytes, length: int) -> None:
        """Do the same with fields that are written already, as `write_fields` does."""
        counted = b"" if status in _NO_LENGTH else b"content-length: %d\r\n" % length
        answer = write_head(status, lines, counted + self._persistence(), body)
        self._answered, connection = True, self._connection
        if self.seen and status < _REFUSED and self.keeps:
            connection.known.add(self.seen, self.head)
        connection.write(answer)
        connection.finish(self)

    def abandon(self) -> None:
        """End the connection, unless it was answered on."""
        if not self._answered:
            self._connection.close()

    def _persistence(self) -> bytes:
        """Return the field that says whether the connection stays open, if that must be said."""
        if self.keeps and self.ended and self._connection.keeping:
            return b"" if self.head.version == "1.1" else _KEEP_1_0
        self.keeps = False
        return _CLOSE

    def begin_body(self, status: int, fields: Fields, length: int | None = None) -> AnswerWriter:
        """Begin an answer in pieces, of which its length is known or not. Once. Raises as `answer`."""
        chunked = length is None and self.head.version == "1.1"
        if length is None and not chunked:
            self.keeps = False  # the end of the connection is that of the body
        mute = self.head.method == "HEAD"
        framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        if length is not None:
            framing = b"content-length: %d\r\n" % length
        head = write_head(status, write_fields(fields), framing + self._persistence())
        self._answered = True
        return AnswerWriter(self, self._connection, head, chunked=chunked, mute=mute)

    def take_over(self) -> HttpConnection:
        """Return the connection, on which HTTP has ended: the caller writes to it, and sets what reads from it."""
        self._answered = True
        return self._connection


class KnownHeads:
    """Heads by their bytes: clients send the same ones again and again, and what is known need not be parsed.

    A request is found if its bytes come alone and in whole, behind the end of the one before.
    """

    def __init__(self) -> None:
        """Know none."""
        self._heads: dict[bytes, RequestHead] = {}

    def find(self, data: bytes, connection: HttpConnection) -> WireRequest | None:
        """Return the request of a connection that data is; None if it must be parsed."""
        end = data.find(_HEAD_END, 0, MAX_KNOWN_BYTES) + _END_BYTES
        head = self._heads.get(data[:end])
        if head is None or head.body_bytes != len(data) - end:
            return None
        return WireRequest(connection, head, data[end:])

    def note(self, request: WireRequest, data: bytes) -> None:
        """Note in a request what its head's bytes are, if data is nothing but that request."""
        end = data.find(_HEAD_END, 0, MAX_KNOWN_BYTES) + _END_BYTES
        whole = end >= _END_BYTES and request.head.body_bytes == len(data) - end
        if whole and request.ended and request.keeps and not request.continues:
            request.seen = data[:end]

    def add(self, seen: bytes, head: RequestHead) -> None:
        """Keep a head."""
        if len(self._heads) >= MOST_KNOWN:
            self._heads.clear()
        self._heads[seen] = head


class AnswerWriter:
    """Sends the body of an answer in pieces, at the client's pace. The head goes with the first."""

    __slots__ = ("_chunked", "_connection", "_ended", "_head", "_mute", "_request")

    def __init__(
        self, request: WireRequest, connection: HttpConnection, head: bytes, *, chunked: bool, mute: bool
    ) -> None:
        self._request, self._connection = request, connection
        self._head, self._chunked, self._mute, self._ended = head, chunked and not mute, mute, False

    async def send(self, data: bytes) -> bool:
        """Send a piece, which may be empty; return False if the client has left, or does not take it in time."""
        head, self._head = self._head, b""
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked and data else data
        if self._mute:
            framed = b""
        if head or framed:
            self._connection.write(head + framed)
        return await self._connection.drain()

    def end(self, trailers: Fields = ()) -> None:
        """End the body; trailers are sent where the client can tell them from it. Raises as `write_fields`."""
        last = b"0\r\n%b\r\n" % write_fields(trailers) if self._chunked else b""
        head, self._head = self._head, b""
        self._ended = True
        self._connection.write(head + last)
        self._connection.finish(self._request)

    def abort(self) -> None:
        """End the connection, so that the client does not take the body for whole; does nothing behind `end`."""
        if self._ended:
            return
        self._ended = True
        self._connection.write(self._head)
        if self._chunked:
            self._connection.close()
        else:
            self._connection.end_early()


def broken_off() -> RequestTimeout:
    """Return the error of a body that did not come in whole."""
    return RequestTimeout("the request did not arrive in full")
