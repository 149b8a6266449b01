"""`serve`: a service opened, listened for, drained and closed, in one process and on one event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from granian.http import HTTP1Settings, HTTP2Settings
from granian.server.embed import Server

from tensorwasm.errors import HostError, TensorWasmError
from tensorwasm.gc_pause import collect_seldom
from tensorwasm.server.arrivals import spawner
from tensorwasm.server.pipeline import Application, DegradedApplication
from tensorwasm.server.process.address import ListenAddress, clear, is_reached
from tensorwasm.server.routes import ALL
from tensorwasm.server.silence import watch
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from tensorwasm.service.opening import Service

HEADER_TIMEOUT_MS: Final = 20_000
"""Time limit of a request's head, and of an idle connection."""

HEADER_BYTES: Final = 64 << 10
"""Longest head of a request."""

STREAMS: Final = 128
"""Requests at a time on one connection of HTTP/2."""

MAX_CONNECTIONS: Final = 50_000
SPARE_FILES: Final = 512
"""Descriptors that are not for connections."""

AGAIN_S: Final = 1.0
"""How often it is tried to open what could not be opened."""

STOP_S: Final = 2.0
SWITCH_S: Final = 0.0005
"""How long a thread may keep the event loop waiting for Python; CPython's own 5 ms would be seen in every tail."""

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")


async def serve(
    service: Service, address: ListenAddress, *, max_body_bytes: int | None, ready: Callable[[], None]
) -> None:
    """Serve until a signal says to stop; then drain. A second signal ends the process at once.

    Args:
        service: open; the caller closes it.
        address: where.
        max_body_bytes: longest body; None takes the setting.
        ready: called once requests are taken.

    Raises:
        HostError: nothing can be listened to there.
        InvalidArgs: a setting makes no sense.
    """
    application = Application(service, ALL, max_body_bytes=max_body_bytes)
    stopping = _stop_on_signals()
    sys.setswitchinterval(SWITCH_S)
    try:
        async with _listening(application, address):
            collect_seldom()
            ready()
            await stopping.wait()
            await application.drain(service.settings.drain_s)
    finally:
        await application.close()


async def serve_degraded(
    error: TensorWasmError,
    address: ListenAddress,
    attempt: Callable[[], Awaitable[_Value | None]],
    told: Callable[[], None],
) -> _Value | None:
    """Say why nothing is served yet, until an attempt succeeds or a signal says to stop.

    Args:
        error: why.
        address: where.
        attempt: is made every second; returns None if it was in vain.
        told: called once requests are taken.

    Returns:
        What the attempt returned; None if a signal came first.

    Raises:
        HostError: nothing can be listened to there.
    """
    stopping = _stop_on_signals()
    async with _listening(DegradedApplication(error), address):
        told()
        while not stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), AGAIN_S)
                return None
            if (found := await attempt()) is not None:
                return found
    return None


@asynccontextmanager
async def _listening(application: Application | DegradedApplication, address: ListenAddress) -> AsyncIterator[None]:
    clear(address)
    server = _make_server(address)
    running = asyncio.ensure_future(server.serve(spawner(application.arrivals)))
    try:
        await _until_reached(address, running)
        watching = asyncio.ensure_future(watch(address.port, HEADER_TIMEOUT_MS))
        try:
            yield
        finally:
            watching.cancel()
    finally:
        server.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), STOP_S)


def _make_server(address: ListenAddress) -> Any:
    files = raise_file_limit()
    server = Server(
        _nobody,
        address=address.host or "127.0.0.1",
        port=address.port,
        uds=Path(address.path) if address.path else None,
        interface="rsgi",
        http="auto",
        websockets=True,
        backlog=4096,
        backpressure=max(128, min(MAX_CONNECTIONS, files - SPARE_FILES)),
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=HEADER_BYTES),
        http2_settings=HTTP2Settings(
            initial_connection_window_size=MIB,
            initial_stream_window_size=MIB // 4,
            keep_alive_interval=HEADER_TIMEOUT_MS,
            max_concurrent_streams=STREAMS,
            max_headers_size=HEADER_BYTES,
        ),
        log_enabled=False,
    )
    server.uds_permissions = 0o600
    return server


async def _nobody(_scope: Any, _proto: Any) -> None:
    """Do nothing: Granian requires an application, but `spawner` takes every request before it is called."""


async def _until_reached(address: ListenAddress, running: asyncio.Future[Any]) -> None:
    """Return once somebody listens."""
    for _ in range(1000):
        if running.done():
            break
        if await asyncio.to_thread(is_reached, address):
            return
        await asyncio.sleep(0.005)
    raise HostError(f"{address.url} cannot be listened on")


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first signal sets; the second ends the process."""
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopping


def raise_file_limit() -> int:
    """Let this process open as many files as it may, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
