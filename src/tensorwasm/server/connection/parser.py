"""`RequestParser`: the requests in the bytes of one connection.

llhttp reads what comes. It bounds nothing by itself, so bytes and fields are counted here: those of heads, and those of
a body that are not the body's own (chunk sizes, their extensions, trailers).

Source: RFC 9112 2 (messages), 3.2 (targets), 6.3 (length of a body); RFC 9110 7.8 (Upgrade, which may be ignored).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httptools

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.connection.fields import RequestFields
from tensorwasm.server.connection.request import RequestHead, WireRequest

if TYPE_CHECKING:
    from tensorwasm.server.connection.connection import HttpConnection

MAX_HEAD_BYTES: Final = 64 << 10
"""Longest head of a request; and of a body, what is not its own, beside `MAX_FRAMING` for each byte that is."""

MAX_FRAMING: Final = 16
MAX_FIELDS: Final = 100
"""Most fields of a head, and of trailers."""

SHORT_BYTES: Final = 16 << 10
"""Longest body that a request begins with; others are read while it runs."""

PIECE_BYTES: Final = 4 << 10
BODY_PIECE_BYTES: Final = 16 << 10
"""How much is parsed before it is looked at what waits: one byte in eighteen may begin a request."""

_VERSIONS: Final = frozenset({"1.0", "1.1"})
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})

_MALFORMED: Final = 400
_TOO_LONG: Final = 431
_UNKNOWN_CODING: Final = 501
_UNKNOWN_VERSION: Final = 505


class RequestParser:
    """Parses what a client sends; hands each request to its connection as soon as its head has come.

    Attributes:
        between: whether nothing has come yet of the next request.
        incoming: the request whose body still comes; None if there is none.
        refusal: the status for what came last, which is no request; 0 while there is no such thing.
        ended: whether what still comes is not parsed: it was refused, or is not HTTP.
        rest: what came behind the request that ended HTTP.
    """

    __slots__ = (
        "_body_bytes",
        "_connection",
        "_field_bytes",
        "_field_count",
        "_fields",
        "_framing_bytes",
        "_head_bytes",
        "_in_head",
        "_llhttp",
        "_target",
        "_unparsed",
        "between",
        "ended",
        "incoming",
        "refusal",
        "rest",
    )

    def __init__(self, connection: HttpConnection) -> None:
        """Wait for the first request."""
        self._connection = connection
        self._llhttp = httptools.HttpRequestParser(self)
        self.incoming: WireRequest | None = None
        self.refusal = 0
        self.ended = False
        self.rest = b""
        self._unparsed: WireRequest | None = None  # llhttp does not parse its body, as it asks for another protocol
        self._fields = RequestFields()
        self._target = b""
        self._in_head = self.between = True
        self._head_bytes = self._field_count = self._field_bytes = self._body_bytes = self._framing_bytes = 0

    def feed(self, piece: bytes) -> None:
        """Parse a piece, of `PIECE_BYTES` at most, or of `BODY_PIECE_BYTES` while a body comes."""
        body_bytes = self._body_bytes
        self._feed(piece)
        if self._in_head:
            self._head_bytes += len(piece)
            if self._head_bytes > MAX_HEAD_BYTES + PIECE_BYTES:
                self.refusal = _TOO_LONG
        elif self.incoming is not None:
            self._framing_bytes += max(0, len(piece) - max(0, self._body_bytes - body_bytes))
            if self._framing_bytes > MAX_HEAD_BYTES + MAX_FRAMING * self._body_bytes:
                self.refusal = _MALFORMED
        self.ended = self.ended or self.refusal != 0

    def stop(self) -> WireRequest | None:
        """Parse nothing any more; return the request whose body has not come in whole, if there is one."""
        request, self.incoming = self.incoming, None
        self.ended = True
        return request

    def _feed(self, piece: bytes) -> None:
        while piece:
            try:
                self._llhttp.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                piece = piece[upgrade.args[0] :]
                if self._unparsed is None:
                    self.ended, self.rest = True, piece
                    return
                self._ignore_upgrade(self._unparsed)
            except httptools.HttpParserError:
                self.refusal = self.refusal or _MALFORMED
                return
            else:
                return

    def _ignore_upgrade(self, request: WireRequest) -> None:
        """Go on behind a head that asks for a protocol that is not spoken here: HTTP/2, as some clients always do.

        llhttp ends there, even if a body follows. A new one is given the fields that say how long that is.
        """
        self._llhttp = httptools.HttpRequestParser(self)
        if request.long is not None:
            lines = [f"{name}: {value}\r\n" for name, value in request.head.fields.pairs() if name in _FRAMING]
            try:
                self._llhttp.feed_data(f"POST / HTTP/1.1\r\n{''.join(lines)}\r\n".encode("latin-1"))
            except httptools.HttpParserError:
                self.refusal = _MALFORMED
        self._unparsed = None
        if request.long is None or request.head.body_bytes == 0:
            self.on_message_complete()

    # ---------------------------------------------------------------------------------------------- llhttp's calls

    def on_message_begin(self) -> None:
        """Begin with a head; called by llhttp, as all of these."""
        self._fields, self._target = RequestFields(), b""
        self._in_head, self._head_bytes = True, 0
        self.between = False
        self._field_count = self._field_bytes = 0
        self._connection.begin_head()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head, or of trailers; those are counted and dropped."""
        self._field_count += 1
        self._field_bytes += len(name) + len(value)
        if self._field_count > MAX_FIELDS or self._field_bytes + len(self._target) > MAX_HEAD_BYTES:
            self.refusal = _TOO_LONG
            raise InvalidRequest("too many fields")
        if self._in_head:
            self._fields.add(name, value)

    def on_headers_complete(self) -> None:
        """Make the request."""
        self._in_head = False
        if self._unparsed is not None:
            return
        parser, fields = self._llhttp, self._fields
        head_bytes = self._field_bytes + len(self._target)
        self._field_count = self._field_bytes = 0
        self._body_bytes = self._framing_bytes = 0
        head = RequestHead(
            parser.get_method().decode("ascii"), parser.get_http_version(), fields, keeps=parser.should_keep_alive()
        )
        self._check_framing(head)
        _aim(head, self._target)
        request = WireRequest(self._connection, head)
        request.waiting_bytes = head_bytes
        if "content-length" in fields or "transfer-encoding" in fields:
            length = fields.get("content-length")
            digits = "" if length is None else length.lstrip("0")
            request.long = length is None or len(digits) > 5 or int(digits or 0) > SHORT_BYTES
            head.body_bytes = None if request.long else int(digits or 0)
            if head.version == "1.1" and (fields.get("expect") or "").lower() == "100-continue":
                request.continues = True
        if parser.should_upgrade():
            upgrade = (fields.get("upgrade") or "").strip().lower()
            may_upgrade = head.method == "GET" and head.version == "1.1" and head.body_bytes == 0
            head.websocket = upgrade == "websocket" and may_upgrade
            if head.websocket or head.method == "CONNECT":
                request.keeps = False
            else:
                self._unparsed = request
        self.incoming = request
        self._connection.enqueue(request)

    def _check_framing(self, head: RequestHead) -> None:
        """Refuse what this server does not speak; a body in chunks is no part of HTTP/1.0, and may not be trusted."""
        codings = head.fields.get_all("transfer-encoding")
        if head.version not in _VERSIONS:
            self.refusal = _UNKNOWN_VERSION
        elif codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
            self.refusal = _UNKNOWN_CODING
        if self.refusal:
            raise InvalidRequest("the version or the coding is not spoken here")
        if codings and head.version != "1.1":
            head.keeps = False

    def on_body(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(chunk)
        if self.incoming is not None:
            self.incoming.take(chunk)
            self._connection.weigh(self.incoming, len(chunk))

    def on_message_complete(self) -> None:
        """End the request."""
        if self._unparsed is not None:
            return
        if self.incoming is not None:
            self.incoming.end()
            self.incoming = None
        self._in_head = self.between = True
        self._head_bytes = 0


def _aim(head: RequestHead, target: bytes) -> None:
    """Set what a head asks for: a path, a whole URL, ``*``, or the authority of CONNECT; raise for none of these."""
    if target[:1] == b"/":
        path, _, query = target.partition(b"#")[0].partition(b"?")
        head.aim(path, query, b"")
        return
    if head.method == "CONNECT" or target == b"*":
        head.aim(target, b"", b"")
        return
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise InvalidRequest("the target is no URL") from None
    port = b":%d" % url.port if url.port else b""
    head.aim(url.path or b"/", url.query or b"", (url.host or b"") + port)
