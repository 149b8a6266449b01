"""Weighted fair shares of a number of slots: a flood stays its sender's problem.

Start-time fair queueing. Each tenant has a tag in virtual time, which moves on by cost over weight with each turn it
gets; a free slot goes to the tenant whose tag is lowest, and virtual time is the tag of whoever got a slot last. Who
comes after a pause starts at virtual time: pauses are not saved up, and he is before all who have had more than their
share since. So a tenant's single request is behind those that hold the slots, and never behind another's queue.

That is no help where those that hold the slots keep them: nothing takes a slot away. So a gate may be one that yields:
no tenant takes more slots than it leaves free, and the last quarter of them goes to tenants that have none. So for as
many tenants as that, however much those before them keep, there is a slot at once.

Source: P. Goyal, H. M. Vin, H. Cheng, "Start-Time Fair Queueing" (SIGCOMM 1996); for more than one slot W. Jin,
J. S. Chase, J. Kaur, "Interposed Proportional Sharing for a Storage Service Utility" (SIGMETRICS 2004); for what is
left free A. K. Choudhury, E. L. Hahne, "Dynamic Queue Length Thresholds" (IEEE/ACM ToN 1998).

How a server uses it. Where there is a free slot, without a coroutine::

    if gate.try_enter(tenant, weight):
        try:
            ...  # begin the call; if it ends at once, so does the turn
        finally:
            gate.leave(tenant, spent=measured)
    else:
        async with gate.turn(tenant, weight, deadline=deadline) as turn:
            ...
            turn.spent = measured

The unit of cost is the caller's, one and the same for a gate; a millisecond of the slot is a good one, since what was
spent can be measured. All of it is for one thread, the event loop's.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tensorwasm.errors import CapacityExhausted, InternalError, InvalidArgs, InvokeTimeout, RateLimited
from tensorwasm.values import NEVER, Deadline

NEWCOMERS: Final = 4
"""Where tenants yield, one part of so many of the slots is for those that have none."""

FLOWS: Final = 1 << 16
"""Tenants remembered at most; one who is forgotten starts at virtual time."""

_LOOKS: Final = 2  # flows looked at for each new one: more than come, so that what no longer counts is found
_SLACK: Final = 64  # entries of the heap that may be out of date, besides as many as are not


class _Flow:
    """One tenant.

    Attributes:
        finish: tag at which its next turn starts, unless virtual time is past it.
        held: slots that it has.
        weight: of its latest request.
        waiting: its requests' futures in the order they came, each with its cost and with virtual time when it came.
        entry: number of its entry in the heap; 0 for none that counts.
    """

    __slots__ = ("entry", "finish", "held", "waiting", "weight")

    def __init__(self, finish: float) -> None:
        self.finish = finish
        self.held = 0
        self.weight = 1.0
        self.waiting: OrderedDict[asyncio.Future[None], tuple[float, float]] = OrderedDict()
        self.entry = 0


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A snapshot of a gate.

    Attributes:
        slots: how many there are.
        free: how many nobody has.
        waiting: requests that wait for one.
        tenants: whose requests those are.
    """

    slots: int
    free: int
    waiting: int
    tenants: int


