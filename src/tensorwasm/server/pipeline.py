"""What every request goes through, in this order, before and after its handler.

Host, route, length of the body, who asks, for which tenant, with which scope, how often, whether the server still takes
work, the body itself, the tenant's quota of requests, a place among the route's class, the handler, the answer, and
what is counted and written down of it. Nothing is looked up before it is known that the asker may: an answer to
somebody else says nothing of what there is.

Most requests never wait: so `Pipeline.start` runs one until it has to, and only then makes a task of it. Until `ASIDE`
was awaited nothing in here may wait, or need a task to be in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from tensorwasm.errors import (
    Draining,
    GuestTrap,
    HostError,
    InternalError,
    InvalidRequest,
    KernelRegistryNotConfigured,
    NotReady,
    TensorWasmError,
)
from tensorwasm.runtime.invoke.invocation import locate_trap
from tensorwasm.server.admission import admit
from tensorwasm.server.exchange import ASIDE, WEBSOCKET, Departure, Exchange
from tensorwasm.server.http import bodies
from tensorwasm.server.http.access_log import AccessLog
from tensorwasm.server.http.decoding import decoder
from tensorwasm.server.http.head import Origins, check_head, own_request_id, request_ids, trace_id
from tensorwasm.server.http.representation import inflate, is_gzip
from tensorwasm.server.http.routing import HttpRequest, Reply, Route, RouteTable, StreamedReply
from tensorwasm.server.http.schemas import Timed
from tensorwasm.server.sending import refuse, send
from tensorwasm.server.streaming.websocket import WebSocket
from tensorwasm.service.admission.admission import RouteClass
from tensorwasm.values import NEVER, Deadline

if TYPE_CHECKING:
    from tensorwasm.service.admission.admission import Admitted
    from tensorwasm.service.service import Service

LEFT: Final = 499
"""Status that is recorded, never sent, of a request whose client left."""

SWITCHED: Final = 101
"""Status that is recorded of a WebSocket that was open."""

WATCHED: Final = frozenset[RouteClass]({"invoke", "openai", "streams"})
"""Classes whose requests end when their client leaves; others are finished, for what they write counts."""

OPEN_TO_THE_LAST: Final = frozenset({"/healthz", "/livez", "/metrics", "/openapi.json", "/docs"})
"""Paths that are served while the server goes down; that it is not ready is what the others are told."""

EXPECTED: Final = (Draining, KernelRegistryNotConfigured, NotReady)
"""Of this machine's failures those that its operator asked for: they are no news to the log."""

