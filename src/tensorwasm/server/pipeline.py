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
import time
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, cast

from tensorwasm.errors import (
    Draining,
    GuestTrap,
    HostError,
    InternalError,
    KernelRegistryNotConfigured,
    NotReady,
    TensorWasmError,
)
from tensorwasm.runtime.invoke.invocation import locate_trap
from tensorwasm.server.connection.request import WireRequest
from tensorwasm.server.exchange import BECOME_TASK, WEBSOCKET, DisconnectWatcher, Exchange
from tensorwasm.server.http import bodies
from tensorwasm.server.http.decoding import decoder
from tensorwasm.server.http.head import HeadPlan, Origins, admit, deadline_of, plan_head, request_ids
from tensorwasm.server.http.long_json import LONG_BYTES, decode_long
from tensorwasm.server.http.replies import inflate, is_gzip
from tensorwasm.server.http.routing import Answer, HttpRequest, Reply, Route, RouteTable
from tensorwasm.server.relay import Relay
from tensorwasm.server.repeated import Begun, RepeatedCalls
from tensorwasm.server.sending import refuse, send
from tensorwasm.server.streaming.websocket import WebSocket
from tensorwasm.server.timing import TIMING, RequestTiming
from tensorwasm.service.admission.admission import Admitted, RouteClass
from tensorwasm.service.call_service import CallService
from tensorwasm.service.opening import Service
from tensorwasm.telemetry.metrics import UNKNOWN
from tensorwasm.tenancy.audit import AuditRecord, actor_of, outcome_of
from tensorwasm.values import MIB, NEVER

REFUSED: Final = frozenset({401, 403, 429})
"""Statuses that are audited on every route."""

LEFT: Final = 499
"""Status that is recorded, never sent, for a request whose client disconnected."""

SWITCHED: Final = 101
"""Status that is recorded for a WebSocket that was accepted."""

CANCELLED: Final = frozenset[RouteClass]({"invoke", "openai", "streams"})
"""Classes whose requests are cancelled when their client disconnects; others finish, because they write something."""

WHILE_DRAINING: Final = frozenset({"/healthz", "/livez", "/metrics", "/openapi.json", "/docs"})
"""Paths that are served while the server shuts down; others are refused."""

EXPECTED: Final = (Draining, KernelRegistryNotConfigured, NotReady)
"""Errors of this machine that follow from what the operator chose: they are not logged."""

_log = logging.getLogger(__name__)


