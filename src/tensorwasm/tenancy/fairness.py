"""Weighted fair shares of a number of slots, so that one tenant's flood of requests does not delay the others.

Start-time fair queueing. Each tenant has a tag in virtual time, which advances by cost over weight with each turn; a
free slot goes to the waiting tenant with the lowest tag, and virtual time is the tag of the latest turn. A tenant that
comes after a pause starts at virtual time: pauses are not saved up, and it is before all that have had more than their
share since. So a tenant's single request waits for the running turns, and never for another tenant's queue.

That does not help where running turns keep their slots, since nothing takes a slot away. So in a gate that yields, no
tenant takes more slots than it leaves free, and the last quarter is only for tenants that have none: that many tenants
get a slot at once, however long the others keep theirs.

Source: P. Goyal, H. M. Vin, H. Cheng, "Start-Time Fair Queueing" (SIGCOMM 1996); for more than one slot W. Jin,
J. S. Chase, J. Kaur, "Interposed Proportional Sharing for a Storage Service Utility" (SIGMETRICS 2004); for the slots
left free A. K. Choudhury, E. L. Hahne, "Dynamic Queue Length Thresholds" (IEEE/ACM ToN 1998).

`FairGate.try_enter` takes a free slot without a coroutine, else `FairGate.turn` waits for one. The caller chooses one
unit of cost for a gate, such as a millisecond of the slot. All of it is for one thread, the event loop's; for others
there is `tensorwasm.tenancy.blocking_gate`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidArgs, InvokeTimeout, RateLimited
from tensorwasm.values import NEVER, Deadline

if TYPE_CHECKING:
    import asyncio

NEWCOMERS: Final = 4
"""In a gate that yields, one part of so many of the slots is only for tenants that have none."""

FLOWS: Final = 1 << 16
"""Most tenants that are remembered; a forgotten one starts at virtual time."""


Tenant = int | str
"""A tenant, by its number or its name."""

_LOOKS: Final = 2  # flows checked for each new one: more than are added, so that obsolete ones are found
_SLACK: Final = 64  # outdated entries that the heap may have, besides as many as there are valid ones


class SlotFuture(Protocol):
    """What a waiting request gets its slot by: a future of asyncio or of a thread."""

    def done(self) -> bool:
        """Return whether it has its slot, or was cancelled."""

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""

    def exception(self) -> BaseException | None:
        """Return what it failed with."""

    def set_result(self, result: None, /) -> None:
        """Give it its slot."""


@dataclass(slots=True, eq=False)
class _Flow:
    """One tenant.

    Attributes:
        finish: tag at which its next turn starts, unless virtual time is past it.
        held: slots that it has.
        weight: of its latest request.
        waiting: its requests' futures in the order they came, each with its cost and with virtual time when it came.
        entry: number of its valid entry in the heap; 0 for none.
    """

    finish: float
    held: int = 0
    weight: float = 1.0
    waiting: OrderedDict[SlotFuture, tuple[float, float]] = field(default_factory=OrderedDict)
    entry: int = 0


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """Numbers of a gate's slots and free slots, and of waiting requests and their tenants."""

    slots: int
    free: int
    waiting: int
    tenants: int


