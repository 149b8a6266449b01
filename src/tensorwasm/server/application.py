"""`Application`: the routes over a service, and what is served while the service cannot be opened."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tensorwasm.errors import TensorWasmError
from tensorwasm.server.arrivals import SWEEP_S, Arrivals
from tensorwasm.server.exchange import WEBSOCKET, Exchange
from tensorwasm.server.http.head import Origins
from tensorwasm.server.http.replies import JSON
from tensorwasm.server.http.routing import Route
from tensorwasm.server.pipeline import Pipeline
from tensorwasm.server.sending import refuse
from tensorwasm.service.service import Service

LAST_S: Final = 2.0
"""Seconds in which cancelled requests may end; then the server stops without them."""


class Application:
    """The routes over a service. For one event loop.

    Attributes:
        arrivals: takes requests in.
        pipeline: the steps of each request.
    """

    def __init__(self, service: Service, routes: Sequence[Route], *, max_body_bytes: int | None = None) -> None:
        """Open the routes as `Pipeline` does; the service outlives the application."""
        self.pipeline = Pipeline(service, routes, max_body_bytes)
        loop = asyncio.get_running_loop()
        self.arrivals = Arrivals(loop, self.pipeline.start, service.settings.request_timeout_s)
        self._sweeping = loop.create_task(self._sweep())

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests, wait `limit_s` for the running ones at most, and cancel those that are left."""
        self.pipeline.draining = True
        await self._wait(limit_s)
        for task in list(self.pipeline.tasks):
            task.cancel()
        await self._wait(LAST_S)

    async def close(self) -> None:
        """Stop looking for requests whose bodies do not arrive."""
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


_LIVE: Final = frozenset({"/livez", "/healthz"})
_BODY_S: Final = 30.0


class DegradedApplication:
    """Replies to ``/livez`` as usual, and to everything else with one error. For one event loop."""

    def __init__(self, error: TensorWasmError) -> None:
        self._error = error
        self._origins = Origins()
        self.arrivals = Arrivals(asyncio.get_running_loop(), self._answer, _BODY_S)

    def _answer(self, exchange: Exchange) -> None:
        exchange.request_id, exchange.trace_id = str(uuid.uuid4()), ""
        if exchange.path in _LIVE and exchange.method != WEBSOCKET:
            exchange.proto.response_bytes(200, [JSON, ("x-request-id", exchange.request_id)], b'{"status":"ok"}')
        else:
            refuse(exchange, self._error, self._origins)