class Pipeline:
    """Runs requests. For one event loop.

    Attributes:
        draining: new requests are refused.
        tasks: requests that had to wait.
        repeated: requests whose heads came before; some run without a task.
        budget: memory for the bodies of all requests.
    """

    def __init__(
        self,
        service: CallService,
        routes: Sequence[Route],
        max_body_bytes: int | None = None,
        relay: Relay | None = None,
    ) -> None:
        """Open the routes; the longest body is that of the settings unless it is given. A relay gets what is not here.

        Raises:
            InvalidArgs: a setting is invalid.
        """
        self._settings = service.settings
        self._max_body_bytes = self._settings.max_body_mib * MIB if max_body_bytes is None else max_body_bytes
        self._origins = Origins.from_settings(self._settings)
        self.draining = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.budget = bodies.BodyBudget(max(bodies.BUDGET_BYTES, 2 * self._max_body_bytes))
        self._service, self._relay = service, relay
        self._table = RouteTable(routes)
        self._admission = service.admission
        metrics = service.metrics.routes  # in the order of the routes
        self._counts = {id(route): each for route, each in zip(self._table.routes, metrics[:UNKNOWN], strict=True)}
        self._unknown = metrics[UNKNOWN]
        self._next_id = request_ids()
        self._decoders = {id(route): decoder(route) for route in self._table.routes}
        self._timing = RequestTiming(service)
        self.repeated = RepeatedCalls(service, self._next_id, self._go_on)

    def begin(self, wire: WireRequest) -> None:
        """Begin with a request."""
        began_ns, plan = time.perf_counter_ns(), wire.head.plan
        sampled = self._timing.sampling and self._timing.is_due()
        repeats = plan is not None and plan.plain and not (sampled or wire.long or wire.broken or self.draining)
        if not repeats or not self.repeated.answer(wire, plan, self._counts[id(plan.route)], began_ns):
            exchange = Exchange(wire, began_ns)
            if not sampled and exchange.headers.get(TIMING) != "1":
                self.start(exchange)
                return
            with self._timing.begin(exchange, sampled=sampled):
                self.start(exchange)

    def start(self, exchange: Exchange) -> None:
        """Run a request until it must wait; the rest is a task. Every request gets a reply."""
        self._start(self._run(exchange))

    def _start(self, running: Coroutine[Any, Any, None]) -> None:
        try:
            running.send(None)
        except StopIteration:
            return
        self.spawn(running)

    def _go_on(self, exchange: Exchange, admitted: Admitted, begun: Begun | None) -> None:
        """Go on with a request that was admitted, and maybe begun."""
        exchange.admitted = admitted
        route = exchange.plan.route
        if begun is None or route is None:
            self.start(exchange)
            return
        exchange.route = route
        self._counts[id(route)].in_flight += 1
        self._start(self._run(exchange, self._end_call(exchange, route, admitted, begun)))

    def spawn(self, running: Coroutine[Any, Any, None]) -> None:
        """Make a coroutine, which may have begun already, a task of this pipeline."""
        task = asyncio.get_running_loop().create_task(running)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, exchange: Exchange, begun: Coroutine[Any, Any, Answer] | None = None) -> None:
        """Process a request, or go on with one, and answer it."""
        plan: HeadPlan = exchange.plan
        if plan is None:
            head = exchange.wire.head
            plan = exchange.plan = head.plan = plan_head(head, self._table, self._origins)
        exchange.request_id = exchange.request_id or plan.request_id or self._next_id()
        exchange.trace_id = plan.trace_id
        try:
            try:
                if self._relay is not None and plan.route is not None and not plan.route.everywhere:
                    await self._forward(exchange, self._relay, plan.route)
                    exchange.forget()
                    return
                reply = await (self._process(exchange) if begun is None else begun)
            except GuestTrap as error:
                await locate_trap(error)
                raise
            status = SWITCHED if reply is None else await send(exchange, reply, self._origins)
        except asyncio.CancelledError:
            status = (
                self._abandon(exchange)
                if exchange.left
                else self._refuse(exchange, Draining("the server is shutting down"))
            )
        except TensorWasmError as error:
            status = self._refuse(exchange, error)
        except Exception:  # noqa: BLE001 - a bug must not leave the client without a reply
            _log.exception("request %s: a bug", exchange.request_id)
            status = self._refuse(exchange, InternalError("a bug"))
        finally:
            if exchange.held is not None:
                exchange.held.close()
        self._record(exchange, status)
        exchange.forget()

    async def _forward(self, exchange: Exchange, relay: Relay, route: Route) -> None:
        """Have the primary answer, which also counts the request."""
        if exchange.error is not None:  # its short body did not arrive in time
            raise exchange.error
        if self.draining and route.path not in WHILE_DRAINING:
            raise Draining("the server is shutting down")
        await relay.forward(exchange)

    def _abandon(self, exchange: Exchange) -> int:
        exchange.wire.abandon()
        return LEFT

    def _refuse(self, exchange: Exchange, error: TensorWasmError) -> int:
        exchange.error = error
        if isinstance(error, HostError) and not isinstance(error, EXPECTED):
            _log.error("request %s: %s: %s", exchange.request_id, error.kind, error.message)
        return refuse(exchange, error, self._origins)

    async def _process(self, exchange: Exchange) -> Answer | None:
        headers, plan = exchange.headers, exchange.plan
        if plan.error is not None:
            raise plan.error
        route = plan.route
        if route is None:
            return self._options(exchange)
        exchange.route = route
        self._counts[id(route)].in_flight += 1
        if exchange.error is not None:  # its short body did not arrive in time
            raise exchange.error
        if exchange.method == WEBSOCKET:
            self._origins.check_page(headers.get("origin"))
        if exchange.body is None:
            declared = bodies.declared_bytes(headers.get("content-length"))
            if declared is not None and declared > self._max_body_bytes:
                raise bodies.too_large(self._max_body_bytes)
        packed = plan.content_encoding is not None and is_gzip(plan.content_encoding)
        admitted = None
        if route.scope is not None:
            admitted = exchange.admitted or await admit(
                exchange, route, self._admission, tenant_required=self._settings.require_tenant
            )
            if exchange.principal is not None and exchange.principal.kind == "dev":
                self._origins.check_page(headers.get("origin"))  # in dev mode nothing else keeps other pages out
        if self.draining and route.path not in WHILE_DRAINING:
            raise Draining("the server is shutting down")
        if exchange.body is None:
            await self._read(exchange)
        if packed and exchange.body:
            await self._unpack(exchange, exchange.body)
        return await self._serve(exchange, route, admitted, exchange.body or b"")

    def _options(self, exchange: Exchange) -> Reply:
        headers, allowed = exchange.headers, ", ".join(self._table.allowed(exchange.path))
        preflight = self._origins.preflight(headers.get("origin"), headers.get("access-control-request-headers"))
        return Reply(status=204, headers=(("allow", allowed), *preflight))

    async def _read(self, exchange: Exchange) -> None:
        """Read a body that was not read ahead."""
        await BECOME_TASK
        exchange.held = reader = bodies.BodyReader(
            exchange.wire.read, self.budget, self._max_body_bytes, exchange.tenant
        )
        exchange.body = await reader.read(self._settings.request_timeout_s)

    async def _unpack(self, exchange: Exchange, packed: bytes) -> None:
        """Decompress a body; the result counts against the limits of an uncompressed one."""
        read = exchange.held
        exchange.held = unpacked = bodies.BodyMemory(self.budget, self._max_body_bytes, exchange.tenant)
        try:
            exchange.body = await inflate(packed, unpacked.hold)
        finally:
            if read is not None:
                read.close()

    def _request(self, exchange: Exchange, admitted: Admitted | None, decoded: object, body: bytes) -> HttpRequest:
        """Return a request as its handler receives it."""
        plan = exchange.plan
        limited = plan.deadline_ms is not None or getattr(decoded, "deadline_ms", None) is not None
        return HttpRequest(
            cast("Service", self._service),  # a front relays what needs more than it has
            exchange.principal,
            exchange.tenant or 0,
            plan.params,
            plan.query,
            exchange.headers,
            decoded,
            body,
            exchange.request_id,
            exchange.trace_id,
            deadline_of(plan.deadline_ms, decoded, self._settings.max_deadline_s) if limited else NEVER,
            exchange.client,
            exchange.gone,
            cast("Admitted", admitted),
            audit={} if exchange.audit is None else exchange.audit,
        )

    async def _serve(self, exchange: Exchange, route: Route, admitted: Admitted | None, body: bytes) -> Answer | None:
        """Decode the body, take a slot of the route's class, and call the handler.

        A route that runs guests takes no slot: its guests have turns at gates of their own.
        """
        plan = exchange.plan
        decode, kind = self._decoders[id(route)], plan.content_type
        decoded = decode(body, kind) if len(body) <= LONG_BYTES else await decode_long(decode, body, kind)
        if admitted is not None and route.prepare is not None and plan.calls is not None:
            prepared = route.prepare(plan.params, decoded)
            if prepared is not None:
                plan.keep(body, prepared)
                exchange.audit = {}
                admitted.require_request()
                exchange.audit = prepared.audit
                return await self._end_call(exchange, route, admitted, prepared.begin(self._service, admitted))
        exchange.audit = {}
        call = self._request(exchange, admitted, decoded, body)
        if admitted is None:
            return await self._handle(exchange, route, call)
        admitted.require_request()
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

    async def _end_call(self, exchange: Exchange, route: Route, admitted: Admitted, begun: Begun) -> Answer:
        """Return the reply of a prepared call that has begun, or raise its error."""
        if isinstance(begun, Reply):
            return begun  # no other request can have run meanwhile, so nothing had to be held
        if isinstance(begun, BaseException):
            try:
                raise begun
            finally:
                del begun  # it leads back here by its frames
        with admitted.hold_request():
            return await self._wait(exchange, route, begun)

    async def _handle(
        self, exchange: Exchange, route: Route, call: HttpRequest, begun: Awaitable[Answer] | None = None
    ) -> Answer | None:
        """Return the handler's reply; `begun` is what it returned if it was called already."""
        if exchange.method == WEBSOCKET:
            await self._converse(exchange, route, call)
            return None
        reply: Reply | Awaitable[Answer] = route.handle(call) if begun is None else begun
        return reply if isinstance(reply, Reply) else await self._wait(exchange, route, reply)

    async def _wait(self, exchange: Exchange, route: Route, reply: Awaitable[Answer]) -> Answer:
        """Wait for a handler's reply; no longer than its client does."""
        await BECOME_TASK
        task = asyncio.current_task()
        if route.kind not in CANCELLED or task is None:
            return await reply
        watcher = DisconnectWatcher(exchange.wire, task)
        try:
            return await reply
        finally:
            watcher.close()
            exchange.left = watcher.left

    async def _converse(self, exchange: Exchange, route: Route, call: HttpRequest) -> None:
        """Accept a WebSocket, and close it when the handler returns."""
        await BECOME_TASK
        if route.scope is not None:
            call.again = partial(admit, exchange, route, self._admission, tenant_required=self._settings.require_tenant)
        socket = WebSocket.accept(exchange.wire, self.budget, exchange.tenant)
        try:
            await route.handle(call, socket)
        finally:
            socket.close()

    def _record(self, exchange: Exchange, status: int) -> None:
        """Count a request after its reply; one with a route was counted in flight."""
        seconds = (time.perf_counter_ns() - exchange.began_ns) * 1e-9
        route = exchange.route
        if route is None:
            self._unknown.in_flight += 1
            self._unknown.end(status, seconds)
            return
        self._counts[id(route)].end(status, seconds)
        if exchange.timeline is not None:
            self._timing.end(exchange, route, status)
        if route.action is not None or status in REFUSED:
            self._write_audit(exchange, route, status, seconds)

    def _write_audit(self, exchange: Exchange, route: Route, status: int, seconds: float) -> None:
        principal, error = exchange.principal, exchange.error
        resource = {"tenant_id": exchange.tenant, **(exchange.audit or {})}
        self._service.audit.append(
            AuditRecord(
                time.time_ns() // 1_000_000,
                exchange.request_id,
                None if principal is None else actor_of(principal),
                route.action or f"{route.method} {route.path}",
                resource,
                outcome_of(status, None if error is None else error.kind),
                seconds * 1e3,
                exchange.client,
                exchange.certificate or self._origins.certificate(exchange.client, exchange.headers),
            )
        )
