"""`Admission`: checks identity, scope, rate and quotas of every call, and gives it its place in a queue.

A call is a request, a message on a WebSocket, or an attempt of a job. `Admission.admit` checks it and returns an
`Admitted`, which goes with the call and holds nothing. A call that ends within its slice is only checked again
(`Quotas.require`): no other call can run meanwhile. One that outlives its slice takes a `Permit`: a turn at a
gate, which tenants share fairly, and the quotas that its instance holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from tensorwasm.errors import RateLimited, TenantScopeDenied
from tensorwasm.service.admission.instance_queue import InstanceQueue
from tensorwasm.service.identity.cache import IdentityCache
from tensorwasm.telemetry.timeline import waiting
from tensorwasm.tenancy.authentication import Authenticator
from tensorwasm.tenancy.buckets import LimitState, RateLimiter, retry_after_s
from tensorwasm.tenancy.fairness import FairGate, GateStatistics
from tensorwasm.tenancy.principal import Principal
from tensorwasm.tenancy.quotas import QuotaHold, Quotas, TenantPolicy
from tensorwasm.values import Deadline

RouteClass = Literal["probes", "invoke", "reads", "writes", "openai", "kernels", "streams", "admin"]

SLOTS: Final[Mapping[RouteClass, int]] = {
    "probes": 256,
    "invoke": 32,
    "reads": 64,
    "writes": 16,
    "openai": 32,
    "kernels": 16,
    "streams": 256,
    "admin": 16,
}
"""Concurrent requests of each class; others wait, tenants in fair shares. One tenant has at most half of them, and a
quarter is reserved for tenants that have none, one each."""

GuestClass = Literal["cpu", "gpu", "streams"]

GUEST_SLOTS: Final[Mapping[GuestClass, int]] = {"cpu": 64, "gpu": 128, "streams": 256}
"""Concurrent guests: without a device, where long ones run in alternating slices; with a device; and with streamed
output, a class of their own because of slow clients. Shares are as for requests."""

DISABLED: Final = "the tenant is disabled"

EXPECTED_MS: Final = 1.0
"""Assumed cost of a guest's turn until it is measured."""


class Permit:
    """A guest's turn at a gate and the quotas of its instance (None before they are taken), until `release`."""

    __slots__ = ("_cost", "_gate", "admitted", "instance")

    def __init__(self, admitted: Admitted, gate: FairGate, cost: float) -> None:
        self.admitted = admitted
        self._gate = gate
        self._cost = cost
        self.instance: QuotaHold | None = None

    def try_hold(self, memory_bytes: int) -> bool:
        """Take the instance's quotas, or return False if `hold` must wait. Raises as `InstanceQueue.try_hold`."""
        admitted = self.admitted
        self.instance = admitted.instances.try_hold(admitted.tenant, admitted.policy.quotas, memory_bytes)
        return self.instance is not None

    async def hold(self, memory_bytes: int, deadline: Deadline) -> None:
        """Take the instance's quotas, as soon as they are free. Raises as `InstanceQueue.hold`."""
        admitted = self.admitted
        with waiting("gate"):
            self.instance = await admitted.instances.hold(
                admitted.tenant, admitted.policy.quotas, memory_bytes, deadline
            )

    def release(self, spent_ms: float | None = 0.0) -> None:
        """Release everything; the turn cost `spent_ms`, 0 if the guest did not begin, or the expected cost for None."""
        if self.instance is not None:
            self.admitted.instances.release(self.admitted.tenant, self.instance)
        self._gate.leave(self.admitted.tenant, spent_ms, self._cost)


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """An admitted call and its tenant's policy. It holds nothing. A struct: each request makes one."""

    tenant: int
    policy: TenantPolicy
    quotas: Quotas
    instances: InstanceQueue

    def require_request(self) -> None:
        """Raise QuotaExceeded if the tenant may have no more concurrent requests."""
        if "requests" in self.policy.quotas:
            self.quotas.require(self.tenant, self.policy.quotas, requests=1)

    def hold_request(self) -> QuotaHold:
        """Hold one more concurrent request of the tenant; raise QuotaExceeded if it may have no more."""
        return self.quotas.hold(self.tenant, self.policy.quotas, requests=1)

    def try_permit(self, gate: FairGate, cost: float = 1.0) -> Permit | None:
        """Begin a turn if a slot is free for the tenant, else return None."""
        return Permit(self, gate, cost) if gate.try_enter(self.tenant, self.policy.weight, cost) else None

    async def permit(self, gate: FairGate, deadline: Deadline, cost: float = EXPECTED_MS) -> Permit:
        """Wait for a turn; raise RateLimited if too many of the tenant's calls wait, InvokeTimeout at the deadline."""
        with waiting("gate"):
            await gate.turn(self.tenant, self.policy.weight, cost, deadline).__aenter__()  # ended by Permit.release
        return Permit(self, gate, cost)

    def check_budget(self) -> None:
        """Raise QuotaExceeded if one of the tenant's hourly budgets is spent."""
        self.quotas.check_budget(self.tenant, self.policy.quotas)


