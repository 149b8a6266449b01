"""`Admission`: the one gate that every call passes: identity, scope, rate, quotas, and its place in a queue.

A call is a request, a message on a WebSocket, or an attempt of a job. `Admission.admit` asks who it is and whether it
may, and holds nothing. What it returns, an `Admitted`, goes with the call to where it runs. A call that ends at once is
only checked there (`Admitted.may_begin`): no other call could have had its place meanwhile. One that outlives its slice
takes a `Permit`: a turn at a gate, which tenants share fairly, and what its instance holds of the quotas.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from tensorwasm.errors import RateLimited
from tensorwasm.service.admission.instance_queue import InstanceQueue
from tensorwasm.tenancy.authentication import Authenticator
from tensorwasm.tenancy.buckets import LimitState, RateLimiter, retry_after_s
from tensorwasm.tenancy.fairness import FairGate, GateStatistics
from tensorwasm.tenancy.policy import TenantPolicy
from tensorwasm.tenancy.principal import Principal
from tensorwasm.tenancy.quotas import QuotaHold, Quotas
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
"""Requests of each class that are served at a time; others wait their turn, tenants in fair shares. One tenant has half
of them at the most, and a quarter is for tenants that have none, one each."""

GuestClass = Literal["cpu", "gpu", "streams"]

GUEST_SLOTS: Final[Mapping[GuestClass, int]] = {"cpu": 64, "gpu": 32, "streams": 256}
"""Guests at a time: without a device, where of those that run long each gets a slice in turn; with a device; and those
whose output is streamed, so that a slow client holds up nobody else. Shares are as for requests."""

EXPECTED_MS: Final = 1.0
"""What a guest's turn is taken to cost until that is known."""


class Permit:
    """A guest's turn at a gate, and what its instance holds of the quotas, until `release`.

    Attributes:
        instance: what is held of the quotas ``instances`` and ``memory_bytes``; None until that was taken.
    """

    __slots__ = ("_admitted", "_cost", "_gate", "instance")

    def __init__(self, admitted: Admitted, gate: FairGate, cost: float) -> None:
        """Wrap a turn that has begun."""
        self._admitted = admitted
        self._gate = gate
        self._cost = cost
        self.instance: QuotaHold | None = None

    def try_hold(self, memory_bytes: int) -> bool:
        """Take what an instance holds; return False if it has to be waited for with `hold`.

        Raises:
            QuotaExceeded: the tenant's quota is held by what will give nothing back.
            CapacityExhausted: likewise the machine's memory.
        """
        admitted = self._admitted
        self.instance = admitted.instances.try_hold(admitted.tenant, admitted.policy.quotas, memory_bytes)
        return self.instance is not None

    async def hold(self, memory_bytes: int, deadline: Deadline) -> None:
        """Take what an instance holds, as soon as it is there.

        Raises:
            QuotaExceeded: as for `try_hold`, or still short after the longest wait.
            CapacityExhausted: likewise.
            InvokeTimeout: the deadline passed.
        """
        admitted = self._admitted
        self.instance = await admitted.instances.hold(admitted.tenant, admitted.policy.quotas, memory_bytes, deadline)

    def release(self, spent_ms: float | None = 0.0) -> None:
        """Give everything back.

        Args:
            spent_ms: what the turn cost, 0 for a guest that did not begin; None for what was expected.
        """
        if self.instance is not None:
            self._admitted.instances.release(self._admitted.tenant, self.instance)
        self._gate.leave(self._admitted.tenant, spent_ms, self._cost)


