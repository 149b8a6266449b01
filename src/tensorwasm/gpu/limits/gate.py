"""The gate on concurrent GPU work, which all sessions of a process share, and one session's permit at it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tensorwasm.errors import CapacityExhausted, LimitError
from tensorwasm.gpu.device.limits import DEADLINE_NEAR_S, MAX_CONCURRENT_OPERATIONS
from tensorwasm.gpu.limits.asking import start_asking
from tensorwasm.gpu.limits.holder import Holder, IdleQuestion
from tensorwasm.gpu.limits.tenant_queue import TenantQueue
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import Deadline


class Gate:
    """Lets a fixed number of sessions have work on the GPU at a time. Thread-safe.

    Holders queue for permits, first in, first out for each tenant. Tenants take turns: one that got or gave back a
    permit comes behind the others. A permit that comes free belongs to the next one from that moment on, and only that
    one is notified. A holder that gives up leaves the queue, but keeps a permit that came before.

    A holder keeps its permit between two pieces of work, which compiled code gives to the GPU without asking here;
    their end is not notified. So while there is a queue, one thread asks the holders every few milliseconds, and those
    that have nothing on the GPU lose their permits. Compiled code looks at its permit without a lock: a permit may be
    used twice for the length of one launch, if it is taken back at that very moment.

    Tenants can be held: their work that is on the GPU goes on, and they begin no other until they are held no more.

    Args:
        capacity: how many; 0 refuses all.
        start: has `ask` called now and then, see `start_asking`.
        each: how many one tenant may have; None if all.
        lock: of all gates whose holders may end together; a reentrant one, since garbage may be collected while it is
            taken, and that may end a session.
    """

    def __init__(
        self,
        capacity: int = MAX_CONCURRENT_OPERATIONS,
        start: Callable[[Callable[[], bool]], bool] = start_asking,
        *,
        each: int | None = None,
        lock: threading.RLock | None = None,
    ) -> None:
        self._capacity = capacity
        self._each = each
        self._start = start
        self._asked = False
        self._holders: dict[Holder, None] = {}
        self._queue: TenantQueue[Holder] = TenantQueue()
        self._notify: dict[Holder, Callable[[], object]] = {}
        self._held: frozenset[str] = frozenset()
        self._lock = lock or threading.RLock()

    @property
    def in_use(self) -> int:
        """Permits taken now."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """Holders in the queue."""
        return len(self._notify)

    def enter(self, deadline: Deadline, holder: Holder) -> None:
        """Take a permit, or keep the one there is; wait for one until 50 ms before the deadline of the work.

        Raises:
            CapacityExhausted: none came free in time, or the capacity is 0.
        """
        if self.request(holder):
            return
        came, until = threading.Event(), patience(deadline)
        try:
            if not self.join(holder, came.set, until):
                return
            came.wait(min(until.remaining_s(), threading.TIMEOUT_MAX))
        except BaseException:  # a signal
            self.leave(holder)
            raise
        self.give_up(holder)

    def request(self, holder: Holder) -> bool:
        """Take a permit if one is free, or idle with another; return whether the holder has one. Never waits."""
        with self._lock:
            return self._admit(holder, asking=True)

    def offer(self, holder: Holder) -> bool:
        """Take a free permit; return whether the holder has one. Never waits."""
        with self._lock:
            return self._admit(holder, asking=False)

    def join(self, holder: Holder, notify: Callable[[], object], until: Deadline) -> bool:
        """Take a permit, or queue for one. Never waits.

        Args:
            holder: not in the queue.
            notify: called once if the permit comes later, on any thread, perhaps before this returns. Must neither wait
                nor call the gate nor raise.
            until: when the holder will give up; see `patience`.

        Returns:
            Whether the holder is in the queue, without a permit.

        Raises:
            CapacityExhausted: there is no time to wait, or the capacity is 0.
        """
        with self._lock:
            if self._admit(holder, asking=True):
                return False
            if self._capacity == 0 or until.expired():
                raise self._refusal(holder)
            self._asked = self._asked or self._start(self.ask)
            self._queue.put(holder.tenant, holder)
            self._notify[holder] = notify
            return True

    def give_up(self, holder: Holder) -> None:
        """Leave the queue; raises `CapacityExhausted` unless the permit came before."""
        with self._lock:
            if self._dequeue(holder):
                raise self._refusal(holder)

    def leave(self, holder: Holder) -> None:
        """Give a permit back, or leave the queue. Does nothing if the holder has lost the permit already."""
        with self._lock:
            self._dequeue(holder)
            self._drop(holder)
            granted = self._hand_over()
        for notify in granted:
            notify()

    def ask(self) -> bool:
        """Ask the holders for as many permits as are queued for; return whether there still is a queue."""
        with self._lock:
            granted = self._hand_over()
            for holder in tuple(self._holders):
                if not self._wanted():
                    break
                if holder.release_if_idle():
                    self._drop(holder)
                    granted += self._hand_over()
            self._asked = goes_on = bool(self._notify)
        for notify in granted:
            notify()
        return goes_on

    def hold(self, tenants: frozenset[str]) -> None:
        """Hold these tenants, and no others, from now on."""
        with self._lock:
            going_on, self._held = self._held - tenants, tenants
            for holder in self._holders:
                if holder.tenant in tenants:
                    holder.suspend()
            kept = [each for each in self._holders if each.tenant in going_on and each in self._notify]
            granted = [self._grant(holder) for holder in kept] + self._hand_over()
        for notify in granted:
            notify()

    def holders(self) -> tuple[tuple[Holder, ...], set[str]]:
        """Return who has a permit, and tenants who wait for one."""
        with self._lock:
            return tuple(self._holders), set(self._queue)

    def _admit(self, holder: Holder, *, asking: bool) -> bool:
        if holder.tenant in self._held:
            return False
        if holder in self._holders:
            return True
        if self._has_room(holder.tenant) or (asking and not self._wanted() and self._take_back(holder.tenant)):
            self._holders[holder] = None
            if self._notify:
                self._queue.end_turn(holder.tenant)
            return True
        return False

    def _has_room(self, tenant: str) -> bool:
        if len(self._holders) >= self._capacity:
            return False
        return self._each is None or sum(holder.tenant == tenant for holder in self._holders) < self._each

    def _wanted(self) -> bool:
        """Return whether somebody waits for a permit who is not held."""
        return any(tenant not in self._held for tenant in self._queue)

    def _take_back(self, tenant: str) -> bool:
        """Take permits back until there is room for a tenant's work; return whether there is."""
        for holder in tuple(self._holders):
            if holder.release_if_idle():
                self._drop(holder)
                if self._has_room(tenant):
                    return True
        return False

    def _hand_over(self) -> list[Callable[[], object]]:
        """Give free permits to those whose turn it is; return what notifies them."""
        granted = []
        while self._notify and len(self._holders) < self._capacity:
            ready = (each for each in self._queue if each not in self._held and self._has_room(each))
            tenant = next(ready, None)
            if tenant is None:
                break
            granted.append(self._grant(self._queue.first(tenant)))
        return granted

    def _grant(self, holder: Holder) -> Callable[[], object]:
        """Give a permit to one of the queue; return what notifies it."""
        notify = self._notify[holder]
        self._dequeue(holder)
        self._holders[holder] = None
        self._queue.end_turn(holder.tenant)
        return notify

    def _dequeue(self, holder: Holder) -> bool:
        if self._notify.pop(holder, None) is None:
            return False
        return self._queue.remove(holder.tenant, holder)

    def _drop(self, holder: Holder) -> None:
        if holder in self._holders:
            del self._holders[holder]
            if self._notify:
                self._queue.end_turn(holder.tenant)

    def _refusal(self, holder: Holder) -> CapacityExhausted:
        if holder.tenant in self._held:
            return CapacityExhausted("the GPU was other tenants' until the work had no time left")
        return CapacityExhausted(f"all {self._capacity} permits for concurrent GPU work are taken")


