"""Turns on one GPU between tenants who keep it busy, so that each gets the share of its time that its weight is.

`TurnScheduler` says whose turn it is, for all processes on the GPU; `TurnKeeper` keeps to that in one of them. While
one tenant alone keeps the GPU busy, nobody waits for a turn, and tenants who use little of it never do.

A tenant's turn lasts until its length has passed and what was begun in it has ended. Others do not wait for a kernel
that runs on for more than `LATE_NS`: the next turn begins beside it, and its tenant pays for the time until it ends.
Source: start-time fair queueing (Goyal, Vin, Cheng, 1996), with one server.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, Protocol

from tensorwasm.gpu.limits.gate import Gate, GatePermit

TURN_NS: Final = 50_000_000
"""Length of a turn for a weight of 1: the GPU is idle for 1 to 2 ms between the turns of two processes."""
LONGEST_TURN_NS: Final = 200_000_000
IDLE_NS: Final = 20_000_000
"""A turn in which its tenant does nothing for so long is over."""
LATE_NS: Final = 60_000_000
"""How long the next turn waits for what was begun in the one before: longer than most kernels take."""
_MEMORY_NS: Final = 50_000_000
_HEAVY: Final = 0.4
_LIGHT: Final = 0.15
"""A tenant keeps the GPU busy that uses it, or waits for it, for this part of the last 50 ms or so; and then does so
until less than the second part."""
_FORGOTTEN: Final = 0.01
_QUICK_S: Final = 0.001
_LOOK_S: Final = 0.005
_REST_S: Final = 0.05


class TurnOrder(NamedTuple):
    """What a process is told: whether its tenants who keep the GPU busy wait for turns, and whose turn it is there."""

    contested: bool = False
    number: int = 0  # of the turn, never used twice; 0 if it is nobody's here
    tenant: str = ""
    length_ns: int = 0


FREE: Final = TurnOrder()


class TurnScheduler:
    """Whose turn it is on one GPU. Not thread-safe; never waits.

    A tenant's virtual time is the time of its turns divided by its weight; the turn is the one's who has had least.
    Who comes, or comes again, starts from the least of those who are there: nobody saves time up.

    Args:
        weigh: returns a tenant's weight, at least 1.
        clock: in ns.
    """

    def __init__(self, weigh: Callable[[str], int], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._weigh = weigh
        self._clock = clock
        self._wishes: dict[int, frozenset[str]] = {}
        self._had: dict[str, float] = {}
        self._least = 0.0
        self._turn: tuple[int, str] | None = None
        self._began_ns = 0
        self._number = 0
        self._last: dict[tuple[int, str], int] = {}
        self._late: dict[int, tuple[int, str, int]] = {}  # turns with work that runs on: process, tenant, since when
        self._told: dict[int, TurnOrder] = {}

    @property
    def turn(self) -> tuple[int, str] | None:
        """Process and tenant whose turn it is; None while nobody waits for turns."""
        return self._turn

    def wish(self, process: int, tenants: Iterable[str]) -> dict[int, TurnOrder]:
        """Note which tenants keep the GPU busy in a process, none once it has ended; return what processes are told."""
        self._told.pop(process, None)  # who asks is answered, whatever was told before
        before = {tenant for each in self._wishes.values() for tenant in each}
        self._wishes[process] = frozenset(tenants)
        if not self._wishes[process]:
            for number in [number for number, late in self._late.items() if late[0] == process]:
                self._charge_late(number)
        for tenant in self._wishes[process] - before:
            self._had[tenant] = max(self._had.get(tenant, 0.0), self._least)
        return self._decide()

    def end(self, process: int, number: int, *, late: bool = False) -> dict[int, TurnOrder]:
        """Note that a process has ended a turn; return what processes are to be told.

        Args:
            process: whose turn it was.
            number: of the turn.
            late: whether something that was begun in it runs on. The process says so again when that has ended.
        """
        if self._turn is not None and (self._turn[0], self._number) == (process, number):
            if late:
                self._late[number] = (*self._turn, self._clock())
            self._charge()
        elif not late and self._late.get(number, (0,))[0] == process:
            self._charge_late(number)
        return self._decide()

    def _decide(self) -> dict[int, TurnOrder]:
        there = [(process, tenant) for process, tenants in self._wishes.items() for tenant in sorted(tenants)]
        contested = len({tenant for _, tenant in there}) > 1
        if self._turn is not None and not (contested and self._turn in there):
            self._charge()
        if contested and self._turn is None:
            self._begin(min(there, key=lambda each: (self._level(each[1]), self._last.get(each, 0))))
        if there:
            self._least = min(self._level(tenant) for _, tenant in there)
        here = {tenant for _, tenant in there}
        self._had = {tenant: had for tenant, had in self._had.items() if tenant in here or had > self._least}
        self._last = {each: number for each, number in self._last.items() if each in there}
        orders = {process: self._order(process, contested=contested) for process in self._wishes}
        changed = {process: order for process, order in orders.items() if self._told.get(process) != order}
        self._told |= changed
        return changed

    def _begin(self, chosen: tuple[int, str]) -> None:
        self._turn, self._began_ns = chosen, self._clock()
        self._number += 1
        self._last[chosen] = self._number

    def _level(self, tenant: str) -> float:
        """Return a tenant's virtual time, with that of what runs on."""
        late = sum(self._clock() - since_ns for _, who, since_ns in self._late.values() if who == tenant)
        return self._had.get(tenant, 0.0) + late / self._weigh(tenant)

    def _charge(self) -> None:
        if self._turn is not None:
            self._pay(self._turn[1], self._began_ns)
            self._turn = None

    def _charge_late(self, number: int) -> None:
        _, tenant, since_ns = self._late.pop(number)
        self._pay(tenant, since_ns)

    def _pay(self, tenant: str, since_ns: int) -> None:
        self._had[tenant] = self._had.get(tenant, 0.0) + (self._clock() - since_ns) / self._weigh(tenant)

    def _order(self, process: int, *, contested: bool) -> TurnOrder:
        if not (contested and self._wishes[process]):
            return FREE
        if self._turn is None or self._turn[0] != process:
            return TurnOrder(contested=True)
        tenant = self._turn[1]
        length_ns = min(TURN_NS * self._weigh(tenant), LONGEST_TURN_NS)
        return TurnOrder(contested=True, number=self._number, tenant=tenant, length_ns=length_ns)