class Admitted:
    """A call that may be made, and what holds for its tenant. It holds nothing.

    Attributes:
        policy: the tenant's.
        quotas: of all tenants.
        instances: holds what instances take.
    """

    __slots__ = ("instances", "policy", "quotas", "tenant")

    def __init__(self, tenant: int, policy: TenantPolicy, quotas: Quotas, instances: InstanceQueue) -> None:
        self.tenant = tenant
        self.policy = policy
        self.quotas = quotas
        self.instances = instances

    def require_request(self) -> None:
        """Check that the tenant may have one request more at a time.

        Raises:
            QuotaExceeded: it may not.
        """
        self.quotas.require(self.tenant, self.policy.quotas, requests=1)

    def hold_request(self) -> QuotaHold:
        """Count one request more of the tenant until what is returned is released.

        Raises:
            QuotaExceeded: it may have no more.
        """
        return self.quotas.hold(self.tenant, self.policy.quotas, requests=1)

    def may_begin(self, memory_bytes: int) -> bool:
        """Return whether the tenant may have one instance more now; False if it has to wait for memory.

        Raises:
            QuotaExceeded: it may not, and there is nothing to wait for.
        """
        return self.instances.allows(self.tenant, self.policy.quotas, memory_bytes)

    def try_permit(self, gate: FairGate, cost: float = 1.0) -> Permit | None:
        """Begin a turn if there is a free slot that the tenant may have."""
        return Permit(self, gate, cost) if gate.try_enter(self.tenant, self.policy.weight, cost) else None

    async def permit(self, gate: FairGate, deadline: Deadline, cost: float = EXPECTED_MS) -> Permit:
        """Wait for a turn.

        Raises:
            RateLimited: as many of the tenant's calls wait as may.
            InvokeTimeout: the deadline passed.
        """
        await gate.turn(self.tenant, self.policy.weight, cost, deadline).__aenter__()  # the permit's release ends it
        return Permit(self, gate, cost)

    def check_budget(self) -> None:
        """Check that nothing is used up of what the tenant may use in an hour.

        Raises:
            QuotaExceeded: a budget is spent.
        """
        self.quotas.check_budget(self.tenant, self.policy.quotas)


class Admission:
    """The gate. For one event loop.

    Args:
        authenticator: knows tokens.
        policies: returns what holds for a tenant, at once.
        limiter: counts calls against rates.
        quotas: counts what is held.
        instances: holds what instances take, and queues for memory.

    Attributes:
        gates: of each class of requests.
        guests: of each class of guests.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        policies: Callable[[int], TenantPolicy],
        limiter: RateLimiter,
        quotas: Quotas,
        instances: InstanceQueue,
    ) -> None:
        self.gates = {kind: FairGate(slots, yields=True) for kind, slots in SLOTS.items()}
        self.guests = {kind: FairGate(slots, yields=True) for kind, slots in GUEST_SLOTS.items()}
        self.authenticator = authenticator
        self.quotas = quotas
        self.instances = instances
        self._policies = policies
        self._limiter = limiter

    def admit(
        self,
        principal: Principal,
        tenant: int,
        scope: str,
        tell: Callable[[tuple[LimitState, ...]], object],
        *,
        acts: bool,
    ) -> Admitted:
        """Admit a request, or a message on a WebSocket.

        Args:
            principal: who asks.
            tenant: for whom.
            scope: what that needs.
            tell: called with how often the principal may still ask, also before it is refused for that.
            acts: something is done for the tenant, which the principal must cover; else it only pays for the request.

        Raises:
            TenantScopeDenied: not for this tenant, or it is disabled.
            ScopeDenied: not this.
            RateLimited: not so often.
        """
        principal.require(scope, tenant if acts else None)
        policy = self._policies(tenant)
        if acts:
            policy.require_enabled()
        qps = policy.quotas.get("qps")
        burst = 0 if qps is None else policy.quotas.get("burst", qps)
        if qps == 0 and "burst" not in policy.quotas:
            raise RateLimited("too many requests", retry_after_s(math.inf))  # none at once, and none ever comes back
        wait_s = self._limiter.take(principal.id, tenant, qps or 0, burst, time.monotonic_ns())
        tell(self._limiter.standing(principal.id, tenant, qps or 0, burst))
        if wait_s:
            raise RateLimited("too many requests", retry_after_s(wait_s))
        return Admitted(tenant, policy, self.quotas, self.instances)

    def admit_tenant(self, tenant: int) -> Admitted:
        """Admit a call that the service makes for a tenant: an attempt of a job that was admitted when it was accepted.

        Raises:
            TenantScopeDenied: the tenant is disabled.
        """
        policy = self._policies(tenant)
        policy.require_enabled()
        return Admitted(tenant, policy, self.quotas, self.instances)

    def statistics(self) -> dict[str, GateStatistics]:
        """Return a snapshot of the guests' gates."""
        return {kind: gate.statistics() for kind, gate in self.guests.items()}