def patience(deadline: Deadline) -> Deadline:
    """Return until when work that must end by a deadline may wait for its permit: 50 ms before."""
    return deadline if deadline.at_ns is None else Deadline(deadline.at_ns - int(DEADLINE_NEAR_S * 1e9))


PROCESS_GATE: Final = Gate()


_R = TypeVar("_R")


class NoPermit(Exception):
    """There is no permit now, and the caller does not wait on its thread. All is as before: to be tried again."""


class GatePermit:
    """A permit, held from before a launch's arguments are read until the streams have drained.

    With compiled code it is kept longer, between launches, until another session needs it or the guest's call ends.

    A guest that holds no thread while it waits does its work with `attempt`; if there is no permit, it joins the queue,
    and attempts the same again once notified. The session's lock is held, except for `join`, `give_up` and `abandon`:
    they are called while the guest is suspended.

    Args:
        gate: of the process.
        layout: has the count of pending work, and shows compiled code the permit.
        idle: asks whether the session has nothing on the device.
        tenant: whose session it is.

    Attributes:
        rejected: how often there was none.
    """

    __slots__ = ("_gate", "_idle", "_layout", "_needed", "_patient", "rejected", "tenant")

    def __init__(self, gate: Gate, layout: SessionLayoutWriter, idle: IdleQuestion, tenant: str) -> None:
        self.tenant = tenant
        self._gate = gate
        self._idle = idle
        self._layout = layout
        self._needed = False
        self._patient = True
        self.rejected = 0

    def take(self, deadline: Deadline) -> None:
        """Take the permit until `settle`; raises as `Gate.enter`, and `NoPermit` instead of waiting in an `attempt`."""
        # Set before the gate looks, so that it does not take the permit back any more.
        self._needed = True
        try:
            self._enter(deadline)
        except BaseException as error:
            self._refuse(error)
            raise
        self._layout.placed = True

    def offer(self) -> None:
        """Take a free permit, if there is one, for compiled code to find; the gate may take it back."""
        self._needed = True  # as in `take`
        if self._gate.offer(self):
            self._layout.placed = True
        self._needed = False

    def renew(self) -> None:
        """Prepare for another guest of the session."""
        self.rejected = 0
        if not self._layout.placed:
            self.offer()

    def spare(self, wait: Callable[[], object], deadline: Deadline) -> None:
        """Wait for something else; the gate may take the permit back meanwhile, if it was needed."""
        needed, self._needed = self._needed, False
        wait()
        if needed:
            self.take(deadline)

    def settle(self) -> None:
        """Give the permit back unless work is pending; with compiled code keep it until another session needs it."""
        self._needed = False
        if not self._layout.pending and self._layout.layout is None:
            self.leave()

    def leave(self) -> None:
        """Give the permit back, also one that came by `join` and was not taken."""
        came, self._needed = self._needed, False
        if came or self._layout.placed:
            self._layout.placed = False
            self._gate.leave(self)

    def keep(self) -> None:
        """Keep the permit for good: work that never ends is on the GPU."""
        self._needed = True

    def suspend(self) -> None:
        """See `tensorwasm.gpu.limits.gate.Holder`."""
        self._layout.placed = False

    def runs(self) -> bool:
        """Return whether the session has work on the device now. Any thread may ask."""
        return self._layout.pending > 0 and not self._idle.at_once()

    def given(self) -> tuple[int, int, int]:
        """Return what grows whenever compiled code gives work."""
        return self._layout.traffic

    def release_if_idle(self) -> bool:
        """See `tensorwasm.gpu.limits.gate.Holder`."""
        if self._needed or not self._idle():
            return False
        self._layout.placed = False
        return True

    # ------------------------------------------------------------------------------------ without a thread

    def attempt(self, work: Callable[[], _R]) -> _R:
        """Do what may take the permit, without waiting for it.

        Raises:
            NoPermit: there is none now, and nothing has been done.
        """
        self._patient = False
        try:
            return work()
        finally:
            self._patient = True
            if not self._layout.placed:  # one that came by `join` was not taken after all
                self.abandon()

    def join(self, notify: Callable[[], object], until: Deadline) -> bool:
        """Queue for a permit, for an `attempt` to find; see `tensorwasm.gpu.limits.gate.Gate.join`."""
        self._needed = True  # as in `take`
        try:
            return self._gate.join(self, notify, until)
        except BaseException as error:
            self._refuse(error)
            raise

    def give_up(self) -> None:
        """Leave the queue; a permit that came before stays for an `attempt` to find. See `Gate.give_up`."""
        try:
            self._gate.give_up(self)
        except LimitError as error:
            self._refuse(error)
            raise

    def abandon(self) -> None:
        """Leave the queue; if the permit came before, give it back."""
        self._needed = False
        self._gate.leave(self)

    def _enter(self, deadline: Deadline) -> None:
        if self._gate.request(self):
            return
        if not self._patient:
            raise NoPermit
        self._layout.count_wait(self._gate.enter, deadline, self)

    def _refuse(self, error: BaseException) -> None:
        self.rejected += isinstance(error, LimitError)
        if not self._layout.placed:
            self.abandon()
