"""The server process's main function: opens the service, prints its first token and its address, and serves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from tensorwasm.errors import DatabaseOwned, EngineMismatch, HostError, InternalError, InvalidArgs, StorageFull
from tensorwasm.gc_pause import collect_seldom
from tensorwasm.gpu.opening import parse_choice
from tensorwasm.guest.engine.capi import check_bindings
from tensorwasm.guest.native.loading import begin_loading
from tensorwasm.runtime.workers import template
from tensorwasm.runtime.workers.broker import WorkerBroker
from tensorwasm.runtime.workers.pool import WorkerExecutor
from tensorwasm.server.connection.tls import ServerTls
from tensorwasm.server.http.long_work import return_large_blocks
from tensorwasm.server.process.address import check_exposure, is_loopback
from tensorwasm.server.process.options import ServeOptions
from tensorwasm.server.process.place import CONTROL, HTTP, Place
from tensorwasm.server.process.reloading import REST_S
from tensorwasm.server.relay import Relay
from tensorwasm.server.routes import ALL
from tensorwasm.server.serving import most_connections, serve, serve_degraded, serve_front
from tensorwasm.service.call_service import CallService
from tensorwasm.service.front_opening import open_front
from tensorwasm.service.opening import Service, open_service
from tensorwasm.service.readiness import lacks_space
from tensorwasm.settings import current
from tensorwasm.settings.parsing import checked_isolation
from tensorwasm.settings.service import ServiceSettings, folder_of
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.shared_table import SharedTable

_log = logging.getLogger(__name__)
OWNED_S: Final = 15.0
"""How long an earlier server may keep the database, such as one that drains because its supervisor was killed."""

QUIET_S: Final = 2.0
"""How much of that clients wait for a server; then they are told why there is none."""

OWNED_AGAIN_S: Final = 0.02

LEAST_RELAYED: Final = 64
"""Requests that a front may relay at a time, however few files its processes may open."""

LOCAL_HOSTS: Final = "localhost,127.0.0.1,[::1]"
"""Hosts of a service without authentication. Others are refused, since any page's host name can resolve to this
machine."""


def run(options: ServeOptions, report: Callable[[], object]) -> None:
    """Serve until a signal stops it; SIGHUP reopens the audit log and the certificate. Blocks.

    `report` is called when requests are accepted, and on any thread when everything that they need is loaded. An error
    means that the service does not open, or must not be exposed like this.
    """
    return_large_blocks()
    if options.workers >= 0:
        template.adopt(options.workers)
    if options.place is not None and options.place.role == "broker":
        _run_broker(options.place, report)
    else:
        uvloop.run(_run(options, report))


def _run_broker(place: Place, report: Callable[[], object]) -> None:
    """Have the GPU workers of all processes of this server, until a signal stops it. Blocks.

    SIGUSR1 makes room for the next broker: this one ends with the last process that is connected to its workers.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: stopped.set())
    isolation, device = ServiceSettings.from_environment(os.environ).isolation, current().device
    chosen = checked_isolation("TENSOR_WASM_API_ISOLATION", isolation) if isolation else None
    with WorkerExecutor(device, isolation=chosen) as executor:
        if parse_choice(device)[0] == "cuda":
            executor.begin()
        report()
        broker = _open_broker(executor, Path(place.broker), stopped)
        if broker is None:
            return
        with broker:
            signal.signal(signal.SIGUSR1, lambda *_: broker.leave(stopped.set))
            report()
            stopped.wait()


def _open_broker(executor: WorkerExecutor, path: Path, stopped: threading.Event) -> WorkerBroker | None:
    """Return a broker, once the one before has left the path; None if a signal came first. Blocks."""
    while not stopped.is_set():
        try:
            return WorkerBroker(executor, path)
        except InvalidArgs as error:
            _log.info("the broker waits: %s", error.message)
        stopped.wait(OWNED_AGAIN_S)
    return None


async def _run(options: ServeOptions, report: Callable[[], object]) -> None:
    settings, place = _settings(options), options.place
    if place is not None and not settings.broker:
        settings = replace(settings, broker=place.broker, isolation="")
    tls = _tls(settings)
    options = replace(options, address=replace(options.address, secure=tls is not None))
    told = threading.Event()
    start = _Start(options, settings, begin_loading(), report, told, tls)
    if place is None or place.role == "primary":
        await _run_owner(start, place)
    else:
        await _run_front(start, place)


async def _run_owner(start: _Start, place: Place | None) -> None:
    """Serve everything, to clients or to fronts."""
    listening = _inherit(start.options.listening if place is None else place.http)
    tls, supervisor = start.tls if place is None else None, os.getppid()
    service = await _open_owner(start, place, listening, tls)
    if service is None:
        return
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reopen, service, start.tls)
    try:
        await _begin_owning(service, start.options)
        service.readiness.load(partial(start.load, service))
        await serve(
            service,
            listening,
            max_body_bytes=start.options.max_body_bytes,
            ready=start.notice,
            tls=tls,
            relayed=place is not None,
        )
    finally:
        if os.getppid() != supervisor:  # the process of the next one waits for the database: jobs run again there
            await service.jobs.close()
        await service.close()


