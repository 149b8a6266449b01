"""`Listener`: the connections of a server, and how long each may wait for what."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.server.connection.connection import HttpConnection
from tensorwasm.server.connection.request import KnownHeads
from tensorwasm.server.process.address import BACKLOG

if TYPE_CHECKING:
    from tensorwasm.server.connection.request import WireRequest
    from tensorwasm.server.connection.tls import ServerTls

HEAD_S: Final = 20.0
"""Time limit of a request's head, and of an idle connection."""

HANDSHAKE_S: Final = 10.0
"""Time limit of a handshake of TLS."""

STALL_S: Final = 60.0
"""Time in which a client must take what waits for it: 64 KiB, or one answer."""

LINGER_S: Final = 2.0
"""How long what still comes is dropped behind the last answer, so that its sender can read that."""

MOST_GATHERED: Final = 8
"""Connections whose answers leave together: the more, the longer each waits for the others."""

MOST_LINGERING: Final = 64
SWEEP_S: Final = 1.0

_log = logging.getLogger(__name__)


class WaitingConnections:
    """Connections that wait for one thing, in the order in which they began to.

    Args:
        limit_s: how long each may; an attribute, too.
        late: called with one that has waited too long, which waits no longer.
        most: how many may wait.
    """

    def __init__(self, limit_s: float, late: Callable[[HttpConnection], object], most: int = 1 << 30) -> None:
        self.limit_s, self._late, self._most = limit_s, late, most
        self._since: OrderedDict[HttpConnection, float] = OrderedDict()
        self._clock = asyncio.get_running_loop().time

    def begin(self, connection: HttpConnection) -> bool:
        """Let one begin to wait, unless it does already; return False if too many do."""
        since = self._since
        if connection not in since:
            if len(since) >= self._most:
                return False
            since[connection] = self._clock()
        return True

    def end(self, connection: HttpConnection) -> None:
        """Note that it waits no longer, if it did."""
        self._since.pop(connection, None)

    def sweep(self) -> None:
        """End the waits that take too long."""
        latest_s = self._clock() - self.limit_s
        while self._since:
            connection, since_s = next(iter(self._since.items()))
            if since_s > latest_s:
                break
            del self._since[connection]
            self._late(connection)

    def first(self) -> HttpConnection | None:
        """Return the one that waits for longest."""
        return next(iter(self._since), None)


