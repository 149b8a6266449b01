"""Turns between tenants who keep a GPU busy: each gets the share of its time that its weight is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.errors import CapacityExhausted
from tensorwasm.gpu.limits.gate import Gate, GatePermit
from tensorwasm.gpu.limits.turns import (
    FREE,
    IDLE_NS,
    LATE_NS,
    LONGEST_TURN_NS,
    TURN_NS,
    TurnKeeper,
    TurnOrder,
    TurnScheduler,
)
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.values import NEVER, Deadline

MS = 1_000_000


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS

    def __call__(self) -> int:
        return self.now_ns


# ---------------------------------------------------------------------------------------------------- the scheduler


def told(scheduler, orders, known):
    """Take what processes are told, and return the one whose turn it is, and its order."""
    known.update(orders)
    ((process, order),) = ((number, each) for number, each in known.items() if each.number)
    assert scheduler.turn == (process, order.tenant)
    return process, order


tenants = st.lists(
    st.tuples(st.integers(1, 100), st.integers(1, 3), st.integers(10_000, 300 * MS)), min_size=2, max_size=6
)


@given(tenants)
def test_tenants_who_want_all_of_it_have_time_by_their_weights(weights):
    clock, known = Clock(), {}
    names = {f"t{at}": each for at, each in enumerate(weights)}
    scheduler = TurnScheduler(lambda tenant: names[tenant][0], clock)
    places = {process: {name for name, each in names.items() if each[1] == process} for _, process, _ in weights}
    orders = {}
    for process, there in places.items():
        orders |= scheduler.wish(process, there)
    had = dict.fromkeys(names, 0)
    for _ in range(300):
        process, order = told(scheduler, orders, known)
        assert names[order.tenant][1] == process
        kernel_ns = names[order.tenant][2]
        taken_ns = -(-order.length_ns // kernel_ns) * kernel_ns  # the last one runs past the end of the turn
        clock.now_ns += taken_ns
        had[order.tenant] += taken_ns
        orders = scheduler.end(process, order.number)
    longest = max((min(TURN_NS * weight, LONGEST_TURN_NS) + kernel_ns) / weight for weight, _, kernel_ns in weights)
    shares = sorted(had[name] / names[name][0] for name in names)
    assert shares[-1] - shares[0] <= 2 * longest  # as start-time fair queueing promises: whatever the total


def test_one_tenant_alone_is_told_that_nobody_waits():
    scheduler = TurnScheduler(lambda _: 1, Clock())
    assert scheduler.wish(1, {"ann"}) == {1: FREE}
    assert scheduler.wish(2, {"ann"}) == {2: FREE}  # the same one in the process for long kernels
    assert scheduler.turn is None


def test_who_comes_back_has_saved_nothing_up():
    clock = Clock()
    scheduler = TurnScheduler(lambda _: 1, clock)
    scheduler.wish(1, {"ann", "bob"})
    scheduler.wish(1, {"bob", "cid"})  # ann rests
    turns = []
    for _ in range(20):
        turns.append(scheduler.turn[1])
        clock.now_ns += 50 * MS
        scheduler.end(1, scheduler._number)
    scheduler.wish(1, {"ann", "bob", "cid"})
    for _ in range(6):
        turns.append(scheduler.turn[1])
        clock.now_ns += 50 * MS
        scheduler.end(1, scheduler._number)
    assert set(turns[:20]) == {"bob", "cid"}
    assert turns[20:].count("ann") == 2


def test_a_turn_that_is_over_already_or_anothers_ends_nothing():
    clock = Clock()
    scheduler = TurnScheduler(lambda _: 1, clock)
    scheduler.wish(1, {"ann"})
    scheduler.wish(2, {"bob"})
    process, tenant = scheduler.turn
    for stranger in ((process, 99), (3 - process, scheduler._number), (7, 0)):
        assert scheduler.end(*stranger) == {}
        assert scheduler.turn == (process, tenant)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(200, 5000))
def test_a_kernel_that_runs_on_is_at_its_tenants_cost(one, two, late_ms):
    clock, weights = Clock(), {"ann": one, "bob": two}
    scheduler = TurnScheduler(weights.__getitem__, clock)
    scheduler.wish(1, {"ann"})
    scheduler.wish(2, {"bob"})
    had, late, since_ns = dict.fromkeys(weights, 0), 0, 0
    for _ in range(400):
        process, tenant = scheduler.turn
        if late and (tenant == "ann" or clock.now_ns - since_ns >= late_ms * MS):
            had["ann"] += clock.now_ns - since_ns
            scheduler.end(1, late)
            late = 0
        clock.now_ns += 50 * MS
        had[tenant] += 50 * MS
        number = scheduler._number
        starts = tenant == "ann"
        scheduler.end(process, number, late=starts)
        if starts:
            late, since_ns = number, clock.now_ns
    if late:
        had["ann"] += clock.now_ns - since_ns
    assert abs(had["ann"] / one - had["bob"] / two) <= 2 * (late_ms + 100) * MS


def test_what_runs_on_in_a_process_that_ends_is_paid_for():
    clock = Clock()
    scheduler = TurnScheduler(lambda _: 1, clock)
    scheduler.wish(1, {"ann"})
    scheduler.wish(2, {"bob"})
    process, tenant = scheduler.turn
    clock.now_ns += 50 * MS
    scheduler.end(process, scheduler._number, late=True)
    clock.now_ns += 300 * MS
    scheduler.wish(process, ())
    assert (scheduler._late, scheduler._level(tenant)) == ({}, 350 * MS)


def test_a_process_that_ends_leaves_the_turn_to_the_others():
    scheduler = TurnScheduler(lambda _: 1, Clock())
    scheduler.wish(1, {"ann", "cid"})
    scheduler.wish(2, {"bob", "dan"})
    process = scheduler.turn[0]
    scheduler.wish(process, ())
    assert scheduler.turn[0] == 3 - process
    scheduler.wish(3 - process, ())
    assert scheduler.turn is None


def test_who_wishes_is_answered_though_nothing_has_changed():
    scheduler = TurnScheduler(lambda _: 1, Clock())
    for _ in range(2):  # a process that was replaced knows nothing of what the one before was told
        assert scheduler.wish(1, {"ann"})[1] == FREE
        assert scheduler.wish(1, {"ann", "bob"})[1].contested


# ------------------------------------------------------------------------------------------------------- the keeper


class Idle:
    """Whether a session has nothing on the device."""

    def __init__(self) -> None:
        self.idle = True

    def __call__(self) -> bool:
        return self.idle

    def at_once(self) -> bool:
        return self.idle


class World:
    """A gate, a session of each tenant, and the keeper with a clock that a test moves."""

    def __init__(self, *tenants: str) -> None:
        self.clock, self.gate = Clock(), Gate(16, start=lambda _: True)
        self.keeper = TurnKeeper(self.gate, self, self.clock)
        self.wishes, self.ends, self.came = [], [], []
        self.idle = {tenant: Idle() for tenant in tenants}
        self.layouts = {tenant: SessionLayoutWriter(SessionLayout()) for tenant in tenants}
        self.permits = {
            tenant: GatePermit(self.gate, self.layouts[tenant], self.idle[tenant], tenant) for tenant in tenants
        }

    def wish(self, tenants):
        self.wishes.append(tenants)

    def end_turn(self, number, *, late):
        self.ends.append((number, late))

    def begin(self, tenant):
        self.permits[tenant].take(NEVER)
        self.layouts[tenant].pending = 1
        self.idle[tenant].idle = False

    def end(self, tenant):
        self.layouts[tenant].pending = 0
        self.idle[tenant].idle = True

    def queue(self, tenant):
        return self.permits[tenant].join(lambda: self.came.append(tenant), NEVER)

    def look(self, ms=1, steps=1):
        for _ in range(steps):
            self.clock.now_ns += ms * MS
            wait_s = self.keeper.step()
        return wait_s


@pytest.fixture
def busy():
    """Two tenants who keep the GPU busy."""
    world = World("ann", "bob", "cid")
    world.begin("ann")
    world.begin("bob")
    world.look(steps=100)
    assert world.wishes[-1] == {"ann", "bob"}
    return world


def test_who_keeps_the_gpu_busy_is_found_and_forgotten():
    world = World("ann")
    world.begin("ann")
    world.look(steps=10)
    assert world.wishes == []
    world.look(steps=100)
    world.end("ann")
    world.look(steps=300)
    assert world.wishes == [{"ann"}, frozenset()]
    assert world.look() == 0.05


def test_tenants_who_keep_it_busy_wait_for_their_turn_and_others_do_not(busy):
    busy.keeper.obey(TurnOrder(contested=True, number=1, tenant="ann", length_ns=50 * MS))
    assert busy.layouts["ann"].placed
    assert not busy.layouts["bob"].placed  # compiled code asks before it gives more
    assert busy.queue("bob")
    busy.begin("ann")
    busy.begin("cid")
    assert busy.came == []
    busy.keeper.obey(FREE)
    assert busy.came == ["bob"]


def test_a_turn_ends_when_what_was_begun_in_it_has_ended(busy):
    busy.keeper.obey(TurnOrder(contested=True, number=1, tenant="ann", length_ns=50 * MS))
    busy.look(steps=49)
    assert busy.layouts["ann"].placed
    busy.look(steps=10)
    assert not busy.layouts["ann"].placed
    assert busy.ends == []
    busy.end("ann")
    busy.look()
    busy.look()
    assert busy.ends == [(1, False)]
    assert busy.queue("ann")
    busy.keeper.obey(TurnOrder(contested=True, number=3, tenant="ann", length_ns=50 * MS))
    assert busy.came == ["ann"]


def test_an_idle_tenants_turn_is_over_soon_but_not_that_of_one_with_short_kernels(busy):
    busy.keeper.obey(TurnOrder(contested=True, number=1, tenant="ann", length_ns=500 * MS))
    busy.end("ann")
    for _ in range(20):  # each kernel has ended whenever somebody looks
        busy.layouts["ann"].words[SessionLayout.launched.offset // 8] += 1
        busy.look(ms=5)
    assert busy.ends == []
    busy.look(ms=IDLE_NS // MS, steps=2)
    assert busy.ends == [(1, False)]


def test_a_kernel_that_runs_on_for_long_holds_up_nobodys_turn(busy):
    busy.keeper.obey(TurnOrder(contested=True, number=1, tenant="ann", length_ns=50 * MS))
    busy.look(steps=50 + LATE_NS // MS - 1)
    assert busy.ends == []
    busy.look(steps=3)
    assert busy.ends == [(1, True)]
    assert busy.queue("ann")  # what it begins next waits for its own turn
    busy.keeper.obey(TurnOrder(contested=True, number=2, tenant="bob", length_ns=50 * MS))
    assert not busy.queue("bob")  # it has its permit
    busy.look(steps=10)
    assert busy.ends == [(1, True)]
    busy.end("ann")
    busy.look(steps=2)
    assert busy.ends == [(1, True), (1, False)]


def test_what_runs_on_is_told_as_ended_when_its_tenants_next_turn_begins(busy):
    busy.keeper.obey(TurnOrder(contested=True, number=1, tenant="ann", length_ns=50 * MS))
    busy.look(steps=50 + LATE_NS // MS + 3)
    busy.keeper.obey(TurnOrder(contested=True, number=4, tenant="ann", length_ns=50 * MS))
    busy.look()
    assert busy.ends == [(1, True), (1, False)]


def test_a_waiter_who_is_held_to_its_end_is_told_why(busy):
    busy.keeper.obey(TurnOrder(contested=True))
    busy.end("ann")
    with pytest.raises(CapacityExhausted, match="other tenants'"):
        busy.permits["ann"].take(Deadline.after(0.06))
    busy.permits["ann"].leave()
    assert busy.gate.waiting == 0


def test_a_session_that_ends_while_it_is_held_leaves_nothing(busy):
    busy.keeper.obey(TurnOrder(contested=True, number=1, tenant="ann", length_ns=50 * MS))
    assert busy.queue("bob")
    busy.end("bob")
    busy.permits["bob"].abandon()
    busy.permits["bob"].leave()
    busy.keeper.obey(FREE)
    assert (busy.gate.waiting, busy.came) == (0, [])
    assert "bob" not in {holder.tenant for holder in busy.gate.holders()[0]}


def test_held_tenants_keep_nobody_from_permits_who_is_not():
    gate = Gate(2, start=lambda _: True)
    ann, bob, cid, dan = (
        GatePermit(gate, SessionLayoutWriter(SessionLayout()), Idle(), tenant)
        for tenant in ("ann", "bob", "cid", "dan")
    )
    ann.take(NEVER)
    gate.hold(frozenset({"ann", "bob"}))
    came = []
    assert bob.join(lambda: came.append("bob"), NEVER)
    cid.take(NEVER)  # though bob came first
    assert dan.join(lambda: came.append("dan"), NEVER)
    cid.leave()
    assert came == ["dan"]
    dan.leave()
    ann.leave()
    gate.hold(frozenset())
    assert came == ["dan", "bob"]


@given(st.lists(st.sampled_from(["ann", "bob"]), min_size=2, max_size=30))
def test_turns_have_numbers_that_are_never_used_twice(wishes):
    scheduler, seen = TurnScheduler(lambda _: 1, Clock()), []
    for at, tenant in enumerate(wishes):
        scheduler.wish(at % 2 + 1, {tenant})
        if scheduler.turn is not None:
            seen.append(scheduler._number)
            scheduler.end(scheduler.turn[0], scheduler._number)
    assert all(one < two for one, two in pairwise(seen))
