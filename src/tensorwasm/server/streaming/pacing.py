"""`Pace`: makes a stream wait for a slow client where the server does not.

Over HTTP/2 the server writes to the connection itself, and takes from us whatever it is given. What it has written can
be asked of the kernel; the rest of what it was given waits in it, and must not grow. Streams of one connection share an
account. What else the server writes there counts as if it had been theirs: so much more may wait.

Source: tcp(7) TCP_INFO, SIOCOUTQ; linux/tcp.h, struct tcp_info.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

from tensorwasm.server.streaming.connection import STALL_S, Connection
from tensorwasm.values import MIB

MAX_WAITING_BYTES: Final = MIB
"""What may wait in the server for one connection."""

LOOK_S: Final = 0.01
"""How often it is asked whether there is room again."""


class _Account:
    """What streams have given to one connection."""

    __slots__ = ("given_bytes", "streams")

    def __init__(self, given_bytes: int) -> None:
        self.given_bytes = given_bytes
        self.streams = 0


_accounts: Final[dict[str, _Account]] = {}
"""By the client's address, while it has streams; of the one event loop."""


class Pace:
    """The pace of one stream. Use it in ``with``; the connection is closed with it.

    Args:
        client: the client's address.
        connection: to it.
        stall_s: seconds without any progress after which the client is given up.
    """

    __slots__ = ("_account", "_client", "_connection", "_stall_s")

    def __init__(self, client: str, connection: Connection, stall_s: float = STALL_S) -> None:
        self._client = client
        self._connection = connection
        self._stall_s = stall_s
        self._account = _accounts.setdefault(client, _Account(connection.written_bytes()))

    async def keep(self, size_bytes: int) -> bool:
        """Wait until what was given before is written but for a little; return False if the client takes nothing.

        Args:
            size_bytes: what is given next.
        """
        waited_s, seen = 0.0, -1
        while (written := self._connection.written_bytes()) + MAX_WAITING_BYTES < self._account.given_bytes:
            waited_s = waited_s + LOOK_S if written == seen else 0.0
            if waited_s > self._stall_s:
                return False
            seen = written
            await asyncio.sleep(LOOK_S)
        self._account.given_bytes = max(self._account.given_bytes, written) + size_bytes
        return True

    def __enter__(self) -> Self:
        self._account.streams += 1
        return self

    def __exit__(self, *exception: object) -> None:
        self._account.streams -= 1
        if not self._account.streams:
            _accounts.pop(self._client, None)
        self._connection.close()
