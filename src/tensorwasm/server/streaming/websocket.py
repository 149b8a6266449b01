"""`WebSocket`: an open WebSocket; and `SocketCalls`: the calls of a function over one.

Browsers cannot send an Authorization header with a WebSocket, and a token in the URL would appear in logs on the way.
So a page offers two subprotocols, ``tensorwasm.v1`` and ``bearer.TOKEN``; the first is chosen.

The client sends input as binary messages, then a call as a text message; the server sends the guest's chunks as binary
messages, then the outcome as a text message. One call runs at a time. Input that arrives meanwhile is for the next one.

Source: RFC 6455 1.9, 4.2.2; WHATWG WebSockets, "establish a WebSocket connection".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self, cast

from tensorwasm.errors import BodyTooLarge, Conflict, InternalError, InvalidJson, InvalidRequest, TensorWasmError
from tensorwasm.server.http.bodies import BodyBudget, BodyMemory
from tensorwasm.server.http.decoding import JsonDecoder
from tensorwasm.server.http.results import require_success
from tensorwasm.server.http.routing import HttpRequest
from tensorwasm.server.http.schemas import SocketMessage, encode
from tensorwasm.server.streaming.streamed_call import StreamFailure, encode_outcome, hold_stream
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from websockets.frames import Frame
    from websockets.http11 import Request
    from websockets.server import ServerProtocol

    from tensorwasm.server.connection.connection import HttpConnection
    from tensorwasm.server.connection.request import WireRequest

MakeCall = Callable[[HttpRequest, SocketMessage, bytes], Awaitable[InvocationRequest]]

SUBPROTOCOL: Final = "tensorwasm.v1"
"""Chosen if the client offers it; browsers close a connection on which none of theirs was chosen."""

_BEARER: Final = "bearer."
_TEXT, _BINARY, _CLOSE = 1, 2, 8
_NORMAL, _NOT_UTF8, _TOO_BIG, _TRY_AGAIN_LATER = 1000, 1007, 1009, 1013

MAX_MESSAGE_BYTES: Final = 64 * MIB
"""Longest message; what a call's input may be is a setting."""

IDLE_S: Final = 300.0
"""Seconds without a message after which an idle socket is closed."""

MAX_TEXT: Final = MIB
"""Longest text message, in characters."""

PIECE_BYTES: Final = 8 << 10
"""How much is parsed before others have their turn: the shortest frame has six bytes, and takes some microseconds."""

_log = logging.getLogger(__name__)
_decoder: Final = JsonDecoder(SocketMessage)


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
        self.budget = budget
        self._protocol, self._connection = protocol, connection
        self._unparsed: deque[bytes] = deque()
        self._held = BodyMemory(budget, 2 * MAX_MESSAGE_BYTES, tenant)  # of the message that comes
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
        """Return the next message, None once the client has closed or disconnected."""
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
        self._messages.clear()
        if self._resuming is not None:
            self._resuming.cancel()
        self._connection.close()

    def _take(self, data: bytes) -> None:
        """Take what came; nothing where the connection has ended. Others may send while it is parsed piece by piece."""
        if not data:
            self._end()
        elif not self._ended:
            self._unparsed.append(data)
            self._connection.read_no_further()
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
        try:
            self._held.hold(len(piece))
            self._protocol.receive_data(piece)
            frames = self._protocol.events_received()
            for frame in frames:
                self._take_frame(cast("Frame", frame))
            if frames and not self._ended:  # what is not whole yet began in this piece, but for fragments
                self._held.close()
                self._held.hold(len(self._parts))
        except TensorWasmError as error:
            self._fail(_TRY_AGAIN_LATER, error.message)
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


