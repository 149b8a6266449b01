"""`WebSocket`: an open WebSocket.

Browsers cannot send an Authorization header with a WebSocket, and a token in the URL would appear in logs on the way.
So a page offers two subprotocols, ``tensorwasm.v1`` and ``bearer.TOKEN``; the first is chosen.

Source: RFC 6455 1.9, 4.2.2; WHATWG WebSockets, "establish a WebSocket connection".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self, cast

from tensorwasm.errors import InvalidRequest, TensorWasmError
from tensorwasm.server.http.bodies import BodyBudget, BodyMemory
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from websockets.frames import Frame
    from websockets.http11 import Request
    from websockets.server import ServerProtocol

    from tensorwasm.server.connection.connection import HttpConnection
    from tensorwasm.server.connection.request import WireRequest

SUBPROTOCOL: Final = "tensorwasm.v1"
"""Chosen if the client offers it; browsers close a connection on which none of theirs was chosen."""

_BEARER: Final = "bearer."
_TEXT, _BINARY, _CLOSE = 1, 2, 8
_NORMAL, _NOT_UTF8, _TOO_BIG, _TRY_AGAIN_LATER = 1000, 1007, 1009, 1013

MAX_MESSAGE_BYTES: Final = 64 * MIB
"""Longest message; what a call's input may be is a setting."""

MAX_TEXT: Final = MIB
"""Longest text message, in characters."""

PIECE_BYTES: Final = 8 << 10
"""How much is parsed before others have their turn: the shortest frame has six bytes, and takes some microseconds."""


def authorization(headers: Any) -> str | None:
    """Return the Authorization header, or the token among the subprotocols; raise `InvalidRequest` for several."""
    shown = [f"Bearer {each.removeprefix(_BEARER)}" for each in offered(headers) if each.startswith(_BEARER)]
    if "authorization" in headers:
        shown.append(headers.get("authorization"))
    if len(shown) > 1:
        raise InvalidRequest("the request has more than one token")
    return shown[0] if shown else None


def offered(headers: Any) -> list[str]:
    """Return the subprotocols that a client offers."""
    given = headers.get("sec-websocket-protocol") or ""
    return [each for part in given.split(",") if (each := part.strip())]


def counted_bytes(message: str | bytes) -> int:
    """Return what a message counts against the budget."""
    return len(message) if isinstance(message, bytes) or message.isascii() else len(message.encode())


