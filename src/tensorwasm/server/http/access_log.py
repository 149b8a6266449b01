"""Counts every answered request, and writes audit records of changes and refusals."""

from __future__ import annotations

import time
from typing import Final

from tensorwasm.server.exchange import Exchange
from tensorwasm.server.http.head import Origins
from tensorwasm.server.http.routing import Route, RouteTable
from tensorwasm.telemetry.metrics import UNKNOWN, Metrics
from tensorwasm.tenancy.audit import AuditLog, AuditRecord, actor_of, outcome_of

REFUSED: Final = frozenset({401, 403, 429})
"""Statuses that are audited on every route."""


class AccessLog:
    """Counts requests, whose metrics are in the order of the routes, and audits changes and refusals.

    Attributes:
        counts: of each route, by its `id`.
    """

    def __init__(self, table: RouteTable, metrics: Metrics, audit: AuditLog, origins: Origins) -> None:
        self.counts = {id(route): counts for route, counts in zip(table.routes, metrics.routes[:UNKNOWN], strict=True)}
        self._unknown = metrics.routes[UNKNOWN]
        self._audit = audit
        self._origins = origins

    def record(self, exchange: Exchange, status: int) -> None:
        """Count a request that was answered; one with a route was counted in flight."""
        seconds = (time.perf_counter_ns() - exchange.began_ns) * 1e-9
        route = exchange.route
        if route is None:
            self._unknown.in_flight += 1
            self._unknown.end(status, seconds)
            return
        self.counts[id(route)].end(status, seconds)
        if route.action is not None or status in REFUSED:
            self._write(exchange, route, status, seconds)

    def _write(self, exchange: Exchange, route: Route, status: int, seconds: float) -> None:
        principal, call, error = exchange.principal, exchange.call, exchange.error
        resource: dict[str, object] = {"tenant_id": exchange.tenant}
        if call is not None:
            resource |= call.audit
        self._audit.append(
            AuditRecord(
                time.time_ns() // 1_000_000,
                exchange.request_id,
                None if principal is None else actor_of(principal),
                route.action or f"{route.method} {route.path}",
                resource,
                outcome_of(status, None if error is None else error.kind),
                seconds * 1e3,
                exchange.client,
                self._origins.certificate(exchange.client, exchange.headers),
            )
        )