_NOTHING: Final[Mapping[str, str]] = {}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say of every request.

    Attributes:
        max_body_bytes: longest body.
        body_timeout_s: seconds in which a body must have come.
        max_deadline_s: longest deadline that a client may ask for.
        tenant_required: the tenant must be named.
    """

    max_body_bytes: int
    body_timeout_s: float
    max_deadline_s: float
    tenant_required: bool


class Pipeline:
    """What every request goes through. For one event loop.

    Args:
        service: handed on to handlers.
        table: the routes.
        origins: from where.
        rules: what the settings say.
        recorder: counts and writes down.
    """

    def __init__(
        self, service: Service, table: RouteTable, origins: Origins, rules: Rules, recorder: AccessLog
    ) -> None:
        """Serve nothing yet."""
        self.draining = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.budget = bodies.BodyBudget(max(bodies.BUDGET_BYTES, 2 * rules.max_body_bytes))
        self._service = service
        self._table = table
        self._admission = service.admission
        self._origins = origins
        self._rules = rules
        self._recorder = recorder
        self._next_id = request_ids()
        self._decoders = {id(route): decoder(route) for route in table.routes}

    # ---------------------------------------------------------------- running

    def start(self, exchange: Exchange) -> None:
        """Run a request until it has to wait; the rest of it is a task. It is answered, whatever happens."""
        running = self._run(exchange)
        try:
            running.send(None)
        except StopIteration:
            return
        self.spawn(running)

    def spawn(self, running: Coroutine[Any, Any, None]) -> None:
        """Make a task of a coroutine, which may have begun already."""
        task = asyncio.get_running_loop().create_task(running)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        exchange.request_id = own_request_id(exchange.headers.get("x-request-id")) or self._next_id()
        exchange.trace_id = trace_id(exchange.headers.get("traceparent"))
        try:
            try:
                answer = await self._answer(exchange)
            except GuestTrap as error:
                await locate_trap(error)
                raise
            status = SWITCHED if answer is None else await send(exchange, answer, self._origins)
        except asyncio.CancelledError:
            status = LEFT if exchange.left else self._refuse(exchange, Draining("the server is going down"))
        except TensorWasmError as error:
            status = self._refuse(exchange, error)
        except Exception:  # noqa: BLE001 - the last line of defence: an answer instead of a traceback
            _log.exception("request %s: a bug", exchange.request_id)
            status = self._refuse(exchange, InternalError("a bug"))
        finally:
            if exchange.held is not None:
                exchange.held.close()
        self._recorder.record(exchange, status)
        exchange.forget()

    def _refuse(self, exchange: Exchange, error: TensorWasmError) -> int:
        exchange.error = error
        if isinstance(error, HostError) and not isinstance(error, EXPECTED):
            _log.error("request %s: %s: %s", exchange.request_id, error.kind, error.message)
        if exchange.body is None:
            self.spawn(bodies.linger(exchange.chunks(), self.budget))
        return refuse(exchange, error, self._origins)

    async def _answer(self, exchange: Exchange) -> Reply | StreamedReply | None:
        headers = exchange.headers
        check_head(exchange.scope.http_version, headers)
        if self._origins.hosts:
            self._origins.check_host(headers.get("host") or exchange.scope.authority)
        if exchange.method == "OPTIONS":
            return self._options(exchange)
        route, params = self._table.match(exchange.method, exchange.path)
        exchange.route = route
        self._recorder.begin(route)
        if exchange.error is not None:  # its short body did not come in time
            raise exchange.error
        if exchange.method == WEBSOCKET:
            self._origins.check_page(headers.get("origin"))
        if exchange.body is None:
            self._check_length(headers.get("content-length"))
        packed = "content-encoding" in headers and is_gzip(headers.get("content-encoding"))
        admitted = None
        if route.scope is not None:
            admitted = await admit(exchange, route, self._admission, tenant_required=self._rules.tenant_required)
            if exchange.principal is not None and exchange.principal.kind == "dev":
                self._origins.check_page(headers.get("origin"))  # nothing else keeps any page from asking
        if self.draining and route.path not in OPEN_TO_THE_LAST:
            raise Draining("the server is going down")
        if exchange.body is None:
            await self._read(exchange)
        if packed and exchange.body:
            await self._unpack(exchange, exchange.body)
        return await self._serve(exchange, route, params, admitted, exchange.body or b"")

    # ---------------------------------------------------------------- before the handler

    def _options(self, exchange: Exchange) -> Reply:
        allow = ("allow", ", ".join(self._table.allowed(exchange.path)))
        headers = exchange.headers
        asked = self._origins.preflight(headers.get("origin"), headers.get("access-control-request-headers"))
        return Reply(status=204, headers=(allow, *asked))

    def _check_length(self, text: str | None) -> None:
        declared = bodies.declared_bytes(text)
        if declared is not None and declared > self._rules.max_body_bytes:
            raise bodies.too_large(self._rules.max_body_bytes)

    async def _read(self, exchange: Exchange) -> None:
        """Read a body that was not read ahead."""
        await ASIDE
        exchange.held = reader = bodies.BodyReader(
            exchange.chunks(), self.budget, self._rules.max_body_bytes, exchange.tenant
        )
        length = exchange.headers.get("content-length")
        exchange.body = await reader.read(self._rules.body_timeout_s, bodies.declared_bytes(length))
        bodies.require_whole(exchange.body, length)

    async def _unpack(self, exchange: Exchange, packed: bytes) -> None:
        """Decompress a body, which counts against the same limits as one that comes as it is."""
        read = exchange.held
        exchange.held = unpacked = bodies.BodyMemory(self.budget, self._rules.max_body_bytes, exchange.tenant)
        try:
            exchange.body = await inflate(packed, unpacked.hold)
        finally:
            if read is not None:
                read.close()

    def _deadline(self, text: str | None, asked: object) -> Deadline:
        """Return the deadline that a header or a decoded body asks for, no later than the operator allows."""
        most_s, body = self._rules.max_deadline_s, NEVER
        if isinstance(asked, Timed) and asked.from_arrival:
            body = asked.deadline(most_s)
        if text is None:
            return body
        if not (text.isascii() and text.isdigit()) or not 0 < len(text) <= 15 or int(text) == 0:
            raise InvalidRequest("X-TensorWasm-Deadline-Ms is a number of milliseconds, 1 at least")
        return Deadline.after(min(int(text) / 1000, most_s)).earlier(body)

    # ---------------------------------------------------------------- the handler

    async def _serve(
        self, exchange: Exchange, route: Route, params: Mapping[str, str], admitted: Admitted | None, body: bytes
    ) -> Reply | StreamedReply | None:
        """Decode the body, take the request's places, and have the handler answer.

        A route that runs guests has no places of its class: its guests have turns of their own.
        """
        headers = exchange.headers
        query = exchange.scope.query_string
        asked = self._decoders[id(route)](body, headers.get("content-type"))
        exchange.call = call = HttpRequest(
            self._service,
            exchange.principal,
            exchange.tenant or 0,
            params,
            dict(parse_qsl(query, keep_blank_values=True)) if query else _NOTHING,
            headers,
            asked,
            body,
            exchange.request_id,
            exchange.trace_id,
            self._deadline(headers.get("x-tensorwasm-deadline-ms"), asked),
            exchange.client,
            exchange.gone,
            admitted,
        )
        if admitted is None:
            return await self._handle(exchange, route, call)
        admitted.require_request()
        gate = self._admission.gates[route.kind]
        runs_guests = route.guest and exchange.method != WEBSOCKET
        begun = None
        if runs_guests or (gate.may_enter(admitted.tenant) and exchange.method != WEBSOCKET):
            begun = route.handle(call)
            if isinstance(begun, Reply):
                return begun  # no other request could have had its place meanwhile: there was nothing to hold
        with admitted.hold_request():
            if runs_guests:
                return await self._handle(exchange, route, call, begun)
            permit = admitted.try_permit(gate)
            if permit is None:
                await ASIDE
                permit = await admitted.permit(gate, call.deadline, 1.0)
            try:
                return await self._handle(exchange, route, call, begun)
            finally:
                permit.release(None)

    async def _handle(
        self, exchange: Exchange, route: Route, call: HttpRequest, begun: Awaitable[Reply | StreamedReply] | None = None
    ) -> Reply | StreamedReply | None:
        """Have the handler answer, which may have begun."""
        if exchange.method == WEBSOCKET:
            await self._converse(exchange, route, call)
            return None
        answer: Reply | Awaitable[Reply | StreamedReply] = route.handle(call) if begun is None else begun
        if isinstance(answer, Reply):
            return answer
        await ASIDE
        task = asyncio.current_task()
        if route.kind not in WATCHED or task is None:
            return await answer
        departure = Departure(exchange.proto, task)
        try:
            return await answer
        finally:
            departure.close()
            exchange.left = departure.left

    async def _converse(self, exchange: Exchange, route: Route, call: HttpRequest) -> None:
        """Accept a WebSocket, and close it once the handler is done with it."""
        await ASIDE
        if route.scope is not None:
            required = self._rules.tenant_required
            call.again = partial(admit, exchange, route, self._admission, tenant_required=required)
        socket = await WebSocket.accept(exchange.scope, exchange.proto, self.budget)
        try:
            await route.handle(call, socket)
        finally:
            socket.close()
