"""`Pipeline`: the steps of every request, before and after its handler.

In this order: host, route, length of the body, caller, tenant, scope, rate, whether the server is draining, the body
itself, the tenant's quota of requests, a slot of the route's class, the handler, the reply, metrics and audit. Nothing
is looked up before the caller is known to be allowed to: a refusal does not reveal what exists.

Most requests never wait: `Pipeline.start` runs one until it must wait, and only then makes it a task. Before
`BECOME_TASK` is awaited no step may wait, or need a current task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
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
from tensorwasm.server.exchange import BECOME_TASK, WEBSOCKET, DisconnectWatcher, Exchange
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
    from tensorwasm.service.opening import Service

LEFT: Final = 499
"""Status that is recorded, never sent, for a request whose client disconnected."""

SWITCHED: Final = 101
"""Status that is recorded for a WebSocket that was accepted."""

CANCELLED: Final = frozenset[RouteClass]({"invoke", "openai", "streams"})
"""Classes whose requests are cancelled when their client disconnects; others finish, because they write something."""

WHILE_DRAINING: Final = frozenset({"/healthz", "/livez", "/metrics", "/openapi.json", "/docs"})
"""Paths that are served while the server shuts down; others are refused."""

EXPECTED: Final = (Draining, KernelRegistryNotConfigured, NotReady)
"""Errors of this machine that follow from what the operator asked for: they are not logged."""

_NOTHING: Final[Mapping[str, str]] = {}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings for every request: limits of its body and deadline, and whether it must name its tenant."""

    max_body_bytes: int
    body_timeout_s: float
    max_deadline_s: float
    tenant_required: bool


