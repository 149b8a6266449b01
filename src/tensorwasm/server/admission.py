"""Reads caller and tenant from the head of a request, and admits it.

Source of the rate limit headers: draft-ietf-httpapi-ratelimit-headers-10. A quota is `q` requests in `w` seconds; `r`
of them are left, and all are back after `t` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tensorwasm.errors import MissingTenant
from tensorwasm.server.exchange import BECOME_TASK, WEBSOCKET, Exchange
from tensorwasm.server.http.routing import Route
from tensorwasm.server.streaming.websocket import authorization
from tensorwasm.service.admission.admission import Admission, Admitted
from tensorwasm.tenancy.buckets import LimitState
from tensorwasm.tenancy.principal import MAX_TENANT

_DIGITS: Final = len(str(MAX_TENANT))


async def admit(exchange: Exchange, route: Route, admission: Admission, *, tenant_required: bool) -> Admitted:
    """Admit a request, or one more message on its WebSocket; set the exchange's principal, tenant and limits.

    Raises:
        InvalidRequest: it has more than one token.
        Unauthorized: the token is missing or unknown.
        MissingTenant: the tenant's header is not a number, is repeated, or is required and missing.
        DatabaseUnavailable: the token cannot be looked up now.
        TensorWasmError: what `Admission.admit` raises.
    """
    headers = exchange.headers
    given = headers.get("authorization") if exchange.method != WEBSOCKET else authorization(headers)
    principal = admission.authenticator.authenticate(given)
    if principal is None:
        await BECOME_TASK
        principal = await admission.authenticator.authenticate_slowly(given)
    exchange.principal = principal
    named = headers.get_all("x-tensorwasm-tenant")
    if len(named) > 1:
        raise MissingTenant("the header X-TensorWasm-Tenant is repeated")
    if named:
        tenant = parse_tenant(named[0])
    elif tenant_required and route.tenant:
        raise MissingTenant("the header X-TensorWasm-Tenant is missing")
    else:
        tenant = _usual_tenant(principal.tenants, acts=route.tenant)
    exchange.tenant = tenant

    def tell(standings: Sequence[LimitState]) -> None:
        exchange.limits = limit_fields(standings)

    return admission.admit(principal, tenant, route.scope or "", tell, acts=route.tenant or bool(named))


@lru_cache(4096)
def parse_tenant(text: str) -> int:
    """Return the tenant that a header names; raise MissingTenant unless it is a number from 0 to 2**64 - 1."""
    if len(text) <= _DIGITS and text.isascii() and text.isdigit() and (tenant := int(text)) <= MAX_TENANT:
        return tenant
    raise MissingTenant("the header X-TensorWasm-Tenant is a number from 0 to 2**64 - 1")


def _usual_tenant(covered: frozenset[int] | None, *, acts: bool) -> int:
    """Return the tenant of a request that names none: the only one of its token, else 0.

    A request that does not act for a tenant is only charged to one, any that the token covers.
    """
    if covered and (len(covered) == 1 or not acts):
        return min(covered)
    return 0


def limit_fields(standings: Sequence[LimitState]) -> tuple[tuple[str, str], ...]:
    """Return the rate limit headers of a reply; none without limits."""
    if len(standings) == 1:
        ((name, qps, burst, left),) = standings
        return (("ratelimit-policy", _policy(name, qps, burst)), ("ratelimit", _left(name, qps, burst, left)))
    if not standings:
        return ()
    policies = [_policy(name, qps, burst) for name, qps, burst, _ in standings]
    return (("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join([_left(*each) for each in standings])))


def _left(name: str, qps: float, burst: float, left: float) -> str:
    if qps <= 0:
        return f'"{name}";r={int(left)}'
    return f'"{name}";r={int(left)};t={int(-((left - burst) // qps))}'


@lru_cache(1024)
def _policy(name: str, qps: float, burst: float) -> str:
    text = f'"{name}";q={int(burst)}'
    return text if qps <= 0 else f"{text};w={max(1, math.ceil(burst / qps))}"