class Listener:
    """Takes connections, at most so many. For one event loop.

    Args:
        begin: begins with a request, whose body has come if it is short.
        most: connections at a time. One more takes the place of the one that is idle for longest.
        body_timeout_s: in which a short body must have come.
        tls: of all connections; None for none.
        relayed: whether requests come from another process of this server, which says who their clients are.

    Attributes:
        keeping: whether connections stay open behind an answer.
        known: heads of requests that were answered.
        heads: those that wait for a head, and for nothing else.
        bodies: those that wait for a short body.
        stalled: those whose clients do not take what was written.
        lingering: those whose last answer was sent, and whose clients still send.
        closing: those whose clients are to take what was written last.
    """

    def __init__(
        self,
        begin: Callable[[WireRequest], None],
        most: int,
        body_timeout_s: float,
        tls: ServerTls | None = None,
        *,
        relayed: bool = False,
    ) -> None:
        """Begin without connections."""
        self.begin, self._most, self.tls, self.relayed = begin, most, tls, relayed
        self.keeping = True
        self.known = KnownHeads()
        self._connections: set[HttpConnection] = set()
        self._gathered: list[HttpConnection] = []
        self.heads = WaitingConnections(HEAD_S, HttpConnection.close)
        self.bodies = WaitingConnections(body_timeout_s, HttpConnection.time_out)
        self.stalled = WaitingConnections(STALL_S, HttpConnection.end_early)
        self.lingering = WaitingConnections(LINGER_S, HttpConnection.end_linger, MOST_LINGERING)
        self.closing = WaitingConnections(STALL_S, HttpConnection.end_early)
        self._server: asyncio.Server | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: dict[HttpConnection, asyncio.Task[None]] = {}
        self._last_left: asyncio.Event | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    def take_over(self, begin: Callable[[WireRequest], None], body_timeout_s: float) -> None:
        """Give the requests that come from now on to another function."""
        self.begin = begin
        self.bodies.limit_s = body_timeout_s

    async def listen(self, listening: socket.socket) -> None:
        """Take connections of a socket that listens and does not block; it is this listener's from now on."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        if self.tls is not None:
            self._accepting = loop.create_task(self._accept(listening, self.tls))
        else:
            options: dict[str, Any] = {"sock": listening, "backlog": BACKLOG}
            if listening.family == socket.AF_UNIX and sys.version_info >= (3, 13):
                options["cleanup_socket"] = False  # its file is not this listener's
            create = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
            self._server = await create(self._make, **options)
        self._sweep()

    async def _accept(self, listening: socket.socket, tls: ServerTls) -> None:
        """Take connections of TLS. One that shakes hands is none yet for asyncio, but takes a place here."""
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    link, _ = await loop.sock_accept(listening)
                except OSError as error:
                    _log.warning("a connection is not accepted: %s", error.strerror)
                    await asyncio.sleep(SWEEP_S)
                    continue
                self._make_room()
                connection = self._make()
                self._handshakes[connection] = loop.create_task(self._shake_hands(connection, link, tls))

    def _make_room(self) -> None:
        """End the oldest handshakes if there is no room for another one."""
        while self._handshakes and len(self._connections) + len(self._handshakes) >= self._most:
            self._handshakes.pop(next(iter(self._handshakes))).cancel()

    async def _shake_hands(self, connection: HttpConnection, link: socket.socket, tls: ServerTls) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                link,
                ssl=tls.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=STALL_S,
            )
        except OSError:  # an `ssl.SSLError` is one, too: the client is told by TLS itself
            pass
        finally:
            self._handshakes.pop(connection, None)

    def leave(self) -> None:
        """Close the socket that listens; connections go on, each until its next answer."""
        self.keeping = False
        if self._server is not None:
            self._server.close()
        if self._accepting is not None:
            self._accepting.cancel()
        for connection in self._connections:
            connection.keeping = False

    async def wait_closed(self, limit_s: float) -> None:
        """Wait until there are no connections, for a limited time."""
        if self._connections:
            self._last_left = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._last_left.wait(), limit_s)

    async def close(self, limit_s: float) -> None:
        """Take no more connections; end those that are idle at once, others behind their answers or after a time."""
        self.leave()
        for task in list(self._handshakes.values()):
            task.cancel()
        for connection in list(self._connections):
            connection.rest_idle()
        await self.wait_closed(limit_s)
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._connections):
            connection.end_early()

    def admit(self, connection: HttpConnection) -> bool:
        """Take a connection in, whose handshake is over; return False if there is no room for it."""
        if self.tls is not None and self._handshakes.pop(connection, None) is None:
            return False  # it was ended in the very turn in which it succeeded
        if len(self._connections) >= self._most:
            idle = self.closing.first() or self.heads.first()
            if idle is None:
                return False
            idle.make_room()
        self._connections.add(connection)
        self.heads.begin(connection)
        return True

    def forget(self, connection: HttpConnection) -> None:
        """Forget a connection that is closed."""
        self._connections.discard(connection)
        if not self._connections and self._last_left is not None:
            self._last_left.set()
        for each in (self.heads, self.bodies, self.stalled, self.lingering, self.closing):
            each.end(connection)

    def gather(self, connection: HttpConnection) -> None:
        """Send what a connection has gathered at the end of this turn of the event loop, or behind a few others.

        The first of several answers wakes their client's processor, which costs as much as a short call; those that
        follow at once find it awake.
        """
        gathered = self._gathered
        gathered.append(connection)
        if len(gathered) >= MOST_GATHERED:
            self._release()
        elif len(gathered) == 1:
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        gathered, self._gathered = self._gathered, []
        for connection in gathered:
            connection.release()

    def _make(self) -> HttpConnection:
        return HttpConnection(self)

    def _sweep(self) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)  # first: what follows may fail
        for each in (self.heads, self.bodies, self.stalled, self.lingering, self.closing):
            each.sweep()