class Pipeline:
    """Runs requests. For one event loop.

    Attributes:
        draining: new requests are refused.
        tasks: requests that had to wait.
        budget: memory for the bodies of all requests.
    """

    def __init__(
        self, service: Service, table: RouteTable, origins: Origins, rules: Rules, recorder: AccessLog
    ) -> None:
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

    def start(self, exchange: Exchange) -> None:
        """Run a request until it must wait; the rest is a task. Every request gets a reply."""
        running = self._run(exchange)
        try:
            running.send(None)
        except StopIteration:
            return
        self.spawn(running)

    def spawn(self, running: Coroutine[Any, Any, None]) -> None:
        """Make a coroutine, which may have begun already, a task of this pipeline."""
        task = asyncio.get_running_loop().create_task(running)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        headers = exchange.headers
        exchange.request_id = own_request_id(headers.get("x-request-id")) or self._next_id()
        exchange.trace_id = trace_id(headers.get("traceparent"))
        try:
            try:
                check_head(exchange.scope.http_version, headers)
                answer = await self._answer(exchange)
            except GuestTrap as error:
                await locate_trap(error)
                raise
            status = SWITCHED if answer is None else await send(exchange, answer, self._origins)
        except asyncio.CancelledError:
            status = LEFT if exchange.left else self._refuse(exchange, Draining("the server is shutting down"))
        except TensorWasmError as error:
            status = self._refuse(exchange, error)
        except Exception:  # noqa: BLE001 - a bug must not leave the client without a reply
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
        if self._origins.hosts:
            self._origins.check_host(headers.get("host") or exchange.scope.authority)
        if exchange.method == "OPTIONS":
            return self._options(exchange)
        route, params = self._table.match(exchange.method, exchange.path)
        exchange.route = route
        self._recorder.counts[id(route)].in_flight += 1
        if exchange.error is not None:  # its short body did not arrive in time
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
                self._origins.check_page(headers.get("origin"))  # in dev mode nothing else keeps other pages out
        if self.draining and route.path not in WHILE_DRAINING:
            raise Draining("the server is shutting down")
        if exchange.body is None:
            await self._read(exchange)
        if packed and exchange.body:
            await self._unpack(exchange, exchange.body)
        return await self._serve(exchange, route, params, admitted, exchange.body or b"")

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
        await BECOME_TASK
        exchange.held = reader = bodies.BodyReader(
            exchange.chunks(), self.budget, self._rules.max_body_bytes, exchange.tenant
        )
        length = exchange.headers.get("content-length")
        exchange.body = await reader.read(self._rules.body_timeout_s, bodies.declared_bytes(length))
        bodies.require_whole(exchange.body, length)

    async def _unpack(self, exchange: Exchange, packed: bytes) -> None:
        """Decompress a body; the result counts against the limits of an uncompressed one."""
        read = exchange.held
        exchange.held = unpacked = bodies.BodyMemory(self.budget, self._rules.max_body_bytes, exchange.tenant)
        try:
            exchange.body = await inflate(packed, unpacked.hold)
        finally:
            if read is not None:
                read.close()

    def _deadline(self, text: str | None, asked: object) -> Deadline:
        """Return the deadline that the header or a decoded body asks for, at most `Rules.max_deadline_s` from now."""
        most_s, body = self._rules.max_deadline_s, NEVER
        if isinstance(asked, Timed) and asked.from_arrival:
            body = asked.deadline(most_s)
        if text is None:
            return body
        if not (text.isascii() and text.isdigit()) or not 0 < len(text) <= 15 or int(text) == 0:
            raise InvalidRequest("X-TensorWasm-Deadline-Ms is a number of milliseconds, 1 at least")
        return Deadline.after(min(int(text) / 1000, most_s)).earlier(body)

    async def _serve(
        self, exchange: Exchange, route: Route, params: Mapping[str, str], admitted: Admitted | None, body: bytes
    ) -> Reply | StreamedReply | None:
        """Decode the body, take a slot of the route's class, and call the handler.

        A route that runs guests takes no slot: its guests have turns at gates of their own.
        """
        headers, query = exchange.headers, exchange.scope.query_string
        asked = self._decoders[id(route)](body, headers.get("content-type"))
        limit_ms = headers.get("x-tensorwasm-deadline-ms")
        limited = limit_ms is not None or getattr(asked, "deadline_ms", None) is not None
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
            self._deadline(limit_ms, asked) if limited else NEVER,
            exchange.client,
            exchange.gone,
            cast("Admitted", admitted),
        )
        if admitted is None:
            return await self._handle(exchange, route, call)
        admitted.quotas.require(admitted.tenant, admitted.policy.quotas, requests=1)
        gate = self._admission.gates[route.kind]
        runs_guests = route.guest and exchange.method != WEBSOCKET
        begun = None
        if runs_guests or (gate.may_enter(admitted.tenant) and exchange.method != WEBSOCKET):
            begun = route.handle(call)
            if isinstance(begun, Reply):
                return begun  # no other request can have run meanwhile, so nothing had to be held
        with admitted.hold_request():
            if runs_guests:
                return await self._handle(exchange, route, call, begun)
            permit = admitted.try_permit(gate)
            if permit is None:
                await BECOME_TASK
                permit = await admitted.permit(gate, call.deadline, 1.0)
            try:
                return await self._handle(exchange, route, call, begun)
            finally:
                permit.release(None)

    async def _handle(
        self, exchange: Exchange, route: Route, call: HttpRequest, begun: Awaitable[Reply | StreamedReply] | None = None
    ) -> Reply | StreamedReply | None:
        """Return the handler's reply; `begun` is what it returned if it was called already."""
        if exchange.method == WEBSOCKET:
            await self._converse(exchange, route, call)
            return None
        answer: Reply | Awaitable[Reply | StreamedReply] = route.handle(call) if begun is None else begun
        if isinstance(answer, Reply):
            return answer
        await BECOME_TASK
        task = asyncio.current_task()
        if route.kind not in CANCELLED or task is None:
            return await answer
        departure = DisconnectWatcher(exchange.proto, task)
        try:
            return await answer
        finally:
            departure.close()
            exchange.left = departure.left

    async def _converse(self, exchange: Exchange, route: Route, call: HttpRequest) -> None:
        """Accept a WebSocket, and close it when the handler returns."""
        await BECOME_TASK
        if route.scope is not None:
            required = self._rules.tenant_required
            call.again = partial(admit, exchange, route, self._admission, tenant_required=required)
        socket = await WebSocket.accept(exchange.scope, exchange.proto, self.budget)
        try:
            await route.handle(call, socket)
        finally:
            socket.close()
