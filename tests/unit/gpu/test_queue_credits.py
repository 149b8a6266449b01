"""Shares of what may wait in the driver's queues: what a session may have pending, and what all have together."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import FakeDevice
from fakes.gate import Sitter
from strategies.kernels import NOTHING
from tensorwasm.errors import CapacityExhausted, InvalidArgs
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.limits.queue_credits import (
    FIBER_LUMPS,
    LARGE_PLACES,
    LENT_LUMPS,
    LUMP_PIECES,
    PIECES,
    QUEUED_LUMPS,
    QueueCapacity,
    QueueCredits,
)
from tensorwasm.gpu.native.layout import UNBOUNDED, SessionLayout
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, WASM_PAGE_BYTES, Deadline, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
PAGES = mmap.mmap(-1, 2 * WASM_PAGE_BYTES)
ROW = SessionLayoutWriter(None).open_stream(0, 1)
"""Of stream 0, on every layout."""
ADDRESS = ctypes.addressof(ctypes.c_char.from_buffer(PAGES))
MEMORY = Region(ADDRESS, WASM_PAGE_BYTES, host=True)
GROWN = Region(ADDRESS, 2 * WASM_PAGE_BYTES, host=True)


def share_of(capacity: QueueCapacity, *, tenant: str = "ann") -> tuple[QueueCredits, SessionLayoutWriter]:
    """Return the credits of a fiber's session."""
    layout = SessionLayoutWriter(SessionLayout())
    layout.open_stream(0, 1)
    share = QueueCredits(capacity, layout, lambda: not layout.pending, tenant)
    share.bound()
    return share, layout


def guarded_on(
    capacity: QueueCapacity, *, tenant: str = "ann", idle: Callable[[], bool] | None = None
) -> tuple[QueueCredits, SessionLayoutWriter]:
    """Return the credits of a session of guarded kernels that has a thread."""
    layout = SessionLayoutWriter(SessionLayout())
    layout.open_stream(0, 1)
    return QueueCredits(capacity, layout, idle or (lambda: not layout.pending), tenant, guarded=True), layout


def give(session, layout, pieces):
    """Give so much if there is room; return whether there was."""
    if not session.take(pieces):
        return False
    layout.count_started(ROW, pieces)
    session.given()
    return True


def test_a_session_without_a_bound_has_room_for_anything():
    capacity, layout = QueueCapacity(0, 0), SessionLayoutWriter(SessionLayout())
    share = QueueCredits(capacity, layout, lambda: not layout.pending, "ann")
    assert share.fits(1 << 40)
    assert share.take(1 << 40)
    assert layout.most_pending == UNBOUNDED
    share.offer()
    share.leave()
    assert layout.most_pending == UNBOUNDED


@given(
    wanted=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 300), st.sampled_from(["", "given", "ended", "left"]))),
    lumps=st.integers(0, 60),
)
def test_all_sessions_together_stay_within_the_capacity(wanted, lumps):
    capacity, tenants = QueueCapacity(4, lumps), ("ann", "bob", "carol")
    opened = [partial(share_of, capacity, tenant=tenant) for tenant in tenants for _ in range(2)]
    opened += [partial(guarded_on, capacity, tenant=tenant) for tenant in tenants]
    sessions = [open_credits() for open_credits in opened]
    large = [0] * len(sessions)
    for index, pieces, then in wanted:
        session, layout = sessions[index]
        if session.take(pieces):  # else the session has to wait, for something that there is
            assert session.fits(pieces) or (session.large.held and not layout.pending)
            large[index] = 0 if session.fits(pieces) else pieces
            if then:
                layout.count_started(ROW, pieces)
            session.given()
        else:
            assert layout.pending or session.queue in {session.share, session.large}
        if then in {"ended", "left"}:
            layout.count_drained(ROW)
            session.settle()
            large[index] = 0
        if then == "left":
            session.leave()
            assert (session.lumps, session.share.held, session.large.held) == (0, False, False)
            sessions[index] = opened[index]()
        assert sum(session.lumps for session, _ in sessions) + capacity.lumps == lumps
        assert sum(layout.most_pending for _, layout in sessions) <= (4 + 3) * PIECES + lumps * LUMP_PIECES
        for tenant in tenants:
            own = [session for session, _ in sessions if session.tenant == tenant]
            assert sum(session.large.held for session in own) <= 1
            assert 2 * sum(session.lumps for session in own) <= lumps
        for (held, layout), more in zip(sessions, large, strict=True):
            assert layout.pending <= max(layout.most_pending, more if held.large.held else 0)
            assert layout.most_pending <= PIECES + (LENT_LUMPS if held.waits else FIBER_LUMPS) * LUMP_PIECES
    for session, _ in sessions:
        session.leave()
    assert (capacity.gate.in_use, capacity.large.in_use, capacity.lumps) == (0, 0, lumps)