class SocketCalls:
    """Calls one after the other, each admitted like a request: its token may have expired since the last.

    The caller closes the socket. `make_call` returns the call that a message describes, with the input that preceded
    it. The session ends after `idle_s` seconds without a message.
    """

    def __init__(
        self, request: HttpRequest, socket: WebSocket, reference: str, make_call: MakeCall, idle_s: float = IDLE_S
    ) -> None:
        self._make_call = make_call
        self._budget = socket.budget
        self._request = request
        self._socket = socket
        self._reference = reference
        self._idle_s = idle_s
        self._input: list[bytes] = []
        self._input_bytes = 0
        self._most_bytes = request.service.settings.max_body_mib * MIB
        self._running: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve until the client disconnects, is idle for long, or violates the protocol; cancel a running call."""
        try:
            with hold_stream(self._request):
                await self._request.service.functions.resolve(self._request.tenant, self._reference)
                await self._listen()
        except TensorWasmError as error:
            await self._send_failure(StreamFailure.of(error))

    async def _listen(self) -> None:
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            while await self._wait(receiving):
                message = receiving.result()
                if message is None:
                    return
                receiving = asyncio.ensure_future(self._socket.receive())
                await self._take(message)
        finally:
            receiving.cancel()
            self._budget.give(self._take_input()[1], self._request.tenant)
            await self._stop()

    def _take_input(self) -> tuple[bytes, int]:
        """Return the input and its share of the budget, which the caller gives back."""
        given, size_bytes = b"".join(self._input), self._input_bytes
        self._input, self._input_bytes = [], 0
        return given, size_bytes

    async def _wait(self, receiving: asyncio.Future[str | bytes | None]) -> bool:
        """Wait for a message; return False if none arrives in `idle_s` while nothing runs."""
        while not receiving.done():
            waited: set[asyncio.Future[Any]] = {receiving}
            if self._running is not None:
                waited.add(self._running)
            done, _ = await asyncio.wait(waited, timeout=self._idle_s, return_when=asyncio.FIRST_COMPLETED)
            if self._running is not None and self._running.done():
                self._running = None
            elif not done and self._running is None:
                return False
        return True

    async def _take(self, message: str | bytes) -> None:
        """Keep input, or start or cancel a call."""
        if isinstance(message, bytes):
            if self._input_bytes + len(message) > self._most_bytes:
                raise BodyTooLarge(f"input of more than {self._most_bytes} bytes")
            self._budget.take(len(message), self._request.tenant)
            self._input_bytes += len(message)
            self._input.append(message)
            return
        request = parse(message)
        if request.cancel:
            if await self._stop():
                await self._send_failure(StreamFailure(reason="cancelled", message="the client cancelled the call"))
            return
        if self._running is not None and not self._running.done():
            raise Conflict("a call runs: the next one has to wait for its end")
        given, size_bytes = self._take_input()
        self._running = asyncio.ensure_future(self._call(request, given))
        self._running.add_done_callback(lambda _: self._budget.give(size_bytes, self._request.tenant))

    async def _call(self, message: SocketMessage, given: bytes) -> None:
        """Run one call, and send its outcome."""
        try:
            last = await self._run(message, given)
        except TensorWasmError as error:
            await self._send_failure(StreamFailure.of(error))
        except Exception:  # noqa: BLE001 - the last line of defence, as around every other request
            _log.exception("request %s: a bug", self._request.request_id)
            await self._send_failure(StreamFailure.of(InternalError("a bug")))
        else:
            if last is not None:
                await self._socket.send(last)

    async def _run(self, message: SocketMessage, given: bytes) -> str | None:
        """Send chunks; return the message after the last one, None if the client has disconnected."""
        request = self._request
        admitted = request.admitted if request.again is None else await request.again()
        call = await self._make_call(request, message, given)
        async with request.service.invocations.stream(admitted, self._reference, call) as stream:
            async for chunk in stream:
                if not await self._socket.send(chunk):
                    return None
            return '{"done":' + encode_outcome(self._reference, require_success(stream.outcome)).decode() + "}"

    async def _stop(self) -> bool:
        """Cancel the running call; return False if there is none."""
        running, self._running = self._running, None
        if running is None or running.done():
            return False
        running.cancel()
        await asyncio.wait((running,))
        return running.cancelled()

    async def _send_failure(self, failure: StreamFailure) -> None:
        await self._socket.send('{"error":' + encode(failure).decode() + "}")


def parse(text: str) -> SocketMessage:
    """Return the message of a text; raise `InvalidJson` if it is not one, or has an unknown field."""
    if len(text) > MAX_TEXT:
        raise InvalidJson(f"a text message has at most {MAX_TEXT} characters")
    return cast("SocketMessage", _decoder.read(text))
