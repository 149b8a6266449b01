"""`HttpConnection`: one connection of HTTP/1.1: its requests one after the other, answered in order.

What comes is read no further while too many requests wait for their turn, or too much of a body waits for its reader.

Source: RFC 9112 9.3 (persistence), 9.3.2 (pipelining), 9.6 (tear-down).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.errors import InvalidRequest, RequestTimeout, TensorWasmError
from tensorwasm.server.connection.fields import write_head
from tensorwasm.server.connection.parser import BODY_PIECE_BYTES, MAX_HEAD_BYTES, PIECE_BYTES, RequestParser
from tensorwasm.server.connection.request import WireRequest, broken_off
from tensorwasm.server.connection.tls import subject_of
from tensorwasm.server.connection.writing import GatheringWriter

if TYPE_CHECKING:
    from tensorwasm.server.connection.listener import Listener

MOST_QUEUED: Final = 64
MOST_QUEUED_BYTES: Final = 128 << 10
"""Requests that wait for their turn on one connection, and bytes of their heads, past which it is read no further."""

_AT_ONCE: Final = 16
"""Requests of one connection that are begun before other connections have their turn."""


class HttpConnection(GatheringWriter):
    """One connection. Made by its listener, which it tells what it waits for.

    Attributes:
        client: the peer's address without its port; empty on a Unix socket.
        certificate: whom its certificate names; empty without one.
        left: whether the client has left: it may have ended only its own side.
        keeping: whether it may stay open behind the next answer.
        known: its listener's.
        relayed: its listener's.
        receive: takes what comes instead of HTTP, once a request has taken the connection over.
    """

    __slots__ = (
        "_advancing", "_current", "_dropped_bytes", "_half_closed", "_lingering", "_listener", "_parser",
        "_queued_bytes", "_reading", "_requests", "_turning", "_unparsed", "certificate", "client", "keeping", "known",
        "left", "receive", "relayed",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        """Wait for a client."""
        super().__init__()
        self._listener = listener
        self._parser = RequestParser(self)
        self.known, self.relayed = listener.known, listener.relayed
        self.client = self.certificate = ""
        self.left = False
        self.keeping = listener.keeping
        self.receive: Callable[[bytes], None] | None = None
        self._requests: deque[WireRequest] = deque()
        self._current: WireRequest | None = None
        self._queued_bytes = self._dropped_bytes = 0
        self._unparsed = b""
        self._reading, self._lingering, self._half_closed = True, False, False
        self._advancing = self._turning = False

    # --------------------------------------------------------------------------------------------- asyncio's calls

    def connection_made(self, transport: Any) -> None:
        """Begin; called by the event loop, as all of these."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client = peer[0] if isinstance(peer, tuple) else ""
        tls = self._listener.tls
        if tls is not None and tls.mutual:
            self.certificate = subject_of(transport)
        if not self._listener.admit(self):
            transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """Let everything go that waits for the client."""
        self.closed = self.left = True
        self._listener.forget(self)
        for request in (self._current, *self._requests):
            if request is not None:
                if not request.ended:
                    request.break_off(broken_off())
                request.leave()
        self._requests.clear()
        self.wake()
        if self.receive is not None:
            self.receive(b"")

    def eof_received(self) -> bool:
        """Take the end of what the client sends; return whether it may still get an answer."""
        self.flush()
        if self.receive is not None:
            self._listener.closing.begin(self)
            self.receive(b"")
        if self.receive is not None or self._lingering:
            return False
        request = self._parser.incoming
        if request is not None:
            self._parser.stop()
            self._cut(request, broken_off())
            return self._listener.tls is None
        if self._listener.tls is not None or (self._current is None and not self._requests and not self._unparsed):
            return False
        self.left = self._half_closed = True
        self.keeping = self.keeping and bool(self._requests or self._unparsed)  # what came in whole is answered
        if self._current is not None:
            self._current.leave()
        return True

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        if self.receive is not None:
            self.receive(data)
            return
        if self._lingering:
            self._dropped_bytes += len(data)
            if self._parser.refusal and self._dropped_bytes > MAX_HEAD_BYTES:
                self._transport.abort()
            return
        parser = self._parser
        idle = self._current is None and not self._requests and not self.stalled
        alone = idle and parser.between and not parser.ended
        known = self.known.find(data, self) if alone else None
        if self._output is None:
            self._output = []
        if known is not None:
            self._begin_known(known)
            return
        try:
            self._feed(data)
            if alone and len(self._requests) == 1:
                self.known.note(self._requests[0], data)
            self._advance()
        finally:
            self.release()

    def pause_writing(self) -> None:
        """Note that the client is slow."""
        self.stalled = True
        self._listener.stalled.begin(self)

    def resume_writing(self) -> None:
        """Note that it has taken what waited."""
        self.stalled = False
        self._listener.stalled.end(self)
        self.wake()
        self._advance()

    def _begin_known(self, request: WireRequest) -> None:
        """Begin with a request whose head need not be parsed: one with the same bytes was, between two messages too."""
        self._current, listener = request, self._listener
        try:
            listener.begin(request)
        finally:
            if self._current is not None:
                listener.heads.end(self)
            if self._output:
                listener.gather(self)
            else:
                self._output = None

    # ------------------------------------------------------------------------------------------ the parser's calls

    def begin_head(self) -> None:
        """Note that a head begins to come. Behind a request that runs it has time until that is answered."""
        if self._current is None and not self._requests:
            heads = self._listener.heads
            heads.end(self)  # where it was idle so far
            heads.begin(self)

    def enqueue(self, request: WireRequest) -> None:
        """Take a request, whose head has come."""
        self._listener.heads.end(self)
        self._requests.append(request)
        self._queued_bytes += request.waiting_bytes

    def weigh(self, request: WireRequest, size_bytes: int) -> None:
        """Count a piece of the body of a request, if that waits for its turn."""
        if request is not self._current:
            request.waiting_bytes += size_bytes
            self._queued_bytes += size_bytes

    # ------------------------------------------------------------------------------------------- what has come

    def _feed(self, data: bytes) -> None:
        """Have data parsed, until as much of it waits as may; the rest is parsed by `read_on`."""
        at, size, parser = 0, len(data), self._parser
        while at < size and not parser.ended and not self._is_full():
            length = PIECE_BYTES if parser.incoming is None else BODY_PIECE_BYTES
            piece = data[at : at + length] if at or size > length else data
            at += len(piece)
            parser.feed(piece)
        if parser.refusal:
            self._refuse_rest()
        elif parser.ended:
            parser.rest += data[at:]
            self.read_no_further()
        elif self._is_full():
            self._unparsed = data[at:]
            self.read_no_further()

    def _is_full(self) -> bool:
        incoming = self._parser.incoming
        waiting = len(self._requests) > MOST_QUEUED or self._queued_bytes > MOST_QUEUED_BYTES
        return waiting or (incoming is not None and incoming.full)

    def _refuse_rest(self) -> None:
        """Note that nothing can be read any more; what came before is still answered."""
        request = self._parser.stop()
        if request is not None:
            self._parser.refusal = 0  # its answer is the last one
            self._cut(request, InvalidRequest("the body is malformed"))

    def _cut(self, request: WireRequest, error: TensorWasmError) -> None:
        """End a request whose body does not come in whole any more."""
        request.keeps = False
        request.break_off(error)
        if request is not self._current:
            self._advance()

    def time_out(self) -> None:
        """Answer the request whose short body has not come in time."""
        request = self._parser.incoming
        if request is not None and request is not self._current:
            self._parser.stop()
            self._cut(request, RequestTimeout("the request did not come in whole in time"))

    # ------------------------------------------------------------------------------------------ turns of requests

    def _advance(self) -> None:
        """Begin the requests whose turn it is, until one has to be waited for."""
        if self._advancing or self._turning:
            return
        self._advancing, left = True, _AT_ONCE
        try:
            while self._current is None and not self.stalled and not self.closed:
                if not self._requests:
                    if not self._unparsed:
                        break
                    self.read_on()
                    continue
                request = self._requests[0]
                if not (request.ended or request.long or request.broken is not None):
                    if request.continues:
                        request.send_continue()
                    self._listener.bodies.begin(self)
                    break
                if not left:
                    self._turning = True
                    asyncio.get_running_loop().call_soon(self._turn)
                    return
                left -= 1
                self._requests.popleft()
                self._queued_bytes -= request.waiting_bytes
                self._current = request
                self._listener.bodies.end(self)
                if self._half_closed and not self._requests and not self._unparsed:
                    self.keeping = False
                self._listener.begin(request)
                if len(self._requests) <= MOST_QUEUED // 2:
                    self.read_on()
            if self._current is None and not self._requests and not self.closed:
                self._rest()
        finally:
            self._advancing = False

    def _turn(self) -> None:
        self._turning = False
        if not self.closed:
            self._output = [] if self._output is None else self._output
            try:
                self._advance()
            finally:
                self.release()

    def _rest(self) -> None:
        """Wait for the next request, or refuse what was none."""
        if self._parser.refusal:
            self.keeping = False
            if not self._lingering:
                self.write(write_head(self._parser.refusal, b"", b"content-length: 0\r\nconnection: close\r\n"))
                self._linger()
        elif self._parser.ended and self.receive is None and not self._lingering:
            self._linger()
        elif self._half_closed:
            self.close()

    def finish(self, request: WireRequest) -> None:
        """End a request that was answered; called by it."""
        if self._current is request:
            self._current = None
        if self.closed:
            return
        if not request.keeps or not self.keeping:
            unread = self._requests or self._unparsed or self._parser.incoming or self._parser.refusal
            self._requests.clear()
            self._unparsed = b""
            self.keeping = False
            self._listener.heads.end(self)
            if request.ended and self._reading and not unread:
                self.close()
            else:
                self._linger()
            return
        if not self._reading:
            self.read_on()
        if self._requests or self._unparsed:
            self._advance()
            return
        self._listener.heads.begin_anew(self)
        if self._advancing or self._turning or self._current is not None:
            return
        if self._parser.ended or self._half_closed:
            self._rest()

    def end_early(self) -> None:
        """End the connection at once; what was not sent is lost."""
        self._transport.abort()

    def make_room(self) -> None:
        """End the connection to free its place for another; what the client has not taken yet is lost."""
        self.keeping = False
        self.flush()
        self._listener.heads.end(self)
        self._listener.closing.end(self)
        if self._listener.tls is not None or self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def close(self) -> None:
        """End the connection once the client has taken what was written, for which it has a while."""
        self.keeping, self._lingering = False, True
        self.flush()
        if not self.closed:
            self._listener.closing.begin(self)
            self._transport.close()

    def end_linger(self) -> None:
        """End the connection, unless the client still takes what was written: for that it has a while."""
        if self._transport.get_write_buffer_size():
            self.close()
        else:
            self._transport.abort()

    def rest_idle(self) -> None:
        """End the connection if no request is under way; otherwise behind the answer."""
        self.keeping = False
        if self._current is None and not self._requests and self._parser.incoming is None and self.receive is None:
            self.close()

    def _linger(self) -> None:
        """Send no more, and drop what still comes for a while: to close at once would throw the answer away."""
        self._lingering = True
        self.flush()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        if not self._listener.lingering.begin(self):
            self.close()

    # ------------------------------------------------------------------------------------------ reading, writing

    def read_no_further(self) -> None:
        """Leave what the client sends with the kernel, until `read_on`."""
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Take again what the client sends, if there is room for it, and it is known what to do with it."""
        if self._unparsed and not self._is_full():
            data, self._unparsed = self._unparsed, b""
            self._feed(data)
        known = self.receive is not None or not (self._parser.ended or self._unparsed or self._is_full())
        if known and not self._reading and not self.closed:
            self._reading = True
            self._transport.resume_reading()

    def pass_on(self, receive: Callable[[bytes], None]) -> None:
        """Give what comes to a function from now on, beginning behind the head that ended HTTP; nothing is its end."""
        self.receive = receive
        if self._parser.rest:
            receive(self._parser.rest)
            self._parser.rest = b""
        self.read_on()
