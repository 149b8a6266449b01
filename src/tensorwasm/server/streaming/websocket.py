"""`Socket`: a WebSocket that is open, and what of it has to be known before that.

Browsers cannot send an Authorization header with a WebSocket, and a token in the address would be in every log on the
way. So a page offers two subprotocols, ``tensorwasm.v1`` and ``bearer.TOKEN``; the first is chosen.

Source: RFC 6455 1.9, 4.2.2; WHATWG WebSockets, "establish a WebSocket connection".
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from tensorwasm.errors import InvalidRequest
from tensorwasm.server.bodies import Budget
from tensorwasm.server.streaming.connection import STALL_S, Connection

SUBPROTOCOL: Final = "tensorwasm.v1"
"""What a client offers that offers anything; browsers close a connection on which none of theirs was chosen."""

_BEARER: Final = "bearer."
_CLOSE: Final = 0


def authorization(headers: Any) -> str | None:
    """Return the Authorization header, or what stands for it among the subprotocols; None for neither.

    Raises:
        InvalidRequest: there is more than one.
    """
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


class Socket:
    """A WebSocket. One coroutine may receive and one may send, at the same time.

    Attributes:
        budget: memory for what clients send, shared with all others.
    """

    def __init__(
        self,
        protocol: Any,
        transport: Any,
        connection: Connection | None,
        budget: Budget,
        stall_s: float = STALL_S,
    ) -> None:
        """Use one that was accepted.

        Args:
            protocol: RSGI's.
            transport: what accepting it returned.
            connection: beneath it; closed with it.
            budget: memory for what clients send.
            stall_s: seconds in which the client must take what one `send` sends.
        """
        self._protocol = protocol
        self._transport = transport
        self._connection = connection
        self._stall_s = stall_s
        self.budget = budget

    @classmethod
    async def accept(cls, scope: Any, protocol: Any, budget: Budget) -> Self:
        """Accept a WebSocket, with the subprotocol if the client offers it.

        Args:
            scope: RSGI's.
            protocol: RSGI's, not answered yet.
            budget: memory for what clients send.

        Raises:
            InvalidRequest: the client has left.
        """
        connection = await Connection.find(scope.client, scope.server)
        if connection is not None and SUBPROTOCOL in offered(scope.headers):
            # The server's own head, which has no place for a subprotocol, becomes the end of this one: its first line
            # the value of a field, and the fields after it what they are.
            await connection.send(
                b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: %b\r\nX-Accepted: " % SUBPROTOCOL.encode()
            )
        try:
            return cls(protocol, await protocol.accept(), connection, budget)
        except Exception:  # noqa: BLE001 - whatever the server says, there is nobody to talk to
            if connection is not None:
                connection.close()
            raise InvalidRequest("the client has left") from None

    async def receive(self) -> str | bytes | None:
        """Return the next message, None once the client has closed or left."""
        try:
            message = await self._transport.receive()
        except Exception:  # noqa: BLE001 - whatever the server says, nothing comes any more
            return None
        if message.kind == _CLOSE:
            return None
        data: str | bytes = message.data
        return data

    async def send(self, message: str | bytes) -> bool:
        """Send a message; return False if the client has left, or does not take it in time. Waits while it is slow."""
        send = self._transport.send_bytes if isinstance(message, bytes) else self._transport.send_str
        try:
            async with asyncio.timeout(self._stall_s):
                await send(message)
        except Exception:  # noqa: BLE001 - likewise
            return False
        return True

    def close(self, *, whole: bool = True) -> None:
        """Close it.

        Args:
            whole: False ends the connection at once, whatever the client has not taken.
        """
        if self._connection is not None:
            if not whole:
                self._connection.reset()
            self._connection.close()
            self._connection = None
        self._protocol.close()
