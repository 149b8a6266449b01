"""`Conversation`: one WebSocket, on which a function is called as often as the client asks.

The client sends input as binary messages, then a call as a text message; the server sends the guest's chunks as binary
messages, then what came of it as a text message. One call runs at a time. Input that comes meanwhile is the next one's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorwasm.errors import BodyTooLarge, Conflict, InternalError, InvalidJson, TensorWasmError
from tensorwasm.server.decoding import JsonReader
from tensorwasm.server.streaming.bodies import Failed, describe
from tensorwasm.server.streaming.flow import hold_stream, result_of
from tensorwasm.server.wire.streams import SocketMessage
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from tensorwasm.server.routing import Call
    from tensorwasm.server.streaming.websocket import Socket
    from tensorwasm.service.invocations.request import InvocationRequest

    MakeAsk = Callable[[Call, SocketMessage, bytes], Awaitable[InvocationRequest]]

IDLE_S: Final = 300.0
"""Seconds without a message after which a socket is closed on which nothing runs."""

MAX_TEXT: Final = MIB
"""Longest text message, in characters."""

_log = logging.getLogger(__name__)
_encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
_reader: Final = JsonReader(SocketMessage)


class Conversation:
    """Calls one after the other, each admitted as a request is: its token may have ended since the last.

    Args:
        call: the request that opened the socket.
        socket: closed by the caller.
        reference: the function.
        ask: returns what a message asks for, with the input that came before it.
        idle_s: seconds without a message after which it ends.
    """

    def __init__(self, call: Call, socket: Socket, reference: str, ask: MakeAsk, idle_s: float = IDLE_S) -> None:
        self._ask = ask
        self._budget = socket.budget
        self._call = call
        self._socket = socket
        self._reference = reference
        self._idle_s = idle_s
        self._input: list[bytes] = []
        self._input_bytes = 0
        self._most_bytes = call.service.settings.max_body_mib * MIB
        self._running: asyncio.Task[None] | None = None

    async def hold(self) -> None:
        """Answer until the client leaves, is silent for long, or breaks a rule. What runs then is ended."""
        try:
            with hold_stream(self._call):
                await self._call.service.functions.resolve(self._call.tenant, self._reference)
                await self._listen()
        except TensorWasmError as error:
            await self._tell_error(error)

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
            self._budget.give(self._hand_over()[1], self._call.tenant)
            await self._stop()

    def _hand_over(self) -> tuple[bytes, int]:
        """Return the input and how much of the budget it has: whoever takes it gives that back."""
        given, size_bytes = b"".join(self._input), self._input_bytes
        self._input, self._input_bytes = [], 0
        return given, size_bytes

    async def _wait(self, receiving: asyncio.Future[str | bytes | None]) -> bool:
        """Wait for a message; return False if none comes for long and nothing runs."""
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
        if isinstance(message, bytes):
            if self._input_bytes + len(message) > self._most_bytes:
                raise BodyTooLarge(f"input of more than {self._most_bytes} bytes")
            self._budget.take(len(message), self._call.tenant)
            self._input_bytes += len(message)
            self._input.append(message)
            return
        asked = parse(message)
        if asked.cancel:
            await self._cancel()
            return
        if self._running is not None and not self._running.done():
            raise Conflict("a call runs: the next one has to wait for its end")
        given, size_bytes = self._hand_over()
        self._running = asyncio.ensure_future(self._serve(asked, given))
        self._running.add_done_callback(lambda _: self._budget.give(size_bytes, self._call.tenant))

    async def _serve(self, asked: SocketMessage, given: bytes) -> None:
        """Run one call, and tell what came of it."""
        try:
            last = await self._run(asked, given)
        except TensorWasmError as error:
            await self._tell_error(error)
        except Exception:  # noqa: BLE001 - the last line of defence, as around every other request
            _log.exception("request %s: a bug", self._call.request_id)
            await self._tell_error(InternalError("a bug"))
        else:
            if last is not None:
                await self._socket.send(last)

    async def _run(self, asked: SocketMessage, given: bytes) -> str | None:
        """Send chunks; return the message after the last one, None if the client has left."""
        call = self._call
        admitted = call.admitted if call.again is None else await call.again()
        ask = await self._ask(call, asked, given)
        async with call.service.invocations.stream(admitted, self._reference, ask) as stream:
            async for chunk in stream:
                if not await self._socket.send(chunk):
                    return None
            return '{"done":' + describe(self._reference, result_of(stream)).decode() + "}"

    async def _cancel(self) -> None:
        """End what runs, and say so; nothing if nothing runs."""
        if await self._stop():
            await self._socket.send(_error(Failed(reason="cancelled", message="the client ended the call")))

    async def _stop(self) -> bool:
        running, self._running = self._running, None
        if running is None or running.done():
            return False
        running.cancel()
        await asyncio.wait((running,))
        return running.cancelled()

    async def _tell_error(self, error: TensorWasmError) -> None:
        await self._socket.send(_error(Failed.of(error)))


def parse(text: str) -> SocketMessage:
    """Return what a text message says.

    Raises:
        InvalidJson: it is no message, or has a field that a message has not.
    """
    if len(text) > MAX_TEXT:
        raise InvalidJson(f"a text message has at most {MAX_TEXT} characters")
    message: SocketMessage = _reader.read(text)
    return message


def _error(failed: Failed) -> str:
    return '{"error":' + _encode(failed).decode() + "}"