@pytest.mark.parametrize(("open_credits", "lumps"), [(share_of, FIBER_LUMPS), (guarded_on, LENT_LUMPS // 4)])
def test_a_session_borrows_all_that_it_may_at_once(open_credits, lumps):
    session, layout = open_credits(QueueCapacity())
    assert session.take(1)
    assert layout.most_pending == PIECES
    assert session.take(PIECES + 1)
    assert (session.lumps, layout.most_pending) == (lumps, PIECES + lumps * LUMP_PIECES)
    while give(session, layout, 1):
        pass
    assert layout.pending == layout.most_pending == PIECES + lumps * LUMP_PIECES


def fill(session, layout):
    """Give work until the session has to wait; return how many lumps it has."""
    while give(session, layout, 1):
        pass
    return session.lumps


def test_fibers_leave_room_in_the_queues_and_tenants_to_each_other():
    capacity = QueueCapacity()
    fibers = [share_of(capacity, tenant=tenant) for tenant in ("ann", "bob") for _ in range(20)]
    lumps = [fill(*each) for each in fibers]
    assert (sum(lumps[:20]), sum(lumps[20:])) == (QUEUED_LUMPS // 2, QUEUED_LUMPS // 4)
    threads = [guarded_on(capacity, tenant="ann") for _ in range(20)]
    left = (LENT_LUMPS - sum(lumps[20:])) // 2 - sum(lumps[:20])
    assert left - 1 <= sum(fill(*each) for each in threads) <= left
    assert fill(*guarded_on(capacity, tenant="carol")) > FIBER_LUMPS


def test_a_session_leaves_as_many_lumps_as_it_has_and_so_does_its_tenant():
    capacity = QueueCapacity(3, 32)
    sessions = [guarded_on(capacity, tenant=tenant) for tenant in ("ann", "ann", "ann", "bob", "bob")]
    assert [fill(*each) for each in sessions] == [8, 4, 2, 4, 2]


def test_what_sessions_do_not_use_is_lent_to_another():
    capacity = QueueCapacity(1, 16)
    (idle, first), (little, second), (busy, third) = (guarded_on(capacity) for _ in range(3))
    for session in (idle, little):
        session.offer()
    assert (idle.lumps, little.lumps, capacity.lumps) == (4, 2, 10)
    assert give(little, second, PIECES + 1)
    assert give(busy, third, PIECES + 3 * LUMP_PIECES)
    assert (idle.lumps, little.lumps, busy.lumps, busy.large.held) == (0, 1, 3, False)
    assert (first.most_pending, second.most_pending) == (PIECES, PIECES + LUMP_PIECES)


def test_one_who_may_have_no_more_takes_nothing_from_others():
    capacity = QueueCapacity()
    (hog, work), (ann, layout) = share_of(capacity, tenant="hog"), guarded_on(capacity)
    ann.offer()
    assert fill(hog, work) == FIBER_LUMPS
    assert not hog.take(1)
    assert layout.most_pending == PIECES + LENT_LUMPS // 4 * LUMP_PIECES


def test_lumps_of_one_who_gives_work_meanwhile_are_not_lent_again():
    capacity, given = QueueCapacity(1, 16), []

    def look():  # the other thread gives work while this one asks the device
        if not given:
            given.append(give(ann, layout, PIECES + 3 * LUMP_PIECES))
        return True

    ann, layout = guarded_on(capacity, idle=look)
    ann.offer()
    bob, _ = guarded_on(capacity)
    bob.take(PIECES + 4 * LUMP_PIECES)
    assert given == [True]
    assert (ann.lumps, layout.pending <= layout.most_pending) == (4, True)


# ------------------------------------------------------------------------------------- large work


def test_what_is_larger_than_the_credits_waits_for_the_work_before_it_and_its_tenants():
    capacity, told = QueueCapacity(), []
    (first, layout), (second, other), small = share_of(capacity), guarded_on(capacity), guarded_on(capacity)
    assert give(first, layout, 4000)
    assert not first.take(4000)
    assert first.queue is None, "its own work comes first"
    assert not second.take(4000)
    assert second.queue is second.large
    assert second.large.join(partial(told.append, second), NEVER)
    assert give(*small, PIECES + 1), "what is small goes on"
    layout.count_drained(ROW)
    first.settle()
    assert told == [second]
    assert not first.take(4000)
    assert first.queue is first.large
    assert give(second, other, 4000)
    second.leave()
    assert capacity.large.in_use == 0


def test_work_without_an_end_in_a_large_place_is_in_the_way_of_its_tenant_alone():
    capacity = QueueCapacity()
    for tenant in range(LARGE_PLACES):
        assert give(*share_of(capacity, tenant=f"tenant-{tenant}"), 4000)
        assert not give(*share_of(capacity, tenant=f"tenant-{tenant}"), 4000)
    assert not give(*share_of(capacity, tenant="one more"), 4000)


def test_one_with_a_large_place_keeps_no_lumps():
    capacity = QueueCapacity()
    session, layout = guarded_on(capacity)
    session.offer()
    assert give(session, layout, 4000)
    assert (session.lumps, capacity.lumps, layout.most_pending) == (0, LENT_LUMPS, PIECES)


def test_the_large_place_is_kept_from_when_it_was_taken_until_its_work_has_ended():
    capacity = QueueCapacity()
    (first, layout), (second, _) = share_of(capacity), share_of(capacity)
    assert first.take(4000)
    assert not second.take(4000), "the first is about to use it"
    layout.count_started(ROW, 4000)
    first.given()
    assert not second.take(4000), "the first uses it"
    layout.count_drained(ROW)
    assert second.take(4000)
    assert not first.large.held


def test_the_large_place_is_free_again_if_what_it_was_for_was_refused():
    capacity = QueueCapacity()
    (first, _), (second, _) = share_of(capacity), share_of(capacity)
    assert first.take(4000)
    first.given()
    assert second.take(4000)


def test_a_large_place_that_came_and_is_not_needed_is_given_back():
    capacity = QueueCapacity(lumps=16)
    (first, layout), (second, other), (third, _) = share_of(capacity), guarded_on(capacity), share_of(capacity)
    assert give(first, layout, 4000)
    assert fill(second, other) == 4
    assert not third.take(5 * LUMP_PIECES)
    assert third.large.join(lambda: None, NEVER)
    for session, work in ((first, layout), (second, other)):
        work.count_drained(ROW)
        session.leave()
    assert capacity.large.in_use == 1
    assert third.take(3 * LUMP_PIECES)
    assert capacity.large.in_use == 0


def test_a_large_place_is_not_kept_while_a_share_is_waited_for():
    capacity = QueueCapacity(1, 0)
    (first, layout), (second, _), (third, other) = guarded_on(capacity), share_of(capacity), share_of(capacity)
    assert give(first, layout, 4000)
    assert not second.take(300)
    assert second.large.join(lambda: None, NEVER)
    second.given()
    assert give(third, other, 1)
    layout.count_drained(ROW)
    first.settle()
    assert not second.take(300)
    assert second.queue is second.share
    assert capacity.large.in_use == 0


def test_work_that_never_ends_keeps_its_place():
    capacity = QueueCapacity()
    (first, layout), (second, _) = guarded_on(capacity), guarded_on(capacity)
    assert give(first, layout, 4000)
    first.kept = True  # as `SessionWork.has_ended` sets it
    layout.wipe()
    assert not second.take(4000)


def test_large_places_go_to_those_who_gave_one_back_longest_ago():
    capacity, told = QueueCapacity(), []
    first = [guarded_on(capacity, tenant=tenant) for tenant in ("ann", "bob", "carol")]
    assert all(give(*each, 4000) for each in first)
    crowd = [guarded_on(capacity, tenant=tenant)[0] for tenant in ("ann", "ann", "bob", "carol", "dave", "eve")]
    for each in crowd:
        assert not each.take(4000)
        assert each.large.join(partial(told.append, each.tenant), NEVER)
    for session, layout in first[::-1]:
        layout.count_drained(ROW)
        session.settle()
    assert told == ["dave", "eve", "carol"]


def test_a_session_with_a_thread_waits_for_its_own_work_and_then_for_the_large_place():
    capacity = QueueCapacity()
    (holder, busy), (session, layout) = share_of(capacity), guarded_on(capacity)
    assert give(holder, busy, 4000)
    assert give(session, layout, 3)
    waited = []

    def drain():
        waited.append(layout.pending)
        layout.count_drained(ROW)

    assert not session.take(4000)
    with pytest.raises(CapacityExhausted, match="smaller ones need not wait"):
        session.await_room(4000, [drain], Deadline.after(0))
    assert waited == [3]
    assert not session.kept
    assert give(holder, busy, 1) is False
    busy.count_drained(ROW)
    session.await_room(4000, [drain], NEVER)
    assert session.large.held
    assert not session.kept, "others may have it while the session waits for its permit"
    assert waited == [3, 0]
    assert give(session, layout, 4000)


def test_a_session_that_ends_while_lumps_are_taken_back_gets_none_again():
    capacity = QueueCapacity(1, 64)
    ending, first = guarded_on(capacity)
    ending.offer()

    def look():  # garbage is collected here, and that was a session
        ending.leave()
        return True

    other, _ = guarded_on(capacity, idle=look)
    other.offer()
    asking, _ = guarded_on(capacity)
    asking.take(PIECES + 30 * LUMP_PIECES)
    assert (ending.lumps, first.most_pending) == (0, PIECES)
    for session in (other, asking):
        session.leave()
    assert capacity.lumps == 64


@pytest.mark.parametrize("tenants", [1, 5000], ids=["of one tenant", "of many"])
def test_to_hand_a_permit_over_takes_no_longer_if_thousands_wait(tenants):
    looks = Counter()

    class Looked(Sitter):
        def __getattribute__(self, name):
            looks[name] += 1
            return super().__getattribute__(name)

    crowd = [Looked(tenant=str(number % tenants)) for number in range(5000)]
    gate, told = Gate(1, start=lambda _: True), []
    for each in crowd:
        gate.request(each) or gate.join(each, partial(told.append, each), NEVER)
    looks.clear()
    gate.ask()
    for each in crowd[:100]:
        gate.leave(each)
    assert told == crowd[1:101]
    assert looks.total() < 2500


def test_one_failure_does_not_end_the_asking_of_a_full_gate(caplog):
    gate, fails = Gate(1), [MemoryError()]
    holder, came = Sitter(), threading.Event()

    def release():
        if fails:
            raise fails.pop()
        return True

    holder.release_if_idle = release
    assert gate.offer(holder)
    fails.append(MemoryError())
    with pytest.raises(MemoryError):
        gate.request(Sitter())
    holder.idle = False
    holder.release_if_idle = lambda: False
    assert gate.join(Sitter(), came.set, NEVER)
    fails.append(MemoryError())
    holder.release_if_idle = release
    assert came.wait(60)
    assert "could not ask" in caplog.text


# ------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize(("waiters", "late"), [(10, 0), (10, 1), (100, 1)])
def test_a_share_that_came_is_not_taken_back_before_its_fiber_runs(waiters, late):
    capacity, told, ran, running, now = QueueCapacity(1, 0), [], 0, [], 0
    first, layout = share_of(capacity)
    assert give(first, layout, 1)

    def runs(each):
        while not give(*each, 1):
            if each[0].share.join(lambda: told.append((now + late, each)), NEVER):
                return False
        return True

    for _ in range(waiters):
        assert not runs(share_of(capacity))
    layout.count_drained(ROW)
    for now in range(4 * waiters):
        for work in running:
            work.count_drained(ROW)
        running = []
        capacity.gate.ask()
        due, told[:] = [each for at, each in told if at <= now], [one for one in told if one[0] > now]
        for each in due:
            if runs(each):
                ran += 1
                running.append(each[1])
    assert ran == waiters


def test_without_a_free_share_a_session_queues_until_one_is_returned():
    capacity, told = QueueCapacity(1, 0), []
    first, layout = share_of(capacity)
    second, _ = share_of(capacity)
    assert give(first, layout, 1)
    assert not second.take(1)
    assert second.queue is second.share
    assert second.share.join(lambda: told.append(1), NEVER)
    first.leave()
    assert told == [1]
    assert second.take(1)
    assert second.share.held


def test_a_share_with_nothing_pending_goes_to_another_session():
    capacity = QueueCapacity(1, 2)
    first, layout = share_of(capacity)
    second, _ = share_of(capacity)
    assert first.take(PIECES + 1)
    assert not second.take(1), "the first is about to use it"
    first.given()
    assert second.take(1)
    assert (first.share.held, layout.most_pending, capacity.lumps) == (False, 0, 2)
    first.share.abandon()
    assert second.share.held


def test_a_share_is_not_taken_back_while_room_is_made_in_it(monkeypatch):
    capacity = QueueCapacity(1, 2)
    first, _ = share_of(capacity)
    second, _ = share_of(capacity)
    lend = capacity.lend

    def lend_while_another_asks(*args):
        assert not second.take(1)
        lend(*args)

    monkeypatch.setattr(capacity, "lend", lend_while_another_asks)
    assert first.take(PIECES + 1)
    assert (first.share.held, second.share.held) == (True, False)


def test_a_share_that_was_not_used_is_returned_with_its_session():
    capacity = QueueCapacity(1, 0)
    first, layout = share_of(capacity)
    second, _ = share_of(capacity)
    assert give(first, layout, 1)
    assert second.share.join(lambda: None, NEVER)
    first.leave()
    assert capacity.gate.in_use == 1
    second.leave()
    assert capacity.gate.in_use == 0


# ------------------------------------------------------------------------------------- in a session


@pytest.fixture
def device():
    device = FakeDevice(effects=True)
    yield device
    assert device.broken == []


def submit(session, kernel, memory=None, windows=(), stream=0):
    session.kernels.submit(kernel, ONE, lambda: list(windows), memory, NEVER, stream=stream)


def test_notified_work_returns_its_credit_while_later_work_runs(device, monkeypatch):
    resources = DeviceResources(device, streams=1)
    with Session(device, resources=resources) as first, Session(device, resources=resources) as second:
        submit(first, first.kernels.load(NOTHING, "nothing", NEVER))
        submit(second, second.kernels.load(NOTHING, "nothing", NEVER))
        with monkeypatch.context() as patch:
            patch.setattr(device, "synchronize", lambda *_: pytest.fail("it waits"))
            first.streams.conclude(0)
            first.streams.synchronize(NEVER)
        assert not second.streams.ended(0)
    assert resources.close() == []


def test_all_that_python_gives_is_counted_and_a_replay_for_all_that_it_holds(device):
    with Session(device) as session:
        kernel = session.kernels.load(NOTHING, "nothing", NEVER)
        session.credits.bound()
        assert session.streams.make_room(1)
        session.graphs.begin(0)
        for _ in range(5):
            submit(session, kernel)
        graph = session.graphs.end(0)
        assert session.graphs.pieces(graph) == 5
        for give, pieces in [
            (lambda: session.buffers.allocate(64), 2),
            (lambda: session.events.record(session.events.open(), 0), 1),
            (lambda: submit(session, kernel), 1),
            (lambda: session.graphs.replay(graph, None, NEVER), 5),
        ]:
            before = session._core.layout.pending
            give()
            assert session._core.layout.pending - before == pieces
        assert session.streams.busiest == 0
        assert not session.streams.make_room(FIBER_LUMPS * LUMP_PIECES)
        session.streams.synchronize(NEVER)
        assert session.streams.make_room(FIBER_LUMPS * LUMP_PIECES)


def test_while_a_stream_records_there_is_no_room_to_ask_for(device):
    with Session(device) as session:
        session.credits.bound()
        session.graphs.begin(0)
        with pytest.raises(InvalidArgs):
            session.streams.make_room(1)


@pytest.mark.parametrize(
    ("kind", "reached", "now", "expected"),
    [
        ("pinned", None, MEMORY, ([], [], [])),
        ("pinned", MEMORY, MEMORY, ([], [], [])),
        ("pinned", MEMORY, GROWN, ([0, 1], [0, 1], [0, 1])),
        ("auto", None, MEMORY, ([0, 1], [], [])),
        ("auto", MEMORY, MEMORY, ([], [], [])),
        ("auto", MEMORY, GROWN, ([0, 1], [0, 1], [0, 1])),
        ("staged", None, MEMORY, ([0, 1], [], [1])),
    ],
)
def test_the_session_waits_for_the_work_that_must_end_first(device, kind, reached, now, expected):
    with Session(device, memory_kind=kind) as session:
        kernel = session.kernels.load(NOTHING, "nothing", NEVER)
        if reached is not None:
            handle = session.buffers.allocate(64)
            session.buffers.copy_in(handle, 0, HostWindow(reached.address, 4), reached, NEVER)
        stream = session.streams.open()
        submit(session, kernel)
        submit(session, kernel, stream=stream)
        asked = session.kernels.before_launch(now), session.kernels.before_submit(now)
        assert tuple(map(sorted, (*asked, session.buffers.before_copy(now, stream)))) == expected
        session.streams.synchronize(NEVER)
        assert session.kernels.before_launch(now) == []
