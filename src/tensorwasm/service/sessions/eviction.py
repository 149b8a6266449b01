"""Room for instances: quotas, a cap, and who has to leave memory when either is reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tensorwasm.errors import (
    CapacityExhausted,
    NotCapturable,
    QuotaExceeded,
    SessionElsewhere,
    TensorWasmError,
)
from tensorwasm.service.sessions.entry import SessionEntry
from tensorwasm.service.sessions.instances import Live
from tensorwasm.service.sessions.leases import Leases
from tensorwasm.service.sessions.operation_queue import OperationQueue
from tensorwasm.service.sessions.persistence import SessionKeeper
from tensorwasm.tenancy.quotas import QuotaHold
from tensorwasm.values import Deadline

if TYPE_CHECKING:
    from tensorwasm.service.functions.resolution import Resolved


class Hold(Protocol):
    """Takes from a tenant's quotas."""

    def __call__(self, tenant: int, memory_bytes: int, instances: int = 1) -> QuotaHold:
        """Return what is held until it is released.

        Raises:
            QuotaExceeded: the tenant may have no more.
            CapacityExhausted: all tenants together may not.
        """


class Guests(Protocol):
    """All guests that hold memory, those of sessions and others; they wait for each other's."""

    def freed(self, tenant: int, memory_bytes: int, deadline: Deadline) -> AbstractAsyncContextManager[None]:
        """Wait until others have given so many bytes back that a tenant may hold, which must be held inside at once.

        Raises:
            LimitError: there is nothing to wait for, or it took too long.
            InvokeTimeout: the deadline passed.
        """

    def begin(self, tenant: int) -> None:
        """Count a session that is charged for what it may grow to, and soon for less."""

    def end(self, tenant: int) -> None:
        """Count it no more: it is charged for less, or for nothing."""


TRIES: Final = 8
"""Sessions that are asked to leave for one that comes, before that one is refused."""

_log = logging.getLogger(__name__)


