"""`Application`: the routes over a service; in its place `DegradedApplication`, one error, or `RelayingApplication`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Final

from tensorwasm.errors import Draining, NotReady, TensorWasmError
from tensorwasm.server.connection.request import WireRequest
from tensorwasm.server.exchange import WEBSOCKET, Exchange
from tensorwasm.server.http.head import Origins
from tensorwasm.server.http.replies import JSON
from tensorwasm.server.http.routing import Route
from tensorwasm.server.pipeline import Pipeline
from tensorwasm.server.relay import Relay
from tensorwasm.server.sending import refuse
from tensorwasm.service.call_service import CallService

LAST_S: Final = 2.0
"""Seconds in which cancelled requests may end; then the server stops without them."""


class Application:
    """The routes over a service. For one event loop.

    Attributes:
        begin: begins with a request.
        body_timeout_s: in which a short body must have come.
        pipeline: the steps of each request.
    """

    def __init__(
        self,
        service: CallService,
        routes: Sequence[Route],
        *,
        max_body_bytes: int | None = None,
        relay: Relay | None = None,
    ) -> None:
        """Open the routes as `Pipeline` does; the service outlives the application."""
        self.pipeline = Pipeline(service, routes, max_body_bytes, relay)
        self.begin = self.pipeline.begin
        self.body_timeout_s: float = service.settings.request_timeout_s

    def take_over(self, first: RelayingApplication) -> None:
        """Wait for the requests of another, too, when this drains; before it has any of its own."""
        self.pipeline.tasks = first.tasks

    async def drain(self, limit_s: float, *, refusing: bool = True) -> None:
        """Refuse new requests, wait `limit_s` for the running ones at most, and cancel those that are left.

        With `refusing` false new requests are served until then.
        """
        self.pipeline.draining = refusing
        await self._wait(limit_s)
        self.pipeline.draining = True
        for task in tuple(self.pipeline.tasks):
            task.cancel()
        for call in tuple(self.pipeline.repeated.detached):
            call.cancel()
        await self._wait(LAST_S)

    async def _wait(self, limit_s: float) -> None:
        ends_s = time.monotonic() + limit_s
        while (running := self._running()) and (left_s := ends_s - time.monotonic()) > 0:  # others may have begun
            await asyncio.wait(running, timeout=left_s)

    def _running(self) -> set[asyncio.Future[None]]:
        """Return what is done when the requests under way are."""
        return {*self.pipeline.tasks, *(call.ended() for call in self.pipeline.repeated.detached)}


RELAYED_BODY_S: Final = 30.0
"""Time limit of a short body before the settings are known."""

_LIVE: Final = frozenset({"/livez", "/healthz"})


class DegradedApplication:
    """Replies to ``/livez`` as usual, and to everything else with one error. For one event loop."""

    body_timeout_s = LAST_S

    def __init__(self, error: TensorWasmError) -> None:
        self._error = error
        self._origins = Origins()

    def begin(self, wire: WireRequest) -> None:
        """Answer a request."""
        exchange = Exchange(wire, time.perf_counter_ns())
        exchange.request_id = str(uuid.uuid4())
        if exchange.path in _LIVE and exchange.method != WEBSOCKET:
            wire.answer(200, [JSON, ("x-request-id", exchange.request_id)], b'{"status":"ok"}')
        else:
            refuse(exchange, self._error, self._origins)


class RelayingApplication:
    """Gives all requests to the primary but ``/livez``, while this process has not opened its service. As above."""

    body_timeout_s = RELAYED_BODY_S

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._origins = Origins()
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, wire: WireRequest) -> None:
        """Answer a request, or have it answered."""
        exchange = Exchange(wire, time.perf_counter_ns())
        exchange.request_id = str(uuid.uuid4())
        if exchange.path in _LIVE and exchange.method != WEBSOCKET:
            wire.answer(200, [JSON, ("x-request-id", exchange.request_id)], b'{"status":"ok"}')
            return
        task = asyncio.get_running_loop().create_task(self._forward(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _forward(self, exchange: Exchange) -> None:
        try:
            if exchange.error is not None:
                raise exchange.error
            if exchange.method == WEBSOCKET:
                raise NotReady("the server has just started")
            await self._relay.forward(exchange)
        except asyncio.CancelledError:
            if exchange.left:
                exchange.wire.abandon()
            else:
                refuse(exchange, Draining("the server is shutting down"), self._origins)
        except TensorWasmError as error:
            refuse(exchange, error, self._origins)
        exchange.forget()
