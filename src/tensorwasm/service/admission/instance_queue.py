"""`InstanceQueue`: holds the quotas that guests' instances take, and queues guests for memory that others give back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

from tensorwasm.errors import CapacityExhausted, InvokeTimeout, LimitError, QuotaExceeded
from tensorwasm.tenancy.quotas import QuotaHold, Quotas
from tensorwasm.values import Deadline

WAIT_S: Final = 2.0
"""Longest wait for memory: what waits holds its request's place, which those of others' requests may need."""

PASSING: Final = 8
"""Where the machine's memory is short, calls behind the first in the queue may hold this part of what it wants: they
are not held up by one that wants much, and it still gets all other memory that is given back."""


class _Wanted(NamedTuple):
    """What is to be held: of which tenant, within which limits, how many bytes, how many instances."""

    tenant: int
    limits: Mapping[str, int]
    memory_bytes: int
    instances: int = 1


class IdleInstances(Protocol):
    """Instances that are kept in memory although nothing runs in them, and could leave it: those of idle sessions."""

    def any_idle(self, tenant: int | None) -> bool:
        """Return whether an instance could leave; of one tenant, or of any for None."""

    async def evict_one(self, tenant: int | None) -> bool:
        """Have the one leave that was not used for longest; return whether one did."""


class InstanceQueue:
    """What running guests hold of the quotas ``instances`` and ``memory_bytes``; for one event loop.

    A guest is charged with what its memory may grow to. Where that is not there now, but running guests of its tenant
    (if the tenant's quota is short) or of any (if the machine is, or what the tenant would leave free) will give some
    back, it waits; instances that are idle leave memory for it. Memory that is given back goes to those who wait, in
    the order in which they came; a guest that only its own tenant's quota or share holds back lets others past, and one
    that the machine's memory holds back lets small ones past (`PASSING`).

    Args:
        quotas: of all tenants.

    Attributes:
        waits: how often one had to wait.
        idle: instances that can leave memory; None for none.
    """

    def __init__(self, quotas: Quotas) -> None:
        """Start with no guests."""
        self._quotas = quotas
        self._running: Counter[int] = Counter()  # guests of each tenant
        self._waiting: dict[asyncio.Future[QuotaHold], _Wanted] = {}
        self._passed: dict[int, int] = {}  # bytes of guests that passed the first in the queue, by id of their holdings
        self._evicting: set[asyncio.Task[None]] = set()
        self.idle: IdleInstances | None = None
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

    def try_hold(self, tenant: int, limits: Mapping[str, int], memory_bytes: int) -> QuotaHold | None:
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

    async def hold(self, tenant: int, limits: Mapping[str, int], memory_bytes: int, deadline: Deadline) -> QuotaHold:
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

    def release(self, tenant: int, holding: QuotaHold) -> None:
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

    async def _wait(self, wanted: _Wanted, deadline: Deadline) -> QuotaHold:
        came: asyncio.Future[QuotaHold] = asyncio.get_running_loop().create_future()
        self._waiting[came] = wanted
        self._serve()
        if came in self._waiting:
            self.waits += 1
            self._make_room(came, wanted)
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

    def _make_room(self, came: asyncio.Future[QuotaHold], wanted: _Wanted) -> None:
        """Have idle instances leave memory while one waits, if that helps it."""
        tenant = wanted.tenant if "memory_bytes" in wanted.limits else None
        if self.idle is not None and self.idle.any_idle(tenant):
            task = asyncio.get_running_loop().create_task(self._evict(self.idle, came, tenant))
            self._evicting.add(task)
            task.add_done_callback(self._evicting.discard)

    async def _evict(self, idle: IdleInstances, came: asyncio.Future[QuotaHold], tenant: int | None) -> None:
        while came in self._waiting and await idle.evict_one(tenant):
            self._serve()

    def _serve(self) -> None:
        """Give those who wait what is there, in order; behind one that finds the machine's memory short, a part."""
        first: _Wanted | None = None
        for came, wanted in list(self._waiting.items()):
            passing_bytes = sum(self._passed.values()) + wanted.memory_bytes
            if first is not None and passing_bytes * PASSING > first.memory_bytes:
                continue
            try:
                holding = self._hold(wanted)
            except LimitError as short:
                if self._is_to_come(wanted, short):
                    if isinstance(short, CapacityExhausted):
                        first = first or wanted
                    continue
                came.set_exception(short)
            else:
                if first is not None:
                    self._passed[id(holding)] = wanted.memory_bytes
                came.set_result(holding)
            del self._waiting[came]

    def _hold(self, wanted: _Wanted) -> QuotaHold:
        tenant, limits, memory_bytes, instances = wanted
        holding = self._quotas.hold(tenant, limits, instances=instances, memory_bytes=memory_bytes)
        self._running[tenant] += 1
        return holding

    def _give_back(self, tenant: int, holding: QuotaHold) -> None:
        self._passed.pop(id(holding), None)
        holding.release()
        self._count_off(tenant)

    def _count_off(self, tenant: int) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def _is_to_come(self, wanted: _Wanted, short: LimitError) -> bool:
        """Return whether what is short is memory, and running guests or idle instances hold some of it."""
        tenant, limits, memory_bytes, instances = wanted
        idle = self.idle
        if isinstance(short, CapacityExhausted):
            some = bool(self._running) or (idle is not None and idle.any_idle(None))
            return some and memory_bytes <= (self._quotas.host_bytes or memory_bytes)
        held = self._quotas.usage(tenant)["instances"] + instances
        if held > limits.get("instances", held):
            return False
        if "memory_bytes" in limits:
            idle_own = idle is not None and idle.any_idle(tenant)
            return memory_bytes <= limits["memory_bytes"] and (tenant in self._running or idle_own)
        held_by_any = bool(self._running) or (idle is not None and idle.any_idle(None))
        return held_by_any and memory_bytes <= (self._quotas.most_bytes or memory_bytes)
