"""The gate on concurrent GPU work, which all sessions of a process share, and one session's permit at it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from tensorwasm.errors import CapacityExhausted, LimitError
from tensorwasm.gpu.device.limits import DEADLINE_NEAR_S, MAX_CONCURRENT_OPERATIONS
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import Deadline

_log = logging.getLogger(__name__)
_ASK_S: Final = 0.005
"""How often a full gate asks the holders of its permits."""


class Holder(Protocol):
    """What has or wants a permit. Compared by identity."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    def suspend(self) -> None:
        """Have compiled code ask here before it gives more work. Called by the gate, on any thread; must not wait."""

    def release_if_idle(self) -> bool:
        """Give the permit up unless it is needed now. Called by the gate, on any thread, at any time; must not wait."""


class Gate:
    """Lets a fixed number of sessions have work on the GPU at a time. Thread-safe.

    Holders queue for permits, first in, first out. A permit that comes free belongs to the first one from that moment
    on, and only that one is notified. A holder that gives up leaves the queue, but keeps a permit that came before.

    A holder keeps its permit between two pieces of work, which compiled code gives to the GPU without asking here;
    their end is not notified. So while there is a queue, one thread asks the holders every few milliseconds, and those
    that have nothing on the GPU lose their permits. Compiled code looks at its permit without a lock: a permit may be
    used twice for the length of one launch, if it is taken back at that very moment.

    Tenants can be held: their work that is on the GPU goes on, and they begin no other until they are held no more.

    Args:
        capacity: how many; 0 refuses all.
        start: has `ask` called now and then, until that returns that the queue is empty. Returns whether it could.
    """

    def __init__(self, capacity: int = MAX_CONCURRENT_OPERATIONS, start: Callable[[Gate], bool] | None = None) -> None:
        self._capacity = capacity
        self._start = start or _start_asking
        self._asked = False
        self._holders: dict[Holder, None] = {}
        self._queue: OrderedDict[Holder, Callable[[], object]] = OrderedDict()
        self._held: frozenset[str] = frozenset()
        # Reentrant: garbage may be collected while it is held, and that may end a session.
        self._lock = threading.RLock()

    @property
    def in_use(self) -> int:
        """Permits taken now."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """Holders in the queue."""
        return len(self._queue)

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
            self._asked = self._asked or self._start(self)
            self._queue[holder] = notify
            return True

    def give_up(self, holder: Holder) -> None:
        """Leave the queue; raises `CapacityExhausted` unless the permit came before."""
        with self._lock:
            if self._queue.pop(holder, None) is not None:
                raise self._refusal(holder)

    def leave(self, holder: Holder) -> None:
        """Give a permit back, or leave the queue. Does nothing if the holder has lost the permit already."""
        with self._lock:
            self._queue.pop(holder, None)
            self._holders.pop(holder, None)
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
                    self._holders.pop(holder, None)
                    granted += self._hand_over()
            self._asked = goes_on = bool(self._queue)
        for notify in granted:
            notify()
        return goes_on

    def hold(self, tenants: frozenset[str]) -> None:
        """Hold these tenants, and no others, from now on."""
        with self._lock:
            self._held = tenants
            for holder in self._holders:
                if holder.tenant in tenants:
                    holder.suspend()
            granted = self._hand_over()
        for notify in granted:
            notify()

    def holders(self) -> tuple[tuple[Holder, ...], tuple[Holder, ...]]:
        """Return who has a permit, and who waits for one."""
        with self._lock:
            return tuple(self._holders), tuple(self._queue)

    def _admit(self, holder: Holder, *, asking: bool) -> bool:
        if holder.tenant in self._held:
            return False
        if holder in self._holders:
            return True
        if self._has_room(holder) or (asking and not self._wanted() and self._take_back(holder)):
            self._holders[holder] = None
            return True
        return False

    def _has_room(self, _holder: Holder) -> bool:
        return len(self._holders) < self._capacity

    def _wanted(self) -> bool:
        """Return whether somebody waits for a permit who is not held."""
        return any(holder.tenant not in self._held for holder in self._queue)

    def _take_back(self, wanting: Holder) -> bool:
        """Take permits back until there is room; return whether there is."""
        for holder in tuple(self._holders):
            if holder.release_if_idle():
                self._holders.pop(holder, None)
                if self._has_room(wanting):
                    return True
        return False

    def _hand_over(self) -> list[Callable[[], object]]:
        """Give free permits to the first of the queue; return what notifies them."""
        granted = []
        for holder in tuple(self._queue):
            if holder.tenant not in self._held and (holder in self._holders or self._has_room(holder)):
                granted.append(self._queue.pop(holder))
                self._holders[holder] = None
        return granted

    def _refusal(self, holder: Holder) -> CapacityExhausted:
        if holder.tenant in self._held:
            return CapacityExhausted("the GPU was other tenants' until the work had no time left")
        return CapacityExhausted(f"all {self._capacity} permits for concurrent GPU work are taken")


def patience(deadline: Deadline) -> Deadline:
    """Return until when work that must end by a deadline may wait for its permit: 50 ms before."""
    return deadline if deadline.at_ns is None else Deadline(deadline.at_ns - int(DEADLINE_NEAR_S * 1e9))


def _start_asking(gate: Gate) -> bool:
    try:
        threading.Thread(target=_keep_asking, args=(gate,), name="tensorwasm-gate", daemon=True).start()
    except RuntimeError:  # the system has no thread to spare: the next `join` tries again
        return False
    return True


def _keep_asking(gate: Gate) -> None:
    goes_on = True
    while goes_on:
        time.sleep(_ASK_S)
        try:
            goes_on = gate.ask()
        except Exception:  # noqa: BLE001 - those who wait would wait for ever
            _log.exception("a full gate could not ask its holders; it goes on")


PROCESS_GATE: Final = Gate()


_R = TypeVar("_R")


class NoPermit(Exception):
    """There is no permit now, and the caller does not wait on its thread. All is as before: to be tried again."""


class IdleQuestion(Protocol):
    """Asks whether a session has nothing on its device any more."""

    def __call__(self) -> bool:
        """Return whether; False also if it was asked a short time ago."""

    def at_once(self) -> bool:
        """Return whether, however often this is asked."""


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
        if self._patient:
            self._gate.enter(deadline, self)
        elif not self._gate.request(self):
            raise NoPermit

    def _refuse(self, error: BaseException) -> None:
        self.rejected += isinstance(error, LimitError)
        if not self._layout.placed:
            self.abandon()
