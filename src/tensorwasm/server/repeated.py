"""`RepeatedCalls`: answers requests whose heads came before, without what follows from head and body alone.

The steps and their order are those of `tensorwasm.server.pipeline`. Whatever may have changed since is looked at anew:
caller, tenant's rules, rate, quotas, the function. What is not answered at once goes on in the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tensorwasm.errors import RateLimited, TensorWasmError
from tensorwasm.server.connection.request import WireRequest
from tensorwasm.server.exchange import Exchange
from tensorwasm.server.http.head import HeadPlan, limit_fields, limit_lines
from tensorwasm.server.http.replies import GZIP_BYTES, error_body
from tensorwasm.server.http.routing import Answer, PreparedCall, Reply, Route
from tensorwasm.service.admission.admission import Admitted
from tensorwasm.service.call_service import CallService
from tensorwasm.telemetry.metrics import RouteCounts
from tensorwasm.tenancy.audit import AuditRecord, actor_of, outcome_of
from tensorwasm.tenancy.principal import Principal

Begun = Reply | Coroutine[Any, Any, Answer] | BaseException
"""What became of a call at once: its reply, a coroutine of it, or an error."""

GoOn = Callable[[Exchange, Admitted, Begun | None], object]

_JSON: Final = "content-type: application/json\r\n"
_TOO_MANY: Final = RateLimited.http_status
_REFUSED: Final = (_TOO_MANY, RateLimited.kind)
_TOO_MANY_BODY: Final = error_body(RateLimited("too many requests"))


class RepeatedCalls:
    """Answers requests whose heads came before. For one event loop.

    Args:
        service: that is called.
        next_id: names requests.
        go_on: is given what was not answered: the exchange, its admission, and what became of its call, None for one
            that was not prepared.
    """

    def __init__(self, service: CallService, next_id: Callable[[], str], go_on: GoOn) -> None:
        self._service = service
        self._admission, self._audit = service.admission, service.audit
        self._find = service.admission.authenticator.find
        self._next_id, self._go_on = next_id, go_on

    def answer(self, wire: WireRequest, plan: HeadPlan, counts: RouteCounts, began_ns: int) -> bool:
        """Answer a request; return False, having done nothing, if its caller has to be admitted anew."""
        admitted, principal, route = plan.admitted, plan.principal, plan.route
        try:
            known = self._find(plan.credential) is principal
        except TensorWasmError:  # they have expired
            return False
        if not known or principal is None or route is None or admitted is None or not self._admission.stands(admitted):
            return False
        limits, refusal = self._admission.count(principal, admitted)
        request_id = plan.request_id or self._next_id()
        lines = f"{_JSON}x-request-id: {request_id}\r\nx-trace-id: {plan.trace_id}\r\n{limit_lines(limits)}"
        if refusal is not None:
            counts.in_flight += 1
            lines = f"{lines}retry-after: {refusal.retry_after_s}\r\n"
            wire.answer_written(_TOO_MANY, lines.encode("ascii"), _TOO_MANY_BODY, len(_TOO_MANY_BODY))
            resource: dict[str, Any] = {"tenant_id": admitted.tenant}
            self._record(wire, route, principal, counts, request_id, began_ns, _REFUSED, resource)
            return True
        call = plan.calls.get(wire.whole()) if plan.calls else None
        begun, audit = self._begin(call, admitted) if call is not None else (None, {})
        if type(begun) is Reply and type(body := begun.body) is bytes and len(body) < GZIP_BYTES:
            counts.in_flight += 1
            wire.answer_written(route.status, lines.encode("ascii"), body, len(body))
            resource = {"tenant_id": admitted.tenant, **audit}
            self._record(wire, route, principal, counts, request_id, began_ns, (route.status, None), resource)
            return True
        exchange = Exchange(wire, began_ns)
        exchange.principal, exchange.tenant, exchange.limits = principal, admitted.tenant, limit_fields(limits)
        exchange.request_id, exchange.audit = request_id, audit
        self._go_on(exchange, admitted, begun)
        del begun  # an error leads here by the frames that it came through
        return True

    def _begin(self, call: PreparedCall, admitted: Admitted) -> tuple[Begun, dict[str, str]]:
        """Begin a call; return what became of it, and the fields of its audit record."""
        audit: dict[str, str] = {}
        try:
            admitted.require_request()
            audit = call.audit
            return call.begin(self._service, admitted), audit
        except Exception as error:  # noqa: BLE001 - the pipeline answers it
            return error, audit

    def _record(
        self,
        wire: WireRequest,
        route: Route,
        principal: Principal,
        counts: RouteCounts,
        request_id: str,
        began_ns: int,
        outcome: tuple[int, str | None],
        resource: dict[str, Any],
    ) -> None:
        """Count a request after its reply, and write its audit record."""
        seconds = (time.perf_counter_ns() - began_ns) * 1e-9
        counts.end(outcome[0], seconds)
        self._audit.append(
            AuditRecord(
                time.time_ns() // 1_000_000,
                request_id,
                actor_of(principal),
                route.action or f"{route.method} {route.path}",
                resource,
                outcome_of(*outcome),
                seconds * 1e3,
                wire.client,
                wire.certificate or None,
            )
        )
