"""Who asks, for which tenant, and whether they may: before anything is looked up."""

from __future__ import annotations

import math
import time
from typing import Final

from tensorwasm.errors import MissingTenant, RateLimited
from tensorwasm.server.exchange import ASIDE, WEBSOCKET, Exchange
from tensorwasm.server.guards import Guards
from tensorwasm.server.ratelimit import limit_fields
from tensorwasm.server.routing import Route
from tensorwasm.server.streaming.websocket import authorization
from tensorwasm.tenancy.buckets import retry_after_s
from tensorwasm.tenancy.policy import TenantPolicy
from tensorwasm.tenancy.principal import MAX_TENANT

_DIGITS: Final = len(str(MAX_TENANT))


async def admit(exchange: Exchange, route: Route, guards: Guards, *, tenant_required: bool) -> TenantPolicy:
    """Find out who asks, note it, and return what holds for the tenant.

    Raises:
        InvalidRequest: it has more than one token.
        Unauthorized: nobody that is known.
        MissingTenant: the tenant's header is no number, or is needed and not there.
        TenantScopeDenied: not for this tenant.
        ScopeDenied: not this.
        RateLimited: not so often.
        DatabaseUnavailable: it cannot be found out now.
    """
    headers = exchange.headers
    given = headers.get("authorization") if exchange.method != WEBSOCKET else authorization(headers)
    principal = guards.authenticator.authenticate(given)
    if principal is None:
        await ASIDE
        principal = await guards.authenticator.authenticate_slowly(given)
    exchange.principal = principal
    named = headers.get_all("x-tensorwasm-tenant")
    if len(named) > 1:
        raise MissingTenant("the header X-TensorWasm-Tenant is there twice")
    if named:
        tenant = parse_tenant(named[0])
    elif tenant_required and route.tenant:
        raise MissingTenant("the header X-TensorWasm-Tenant is missing")
    else:
        tenant = _usual_tenant(principal.tenants, acts=route.tenant)
    exchange.tenant = tenant
    acts = route.tenant or bool(named)
    principal.require(route.scope or "", tenant if acts else None)
    policy = guards.policies(tenant)
    if acts:
        policy.require_enabled()
    quotas = policy.quotas
    qps = quotas.get("qps")
    burst = 0 if qps is None else quotas.get("burst", qps)
    if qps == 0 and "burst" not in quotas:
        raise RateLimited("too many requests", retry_after_s(math.inf))  # none at once, and none ever comes back
    wait_s = guards.limiter.take(principal.id, tenant, qps or 0, burst, time.monotonic_ns())
    exchange.limits = limit_fields(guards.limiter.standing(principal.id, tenant, qps or 0, burst))
    if wait_s:
        raise RateLimited("too many requests", retry_after_s(wait_s))
    return policy


def parse_tenant(text: str) -> int:
    """Return the tenant that a header names.

    Raises:
        MissingTenant: it is no number from 0 to 2**64 - 1.
    """
    if len(text) <= _DIGITS and text.isascii() and text.isdigit() and (tenant := int(text)) <= MAX_TENANT:
        return tenant
    raise MissingTenant("the header X-TensorWasm-Tenant is a number from 0 to 2**64 - 1")


def _usual_tenant(covered: frozenset[int] | None, *, acts: bool) -> int:
    """Return the tenant of whoever names none: the only one of a token, else 0.

    Where nothing is done for a tenant it only pays for the request, and so is one that the token covers.
    """
    if covered and (len(covered) == 1 or not acts):
        return min(covered)
    return 0