async def _run_front(start: _Start, place: Place) -> None:
    """Serve what needs no more than the database, and relay the rest to the primary."""
    # All processes together relay no more than the primary takes, and each leaves room for those that it answers.
    most = max(LEAST_RELAYED, most_connections() // place.rows)
    listening, relay = _inherit(start.options.listening), Relay(f"{place.folder}/{HTTP}", most)
    opened: list[CallService] = []

    async def open_service() -> CallService:
        table = SharedTable(place.table, place.rows, place.row)
        service = await open_front(start.settings, f"{place.folder}/{CONTROL}", start.metrics, table)
        opened.append(service)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reopen, service, start.tls)
        service.readiness.load(partial(start.load, service))
        return service

    opening = asyncio.ensure_future(open_service())
    try:
        await serve_front(
            opening,
            listening,
            relay,
            max_body_bytes=start.options.max_body_bytes,
            ready=start.notice,
            tls=start.tls,
            leave_s=REST_S,
        )
    finally:
        opening.cancel()
        await asyncio.wait((opening,))
        relay.close()
        for service in opened:
            await service.close()


@dataclass(frozen=True, slots=True)
class _Start:
    """What a process begins with; `loading` loads compiled functions, and `told` is set once it is said to listen."""

    options: ServeOptions
    settings: ServiceSettings
    loading: Callable[[], object]
    report: Callable[[], object]
    told: threading.Event
    tls: ServerTls | None
    metrics: Metrics = field(default_factory=lambda: Metrics([(route.method, route.path) for route in ALL]))

    def notice(self) -> None:
        """Report that requests are accepted, on standard output and then to the parent, once.

        The parent lets no later server announce it, so a crash in between must not leave it unsaid or half a line.
        """
        if not self.told.is_set():
            if self.options.announce:
                sys.stdout.write(f"listening on {self.options.address.url}\n")
                sys.stdout.flush()
            self.report()
            self.told.set()

    def load(self, service: CallService) -> None:
        """Load what requests need, and report it once requests are accepted. Blocks."""
        try:
            self.loading()
            with suppress(InternalError):  # the service is stopping already
                service.runtime.fibers.open()  # on this thread, whose low priority is inherited
            with suppress(EngineMismatch):  # every deploy reports it
                check_bindings()
            collect_seldom()  # again, with what was loaded: a hundred thousand objects of Numba's
        finally:
            self.told.wait()
            self.report()


async def _begin_owning(service: Service, options: ServeOptions) -> None:
    """Check whether the service may listen, show its first token, and take the links of fronts."""
    warning = check_exposure(
        _host(options),
        dev_mode=service.settings.allow_dev_mode,
        allow_public=service.settings.allow_plaintext_public,
        has_auth=not service.authenticator.developing,
    )
    if warning:
        sys.stderr.write(f"warning: {warning}\n")
    if service.first_token is not None:
        sys.stderr.write(f"token, shown this once: {service.first_token.text}\n")
    if service.fronts is not None and options.place is not None:
        await service.fronts.listen(_inherit(options.place.control))


def _inherit(descriptor: int) -> socket.socket:
    """Return the socket of an inherited descriptor, which children of this process do not inherit."""
    os.set_inheritable(descriptor, False)
    listening = socket.socket(fileno=descriptor)
    listening.setblocking(False)
    return listening


def _reopen(service: CallService, tls: ServerTls | None) -> None:
    service.audit.reopen()
    if tls is not None:
        tls.reload()


def _host(options: ServeOptions) -> str:
    return options.address.host or "localhost"  # a Unix socket is local to this machine


def _settings(options: ServeOptions) -> ServiceSettings:
    """Return the environment's settings, with defaults that depend on the address."""
    settings = ServiceSettings.from_environment(os.environ)
    if settings.allow_dev_mode and not settings.trusted_hosts and is_loopback(_host(options)):
        settings = replace(settings, trusted_hosts=LOCAL_HOSTS)
    if not settings.server_name and options.address.port:
        settings = replace(settings, server_name=f"{socket.gethostname()}:{options.address.port}")
    return settings


def _tls(settings: ServiceSettings) -> ServerTls | None:
    if settings.tls_cert or settings.tls_key or settings.tls_client_ca:
        return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return None


async def _open_owner(
    start: _Start, place: Place | None, listening: socket.socket, tls: ServerTls | None
) -> Service | None:
    """Return the service, once its data folder has enough space and an earlier server has left its database.

    None if a signal stops it earlier.

    Raises:
        DatabaseOwned: the other server has not left in time.
    """
    settings = start.settings
    folder, began_s = folder_of(settings.data), time.monotonic()
    table = None if place is None else SharedTable(place.table, place.rows, place.row)
    alive = None if place is None else place.fronts
    why: HostError | None = None

    async def attempt() -> Service | None:
        nonlocal why
        try:
            return await open_service(settings, metrics=start.metrics, table=table, alive=alive)
        except DatabaseOwned as error:
            if time.monotonic() - began_s > OWNED_S:
                raise
            found: HostError = error
        except HostError as error:
            if not await asyncio.to_thread(lacks_space, folder, settings.disk_reserve_mib):
                raise
            found = StorageFull(
                f"the data folder cannot be written, or has less room than its reserve: {error.message}"
            )
        if type(found) is not type(why):
            _log.warning("the service is not opened yet: %s", found.message)
        why = found
        return None

    service = await attempt()
    while service is None and isinstance(why, DatabaseOwned) and time.monotonic() - began_s < QUIET_S:
        await asyncio.sleep(OWNED_AGAIN_S)  # the other server is about to end: clients wait for this one meanwhile
        service = await attempt()
    if service is None and why is not None:
        service = await serve_degraded(why, listening, attempt, start.notice, tls)
    return service
