"""What the server's process does: opens the service, makes its first token, says where it listens, and serves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import uvloop

from tensorwasm.errors import EngineMismatch, HostError, InternalError, StorageFull, Unauthorized
from tensorwasm.guest.engine.capi import check_bindings
from tensorwasm.guest.native.loading import begin_loading
from tensorwasm.server.memory import return_large_blocks
from tensorwasm.server.routes import ALL
from tensorwasm.server.serving import serve, serve_degraded
from tensorwasm.service.opening import folder_of, open_service
from tensorwasm.service.storage import lacks_room
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.exposure import decide_exposure, is_loopback

if TYPE_CHECKING:
    from tensorwasm.server.supervisor import Order
    from tensorwasm.service.service import Service
    from tensorwasm.tenancy.authentication import Authenticator

_log = logging.getLogger(__name__)
LOCAL_HOSTS: Final = "localhost,127.0.0.1,[::1]"
"""Hosts that a service without authentication answers to: a page that had its own name lead here would be another."""


def run(order: Order, tell: Callable[[], object]) -> None:
    """Serve until a signal says to stop; SIGHUP says that the audit log was moved. Blocks.

    Args:
        order: where, and what else is told.
        tell: called when requests are taken, and from any thread when all that they need is loaded.

    Raises:
        TensorWasmError: the service does not open, or must not be served so.
    """
    return_large_blocks()
    uvloop.run(_run(order, tell))


async def _run(order: Order, tell: Callable[[], object]) -> None:
    settings = ServiceSettings.from_environment(os.environ)
    host = order.address.host or "localhost"  # a socket in the file system is for this machine
    if settings.allow_dev_mode and not settings.trusted_hosts and is_loopback(host):
        settings = replace(settings, trusted_hosts=LOCAL_HOSTS)
    if not settings.server_name and order.address.port:
        settings = replace(settings, server_name=f"{socket.gethostname()}:{order.address.port}")
    loading = begin_loading()
    metrics = Metrics([(route.method, route.path) for route in ALL])
    told = _Telling(order, tell)
    service = await _open(settings, metrics, order, told)
    if service is None:
        return
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.audit.reopen)

    def announce() -> None:
        if service.first_token is not None:
            sys.stderr.write(f"token, shown this once: {service.first_token.text}\n")
        told()

    def load() -> None:
        try:
            loading()
            with suppress(InternalError):  # it is told to stop already
                service.runtime.fibers.open()  # here: those who load modules have less weight, which is inherited
            with suppress(EngineMismatch):  # every deploy is told so
                check_bindings()
        finally:
            told.wait()
            tell()

    try:
        exposure = decide_exposure(
            host,
            dev_mode=settings.allow_dev_mode,
            allow_public=settings.allow_plaintext_public,
            has_auth=_asks(service.authenticator),
        )
        if exposure.warning:
            sys.stderr.write(f"warning: {exposure.warning}\n")
        service.readiness.load(load)
        await serve(service, order.address, max_body_bytes=order.max_body_bytes, ready=announce)
    finally:
        await service.close()


class _Telling:
    """Tells the parent and who looks on, once, that requests are taken.

    Args:
        order: what is served.
        tell: tells the parent.
    """

    def __init__(self, order: Order, tell: Callable[[], object]) -> None:
        self._order = order
        self._tell = tell
        self._done = threading.Event()

    def wait(self) -> None:
        """Return once they were told."""
        self._done.wait()

    def __call__(self) -> None:
        if self._done.is_set():
            return
        self._tell()
        self._done.set()
        if self._order.announce:
            print(f"listening on {self._order.address.url}", flush=True)  # noqa: T201 - what the command says


async def _open(settings: ServiceSettings, metrics: Metrics, order: Order, told: Callable[[], None]) -> Service | None:
    """Return the service, once its data folder has room for what opening it writes; None if told to stop before.

    Raises:
        TensorWasmError: it does not open, and not for want of room.
    """
    folder = folder_of(settings.data)

    async def attempt() -> Service | None:
        try:
            return await open_service(settings, metrics=metrics)
        except HostError as error:
            if not await asyncio.to_thread(lacks_room, folder, settings.disk_reserve_mib):
                raise
            _log.warning("the service is not opened: %s", error.message)
            return None

    service = await attempt()
    if service is not None:
        return service
    full = StorageFull("the data folder cannot be written, or has less room than its reserve")
    _log.warning("%s: not ready until it has more", full.message)
    return await serve_degraded(full, order.address, attempt, told)


def _asks(authenticator: Authenticator) -> bool:
    """Return whether who has no credentials is turned away."""
    try:
        authenticator.authenticate(None)
    except Unauthorized:
        return True
    return False
