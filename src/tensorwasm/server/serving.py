"""`serve`: a service opened, listened for, drained and closed, in one process and on one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tensorwasm.errors import TensorWasmError
from tensorwasm.gc_pause import collect_seldom
from tensorwasm.server.application import Application, DegradedApplication, RelayingApplication
from tensorwasm.server.connection.listener import Listener
from tensorwasm.server.relay import Relay
from tensorwasm.server.routes import ALL

if TYPE_CHECKING:
    from tensorwasm.server.connection.tls import ServerTls
    from tensorwasm.service.call_service import CallService

MAX_CONNECTIONS: Final = 50_000
SPARE_FILES: Final = 512
"""Descriptors that are not for connections."""

AGAIN_S: Final = 1.0
"""How often it is tried to open what could not be opened."""

STOP_S: Final = 2.0

LEAVE_S: Final = 0.25
"""How long connections of a process that leaves may send a request, by default; the answer to it is their last."""

ORPHAN_S: Final = 1.0
"""How long running requests may take once the supervisor has died: the next server waits for this one to end."""

SWITCH_S: Final = 0.00002
"""How long a thread waits for Python before it has the one that runs make way.

CPython's own 5 ms would be seen in every tail. It must be shorter than a short call, too: the event loop lets go of the
interpreter and takes it back with every request, each time wakes a thread that waits, and is faster than that. Such a
thread waits anew, never for the whole interval, so that it gets no turn, and each request pays for a wake-up.
"""

_log = logging.getLogger(__name__)


class _Closable(Protocol):
    async def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closable)


async def serve(
    service: CallService,
    listening: socket.socket,
    *,
    max_body_bytes: int | None,
    ready: Callable[[], None],
    tls: ServerTls | None = None,
    relay: Relay | None = None,
    relayed: bool = False,
    leave_s: float = LEAVE_S,
) -> None:
    """Serve until a signal says to stop or to leave; then drain. A second signal to stop ends the process at once.

    A process that leaves (SIGUSR1) closes its socket at once, since another process takes the connections that come;
    what comes through those that it has is served. One that stops refuses it.

    Args:
        service: open; the caller closes it.
        listening: as `Listener.listen` takes it, but the caller closes it if this does not.
        max_body_bytes: longest body; None takes the setting.
        ready: called once requests are taken.
        tls: of its connections; None for none.
        relay: takes requests that this process cannot answer; None if it can answer all.
        relayed: whether its clients are fronts.
        leave_s: how long its connections may still send a request when it leaves.

    Raises:
        InvalidArgs: a setting makes no sense.
    """
    application = Application(service, ALL, max_body_bytes=max_body_bytes, relay=relay)
    signals, parent = _stop_on_signals(), os.getppid()
    sys.setswitchinterval(SWITCH_S)
    async with _listening(application, listening, tls, signals.leaving, relayed=relayed) as listener:
        collect_seldom()
        ready()
        await _drain_on_signal(application, listener, signals, service.settings.drain_s, leave_s)
        if service.fronts is not None and signals.leaving.is_set() and os.getppid() != parent:
            await service.fronts.wait_left(3 * ORPHAN_S)  # they leave, too, and report to this process


async def serve_front(
    opening: Awaitable[CallService],
    listening: socket.socket,
    relay: Relay,
    *,
    max_body_bytes: int | None,
    ready: Callable[[], None],
    leave_s: float,
    tls: ServerTls | None = None,
) -> None:
    """Serve as `serve` does; while the service is opened, the primary gets all requests.

    Args:
        opening: opens it; the caller closes it.
        listening: as for `serve`.
        relay: as for `serve`.
        max_body_bytes: as for `serve`.
        ready: as for `serve`; the service may not be open yet.
        leave_s: as for `serve`.
        tls: as for `serve`.
    """
    signals = _stop_on_signals()
    sys.setswitchinterval(SWITCH_S)
    first = RelayingApplication(relay)
    async with _listening(first, listening, tls, signals.leaving, shared=True, spared=relay.most) as listener:
        ready()
        stopped = asyncio.ensure_future(signals.stopping.wait())
        await asyncio.wait((asyncio.ensure_future(opening), stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if signals.stopping.is_set():
            return
        service = await opening
        application = Application(service, ALL, max_body_bytes=max_body_bytes, relay=relay)
        application.take_over(first)
        listener.take_over(application.begin, application.body_timeout_s)
        collect_seldom()
        await _drain_on_signal(application, listener, signals, service.settings.drain_s, leave_s)


async def _drain_on_signal(
    application: Application, listener: Listener, signals: _Signals, drain_s: float, leave_s: float
) -> None:
    parent = os.getppid()
    await signals.stopping.wait()
    if signals.leaving.is_set():
        if os.getppid() != parent:
            drain_s, leave_s = min(drain_s, ORPHAN_S), LEAVE_S
        await listener.wait_closed(min(leave_s, drain_s))
    await application.drain(drain_s, refusing=not signals.leaving.is_set())


async def serve_degraded(
    error: TensorWasmError,
    listening: socket.socket,
    attempt: Callable[[], Awaitable[_Opened | None]],
    told: Callable[[], None],
    tls: ServerTls | None = None,
) -> _Opened | None:
    """Say why nothing is served yet, until an attempt succeeds or a signal says to stop.

    Args:
        error: why.
        listening: as `Listener.listen` takes it, but the caller closes it.
        attempt: is made every second; returns None if it was in vain.
        told: called once requests are taken.
        tls: of its connections; None for none.

    Returns:
        What the attempt returned; None if a signal came first.
    """
    signals, found = _stop_on_signals(), None
    stopping = signals.stopping
    async with _listening(DegradedApplication(error), listening, tls, signals.leaving):
        told()
        while found is None and not stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), AGAIN_S)
                break
            found = await attempt()
    if found is not None and stopping.is_set():  # the signal came while it was opened
        await found.close()
        return None
    return found


@asynccontextmanager
async def _listening(
    application: Application | DegradedApplication | RelayingApplication,
    listening: socket.socket,
    tls: ServerTls | None,
    leaving: asyncio.Event,
    *,
    relayed: bool = False,
    shared: bool = False,
    spared: int = 0,
) -> AsyncIterator[Listener]:
    """Within the context, take connections; once `leaving` is set take no more, and close the socket.

    So many less are taken as are to be spared.
    """

    async def leave() -> None:
        await leaving.wait()
        listener.leave()
        listening.close()

    most = most_connections() - spared
    listener = Listener(application.begin, most, application.body_timeout_s, tls, relayed=relayed, shared=shared)
    await listener.listen(listening.dup())
    leaves = asyncio.create_task(leave())
    try:
        yield listener
    finally:
        leaves.cancel()
        await listener.close(STOP_S)


@dataclass(frozen=True, slots=True)
class _Signals:
    """`stopping` is set by the first signal, and `leaving` too if it is the one to leave."""

    stopping: asyncio.Event
    leaving: asyncio.Event


def _stop_on_signals() -> _Signals:
    """Return events that signals set. The second signal to stop ends the process."""
    stopping, leaving, stopped = asyncio.Event(), asyncio.Event(), False

    def stop() -> None:
        nonlocal stopped
        if stopped:
            os._exit(1)
        stopped = True
        stopping.set()

    def leave() -> None:
        leaving.set()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGUSR1, leave)
    return _Signals(stopping, leaving)


def most_connections() -> int:
    """Return how many connections a process may have, accepted and made."""
    return max(128, min(MAX_CONNECTIONS, raise_file_limit() - SPARE_FILES))


def raise_file_limit() -> int:
    """Let this process open as many files as it may, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
