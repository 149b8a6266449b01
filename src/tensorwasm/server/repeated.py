"""`RepeatedCalls`: answers requests whose heads came before, without what follows from head and body alone.

The steps and their order are those of `tensorwasm.server.pipeline`. Whatever may have changed since is looked at anew:
caller, tenant's rules, rate, quotas, the function. What is not answered at once goes on in the pipeline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from tensorwasm.errors import RateLimited, TensorWasmError
from tensorwasm.server.connection.request import WireRequest
from tensorwasm.server.exchange import Exchange
from tensorwasm.server.http.head import HeadPlan, limit_fields, limit_lines
from tensorwasm.server.http.replies import GZIP_BYTES, error_body
from tensorwasm.server.http.routing import Answer, PreparedCall, Reply, Route
from tensorwasm.service.admission.admission import Admitted
from tensorwasm.service.call_service import CallService
from tensorwasm.service.invocations.device_call import DeviceCall, Outcome
from tensorwasm.telemetry.metrics import RouteCounts
from tensorwasm.tenancy.audit import AuditRecord, RecordFrame, actor_of, outcome_of
from tensorwasm.tenancy.buckets import LimitState
from tensorwasm.tenancy.principal import Principal

Begun = Reply | Coroutine[Any, Any, Answer] | BaseException
"""What became of a call at once: its reply, a coroutine of it, or an error."""

GoOn = Callable[[Exchange, Admitted, Begun | None], object]

_JSON: Final = "content-type: application/json\r\n"
_TOO_MANY: Final = RateLimited.http_status
_REFUSED: Final = (_TOO_MANY, RateLimited.kind)
_TOO_MANY_BODY: Final = error_body(RateLimited("too many requests"))


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A request whose head came before: its route and caller, its rates, and the lines that begin its answer."""

    wire: WireRequest
    route: Route
    principal: Principal
    admitted: Admitted
    counts: RouteCounts
    request_id: str
    began_ns: int
    limits: tuple[LimitState, ...]
    lines: str


class RepeatedCalls:
    """Answers requests whose heads came before. For one event loop.

    Args:
        service: that is called.
        next_id: names requests.
        go_on: is given what was not answered: the exchange, its admission, and what became of its call, None for one
            that was not prepared.

    Attributes:
        detached: calls under way in other processes, whose requests have no task.
    """

    def __init__(self, service: CallService, next_id: Callable[[], str], go_on: GoOn) -> None:
        self._service = service
        self._admission, self._audit = service.admission, service.audit
        self._find = service.admission.authenticator.find
        self._next_id, self._go_on = next_id, go_on
        self.detached: set[DetachedCall] = set()

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
        asked = Asked(wire, route, principal, admitted, counts, request_id, began_ns, limits, lines)
        if refusal is not None:
            counts.in_flight += 1
            lines = f"{lines}retry-after: {refusal.retry_after_s}\r\n"
            wire.answer_written(_TOO_MANY, lines.encode("ascii"), _TOO_MANY_BODY, len(_TOO_MANY_BODY))
            self._record(asked, _REFUSED, None)
            return True
        begun: Begun | None = None
        called: PreparedCall | None = None
        call = plan.calls.get(wire.whole()) if plan.calls else None
        if call is not None:
            try:
                admitted.require_request()
                called = call
                started = call.begin_detached(self._service, admitted)
                if isinstance(started, DeviceCall):
                    DetachedCall(self, asked, call, started)
                    return True
                begun = started
            except Exception as error:  # noqa: BLE001 - the pipeline answers it
                begun = error
        self.finish(asked, begun, called)
        del begun  # an error leads here by the frames that it came through
        return True

    def finish(self, asked: Asked, begun: Begun | None, call: PreparedCall | None, *, left: bool = False) -> None:
        """Answer a request with what became of its call, or have the pipeline do it."""
        if type(begun) is Reply and type(body := begun.body) is bytes and len(body) < GZIP_BYTES:
            asked.counts.in_flight += 1
            status = asked.route.status
            asked.wire.answer_written(status, asked.lines.encode("ascii"), body, len(body))
            self._record(asked, (status, None), call)
            return
        exchange = Exchange(asked.wire, asked.began_ns)
        exchange.principal, exchange.tenant = asked.principal, asked.admitted.tenant
        exchange.limits = limit_fields(asked.limits)
        exchange.request_id, exchange.left = asked.request_id, left
        exchange.audit = {} if call is None else call.audit
        self._go_on(exchange, asked.admitted, begun)

    def _record(self, asked: Asked, outcome: tuple[int, str | None], call: PreparedCall | None) -> None:
        """Count a request after its reply, and write its audit record; without a call it was refused."""
        seconds = (time.perf_counter_ns() - asked.began_ns) * 1e-9
        asked.counts.end(outcome[0], seconds)
        route, principal, tenant = asked.route, asked.principal, asked.admitted.tenant
        client, certificate = asked.wire.peer
        now_unix_ms, action = time.time_ns() // 1_000_000, route.action or f"{route.method} {route.path}"
        if call is None or certificate:
            actor, resource = actor_of(principal), {"tenant_id": tenant, **(call.audit if call is not None else {})}
            told = actor, action, resource, outcome_of(*outcome), seconds * 1e3, client, certificate or None
            self._audit.append(AuditRecord(now_unix_ms, asked.request_id, *told))
            return
        frame = call.frame
        if frame is None or frame.principal is not principal or frame.tenant != tenant:
            frame = call.frame = RecordFrame(principal, tenant, action, call.audit, outcome[0])
        self._audit.append(frame.encode(now_unix_ms, asked.request_id, seconds * 1e3, client))


class DetachedCall:
    """A call in another process whose request needs no task meanwhile. It ends when its client leaves.

    It holds one of the tenant's concurrent requests. Raises QuotaExceeded, and ends the call, if there is none free.
    """

    __slots__ = ("_asked", "_call", "_calls", "_ended", "_held", "_prepared")

    def __init__(self, calls: RepeatedCalls, asked: Asked, prepared: PreparedCall, call: DeviceCall) -> None:
        try:
            self._held = asked.admitted.hold_request()
        except BaseException:
            call.close()
            raise
        self._calls, self._asked, self._prepared, self._call = calls, asked, prepared, call
        self._ended: asyncio.Future[None] | None = None
        asked.counts.in_flight += 1
        calls.detached.add(self)
        asked.wire.on_leaving(self._leave)
        call.then(self._answer)

    def _answer(self, outcome: Outcome) -> None:
        begun: Begun
        try:
            begun = outcome if isinstance(outcome, BaseException) else self._prepared.reply(self._call, outcome)
        except Exception as error:  # noqa: BLE001 - the pipeline answers it
            begun = error
        self._end(begun)
        del begun, outcome  # an error leads here by the frames that it came through

    def _leave(self) -> None:
        self._call.close()
        self._end(asyncio.CancelledError(), left=True)

    def ended(self) -> asyncio.Future[None]:
        """Return what is done once the request is answered."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    def cancel(self) -> None:
        """End the call now; its client learns that the server shuts down."""
        self._call.close()
        self._end(asyncio.CancelledError())

    def _end(self, begun: Begun, *, left: bool = False) -> None:
        asked, ended = self._asked, self._ended
        if self not in self._calls.detached:
            return
        self._calls.detached.discard(self)
        asked.wire.stay(self._leave)
        self._held.release()
        asked.counts.in_flight -= 1
        self._calls.finish(asked, begun, self._prepared, left=left)
        if ended is not None and not ended.done():
            ended.set_result(None)
