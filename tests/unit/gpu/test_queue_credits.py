"""Shares of what may wait in the driver's queues: what a session may have pending, and what all have together."""

from __future__ import annotations

import ctypes
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import FakeDevice
from strategies.kernels import NOTHING
from tensorwasm.errors import InvalidArgs
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.limits.queue_credits import LUMP_PIECES, LUMPS, PIECES, QueueCapacity, QueueCredits
from tensorwasm.gpu.native.layout import UNBOUNDED, SessionLayout
from tensorwasm.gpu.native.layout_writer import SessionLayoutWriter
from tensorwasm.gpu.resources.device_resources import DeviceResources
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, WASM_PAGE_BYTES, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
PAGES = mmap.mmap(-1, 2 * WASM_PAGE_BYTES)
ROW = SessionLayoutWriter(None).open_stream(0, 1)
"""Of stream 0, on every layout."""
ADDRESS = ctypes.addressof(ctypes.c_char.from_buffer(PAGES))
MEMORY = Region(ADDRESS, WASM_PAGE_BYTES, host=True)
GROWN = Region(ADDRESS, 2 * WASM_PAGE_BYTES, host=True)


def share_of(capacity: QueueCapacity, *, pending: int = 0) -> tuple[QueueCredits, SessionLayoutWriter]:
    layout = SessionLayoutWriter(SessionLayout())
    share = QueueCredits(capacity, layout, lambda: not layout.pending, "ann")
    share.bound()
    layout.count_started(layout.open_stream(0, 1), pending)
    return share, layout


def test_a_session_without_a_bound_has_room_for_anything():
    capacity, layout = QueueCapacity(0, 0), SessionLayoutWriter(SessionLayout())
    share = QueueCredits(capacity, layout, lambda: not layout.pending, "ann")
    assert share.fits(1 << 40)
    assert layout.most_pending == UNBOUNDED
    share.offer()
    share.leave()
    assert layout.most_pending == UNBOUNDED


@given(wanted=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300), st.booleans())), lumps=st.integers(0, 20))
def test_all_sessions_together_stay_within_the_capacity(wanted, lumps):
    capacity = QueueCapacity(4, lumps)
    sessions = [share_of(capacity) for _ in range(6)]
    for index, pieces, ends in wanted:
        share, layout = sessions[index]
        if share.take(pieces) and share.fits(pieces):
            layout.count_started(ROW, pieces)
        if ends:
            layout.count_drained(ROW)
            share.settle()
        assert all(layout.pending <= layout.most_pending <= PIECES + LUMPS * LUMP_PIECES for _, layout in sessions)
        assert sum(layout.most_pending for _, layout in sessions) <= 4 * PIECES + lumps * LUMP_PIECES
    for share, _ in sessions:
        share.leave()
    assert (capacity.gate.in_use, capacity.lumps) == (0, lumps)


def test_a_share_grows_by_borrowed_lumps_up_to_the_limit():
    capacity = QueueCapacity(1, 2)
    share, layout = share_of(capacity, pending=PIECES)
    assert not share.fits(1)
    assert share.take(1)
    assert layout.most_pending == PIECES + LUMP_PIECES
    assert not share.take(2 * LUMP_PIECES + 1)
    assert capacity.lumps == 0
    share.leave()
    assert (capacity.lumps, capacity.gate.in_use, layout.most_pending) == (2, 0, 0)


def test_work_larger_than_any_share_fits_when_nothing_is_pending():
    share, layout = share_of(QueueCapacity(1, 0))
    assert share.take(1000)
    layout.count_started(ROW, 1)
    assert not share.take(1000)


def test_without_a_free_share_a_session_queues_until_one_is_returned():
    capacity, told = QueueCapacity(1, 0), []
    first, _ = share_of(capacity, pending=1)
    second, _ = share_of(capacity)
    assert first.take(1)
    assert not second.take(1)
    assert not second.held
    assert second.join(lambda: told.append(1), NEVER)
    first.leave()
    assert told == [1]
    assert second.take(1)
    assert second.held


def test_a_share_with_nothing_pending_goes_to_another_session():
    capacity = QueueCapacity(1, 2)
    first, layout = share_of(capacity)
    second, _ = share_of(capacity)
    assert first.take(PIECES + 1)
    assert second.take(1)
    assert (first.held, layout.most_pending, capacity.lumps) == (False, 0, 2)
    first.abandon()
    assert second.held


def test_a_share_is_not_taken_back_while_room_is_made_in_it(monkeypatch):
    capacity = QueueCapacity(1, 2)
    first, _ = share_of(capacity)
    second, _ = share_of(capacity)
    assert first.take(1)
    lend = capacity.lend

    def lend_while_another_asks():
        assert not second.held
        second.take(1)
        return lend()

    monkeypatch.setattr(capacity, "lend", lend_while_another_asks)
    assert first.take(PIECES + 1)
    assert (first.held, second.held) == (True, False)


def test_borrowed_lumps_are_returned_exactly_once(monkeypatch):
    capacity = QueueCapacity(1, 2)
    first, layout = share_of(capacity)
    second, _ = share_of(capacity)
    assert first.take(PIECES + 1)
    take_back = capacity.take_back

    def take_back_while_another_asks(lumps):
        take_back(lumps)
        monkeypatch.setattr(capacity, "take_back", take_back)
        second.take(1)

    monkeypatch.setattr(capacity, "take_back", take_back_while_another_asks)
    first.settle()
    assert (first.held, second.held, layout.most_pending) == (True, False, PIECES)
    assert capacity.lumps == 2


def test_a_share_that_was_not_used_is_returned_with_its_session():
    capacity = QueueCapacity(1, 0)
    first, _ = share_of(capacity, pending=1)
    second, _ = share_of(capacity)
    assert first.take(1)
    assert second.join(lambda: None, NEVER)
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
        assert not session.streams.make_room(LUMPS * LUMP_PIECES)
        session.streams.synchronize(NEVER)
        assert session.streams.make_room(LUMPS * LUMP_PIECES)


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