class InstanceRoom:
    """Instances in memory. Used on one event loop.

    Args:
        keeper: saves those that leave.
        leases: are let go of with those that leave.
        hold: of the quotas.
        guests: that hold memory; None where there are no others than these.
        most: instances there may be.
        line: sessions that somebody wants something of, or that are in memory.
    """

    def __init__(
        self, keeper: SessionKeeper, leases: Leases, hold: Hold, guests: Guests | None, most: int, line: OperationQueue
    ) -> None:
        """Begin empty."""
        self._keeper = keeper
        self._leases = leases
        self._hold = hold
        self._guests = guests
        self._most = most
        self._line = line
        self._coming = 0

    async def let_in(
        self, seat: SessionEntry, resolved: Resolved, make: Callable[[], Awaitable[Live]], deadline: Deadline
    ) -> None:
        """Give a session an instance, which is charged to its tenant's quotas as long as it is in memory.

        Memory counts as what it may grow to: a guest that grows asks nobody. Where something is short, the session
        that was not used for longest leaves: of the tenant if it is the tenant's quota, else of all. Where none can,
        what running guests will give back is waited for.

        Raises:
            QuotaExceeded: the tenant's quota is used up by what cannot leave, or did not end in time.
            CapacityExhausted: likewise that of all tenants.
            TensorWasmError: what `make` raises.
        """
        await self._insist(seat, partial(self._try, seat, resolved, make), resolved.limits.memory_bytes, deadline)

    async def widen(self, seat: SessionEntry, resolved: Resolved, deadline: Deadline) -> None:
        """Charge for what an instance in memory may grow to, before it is called.

        Raises:
            QuotaExceeded: as for `let_in`.
            CapacityExhausted: likewise.
        """
        if seat.holding is None:
            return
        holding = seat.holding

        async def hold() -> None:
            if (more_bytes := resolved.limits.memory_bytes - holding.memory_bytes) > 0:
                holding.add(self._hold(seat.tenant, more_bytes, 0))
            self._begin(seat)

        await self._insist(seat, hold, resolved.limits.memory_bytes - holding.memory_bytes, deadline)

    def narrow(self, seat: SessionEntry) -> None:
        """Charge an instance that is not called any more for what it has: it grows no further by itself."""
        if seat.live is not None and seat.holding is not None and (has := seat.live.statistics().memory_bytes):
            seat.holding.keep(has)
        self._end(seat)

    def _begin(self, seat: SessionEntry) -> None:
        if not seat.wide:
            seat.wide = True
            if self._guests is not None:
                self._guests.begin(seat.tenant)

    def _end(self, seat: SessionEntry) -> None:
        if seat.wide:
            seat.wide = False
            if self._guests is not None:
                self._guests.end(seat.tenant)

    async def _insist(
        self, seat: SessionEntry, work: Callable[[], Awaitable[None]], more_bytes: int, deadline: Deadline
    ) -> None:
        """Do something that takes more memory at once, and while a limit refuses it have others leave, or end."""
        for left in reversed(range(TRIES + 1)):
            try:
                return await work()
            except (CapacityExhausted, QuotaExceeded) as short:
                if left and await self.evict_one(seat.tenant if isinstance(short, QuotaExceeded) else None):
                    continue
                if self._guests is None or more_bytes <= 0:
                    raise
                room = self._guests.freed(seat.tenant, more_bytes, deadline)
                break
        async with room:
            return await work()

    async def leave(self, seat: SessionEntry) -> None:
        """Save an instance and let it go; whoever holds the seat's turn calls this. If it cannot be saved it stays.

        Raises:
            TensorWasmError: what `SessionKeeper.persist` raises.
        """
        if seat.known().status != "fresh":  # such a one is made anew
            await self._keeper.persist(seat)
        await self.empty(seat)

    async def empty(self, seat: SessionEntry) -> None:
        """Free an instance as it is; whoever holds the seat's turn calls this."""
        live, seat.live, seat.resolved = seat.live, None, None
        holding, seat.holding = seat.holding, None
        with holding or nullcontext():
            if live is not None:
                await self._keeper.run(live.close)
        self._end(seat)

    async def settle(self, seat: SessionEntry) -> None:
        """Forget what another server took or what is gone, and let others have what is not in memory or not needed.

        Whoever holds the seat's turn calls this when done with it.
        """
        if seat.record is not None and not self._leases.holds(seat):
            # A save whose row could not be written may be the one that the row leads to: `SessionKeeper.tidy` knows
            # later.
            seat.record = None
            seat.stale.clear()
        if seat.record is None and seat.live is not None:
            await self.empty(seat)
        elif seat.live is None:
            await self._leases.release(seat)
        if seat.wide:
            self.narrow(seat)

    async def evict(self, seat: SessionEntry) -> bool:
        """Have a session that is idle leave memory, and return whether it did. What prevents it is logged."""
        if not seat.idle or (seat.stuck and self._leases.holds(seat)):
            return False
        try:
            with self._line.busy(seat):
                async with seat.turn:
                    try:
                        await self.leave(seat)
                    finally:
                        await self.settle(seat)
        except SessionElsewhere:
            _log.info("session %s was taken by another server", seat.id)
        except NotCapturable as error:
            _log.info("session %s stays in memory: %s", seat.id, error.kind)
        except TensorWasmError as error:
            _log.warning("session %s could not be saved, and stays in memory: %s", seat.id, error.kind)
        return seat.live is None

    async def _try(self, seat: SessionEntry, resolved: Resolved, make: Callable[[], Awaitable[Live]]) -> None:
        if self._coming + sum(each.live is not None for each in self._line.seats()) >= self._most:
            raise CapacityExhausted(f"{self._most} sessions are in memory, and none of them can leave")
        self._coming += 1
        try:
            with ExitStack() as undo:
                undo.callback(self._end, seat)
                held = undo.enter_context(self._hold(seat.tenant, resolved.limits.memory_bytes))
                self._begin(seat)
                seat.live = await make()
                seat.resolved, seat.holding = resolved, held
                undo.pop_all()
        finally:
            self._coming -= 1

    def any_idle(self, tenant: int | None) -> bool:
        """Return whether a session could leave; of one tenant, or of any for None."""
        return any(self._may_leave(each, tenant) for each in self._line.seats())

    async def evict_one(self, tenant: int | None) -> bool:
        """Have the idle session leave that was not used for longest, and return whether one did."""
        idle = [each for each in self._line.seats() if self._may_leave(each, tenant)]
        for each in sorted(idle, key=lambda each: each.used_ns)[:TRIES]:
            if await self.evict(each):
                return True
        return False

    @staticmethod
    def _may_leave(seat: SessionEntry, tenant: int | None) -> bool:
        return seat.idle and not seat.stuck and (tenant is None or seat.tenant == tenant)

    async def sweep(self, unused_since_ns: int) -> int:
        """Have every idle session leave that was not used since a time, and return how many did."""
        idle = [each for each in self._line.seats() if each.idle and each.used_ns <= unused_since_ns]
        return sum(await asyncio.gather(*map(self.evict, idle)))
