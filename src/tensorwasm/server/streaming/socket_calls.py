"""`SocketCalls`: the calls of a function over a WebSocket.

The client sends input as binary messages, then a call as a text message; the server sends the guest's chunks as binary
messages, then the outcome as a text message. One call runs at a time. Input that arrives meanwhile is for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from tensorwasm.errors import BodyTooLarge, Conflict, InternalError, InvalidJson, TensorWasmError
from tensorwasm.server.http.decoding import JsonDecoder
from tensorwasm.server.http.results import require_success
from tensorwasm.server.http.routing import HttpRequest
from tensorwasm.server.http.schemas import SocketMessage, encode
from tensorwasm.server.streaming.streamed_call import StreamFailure, encode_outcome, hold_stream
from tensorwasm.server.streaming.websocket import MAX_TEXT, WebSocket, counted_bytes
from tensorwasm.service.invocations.request import InvocationRequest
from tensorwasm.values import MIB

MakeCall = Callable[[HttpRequest, SocketMessage, bytes], Awaitable[InvocationRequest]]

IDLE_S: Final = 300.0
"""Seconds without a message after which an idle socket is closed."""

MERGED_BYTES: Final = 4096
"""Up to which messages of one input are joined as they come: one of a byte would take as much as one of fifty."""

_log = logging.getLogger(__name__)
_decoder: Final = JsonDecoder(SocketMessage)


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
            if receiving.done() and not receiving.cancelled() and (left := receiving.result()) is not None:
                self._budget.give(counted_bytes(left), self._request.tenant)
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
        """Keep input, or start or cancel a call; what the message counts is given back here or at the call's end."""
        if isinstance(message, bytes):
            self._keep(message)
            return
        counted = counted_bytes(message)
        try:
            request = parse(message)
            if request.cancel:
                if await self._stop():
                    await self._send_failure(StreamFailure(reason="cancelled", message="the client cancelled the call"))
                return
            if self._running is not None and not self._running.done():
                raise Conflict("a call runs: the next one has to wait for its end")
            given, input_bytes = self._take_input()
            whole_bytes, counted = counted + input_bytes, 0
            self._running = asyncio.ensure_future(self._call(request, given))
            self._running.add_done_callback(lambda _: self._budget.give(whole_bytes, self._request.tenant))
        finally:
            self._budget.give(counted, self._request.tenant)

    def _keep(self, message: bytes) -> None:
        """Keep input for the next call."""
        self._input_bytes += len(message)
        if self._input_bytes > self._most_bytes:
            raise BodyTooLarge(f"input of more than {self._most_bytes} bytes")
        if self._input and len(self._input[-1]) + len(message) <= MERGED_BYTES:
            self._input[-1] += message
        else:
            self._input.append(message)

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