class FairGate:
    """A number of slots, shared between tenants by weight.

    No request waits while a slot is free that its tenant may have. One tenant's requests are first in, first out.

    Args:
        slots: turns at a time.
        queue_per_tenant: requests of one tenant that may wait.
        queue: requests of all tenants together that may wait; None for no limit but each tenant's.
        yields: whether a tenant takes no more slots than it leaves free, and the last quarter only if it has none.

    Attributes:
        slots: all of them.
        free: those without a turn; all are free while no request waits or runs.
    """

    def __init__(
        self, slots: int, *, queue_per_tenant: int = 1024, queue: int | None = None, yields: bool = False
    ) -> None:
        self.slots = self.free = slots
        self._yields = yields
        self._kept = slots // NEWCOMERS
        self._queue_per_tenant = queue_per_tenant
        self._queue = queue
        self._waiting = 0  # requests
        self._tenants = 0  # with waiting requests
        self._now = 0.0  # virtual time: the tag of the latest turn
        self._latest = 0.0  # no tag is above it
        self._flows: OrderedDict[Tenant, _Flow] = OrderedDict()
        self._heap: list[tuple[float, int, _Flow]] = []  # the lowest tag of each tenant that waits
        self._entries = 0

    def try_enter(self, tenant: Tenant, weight: float = 1.0, cost: float = 1.0) -> bool:
        """Begin a turn, to be ended by `leave`, and return True if there is a free slot that the tenant may have.

        The weight is the tenant's share relative to others', and the cost that which is expected.

        Raises:
            InvalidArgs: the weight or the cost is not more than 0.
        """
        if weight <= 0 or cost <= 0:
            raise InvalidArgs(f"a turn of cost {cost:g} and weight {weight:g} has no place in the queue")
        flow = self._flows.get(tenant) or self._open(tenant)
        if not self.free or (flow.held and self._yields and not self._leaves_enough(flow)):
            return False
        self._begin(flow, weight, cost, self._now)
        return True

    def may_enter(self, tenant: Tenant) -> bool:
        """Return whether `try_enter` would begin a turn now."""
        free, flow = self.free, self._flows.get(tenant)
        return free > 0 and (flow is None or not flow.held or not self._yields or self._leaves_enough(flow))

    def charge(self, tenant: Tenant, weight: float, spent: float) -> None:
        """Account for a turn that took no slot, since it began and ended without an interruption.

        The caller has checked `may_enter`; ``spent`` is the turn's real cost.
        """
        if self.free == self.slots:
            return  # the gate is idle: there is no share to account for
        flow = self._flows.get(tenant) or self._open(tenant)
        flow.weight = weight
        flow.finish = max(flow.finish, self._now) + spent / weight
        self._latest = max(self._latest, flow.finish)
        if flow.waiting:
            self._push(flow)

    def leave(self, tenant: Tenant, spent: float | None = None, cost: float = 1.0) -> None:
        """End a turn that cost ``spent``, None for the expected ``cost``, and give the slot to the next tenant.

        Raises:
            InternalError: the tenant has no turn.
        """
        flow = self._flows.get(tenant)
        if flow is None or not flow.held:
            raise InternalError("a turn ended that never began")
        flow.held -= 1
        self.free += 1
        if spent is not None and spent != cost:
            flow.finish += (spent - cost) / flow.weight
            self._latest = max(self._latest, flow.finish)
            if flow.waiting:
                self._push(flow)
        while self._waiting and self._hand_over():
            pass
        if self.free == self.slots:
            self._now = self._latest  # the gate is idle: all debts are void

    def turn(self, tenant: Tenant, weight: float = 1.0, cost: float = 1.0, deadline: Deadline = NEVER) -> GateTurn:
        """Return a turn, to be used once: ``async with gate.turn(tenant, weight, cost) as turn``.

        Entering waits for a slot, until the deadline. A waiter that is cancelled leaves no trace, even if it has just
        been given its slot. The other arguments and InvalidArgs are as for `try_enter`.

        Raises:
            RateLimited: too many of the tenant's requests wait already.
            CapacityExhausted: too many requests wait already.
            InvokeTimeout: the deadline passed.
        """
        return GateTurn(self, tenant, weight, cost, deadline)

    def statistics(self) -> GateStatistics:
        """Return the numbers of slots and waiters; on any thread."""
        return GateStatistics(self.slots, self.free, self._waiting, self._tenants)

    async def _wait(self, tenant: Tenant, weight: float, cost: float, deadline: Deadline) -> None:
        """Wait for a slot, and begin the turn."""
        import asyncio  # noqa: PLC0415 - a process that only compiles needs none

        loop = asyncio.get_running_loop()
        slot: asyncio.Future[None] = loop.create_future()
        self.enqueue(slot, tenant, weight, cost)
        timer = None
        if deadline.at_ns is not None:
            timer = loop.call_later(deadline.remaining_s(), self._expire, tenant, slot)
        try:
            await slot
        except BaseException:
            self.withdraw(slot, tenant, cost)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def enqueue(self, slot: SlotFuture, tenant: Tenant, weight: float = 1.0, cost: float = 1.0) -> None:
        """Queue a request, whose slot gets a result when its turn has begun; `try_enter` has returned False.

        Raises:
            RateLimited: too many of the tenant's requests wait already.
            CapacityExhausted: too many requests wait already.
        """
        flow = self._flows.get(tenant) or self._open(tenant)
        if len(flow.waiting) >= self._queue_per_tenant:
            raise RateLimited(f"{self._queue_per_tenant} requests of the tenant are waiting already")
        if self._queue is not None and self._waiting >= self._queue:
            raise CapacityExhausted(f"{self._queue} requests are waiting already")
        flow.weight = weight
        flow.waiting[slot] = (cost, self._now)
        self._waiting += 1
        if len(flow.waiting) == 1:
            self._tenants += 1
            self._push(flow)

    def withdraw(self, slot: SlotFuture, tenant: Tenant, cost: float = 1.0) -> None:
        """Take back a queued request that waits no more: pass its slot on at no cost if it has just got it."""
        if slot.done() and not slot.cancelled() and slot.exception() is None:
            self.leave(tenant, 0.0, cost)
        elif (flow := self._flows.get(tenant)) is not None:
            self._forget(flow, slot)

    def _expire(self, tenant: Tenant, slot: asyncio.Future[None]) -> None:
        """Fail a waiter whose deadline has passed."""
        if not slot.done():
            slot.set_exception(InvokeTimeout("the deadline passed while the request waited for its turn"))
            self._forget(self._flows[tenant], slot)

    def _forget(self, flow: _Flow, slot: SlotFuture) -> None:
        """Remove a waiter that got no slot, if it is still queued."""
        if flow.waiting.pop(slot, None) is None:
            return
        self._waiting -= 1
        if not flow.waiting:
            self._tenants -= 1
            flow.entry = 0

    def _hand_over(self) -> bool:
        """Begin the turn of the next tenant; return False if no waiting tenant may have a slot."""
        passed: list[tuple[float, int, _Flow]] = []  # entries of tenants that may have no more slots now
        try:
            while self._heap and self.free:
                item = heapq.heappop(self._heap)
                _, entry, flow = item
                if entry != flow.entry:
                    continue
                if flow.held and self._yields and not self._leaves_enough(flow):
                    passed.append(item)
                    continue
                slot, (cost, came) = flow.waiting.popitem(last=False)
                self._waiting -= 1
                flow.entry = 0
                given = not slot.done()  # a waiter that was cancelled just now has not removed itself yet
                if given:
                    self._begin(flow, flow.weight, cost, came)
                    slot.set_result(None)
                if flow.waiting:
                    self._push(flow)
                else:
                    self._tenants -= 1
                if given:
                    return True
            return False
        finally:
            for each in passed:
                heapq.heappush(self._heap, each)

    def _leaves_enough(self, flow: _Flow) -> bool:
        """Return whether a tenant that has slots may have another one in a gate that yields."""
        return flow.held < self.free and self.free > self._kept

    def _begin(self, flow: _Flow, weight: float, cost: float, came: float) -> None:
        """Give a flow a slot; advance its tag, and virtual time to the turn's start.

        A turn starts at the flow's tag, or at virtual time when its request came. Virtual time at the turn's begin does
        not count: a flow whose turns cost less than expected has a tag behind it, and gets what it is owed.
        """
        self.free -= 1
        flow.held += 1
        start = flow.finish
        if start < came:  # noqa: PLR1730 - here and below a call of max would cost as much as all the rest
            start = came
        if start > self._now:  # noqa: PLR1730 - the same
            self._now = start
        flow.weight = weight
        flow.finish = finish = start + cost / weight
        if finish > self._latest:  # noqa: PLR1730 - the same
            self._latest = finish

    def _push(self, flow: _Flow) -> None:
        """Put a waiting flow into the heap, in place of its old entry."""
        self._entries += 1
        flow.entry = self._entries
        _, came = next(iter(flow.waiting.values()))
        heapq.heappush(self._heap, (max(came, flow.finish), flow.entry, flow))
        if len(self._heap) > _SLACK + 2 * self._waiting:
            self._heap = [each for each in self._heap if each[1] == each[2].entry]
            heapq.heapify(self._heap)

    def _open(self, tenant: Tenant) -> _Flow:
        for _ in range(min(_LOOKS, len(self._flows))):
            old, flow = self._flows.popitem(last=False)
            if flow.waiting or flow.held or (flow.finish > self._now and len(self._flows) < FLOWS):
                self._flows[old] = flow
        flow = self._flows[tenant] = _Flow(self._now)
        return flow


@dataclass(slots=True, eq=False)
class GateTurn:
    """A turn at a gate, made by `FairGate.turn`; ``spent`` is the real cost, None for the expected one."""

    gate: FairGate
    tenant: Tenant
    weight: float
    cost: float
    deadline: Deadline
    spent: float | None = None

    async def __aenter__(self) -> Self:
        if not self.gate.try_enter(self.tenant, self.weight, self.cost):
            await self.gate._wait(self.tenant, self.weight, self.cost, self.deadline)  # noqa: SLF001 - the gate's own
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.gate.leave(self.tenant, self.spent, self.cost)