class WebSocket:
    """An accepted WebSocket. One coroutine may receive while another one sends.

    The client must take what one `send` sends before `tensorwasm.server.connection.listener.STALL_S` are over.

    Attributes:
        budget: memory for received messages, shared with all other requests.
    """

    def __init__(
        self, protocol: ServerProtocol, connection: HttpConnection, budget: BodyBudget, tenant: int | None
    ) -> None:
        """Take over a connection whose handshake was made; see `accept`."""
        self.budget, self._tenant = budget, tenant
        self._protocol, self._connection = protocol, connection
        self._unparsed: deque[bytes] = deque()
        self._held = BodyMemory(budget, 2 * MAX_MESSAGE_BYTES, tenant)  # of what came and is no message yet
        self._messages: deque[str | bytes] = deque()
        self._parts = bytearray()
        self._is_text = self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._parsing: asyncio.Handle | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._flush()
        connection.pass_on(self._take)

    @classmethod
    def accept(cls, wire: WireRequest, budget: BodyBudget, tenant: int | None = None) -> Self:
        """Accept a WebSocket of a tenant or of none, with the subprotocol if the client offers it.

        Raises:
            InvalidRequest: the handshake is none.
        """
        from websockets.server import ServerProtocol  # noqa: PLC0415 - most servers never need it

        protocol = ServerProtocol(select_subprotocol=_select, max_size=MAX_MESSAGE_BYTES)
        head = "".join(f"{name}: {value}\r\n" for name, value in wire.head.fields.pairs())
        protocol.receive_data(f"GET / HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
        asked = protocol.events_received()
        if not asked:
            raise InvalidRequest("the request is no WebSocket handshake")
        response = protocol.accept(cast("Request", asked[0]))
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            raise InvalidRequest("the request is no WebSocket handshake")
        protocol.send_response(response)
        return cls(protocol, wire.take_over(), budget, tenant)

    async def receive(self) -> str | bytes | None:
        """Return the next message, None once the client has closed or disconnected.

        It counts against the budget (`counted_bytes`) until the caller gives that back.
        """
        while not self._messages:
            if self._ended or self._connection.closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._messages.popleft()
        if not self._messages:
            self._parse_soon()
        return message

    async def send(self, message: str | bytes) -> bool:
        """Send a message, waiting while the client is slow; return False if it disconnected or does not take it."""
        if self._ended or self._connection.closed:
            return False
        if isinstance(message, bytes):
            self._protocol.send_binary(message)
        else:
            self._protocol.send_text(message.encode())
        self._flush()
        return await self._connection.drain()

    def close(self) -> None:
        """Close it."""
        if not self._ended and not self._connection.closed:
            with suppress(Exception):  # it is closing already
                self._protocol.send_close(_NORMAL)
            self._flush()
        self._end()
        self.budget.give(sum(map(counted_bytes, self._messages)), self._tenant)
        self._messages.clear()
        if self._resuming is not None:
            self._resuming.cancel()
        self._connection.close()

    def _take(self, data: bytes) -> None:
        """Take what came; nothing where the connection has ended. Others may send while it is parsed piece by piece."""
        if not data:
            self._end()
        elif not self._ended:
            self._connection.read_no_further()
            try:
                self._held.hold(len(data))
            except TensorWasmError as error:
                self._fail(_TRY_AGAIN_LATER, error.message)
                self._flush()
                return
            self._unparsed.append(data)
            if self._parsing is None:
                self._parse()

    def _end(self) -> None:
        """Take no more."""
        self._ended = True
        self._unparsed.clear()
        self._parts.clear()
        self._held.close()
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done() and (self._messages or self._ended):
            self._reader.set_result(None)

    def _parse_soon(self) -> None:
        """Parse more in a later turn of the event loop."""
        if self._parsing is None:
            self._parsing = asyncio.get_running_loop().call_soon(self._parse)

    def _parse(self) -> None:
        """Parse a piece of what has come, unless a message waits to be received, or the client takes no answers."""
        self._parsing = None
        if self._messages or self._ended:
            return
        if self._connection.stalled:
            if self._resuming is None:
                self._resuming = asyncio.get_running_loop().create_task(self._resume())
            return
        if not self._unparsed:
            self._connection.read_on()
            return
        data = self._unparsed.popleft()
        piece, rest = data[:PIECE_BYTES], data[PIECE_BYTES:]
        if rest:
            self._unparsed.appendleft(rest)
        self._protocol.receive_data(piece)
        frames = self._protocol.events_received()
        for frame in frames:
            self._take_frame(cast("Frame", frame))
        if frames and not self._ended:  # what is not whole yet began in this piece, but for fragments
            self._held.close()
            self._held.hold(len(self._parts) + sum(map(len, self._unparsed)))
        self._flush()
        self._wake()
        self._parse_soon()

    async def _resume(self) -> None:
        await self._connection.drain()
        self._resuming = None
        self._parse_soon()

    def _take_frame(self, frame: Frame) -> None:
        if self._ended or frame.opcode > _BINARY:
            if frame.opcode == _CLOSE:
                self._end()
            return
        if frame.opcode in {_TEXT, _BINARY}:
            self._is_text = frame.opcode == _TEXT
            self._parts.clear()
        if self._is_text and len(self._parts) + len(frame.data) > 4 * MAX_TEXT:
            self._fail(_TOO_BIG, f"a text message has at most {MAX_TEXT} characters")
            return
        self._parts += frame.data
        if not frame.fin:
            return
        whole = bytes(self._parts)
        self._parts.clear()
        try:
            self._messages.append(whole.decode() if self._is_text else whole)
        except UnicodeDecodeError:
            self._fail(_NOT_UTF8, "the text is not UTF-8")
        else:
            self._held.hand_over(len(whole))

    def _fail(self, code: int, reason: str) -> None:
        self._protocol.fail(code, reason)
        self._end()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._connection.write(data)
            else:  # the protocol has ended
                self._end()
                self._connection.close()


def _select(_protocol: object, offers: Sequence[str]) -> Any:
    return SUBPROTOCOL if SUBPROTOCOL in offers else None
