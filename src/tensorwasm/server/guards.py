"""What the pipeline asks of whoever knows tokens, tenants, limits and shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensorwasm.server.routing import CONCURRENCY, RouteClass
from tensorwasm.tenancy.authentication import Authenticator
from tensorwasm.tenancy.buckets import RateLimiter
from tensorwasm.tenancy.fairness import FairGate
from tensorwasm.tenancy.policy import TenantPolicy
from tensorwasm.tenancy.quotas import Quotas


@dataclass(frozen=True, slots=True)
class Guards:
    """Who may, how often and how much.

    Attributes:
        authenticator: knows tokens.
        policies: returns what holds for a tenant, at once.
        limiter: counts requests.
        quotas: counts what is held.
        gates: places of each class of routes.
    """

    authenticator: Authenticator
    policies: Callable[[int], TenantPolicy]
    limiter: RateLimiter
    quotas: Quotas
    gates: Mapping[RouteClass, FairGate]


def make_gates() -> dict[RouteClass, FairGate]:
    """Return a gate for each class of routes, as wide as `CONCURRENCY` says; one tenant alone has half of it."""
    return {kind: FairGate(slots, yields=True) for kind, slots in CONCURRENCY.items()}
