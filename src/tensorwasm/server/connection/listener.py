"""`Listener`: the connections of a server, and how long each may wait for what."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensorwasm.server.connection.connection import HttpConnection
from tensorwasm.server.connection.request import KnownHeads

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

MOST_ACCEPTED: Final = 64
"""Connections that are taken in one turn of the event loop, which answers all that are ready: were it one, as libuv has
it, the last of 256 that come at once would wait for two seconds."""

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

    def begin_anew(self, connection: HttpConnection) -> None:
        """Let one wait from now on, which may wait already."""
        self._since[connection] = self._clock()
        self._since.move_to_end(connection)

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
        shared: other processes take connections of the same socket: this one takes one in a turn, so that none has many
            and others few.

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
        shared: bool = False,
    ) -> None:
        """Begin without connections."""
        self._at_once = 1 if shared else MOST_ACCEPTED
        self.begin, self._most, self.tls, self.relayed = begin, most, tls, relayed
        self.keeping = True
        self.known = KnownHeads()
        self._connections: set[HttpConnection] = set()
        self._gathered: list[HttpConnection] = []
        self._sends_soon = False
        self.heads = WaitingConnections(HEAD_S, HttpConnection.close)
        self.bodies = WaitingConnections(body_timeout_s, HttpConnection.time_out)
        self.stalled = WaitingConnections(STALL_S, HttpConnection.end_early)
        self.lingering = WaitingConnections(LINGER_S, HttpConnection.end_linger, MOST_LINGERING)
        self.closing = WaitingConnections(STALL_S, HttpConnection.end_early)
        self._listening: socket.socket | None = None
        self._handshakes: dict[HttpConnection, asyncio.Task[None]] = {}
        self._taking: set[asyncio.Task[None]] = set()
        self._last_left: asyncio.Event | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    def take_over(self, begin: Callable[[WireRequest], None], body_timeout_s: float) -> None:
        """Give the requests that come from now on to another function."""
        self.begin = begin
        self.bodies.limit_s = body_timeout_s

    async def listen(self, listening: socket.socket) -> None:
        """Take connections of a socket that listens; it is this listener's from now on."""
        listening.setblocking(False)
        self._listening = listening
        self._accept_on()
        self._sweep()

    def _accept_on(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Take connections that wait. One of TLS that shakes hands is none yet for asyncio, but takes a place here."""
        loop, listening = asyncio.get_running_loop(), self._listening
        if listening is None:
            return
        for _ in range(self._at_once):
            try:
                link = listening.accept()[0]
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                _log.warning("a connection is not accepted: %s", error.strerror)
                loop.remove_reader(listening)
                loop.call_later(SWEEP_S, self._accept_on)
                return
            connection = self._make()
            if self.tls is not None:
                self._make_room()
                self._handshakes[connection] = loop.create_task(self._take(connection, link))
            else:
                task = loop.create_task(self._take(connection, link))
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)

    def _make_room(self) -> None:
        """End the oldest handshakes if there is no room for another one."""
        while self._handshakes and len(self._connections) + len(self._handshakes) >= self._most:
            self._handshakes.pop(next(iter(self._handshakes))).cancel()

    async def _take(self, connection: HttpConnection, link: socket.socket) -> None:
        options: dict[str, Any] = {}
        if self.tls is not None:
            options = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": STALL_S, "ssl": self.tls.context}
        try:
            with suppress(OSError):  # an `ssl.SSLError` is one, too: the client is told by TLS itself
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, link, **options)
        finally:
            self._handshakes.pop(connection, None)

    def leave(self) -> None:
        """Close the socket that listens; connections go on, each until its next answer."""
        self.keeping = False
        listening, self._listening = self._listening, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
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
        for task in (*self._handshakes.values(), *self._taking):
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
            self._send_gathered()
        elif not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._sends_soon = False
        self._send_gathered()

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for connection in gathered:
            connection.release()

    def _make(self) -> HttpConnection:
        return HttpConnection(self)

    def _sweep(self) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)  # first: what follows may fail
        for each in (self.heads, self.bodies, self.stalled, self.lingering, self.closing):
            each.sweep()