class TurnListener(Protocol):
    """Who is told what the tenants of a process do."""

    def wish(self, tenants: frozenset[str]) -> None:
        """These tenants, and no others, keep the GPU busy here."""

    def end_turn(self, number: int, *, late: bool) -> None:
        """A turn is over. If ``late``, something that was begun in it runs on, and this is told again at its end."""


class TurnKeeper:
    """Keeps one process's tenants to their turns: the gate holds those who keep the GPU busy while it is not theirs.

    A thread looks at the gate; `step` is what it does each time.

    Args:
        gate: all work for the GPU passes it.
        listener: told, on that thread.
        clock: in ns.
    """

    def __init__(self, gate: Gate, listener: TurnListener, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._gate = gate
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._busy: dict[str, float] = {}  # the part of the last time in which each tenant kept the GPU busy
        self._heavy: frozenset[str] = frozenset()
        self._held: frozenset[str] = frozenset()
        self._order = FREE
        self._state: Literal["none", "going on", "ending"] = "none"  # of the order's turn
        self._ends_ns = self._active_ns = self._ending_ns = 0
        self._late: dict[int, str] = {}  # turns with work that runs on, and whose it is
        self._looked_ns = clock()
        self._given: dict[str, list[tuple[int, int, int]]] = {}

    def start(self) -> None:
        """Begin to look, on a thread of its own."""
        threading.Thread(target=self._keep, name="tensorwasm-turns", daemon=True).start()

    def stop(self) -> None:
        """End that, and hold nobody any more."""
        self._stopped = True
        self.obey(FREE)

    def obey(self, order: TurnOrder) -> None:
        """Keep to another order from now on."""
        with self._lock:
            self._order, self._state = order, "going on" if order.number else "none"
            self._active_ns = self._clock()
            self._ends_ns = self._active_ns + order.length_ns
            self._hold()
        self._wake.set()

    def step(self) -> float:
        """Look at the gate, and do what is to be done; return after how many seconds to do so again."""
        running, waiting, given = self._survey()
        with self._lock:
            heavy, self._heavy = self._heavy, self._measure(running | waiting)
            begins = {tenant for tenant, each in given.items() if each != self._given.get(tenant)}
            self._given = given
            ended = self._end_turn(running | waiting | begins)
            over = self._end_late(running)
            self._hold()
            wait_s = self._find_wait()
        if heavy != self._heavy:
            self._listener.wish(self._heavy)
        for number in over:
            self._listener.end_turn(number, late=False)
        if ended:
            self._listener.end_turn(ended, late=ended in self._late)
        return wait_s

    def _survey(self) -> tuple[set[str], set[str], dict[str, list[tuple[int, int, int]]]]:
        """Return tenants with work on the GPU, tenants who wait for a permit, and what grows with tenants' work."""
        holders, waiting = self._gate.holders()
        running: set[str] = set()
        given: dict[str, list[tuple[int, int, int]]] = {}
        for holder in holders:
            if isinstance(holder, GatePermit):
                given.setdefault(holder.tenant, []).append(holder.given())
                if holder.tenant not in running and holder.runs():
                    running.add(holder.tenant)
        return running, waiting, given

    def _find_wait(self) -> float:
        if self._state == "ending":
            return _QUICK_S
        if self._state == "going on":
            return max(0.0, min(_LOOK_S, (self._ends_ns - self._clock()) / 1e9))
        return _LOOK_S if self._busy else _REST_S

    def _measure(self, active: set[str]) -> frozenset[str]:
        """Note who uses the GPU or waits for it, and return who keeps it busy."""
        now_ns = self._clock()
        new = 1.0 - math.exp((self._looked_ns - now_ns) / _MEMORY_NS)
        self._looked_ns = now_ns
        busy = {tenant: self._busy.get(tenant, 0.0) * (1.0 - new) for tenant in self._busy.keys() | active}
        for tenant in active:
            busy[tenant] += new
        self._busy = {tenant: part for tenant, part in busy.items() if part > _FORGOTTEN}
        return frozenset(
            tenant for tenant, part in busy.items() if part > (_LIGHT if tenant in self._heavy else _HEAVY)
        )

    def _end_turn(self, active: set[str]) -> int:
        """Return the number of the turn that has ended just now, 0 if none has."""
        order, now_ns = self._order, self._clock()
        if self._state == "going on":
            if order.tenant in active:
                self._active_ns = now_ns
            if now_ns >= self._ends_ns or now_ns - self._active_ns >= IDLE_NS:
                self._state, self._ending_ns = "ending", now_ns
                self._hold()
        if self._state != "ending":
            return 0
        if order.tenant in self._survey()[0]:  # since it is held
            if now_ns - self._ending_ns < LATE_NS:
                return 0
            self._late[order.number] = order.tenant
        self._state = "none"
        return order.number

    def _end_late(self, running: set[str]) -> list[int]:
        """Return turns of which nothing runs on any more; what runs in its tenant's next turn is that one's."""
        taken = {self._order.tenant} if self._state != "none" else set()
        over = [number for number, tenant in self._late.items() if tenant not in running or tenant in taken]
        for number in over:
            del self._late[number]
        return over

    def _hold(self) -> None:
        """Hold whom the order holds."""
        held: frozenset[str] = frozenset()
        if self._order.contested:
            held = self._heavy - {self._order.tenant} if self._state == "going on" else self._heavy
        if held != self._held:
            self._held = held
            self._gate.hold(held)

    def _keep(self) -> None:
        while not self._stopped:
            self._wake.wait(self.step())
            self._wake.clear()
