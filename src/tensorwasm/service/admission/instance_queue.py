"""`InstanceQueue`: holds the quotas of guests' instances, and queues guests for memory that others release."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

from tensorwasm import machine_memory
from tensorwasm.errors import CapacityExhausted, InvokeTimeout, LimitError
from tensorwasm.tenancy.quotas import LEAST_MEMORY_BYTES, QuotaHold, Quotas, TenantPolicy
from tensorwasm.values import MIB, Deadline

WAIT_S: Final = 2.0
"""Longest wait for memory: a call that waits occupies a request slot that others may need."""

LOOK_S: Final = 0.05
"""Seconds between looks of waiting calls at what nothing tells of: what other processes released, and sessions that
became idle."""

PASSING: Final = 8
"""Where the machine's memory is short, calls behind the first in the queue may together hold ``1 / PASSING`` of what it
wants: small ones are not blocked by a large one, which still gets all other memory that is released."""

RESERVE: Final = 8
"""``1 / RESERVE`` of the machine's memory is for everything but instances: answers, caches, the database."""

LEAST_RESERVE_BYTES: Final = 384 * MIB
COMPILERS: Final = 4
"""``1 / COMPILERS`` of the machine's memory is for compilations."""


def host_bytes(limit_bytes: int | None = None) -> int:
    """Return the linear memory that all instances together may hold, at least one instance of the default size.

    What an instance may grow to is held before it is made. `limit_bytes` is what the process may use; None asks the
    machine or its control group.
    """
    whole = machine_memory.limit_bytes() if limit_bytes is None else limit_bytes
    return max(LEAST_MEMORY_BYTES, whole - whole // COMPILERS - max(LEAST_RESERVE_BYTES, whole // RESERVE))


class _Wanted(NamedTuple):
    """What a call waits for."""

    tenant: int
    limits: Mapping[str, int]
    memory_bytes: int
    instances: int = 1

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What is equal for calls of which either all find what they want, or none does."""
        return self.tenant, id(self.limits), self.memory_bytes, self.instances


class IdleInstances(Protocol):
    """Instances of idle sessions, which can be evicted from memory."""

    def any_idle(self, tenant: int | None) -> bool:
        """Return whether an instance of a tenant, or of any tenant for None, can be evicted."""

    async def evict_one(self, tenant: int | None) -> bool:
        """Evict the least recently used one; return whether one was evicted."""


class InstanceQueue:
    """The quotas ``instances`` and ``memory_bytes`` that running guests hold. For one event loop.

    A guest is charged with what its memory may grow to. It waits where that is not free but will be released by running
    guests of its tenant (if the tenant's quota is short) or of any tenant (if the machine's memory or the tenant's fair
    share is short); idle instances are evicted for it. Released memory goes to the waiting calls in order of arrival.
    A call that only its own tenant's quota or share holds back does not block others, and one that waits for the
    machine's memory does not block small ones (`PASSING`). Memory that other processes hold will be released, too, as
    far as is known here; while calls wait, it is looked at every `LOOK_S`, and so is whether an instance became idle.

    Args:
        quotas: what is held.
        policy: returns a tenant's policy, whose quotas `freed` observes.

    Attributes:
        waits: number of calls that had to wait.
        idle: instances that can be evicted; None for none.
    """

    def __init__(self, quotas: Quotas, policy: Callable[[int], TenantPolicy]) -> None:
        self._quotas = quotas
        self._policy = policy
        self._running: Counter[int] = Counter()  # guests of each tenant
        self._waiting: dict[asyncio.Future[QuotaHold], _Wanted] = {}
        self._alike: Counter[tuple[int, int, int, int]] = Counter()  # waiting calls, by their keys
        self._passed: dict[int, int] = {}  # bytes of guests that passed the first waiting call, by id() of the hold
        self._machine_short: set[asyncio.Future[QuotaHold]] = set()  # waiting calls for which the machine is too full
        self._evicting: dict[asyncio.Task[None], asyncio.Future[QuotaHold]] = {}  # for which waiting calls
        self._look: asyncio.TimerHandle | None = None
        self.idle: IdleInstances | None = None
        self.waits = 0

    @property
    def waiting(self) -> int:
        """Number of waiting calls."""
        return len(self._waiting)

    def will_be_free(
        self, short: LimitError, tenant: int, limits: Mapping[str, int], memory_bytes: int, instances: int = 1
    ) -> bool:
        """Return whether instances that were refused because of `short` will find what they need if they wait.

        They will where only memory is short, and running guests, idle instances or other processes will release some.
        """
        if isinstance(short, CapacityExhausted):
            return memory_bytes <= (self._quotas.host_bytes or memory_bytes) and (
                self._any_running() or self._any_idle(None)
            )
        held = self._quotas.usage(tenant)["instances"] + instances
        if held > limits.get("instances", held):
            return False
        if "memory_bytes" in limits:
            return memory_bytes <= limits["memory_bytes"] and (
                tenant in self._running or self._any_idle(tenant) or bool(self._quotas.held_elsewhere(tenant))
            )
        return memory_bytes <= (self._quotas.most_bytes or memory_bytes) and (
            self._any_running() or self._any_idle(tenant)
        )

    def try_hold(self, tenant: int, limits: Mapping[str, int], memory_bytes: int) -> QuotaHold | None:
        """Hold the quotas of an instance that may grow to `memory_bytes`; return None if `hold` must wait for them.

        Raises:
            QuotaExceeded: a quota of `limits` is short, and no running guest will release any of it.
            CapacityExhausted: likewise the machine's memory.
        """
        if self._waiting:
            return None
        wanted = _Wanted(tenant, limits, memory_bytes)
        try:
            return self._hold(wanted)
        except LimitError as short:
            if not self.will_be_free(short, *wanted):
                raise
            return None

    async def hold(self, tenant: int, limits: Mapping[str, int], memory_bytes: int, deadline: Deadline) -> QuotaHold:
        """Hold the quotas of an instance as soon as they are free; waits until the deadline, `WAIT_S` at most.

        Raises as `try_hold` does, also if they are still short after the wait, and InvokeTimeout at the deadline.
        """
        return await self._wait(_Wanted(tenant, limits, memory_bytes), deadline)

    def release(self, tenant: int, hold: QuotaHold) -> None:
        """Release what an instance held, and serve the waiting calls."""
        self._release(tenant, hold)
        if self._waiting:
            self._serve()

    def begin(self, tenant: int) -> None:
        """Count a running guest that holds its memory elsewhere and will release some: that of a session."""
        self._running[tenant] += 1

    def end(self, tenant: int) -> None:
        """Stop counting it, and serve the waiting calls."""
        self._count_off(tenant)
        self._serve()

    @asynccontextmanager
    async def freed(self, tenant: int, memory_bytes: int, deadline: Deadline) -> AsyncIterator[None]:
        """Wait as `hold` does for memory that the caller then takes itself, inside the context and before any await."""
        hold = await self._wait(_Wanted(tenant, self._policy(tenant).quotas, memory_bytes, 0), deadline)
        self._release(tenant, hold)
        try:
            yield
        finally:
            self._serve()

    async def _wait(self, wanted: _Wanted, deadline: Deadline) -> QuotaHold:
        granted: asyncio.Future[QuotaHold] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = wanted
        self._alike[wanted.key] += 1
        if self._machine_short or self._alike[wanted.key] == 1:  # else it is behind one that would be served first
            self._serve()
        if granted in self._waiting:
            self.waits += 1
            self._evict_idle(granted)
            self._look_later()
        try:
            await asyncio.wait((granted,), timeout=min(deadline.remaining_s(), WAIT_S))
        except asyncio.CancelledError:
            if granted.done() and granted.exception() is None:
                self.release(wanted.tenant, granted.result())
            raise
        finally:
            self._machine_short.discard(granted)
            if not granted.done():
                self._remove(granted)
                self._serve()
        if granted.done():
            return granted.result()
        if deadline.expired():
            raise InvokeTimeout("the deadline passed while the call waited for memory")
        return self._hold(wanted)

    def _evicts_of(self, granted: asyncio.Future[QuotaHold]) -> int | None:
        """Return whose instances are evicted for a waiting call: any if the machine is too full, else its tenant's."""
        return None if granted in self._machine_short else self._waiting[granted].tenant

    def _evict_idle(self, granted: asyncio.Future[QuotaHold]) -> None:
        """Evict idle instances while a call waits."""
        tenant = self._evicts_of(granted)
        if self.idle is not None and self.idle.any_idle(tenant):
            task = asyncio.get_running_loop().create_task(self._evict(self.idle, granted, tenant))
            self._evicting[task] = granted
            task.add_done_callback(self._evicted)

    async def _evict(self, idle: IdleInstances, granted: asyncio.Future[QuotaHold], tenant: int | None) -> None:
        while granted in self._waiting and await idle.evict_one(tenant):
            self._serve()

    def _evicted(self, task: asyncio.Task[None]) -> None:
        del self._evicting[task]
        self._serve()

    def _serve(self) -> None:
        """Give free memory to the waiting calls in order; behind one that the machine is too full for, only a part."""
        first: _Wanted | None = None
        short_of: dict[tuple[int, int, int, int], LimitError] = {}  # what holds calls back, until one takes something
        for granted, wanted in list(self._waiting.items()):
            if first is None:
                if len(short_of) == len(self._alike):
                    return  # all others want the same as one that was looked at
            elif (sum(self._passed.values()) + wanted.memory_bytes) * PASSING > first.memory_bytes:
                continue
            known = short_of.get(wanted.key)
            if known is not None:
                if isinstance(known, CapacityExhausted):
                    self._machine_short.add(granted)
                continue
            try:
                hold = self._hold(wanted)
            except LimitError as short:
                if self.will_be_free(short, *wanted):
                    short_of[wanted.key] = short
                    if isinstance(short, CapacityExhausted):
                        first = first or wanted
                        self._machine_short.add(granted)
                    continue
                granted.set_exception(short)
            else:
                short_of.clear()
                if first is not None:
                    self._passed[id(hold)] = wanted.memory_bytes
                granted.set_result(hold)
            self._remove(granted)

    def _remove(self, granted: asyncio.Future[QuotaHold]) -> None:
        key = self._waiting.pop(granted).key
        self._alike[key] -= 1
        if not self._alike[key]:
            del self._alike[key]

    def _look_later(self) -> None:
        """Serve the waiting calls again soon, if what they wait for may be released without a word."""
        if (self._quotas.is_shared or self.idle is not None) and self._waiting and self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._serve()
        served = {self._evicts_of(granted) for granted in self._evicting.values() if granted in self._waiting}
        for granted in self._waiting:
            if (tenant := self._evicts_of(granted)) not in served:
                served.add(tenant)
                self._evict_idle(granted)
        self._look_later()

    def _hold(self, wanted: _Wanted) -> QuotaHold:
        tenant, limits, memory_bytes, instances = wanted
        hold = self._quotas.hold(tenant, limits, instances=instances, memory_bytes=memory_bytes)
        self._running[tenant] += 1
        return hold

    def _release(self, tenant: int, hold: QuotaHold) -> None:
        self._passed.pop(id(hold), None)
        self._count_off(tenant)
        hold.release()

    def _count_off(self, tenant: int) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]

    def _any_running(self) -> bool:
        """Return whether a guest runs, or another process holds memory, which may be of one that runs."""
        return bool(self._running) or self._quotas.held_elsewhere(None) > 0

    def _any_idle(self, tenant: int | None) -> bool:
        """Return whether an idle instance can be evicted, or one is being evicted, which is not idle any more."""
        return bool(self._evicting) or (self.idle is not None and self.idle.any_idle(tenant))
