"""What the server's process does: opens the service, makes its first token, says where it listens, and serves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import uvloop

from tensorwasm.errors import Unauthorized
from tensorwasm.server.routes import ALL
from tensorwasm.server.serving import serve
from tensorwasm.service.opening import open_service
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.telemetry.metrics import Metrics
from tensorwasm.tenancy.exposure import decide, is_loopback

if TYPE_CHECKING:
    from tensorwasm.server.supervisor import Order
    from tensorwasm.tenancy.authentication import Authenticator

LOCAL_HOSTS: Final = "localhost,127.0.0.1,[::1]"
"""Hosts that a service without authentication answers to: a page that had its own name lead here would be another."""


def run(order: Order, tell: Callable[[], None]) -> None:
    """Serve until a signal says to stop; SIGHUP says that the audit log was moved. Blocks.

    Args:
        order: where, and what else is told.
        tell: called once requests are taken.

    Raises:
        TensorWasmError: the service does not open, or must not be served so.
    """
    uvloop.run(_run(order, tell))


async def _run(order: Order, tell: Callable[[], None]) -> None:
    settings = ServiceSettings.from_environment(os.environ)
    host = order.address.host or "localhost"  # a socket in the file system is for this machine
    if settings.allow_dev_mode and not settings.trusted_hosts and is_loopback(host):
        settings = replace(settings, trusted_hosts=LOCAL_HOSTS)
    metrics = Metrics([(route.method, route.path) for route in ALL])
    service = await open_service(settings, metrics=metrics)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.audit.reopen)

    def announce() -> None:
        tell()
        if service.first_token is not None:
            sys.stderr.write(f"token, shown this once: {service.first_token.text}\n")
        if order.announce:
            print(f"listening on {order.address.url}", flush=True)  # noqa: T201 - what the command says

    try:
        exposure = decide(
            host,
            dev_mode=settings.allow_dev_mode,
            allow_public=settings.allow_plaintext_public,
            has_auth=_asks(service.authenticator),
        )
        if exposure.warning:
            sys.stderr.write(f"warning: {exposure.warning}\n")
        await serve(service, order.address, max_body_bytes=order.max_body_bytes, ready=announce)
    finally:
        await service.close()


def _asks(authenticator: Authenticator) -> bool:
    """Return whether who has no credentials is turned away."""
    try:
        authenticator.authenticate(None)
    except Unauthorized:
        return True
    return False
