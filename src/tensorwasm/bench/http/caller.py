"""Many requests from one thread: connections that each ask one thing at a time, with as little work as can be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from tensorwasm.errors import InternalError

_HEAD_END: Final = b"\r\n\r\n"


class Broken(Exception):
    """The connection ended before the answer had."""


class Caller(asyncio.Protocol):
    """One connection. Answers have a length; those without a body have none."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if not isinstance(transport, asyncio.Transport):
            raise InternalError("a connection without a transport")
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(str(exc or "closed")))

    def data_received(self, data: bytes) -> None:
        """Take what came, and answer whoever waits once it is whole."""
        self._data += data
        head_end = self._data.find(_HEAD_END)
        if head_end < 0 or self._answer is None:
            return
        head = bytes(self._data[:head_end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 : (head.find(b"\r\n", at) + 1 or len(head) + 1) - 1]) if at >= 0 else 0
        if len(self._data) < head_end + 4 + length:
            return
        body = bytes(self._data[head_end + 4 : head_end + 4 + length])
        del self._data[: head_end + 4 + length]
        if not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request as `render` makes one, and return status and body.

        Raises:
            Broken: there was no answer.
        """
        if self.closed or self._transport is None:
            raise Broken("closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def leave(self, request: bytes = b"") -> None:
        """Send something, and close without waiting for what comes of it."""
        if self._transport is not None:
            if request:
                self._transport.write(request)
            self._transport.abort()


async def connect(host: str, port: int) -> Caller:
    """Return a new connection.

    Raises:
        Broken: nobody listens.
    """
    try:
        _, caller = await asyncio.get_running_loop().create_connection(Caller, host, port)
    except OSError as error:
        raise Broken(str(error)) from None
    return caller


def render(method: str, path: str, headers: Mapping[str, str], body: object = None) -> bytes:
    """Return a request's bytes; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    told = {"host": "127.0.0.1", "content-type": "application/json", **headers, "content-length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data
