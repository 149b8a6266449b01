"""`InstanceQueue`: holds the quotas that guests' instances take, and queues guests for memory that others give back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from tensorwasm.errors import CapacityExhausted, InvokeTimeout, LimitError, QuotaExceeded
from tensorwasm.tenancy.quotas import Holding, Quotas
from tensorwasm.values import Deadline

WAIT_S: Final = 2.0
"""Longest wait for memory: what waits holds its request's place, which those of others' requests may need."""


class _Wanted(NamedTuple):
    """What is to be held: of which tenant, within which limits, how many bytes, how many instances."""

    tenant: int
    limits: Mapping[str, int]
    memory_bytes: int
    instances: int = 1


class InstanceQueue:
    """What running guests hold of the quotas ``instances`` and ``memory_bytes``; for one event loop.

    A guest is charged with what its memory may grow to. Where that is not there now, but running guests of its tenant
    (if the tenant's quota is short) or of any (if the machine is, or what the tenant would leave free) will give some
    back, it waits. Memory that is given back goes to those who wait, in the order in which they came; a guest that only
    its own tenant's quota or share holds back lets others past.

    Args:
        quotas: of all tenants.

    Attributes:
        waits: how often one had to wait.
    """

    def __init__(self, quotas: Quotas) -> None:
        """Start with no guests."""
        self._quotas = quotas
        self._running: Counter[int] = Counter()  # guests of each tenant
        self._waiting: dict[asyncio.Future[Holding], _Wanted] = {}
        self.waits = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def allows(self, tenant: int, limits: Mapping[str, int], memory_bytes: int) -> bool:
        """Return whether the tenant may have one instance more now, without holding it.

        Raises:
            QuotaExceeded: it may not, and there is nothing to wait for.
        """
        try:
            self._quotas.require(tenant, limits, instances=1, memory_bytes=memory_bytes)
        except QuotaExceeded as short:
            if not self._is_to_come(_Wanted(tenant, limits, memory_bytes), short):
                raise
            return False
        return True

    def try_hold(self, tenant: int, limits: Mapping[str, int], memory_bytes: int) -> Holding | None:
        """Hold what an instance takes; None if it has to wait (`hold`).

        Args:
            tenant: whose instance it is.
            limits: its policy's quotas.
            memory_bytes: what the instance's memory may grow to.

        Raises:
            QuotaExceeded: the tenant's quota is held by what is no running guest.
            CapacityExhausted: likewise the machine's memory.
        """
        if self._waiting:
            return None
        wanted = _Wanted(tenant, limits, memory_bytes)
        try:
            return self._hold(wanted)
        except LimitError as short:
            if not self._is_to_come(wanted, short):
                raise
            return None

    async def hold(self, tenant: int, limits: Mapping[str, int], memory_bytes: int, deadline: Deadline) -> Holding:
        """Hold what an instance takes, as soon as it is there.

        Args:
            tenant: as for `try_hold`.
            limits: likewise.
            memory_bytes: likewise.
            deadline: until when to wait, `WAIT_S` at most.

        Raises:
            QuotaExceeded: as for `try_hold`, or still short then.
            CapacityExhausted: likewise.
            InvokeTimeout: the deadline passed.
        """
        return await self._wait(_Wanted(tenant, limits, memory_bytes), deadline)

    def release(self, tenant: int, holding: Holding) -> None:
        """Give back what an instance held, to those who wait."""
        self._give_back(tenant, holding)
        self._serve()

    def begin(self, tenant: int) -> None:
        """Count a guest that holds memory of its own accord, and will give some back: a session's that is called."""
        self._running[tenant] += 1

    def end(self, tenant: int) -> None:
        """Count it no more, and give what it gave back to those who wait."""
        self._count_off(tenant)
        self._serve()

    @asynccontextmanager
    async def freed(
        self, tenant: int, limits: Mapping[str, int], memory_bytes: int, deadline: Deadline
    ) -> AsyncIterator[None]:
        """Wait as in `hold` for memory that something else takes: inside, before it waits for anything.

        Raises:
            QuotaExceeded: as for `hold`.
            CapacityExhausted: likewise.
            InvokeTimeout: likewise.
        """
        holding = await self._wait(_Wanted(tenant, limits, memory_bytes, 0), deadline)
        self._give_back(tenant, holding)
        try:
            yield
        finally:
            self._serve()

    async def _wait(self, wanted: _Wanted, deadline: Deadline) -> Holding:
        came: asyncio.Future[Holding] = asyncio.get_running_loop().create_future()
        self._waiting[came] = wanted
        self._serve()
        self.waits += came in self._waiting
        try:
            await asyncio.wait((came,), timeout=min(deadline.remaining_s(), WAIT_S))
        except asyncio.CancelledError:
            if came.done() and came.exception() is None:
                self.release(wanted.tenant, came.result())
            raise
        finally:
            if not came.done():
                del self._waiting[came]
                self._serve()
        if came.done():
            return came.result()
        if deadline.expired():
            raise InvokeTimeout("the deadline passed while the call waited for memory")
        return self._hold(wanted)

    def _serve(self) -> None:
        """Give those who wait what is there, until one finds the machine's memory short."""
        for came, wanted in list(self._waiting.items()):
            try:
                holding = self._hold(wanted)
            except LimitError as short:
                if self._is_to_come(wanted, short):
                    if isinstance(short, CapacityExhausted):
                        return
                    continue
                came.set_exception(short)
            else:
                came.set_result(holding)
            del self._waiting[came]

    def _hold(self, wanted: _Wanted) -> Holding:
        tenant, limits, memory_bytes, instances = wanted
        holding = self._quotas.hold(tenant, limits, instances=instances, memory_bytes=memory_bytes)
        self._running[tenant] += 1
        return holding

    def _give_back(self, tenant: int, holding: Holding) -> None:
        holding.release()
        self._count_off(tenant)

    def _count_off(self, tenant: int) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def _is_to_come(self, wanted: _Wanted, short: LimitError) -> bool:
        """Return whether what is short is memory, and running guests hold some of it."""
        tenant, limits, memory_bytes, instances = wanted
        if isinstance(short, CapacityExhausted):
            return bool(self._running) and memory_bytes <= (self._quotas.host_bytes or memory_bytes)
        held = self._quotas.usage(tenant)["instances"] + instances
        if held > limits.get("instances", held):
            return False
        if "memory_bytes" in limits:
            return memory_bytes <= limits["memory_bytes"] and tenant in self._running
        return bool(self._running) and memory_bytes <= (self._quotas.most_bytes or memory_bytes)
