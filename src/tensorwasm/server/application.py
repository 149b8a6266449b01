"""`Application`: the routes over a service, from the requests that arrive to the last one's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tensorwasm.server.arrivals import SWEEP_S, Arrivals
from tensorwasm.server.http.access_log import AccessLog
from tensorwasm.server.http.head import Origins
from tensorwasm.server.http.routing import Route, RouteTable
from tensorwasm.server.pipeline import Pipeline, Rules
from tensorwasm.settings.service import ServiceSettings
from tensorwasm.values import MIB

if TYPE_CHECKING:
    from tensorwasm.service.opening import Service

LAST_S: Final = 2.0
"""What requests get that are told to end, before nobody waits for them any more."""


class Application:
    """The routes over a service. For one event loop.

    Attributes:
        arrivals: takes requests in.
        pipeline: what each of them goes through.
    """

    def __init__(
        self,
        service: Service,
        routes: Sequence[Route],
        *,
        max_body_bytes: int | None = None,
    ) -> None:
        """Open the routes.

        Args:
            service: outlives it.
            routes: what is served.
            max_body_bytes: longest body; None takes the setting.

        Raises:
            InvalidArgs: a setting makes no sense.
        """
        settings = service.settings
        table, origins = RouteTable(routes), Origins.from_settings(settings)
        self.pipeline = Pipeline(
            service,
            table,
            origins,
            rules_of(settings, max_body_bytes),
            AccessLog(table, service.metrics, service.audit, origins),
        )
        loop = asyncio.get_running_loop()
        self.arrivals = Arrivals(loop, self.pipeline.start, settings.request_timeout_s)
        self._sweeping = loop.create_task(self._sweep())

    async def drain(self, limit_s: float) -> None:
        """Take nothing new, and wait until what runs has ended; what has not by then is told to end.

        Args:
            limit_s: how long it may go on.
        """
        self.pipeline.draining = True
        await self._wait(limit_s)
        for task in list(self.pipeline.tasks):
            task.cancel()
        await self._wait(LAST_S)

    async def close(self) -> None:
        """Stop sweeping requests whose bodies did not come."""
        self._sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeping

    async def _wait(self, limit_s: float) -> None:
        if self.pipeline.tasks:
            await asyncio.wait(self.pipeline.tasks, timeout=limit_s)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.arrivals.sweep()


def rules_of(settings: ServiceSettings, max_body_bytes: int | None) -> Rules:
    """Return what the settings say of every request."""
    return Rules(
        max_body_bytes=settings.max_body_mib * MIB if max_body_bytes is None else max_body_bytes,
        body_timeout_s=settings.request_timeout_s,
        max_deadline_s=settings.max_deadline_s,
        tenant_required=settings.require_tenant,
    )