class Admission:
    """Admits calls. For one event loop.

    Attributes:
        gates: by class of requests.
        guests: gates by class of guests.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        identities: IdentityCache,
        limiter: RateLimiter,
        quotas: Quotas,
        instances: InstanceQueue,
    ) -> None:
        self.gates = {kind: FairGate(slots, yields=True) for kind, slots in SLOTS.items()}
        self.guests = {kind: FairGate(slots, yields=True) for kind, slots in GUEST_SLOTS.items()}
        self.authenticator = authenticator
        self.quotas = quotas
        self.instances = instances
        self._policies, self._default = identities.policies, identities.default_policy
        self._limiter = limiter

    def admit(self, principal: Principal, tenant: int, scope: str, *, acts: bool) -> Admitted:
        """Admit calls of a principal, each of which has to be counted before it is made.

        Args:
            principal: the caller.
            tenant: is charged.
            scope: required of the principal.
            acts: whether the call acts for the tenant, which the principal must then cover.

        Raises:
            TenantScopeDenied: the principal does not cover the tenant, or the tenant is disabled.
            ScopeDenied: the principal lacks the scope.
        """
        principal.require(scope, tenant if acts else None)
        policy = self._policies.get(tenant, self._default)
        if acts and policy.disabled:
            raise TenantScopeDenied(DISABLED)
        return Admitted(tenant, policy, self.quotas, self.instances)

    def stands(self, admitted: Admitted) -> bool:
        """Return whether a tenant's rules are what they were when its calls were admitted."""
        return self._policies.get(admitted.tenant, self._default) is admitted.policy

    def count(self, principal: Principal, admitted: Admitted) -> tuple[tuple[LimitState, ...], RateLimited | None]:
        """Count a call; return the state of its rate limits, and why it may not be made."""
        tenant, quotas = admitted.tenant, admitted.policy.quotas
        qps = quotas.get("qps")
        burst = 0 if qps is None else quotas.get("burst", qps)
        if qps == 0 and "burst" not in quotas:
            return (), RateLimited("too many requests", retry_after_s(math.inf))  # no burst, and no refill
        wait_s, standing = self._limiter.count(principal.id, tenant, qps or 0, burst, time.monotonic_ns())
        return standing, RateLimited("too many requests", retry_after_s(wait_s)) if wait_s else None

    def admit_tenant(self, tenant: int) -> Admitted:
        """Admit an attempt of a job that was admitted when submitted; TenantScopeDenied for a disabled tenant."""
        policy = self._policies.get(tenant, self._default)
        if policy.disabled:
            raise TenantScopeDenied(DISABLED)
        return Admitted(tenant, policy, self.quotas, self.instances)

    def statistics(self) -> dict[str, GateStatistics]:
        """Return the statistics of the guests' gates."""
        return {kind: gate.statistics() for kind, gate in self.guests.items()}
