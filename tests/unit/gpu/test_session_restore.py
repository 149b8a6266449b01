"""A session that is made what a saved one was, which comes from elsewhere: nothing that it says is believed."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.device import FakeDevice
from fakes.world import ONE, World, fill, launch_compiled, read, word
from oracles.sessions import contents
from strategies.kernels import AFFINE, FILL
from strategies.sessions import hostile_sessions, sessions
from tensorwasm.errors import (
    DeviceLost,
    InvalidArgs,
    InvalidKernel,
    InvalidSnapshot,
    InvokeTimeout,
    MalformedPtx,
    QuotaExceeded,
    TensorWasmError,
    UnsupportedPtx,
)
from tensorwasm.gpu.device.arguments import HostWindow
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.session.saved_checks import MAX_NUMBER, check_session
from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedKernel, SavedRun, SavedSession
from tensorwasm.values import MIB, NEVER, Deadline, Region

LIMITS = SessionLimits(allocations=8, device_bytes=1 << 20, kernels=3, streams=3, events=3)


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


@pytest.fixture
def fake():
    world = World(lambda: FakeDevice(effects=True))
    yield world
    assert world.devices[0].broken == []
    world.shared[0].close()
    assert world.devices[0].holds_nothing()


@given(sessions())
def test_a_restored_session_is_captured_the_same(saved):
    world = World()
    with world.open(layout=True, memory_kind=saved.memory_kind) as session:
        session.restore(saved, NEVER)
        again = session.capture(NEVER)
        whole = {buffer.handle: contents(buffer) for buffer in saved.buffers}
        assert {buffer.handle: contents(buffer) for buffer in again.buffers} == whole
        assert replace(again, buffers=()) == replace(saved, buffers=())
        assert session.capture(NEVER, saved).buffers == tuple(
            SavedBuffer(buffer.handle, buffer.size_bytes, ()) for buffer in saved.buffers
        )
    world.close()


def test_a_session_that_served_another_guest_may_be_restored_into(world):
    with world.open() as session:
        handle, kernel = session.buffers.allocate(8), session.kernels.load(FILL, "fill", NEVER)
        saved = session.capture(NEVER)
    session = world.open(layout=True)
    session.kernels.load(FILL, "fill", NEVER)
    assert session.renew()
    session.restore(saved, NEVER)
    fill(session, kernel, handle, 9)
    assert launch_compiled(world.devices[0], session.layout, kernel, handle, 4, [10])
    assert read(session, handle, 8) == struct.pack("<II", 9, 10)
    assert session.kernels.load(AFFINE, "affine", NEVER) == kernel + 1
    assert not session.renew()
    session.close()


# --------------------------------------------------------------------------------------- what comes from elsewhere


@given(hostile_sessions())
@settings(max_examples=300)
def test_invalid_saved_sessions_give_a_typed_error_and_leave_nothing(saved):
    world = World(lambda: FakeDevice(effects=True))
    with world.open(layout=True, limits=LIMITS) as session:
        before = session.statistics()
        try:
            session.restore(saved, NEVER)
        except TensorWasmError as error:
            assert isinstance(error, (InvalidSnapshot, QuotaExceeded, MalformedPtx, InvalidKernel))  # noqa: PT017 - not every session is refused
            assert session.failure is None
            refusals = int(isinstance(error, QuotaExceeded))
            assert session.statistics() == before._replace(quota_refusals=refusals)
            assert world.charged() == (0, 0, 0)
            assert world.devices[0].modules == set() or world.shared[0].statistics().kernels_held == 0
            session.restore(SavedSession((SavedBuffer(5, 4, ()),), (SavedKernel(6, FILL, "fill"),)), NEVER)
            fill(session, 6, 5, 1)
            assert session.buffers.allocate(4) == 6
            assert session.streams.open() == session.events.open() == 1
        else:
            check_session(saved)
    assert world.devices[0].broken == []
    world.shared[0].close()
    assert world.devices[0].holds_nothing()


BUFFER = SavedBuffer(3, 3 * PAGE_BYTES, ())
NONSENSE = {
    "handle twice": SavedSession((BUFFER, BUFFER)),
    "handles descend": SavedSession((BUFFER, replace(BUFFER, handle=2))),
    "handle 0": SavedSession((replace(BUFFER, handle=0),)),
    "handle past the end": SavedSession((replace(BUFFER, handle=1 << 63),)),
    "no room after a handle": SavedSession((replace(BUFFER, handle=MAX_NUMBER),)),
    "no bytes": SavedSession((replace(BUFFER, size_bytes=0),)),
    "more bytes than there are": SavedSession((replace(BUFFER, size_bytes=1 << 63),)),
    "run past the end": SavedSession((replace(BUFFER, runs=(SavedRun(2 * PAGE_BYTES, bytes(2 * PAGE_BYTES)),)),)),
    "run before the beginning": SavedSession((replace(BUFFER, runs=(SavedRun(-PAGE_BYTES, bytes(PAGE_BYTES)),)),)),
    "run between pages": SavedSession((replace(BUFFER, runs=(SavedRun(1, bytes(PAGE_BYTES - 1)),)),)),
    "run of a part of a page": SavedSession((replace(BUFFER, runs=(SavedRun(0, b"x"),)),)),
    "empty run": SavedSession((replace(BUFFER, runs=(SavedRun(0, b""),)),)),
    "run twice": SavedSession((replace(BUFFER, runs=(SavedRun(0, bytes(PAGE_BYTES)),) * 2),)),
    "runs descend": SavedSession(
        (replace(BUFFER, runs=(SavedRun(PAGE_BYTES, bytes(PAGE_BYTES)), SavedRun(0, bytes(4096)))),)
    ),
    "kernel twice": SavedSession(kernels=(SavedKernel(1, FILL, "fill"),) * 2),
    "kernel 0": SavedSession(kernels=(SavedKernel(0, FILL, "fill"),)),
    "text of words": SavedSession(kernels=(SavedKernel(1, FILL.decode(), "fill"),)),
    "stream 0": SavedSession(streams=(0,)),
    "stream in the own one's place": SavedSession(streams=(32,)),
    "streams in one place": SavedSession(streams=(1, 33)),
    "stream twice": SavedSession(streams=(1, 1)),
    "event twice": SavedSession(events=(2, 2)),
    "event -1": SavedSession(events=(-1,)),
    "next handle is taken": SavedSession((BUFFER,), next_numbers=(("handle", 3),)),
    "next kernel is taken": SavedSession(kernels=(SavedKernel(7, FILL, "fill"),), next_numbers=(("kernel", 0),)),
    "next stream is taken": SavedSession(streams=(5,), next_numbers=(("stream", 5),)),
    "next number twice": SavedSession(next_numbers=(("event", 5), ("event", 5))),
    "next of what is not": SavedSession(next_numbers=(("thread", 5),)),
    "no room after the next": SavedSession(next_numbers=(("kernel", 1 << 63),)),
    "kind of memory": SavedSession(memory_kind="virtual"),
    "no session": None,
}


@pytest.mark.parametrize("saved", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_refused_before_anything_is_made(fake, saved):
    with fake.open() as session:
        with pytest.raises(InvalidSnapshot):
            session.restore(saved, NEVER)
        assert fake.devices[0].calls == []


def test_quotas_are_the_callers_and_a_refusal_gives_everything_back():
    world = World(cap_bytes=4 * MIB)
    big = SavedSession(tuple(SavedBuffer(handle, 3 * MIB // 2, ()) for handle in (1, 2, 3)))
    with world.open() as session:
        with pytest.raises(QuotaExceeded):
            session.restore(big, NEVER)
        assert (session.statistics().device_bytes, session.statistics().allocations) == (0, 0)
        assert world.charged()[1] == 0
        session.restore(replace(big, buffers=big.buffers[:2]), NEVER)
        assert session.statistics().device_bytes == 3 * MIB
        assert session.buffers.allocate(4) == 3
    world.close()


@pytest.mark.parametrize(
    ("saved", "limits"),
    [
        (SavedSession((SavedBuffer(1, 4, ()), SavedBuffer(2, 4, ()))), SessionLimits(allocations=1)),
        (SavedSession((SavedBuffer(1, 1 << 62, ()),)), SessionLimits()),
        (SavedSession(kernels=tuple(SavedKernel(n, FILL, "fill") for n in (1, 2))), SessionLimits(kernels=1)),
        (SavedSession(kernels=(SavedKernel(1, FILL, "fill"),)), SessionLimits(ptx_bytes=10)),
        (SavedSession((SavedBuffer(1, 4, ()),), streams=(1, 2)), SessionLimits(streams=1)),
        (SavedSession((SavedBuffer(1, 4, ()),), events=(1, 2)), SessionLimits(events=1)),
    ],
)
def test_every_limit_of_the_session_holds(world, saved, limits):
    with world.open(limits=limits) as session:
        with pytest.raises(QuotaExceeded):
            session.restore(saved, NEVER)
        session.restore(SavedSession(), NEVER)
        found = session.statistics()
        assert (found.allocations, found.kernels, found.streams, found.events) == (0, 0, 0, 0)


def test_a_kernel_that_the_device_cannot_run_is_refused_by_name(world):
    new = FILL.replace(b"sm_70", b"sm_90")
    saved = SavedSession((SavedBuffer(1, 4, ()),), (SavedKernel(8, FILL, "fill"), SavedKernel(9, new, "fill")))
    with world.open(architecture=(8, 0)) as session:
        with pytest.raises(UnsupportedPtx, match=r"'fill' cannot run here.*sm_90"):
            session.restore(saved, NEVER)
        assert session.statistics().kernels == session.statistics().allocations == 0
    with world.open() as session:
        session.restore(saved, NEVER)


def test_a_kernel_that_is_none_is_refused(world):
    for kernel, error in ((SavedKernel(1, b"junk", "fill"), MalformedPtx), (SavedKernel(1, FILL, "x"), InvalidKernel)):
        with world.open() as session, pytest.raises(error):
            session.restore(SavedSession((SavedBuffer(1, 4, ()),), (kernel,)), NEVER)


def test_compiled_code_goes_on_giving_ids_where_no_kernel_was_ever_loaded(world):
    session = world.open(layout=True)
    session.kernels.load(FILL, "fill", NEVER)
    assert session.renew()
    first = session.layout.next_kernel
    session.restore(SavedSession((SavedBuffer(1, 4, ()),), next_numbers=(("handle", 2), ("kernel", 0))), NEVER)
    assert session.layout.next_kernel == first > 0
    assert session.layout.budget > 0
    session.close()


def test_only_a_new_session_is_restored_into(world):
    uses = [
        lambda session: session.buffers.allocate(4),
        lambda session: session.kernels.load(FILL, "fill", NEVER),
        lambda session: session.streams.open(),
        lambda session: session.events.open(),
        lambda session: session.graphs.close(recorded(session), NEVER),
    ]
    for use in uses:
        with world.open() as session:
            use(session)
            before = session.statistics()
            with pytest.raises(InvalidArgs):
                session.restore(SavedSession(streams=(4,)), NEVER)
            assert session.statistics() == before


def recorded(session):
    session.graphs.begin(0)
    return session.graphs.end(0)


def test_a_deadline_that_passes_before_contents_are_on_their_way_changes_nothing(world):
    saved = SavedSession((SavedBuffer(1, 4, ()),), (SavedKernel(8, FILL, "fill"),))
    with world.open() as session:
        with pytest.raises(InvokeTimeout):
            session.restore(saved, Deadline.after(0))
        assert session.failure is None
        assert session.statistics().allocations == 0
        session.restore(saved, NEVER)


@given(
    st.sampled_from(
        ["pool_allocate", "open_pool", "open_stream", "load", "kernel", "fill", "synchronize", "write", "confine"]
    ),
    st.integers(1, 3),
    st.sampled_from([DeviceLost, InvokeTimeout, QuotaExceeded]),
)
def test_a_device_that_fails_on_the_way_leaves_nothing(method, nth, kind):
    world = World(lambda: FakeDevice(effects=True))
    device = world.devices[0]
    pages = (SavedRun(0, b"a" * PAGE_BYTES), SavedRun(2 * PAGE_BYTES, b"b" * PAGE_BYTES))
    buffers = tuple(SavedBuffer(handle, 4 * PAGE_BYTES, pages) for handle in (1, 2))
    saved = SavedSession(buffers, (SavedKernel(8, FILL, "fill"), SavedKernel(9, AFFINE, "affine")), (1, 2), (1,))
    with world.open(layout=True) as session:
        device.fail(method, nth, kind("injected"))
        try:
            session.restore(saved, NEVER)
        except kind:
            assert session.failure is not None or session.statistics().allocations == 0
            assert session.layout.armed == (session.failure is None)
        else:
            assert session.capture(NEVER).buffers == buffers
        device.nth.clear()
    assert device.broken == []
    assert world.charged()[1] == 0
    world.shared[0].close()
    assert device.holds_nothing()
    assert world.gate.in_use == 0


def test_a_window_of_guest_memory_works_after_a_restore(world):
    pages = (ctypes.c_char * (3 << 16))()
    address = -(-ctypes.addressof(pages) // 65536) * 65536
    memory = Region(address, 1 << 16, host=True)
    with world.open() as session:
        kernel = session.kernels.load(FILL, "fill", NEVER)
        saved = session.capture(NEVER)
    with world.open(memory_kind="staged") as session:
        session.restore(saved, NEVER)
        session.kernels.launch(kernel, ONE, lambda: [HostWindow(address, 4), word(77)], memory, NEVER)
        assert ctypes.string_at(address, 4) == struct.pack("<I", 77)