class FairGate:
    """A number of slots, shared between tenants by weight.

    Nobody waits while a slot is free that he may have. Of one tenant's requests the first to come is the first to go.

    Args:
        slots: turns at a time.
        queue_per_tenant: requests of one tenant that may wait.
        queue: requests of all tenants together that may wait; None for no limit but each tenant's.
        yields: no tenant takes more slots than it leaves free, so one alone has half of them; and none that has any
            takes of the last quarter.
    """

    def __init__(
        self, slots: int, *, queue_per_tenant: int = 1024, queue: int | None = None, yields: bool = False
    ) -> None:
        """Start with all slots free."""
        self._slots = self._free = slots
        self._yields = yields
        self._kept = slots // NEWCOMERS
        self._queue_per_tenant = queue_per_tenant
        self._queue = queue
        self._waiting = 0  # requests
        self._tenants = 0  # whose requests those are
        self._now = 0.0  # virtual time: the tag of the latest turn
        self._latest = 0.0  # no tag is above it
        self._flows: OrderedDict[int, _Flow] = OrderedDict()
        self._heap: list[tuple[float, int, _Flow]] = []  # the lowest tag of each tenant that waits
        self._entries = 0

    def try_enter(self, tenant: int, weight: float = 1.0, cost: float = 1.0) -> bool:
        """Begin a turn if there is a free slot that the tenant may have; whoever does must `leave`.

        Args:
            tenant: whose turn.
            weight: its share beside others'; more than 0.
            cost: what the turn is expected to spend; more than 0.

        Raises:
            InvalidArgs: the weight or the cost is not more than 0.
        """
        if weight <= 0 or cost <= 0:
            raise InvalidArgs(f"a turn of cost {cost:g} and weight {weight:g} has no place in the queue")
        flow = self._flows.get(tenant) or self._open(tenant)
        if not self._free or (flow.held and self._yields and not self._leaves_enough(flow)):
            return False
        self._begin(flow, weight, cost, self._now)
        return True

    def may_enter(self, tenant: int) -> bool:
        """Return whether `try_enter` would begin a turn now."""
        free, flow = self._free, self._flows.get(tenant)
        return free > 0 and (flow is None or not flow.held or not self._yields or self._leaves_enough(flow))

    def charge(self, tenant: int, weight: float, spent: float) -> None:
        """Count a turn that began and ended before anybody else could have had one, and so took no slot.

        Args:
            tenant: whose turn it was; `may_enter` said that it may.
            weight: as for `try_enter`.
            spent: what it spent.
        """
        if self._free == self._slots:
            return  # nobody waits, nobody runs: nobody owes anything
        flow = self._flows.get(tenant) or self._open(tenant)
        flow.weight = weight
        flow.finish = max(flow.finish, self._now) + spent / weight
        self._latest = max(self._latest, flow.finish)
        if flow.waiting:
            self._push(flow)

    def leave(self, tenant: int, spent: float | None = None, cost: float = 1.0) -> None:
        """End a turn; the slot goes to whoever is next.

        Args:
            tenant: whose turn it was.
            spent: what it spent in truth; None for what was expected.
            cost: what was expected when it began.

        Raises:
            InternalError: nobody had a turn.
        """
        flow = self._flows.get(tenant)
        if flow is None or not flow.held:
            raise InternalError("a turn ended that never began")
        flow.held -= 1
        self._free += 1
        if spent is not None and spent != cost:
            self._correct(flow, spent - cost)
        while self._waiting and self._hand_over():
            pass
        if self._free == self._slots:
            self._now = self._latest  # nobody waits, nobody runs: nobody owes anything

    def turn(self, tenant: int, weight: float = 1.0, cost: float = 1.0, deadline: Deadline = NEVER) -> Turn:
        """Return a turn, to be used once: ``async with gate.turn(tenant, weight, cost) as turn``.

        Entering waits for a slot. A waiter that is cancelled leaves no trace, even if it has just been given its slot.

        Args:
            tenant: whose turn.
            weight: its share beside others'; more than 0.
            cost: what the turn is expected to spend; more than 0.
            deadline: when waiting ends.

        Raises:
            InvalidArgs: on entering: the weight or the cost is not more than 0.
            RateLimited: on entering: as many of the tenant's requests wait as may.
            CapacityExhausted: on entering: as many requests wait as may.
            InvokeTimeout: on entering: the deadline passed.
        """
        return Turn(self, tenant, weight, cost, deadline)

    def statistics(self) -> GateStatistics:
        """Return a snapshot; on any thread."""
        return GateStatistics(self._slots, self._free, self._waiting, self._tenants)

    async def _wait(self, tenant: int, weight: float, cost: float, deadline: Deadline) -> None:
        """Wait for a slot, and begin the turn."""
        flow = self._flows.get(tenant) or self._open(tenant)
        if len(flow.waiting) >= self._queue_per_tenant:
            raise RateLimited(f"{self._queue_per_tenant} requests of the tenant are waiting already")
        if self._queue is not None and self._waiting >= self._queue:
            raise CapacityExhausted(f"{self._queue} requests are waiting already")
        loop = asyncio.get_running_loop()
        slot: asyncio.Future[None] = loop.create_future()
        timer = None
        if deadline.at_ns is not None:
            timer = loop.call_later(deadline.remaining_s(), self._expire, flow, slot)
        flow.weight = weight
        flow.waiting[slot] = (cost, self._now)
        self._waiting += 1
        if len(flow.waiting) == 1:
            self._tenants += 1
            self._push(flow)
        try:
            await slot
        except BaseException:
            if slot.done() and not slot.cancelled() and slot.exception() is None:
                self.leave(tenant, 0.0, cost)  # cancelled with the slot in hand: it goes on, and cost nothing
            else:
                self._forget(flow, slot)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, flow: _Flow, slot: asyncio.Future[None]) -> None:
        """End a waiter whose deadline has passed."""
        if not slot.done():
            slot.set_exception(InvokeTimeout("the deadline passed while the request waited for its turn"))
            self._forget(flow, slot)

    def _forget(self, flow: _Flow, slot: asyncio.Future[None]) -> None:
        """Take a waiter that got no slot out of the queue, if it is in there."""
        if flow.waiting.pop(slot, None) is None:
            return
        self._waiting -= 1
        if not flow.waiting:
            self._tenants -= 1
            flow.entry = 0

    def _hand_over(self) -> bool:
        """Begin the turn of whoever is next; False if nobody waits any more who may have a slot."""
        passed: list[tuple[float, int, _Flow]] = []
        try:
            return self._hand_to_next(passed)
        finally:
            for each in passed:
                heapq.heappush(self._heap, each)

    def _hand_to_next(self, passed: list[tuple[float, int, _Flow]]) -> bool:
        """Do so; entries of those that may have no more are put into ``passed``."""
        while self._heap and self._free:
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
            given = not slot.done()  # one that was cancelled just now has not taken itself out yet
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

    def _leaves_enough(self, flow: _Flow) -> bool:
        """Return whether a tenant that has slots may have another where tenants yield."""
        return flow.held < self._free and self._free > self._kept

    def _begin(self, flow: _Flow, weight: float, cost: float, came: float) -> None:
        """Give a flow a slot; move its tag on, and virtual time to where it was.

        A turn starts at the flow's tag, or at virtual time when its request came. What it is when the turn begins does
        not count: a flow whose turns took less than was expected has a tag behind it, and gets what it is owed.
        """
        self._free -= 1
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

    def _correct(self, flow: _Flow, more: float) -> None:
        """Move a flow's tag by what its turn cost more than was expected, or less."""
        flow.finish += more / flow.weight
        self._latest = max(self._latest, flow.finish)
        if flow.waiting:
            self._push(flow)

    def _push(self, flow: _Flow) -> None:
        """Put a flow that waits into the heap, instead of where it was."""
        self._entries += 1
        flow.entry = self._entries
        _, came = next(iter(flow.waiting.values()))
        heapq.heappush(self._heap, (max(came, flow.finish), flow.entry, flow))
        if len(self._heap) > _SLACK + 2 * self._waiting:
            self._heap = [each for each in self._heap if each[1] == each[2].entry]
            heapq.heapify(self._heap)

    def _open(self, tenant: int) -> _Flow:
        """Return a new flow, after a look at those that were not looked at longest."""
        for _ in range(min(_LOOKS, len(self._flows))):
            old, flow = self._flows.popitem(last=False)
            if flow.waiting or flow.held or (flow.finish > self._now and len(self._flows) < FLOWS):
                self._flows[old] = flow
        flow = self._flows[tenant] = _Flow(self._now)
        return flow


class Turn:
    """A turn at a gate, made by `FairGate.turn`.

    Attributes:
        spent: what it spent in truth, set before it ends; None for what was expected.
    """

    __slots__ = ("_cost", "_deadline", "_gate", "_tenant", "_weight", "spent")

    def __init__(self, gate: FairGate, tenant: int, weight: float, cost: float, deadline: Deadline) -> None:
        """Remember whose turn it is to be."""
        self._gate = gate
        self._tenant = tenant
        self._weight = weight
        self._cost = cost
        self._deadline = deadline
        self.spent: float | None = None

    async def __aenter__(self) -> Self:
        """Wait for a slot; see `FairGate.turn`."""
        if not self._gate.try_enter(self._tenant, self._weight, self._cost):
            await self._gate._wait(self._tenant, self._weight, self._cost, self._deadline)  # noqa: SLF001 - the gate's own
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Give the slot to whoever is next."""
        self._gate.leave(self._tenant, self.spent, self._cost)
