"""A guest whose session is saved between two of its calls and restored elsewhere goes on as if nothing had happened."""

from __future__ import annotations

import struct
from contextlib import contextmanager

import pytest

from conformance.puppet import Puppet
from conformance.work import WORD, Work, chain, u32
from fakes.argv import encode_argv
from oracles.sessions import assert_sparse, contents, flattened
from strategies.kernels import AFFINE, COUNT, LOOKUP, NOTHING
from tensorwasm.errors import InvokeTimeout, NotCapturable, QuotaExceeded, UnsupportedPtx
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.opening import open_device
from tensorwasm.gpu.session import Session
from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedKernel, SavedRun, SavedSession
from tensorwasm.values import NEVER, Deadline

LONG_S = 30.0
CONTENT = bytes(range(256)) * 16 + bytes(2 * PAGE_BYTES) + b"the end"


@pytest.fixture
def emulator():
    device, _ = open_device("emulator")
    yield device
    device.close()


@contextmanager
def restored(device, saved, *, compiled=False, memory="pinned", guarded=False):
    """A new guest with a saved session."""
    with Puppet(device, compiled=compiled, guarded=guarded, memory=memory) as puppet:
        puppet.session.restore(saved, Deadline.after(LONG_S))
        yield puppet


def begin(puppet):
    """Have a guest make one of everything, and leave gaps in its numbers."""
    work = Work(puppet)
    handles = [work.buffer(CONTENT), work.buffer(b"gone"), work.buffer(struct.pack("<II", 1, 2))]
    assert puppet.free(handles[1], 0) == 0
    streams = [puppet.stream_create() for _ in range(2)]
    assert puppet.stream_destroy(streams[0]) == 0
    events = [puppet.event_create() for _ in range(2)]
    assert puppet.event_destroy(events[0]) == 0
    kernel = work.affine_kernel
    assert work.affine(3, 4, streams[1], work.place(handles[2])) == 0
    assert puppet.event_record(events[1], streams[1]) == 0
    return handles, kernel, streams, events


def go_on(puppet, handles, kernel, streams, events):
    """Have a guest use what it had, and see that it has nothing else."""
    work = Work(puppet)
    work.affine_kernel = kernel
    assert work.contents(handles[0], len(CONTENT)) == CONTENT
    assert work.contents(handles[2], 8) == struct.pack("<II", 7, 2)
    assert puppet.event_query(events[1]) == 0
    assert puppet.event_query(events[0]) == puppet.stream_query(streams[0]) == -11
    assert puppet.memcpy_d2h(0, handles[1], 0, 1) == puppet.memcpy_d2h(0, 99, 0, 1) == -11
    word = work.place(handles[2])
    assert puppet.stream_wait_event(streams[1], events[1]) == 0
    for factor in (2, 3):
        assert work.affine(factor, 1, streams[1], word) == 0
    assert puppet.stream_sync(streams[1]) == 0
    for factor in (5, 7):
        assert puppet.start(kernel, encode_argv([word, u32(factor), u32(1)]), block=(1, 1, 1)) == 0
    expected = chain([(2, 1), (3, 1), (5, 1), (7, 1)], 7)
    assert work.contents(handles[2], 8) == struct.pack("<II", expected, 2)
    work.word = 11
    assert work.affine(2, 3, 0, WORD) == 0
    assert puppet.sync() == 0
    assert work.word == 25
    new = work.buffer(b"new")
    assert new == handles[2] + 1
    assert puppet.stream_create() > streams[1]
    assert puppet.event_create() == events[1] + 1
    assert puppet.load(AFFINE, b"affine") == kernel + 1
    assert work.contents(handles[0], len(CONTENT)) == CONTENT
    assert puppet.free(handles[0], 0) == puppet.unload(kernel) == puppet.stream_destroy(streams[1]) == 0


def test_a_guest_goes_on_where_it_was_saved(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        things = begin(puppet)
        saved = puppet.session.capture(Deadline.after(LONG_S))
        go_on(puppet, *things)  # whoever is saved goes on as well
    for _ in range(2):
        with restored(device, saved, compiled=compiled, guarded=guarded) as puppet:
            go_on(puppet, *things)


def test_compiled_code_finds_what_was_restored(device):
    with Puppet(device, compiled=True) as puppet:
        handles, kernel, _, _ = begin(puppet)
        saved = puppet.session.capture(Deadline.after(LONG_S))
    with restored(device, saved, compiled=True) as puppet:
        launch = encode_argv([Work(puppet).place(handles[2]), u32(1), u32(1)])
        for _ in range(3):
            assert puppet.start(kernel, launch, block=(1, 1, 1)) == 0
        assert puppet.session.layout.launched >= 2
        assert puppet.session.statistics().kernels_launched == 3
        assert Work(puppet).contents(handles[2], 4) == struct.pack("<I", 7 + 3)


@pytest.mark.parametrize("inward", [True, False])
def test_a_session_moves_between_the_emulator_and_another_device(device, emulator, compiled, inward, guarded):
    first, second = (emulator, device) if inward else (device, emulator)
    with Puppet(first, compiled=compiled, guarded=guarded) as puppet:
        things = begin(puppet)
        saved = puppet.session.capture(Deadline.after(LONG_S))
    with restored(second, saved, compiled=compiled, guarded=guarded) as puppet:
        again = puppet.session.capture(Deadline.after(LONG_S))
        assert again == saved
        go_on(puppet, *things)


def test_pages_that_are_zero_or_as_in_the_parent_are_not_kept(device):
    pages = 700
    with Session(device) as session:
        handles = [session.buffers.allocate(pages * PAGE_BYTES - 5) for _ in range(2)]
        assert all(buffer.runs == () for buffer in session.capture(NEVER).buffers)
        for page in (0, 1, 300, pages - 1):
            session.buffers.write(handles[0], bytes([page % 255 + 1]), NEVER, page * PAGE_BYTES)
        parent = session.capture(NEVER)
        assert [run.offset_bytes // PAGE_BYTES for run in parent.buffers[0].runs] == [0, 300, pages - 1]
        session.buffers.write(handles[0], b"\0", NEVER, 300 * PAGE_BYTES)
        session.buffers.write(handles[1], b"x", NEVER, 5)
        added, whole = session.capture(NEVER, parent), session.capture(NEVER)
    for old, new in zip(parent.buffers, added.buffers, strict=True):
        assert_sparse(new, old)
    assert [contents(buffer) for buffer in flattened(added, parent).buffers] == list(map(contents, whole.buffers))


def test_restored_memory_holds_nothing_of_other_guests(device):
    size = 3 * PAGE_BYTES
    with Session(device) as session:
        for _ in range(4):
            session.buffers.write(session.buffers.allocate(size), b"\xab" * size, NEVER)
    buffers = tuple(SavedBuffer(handle, size, (SavedRun(PAGE_BYTES, b"x" * PAGE_BYTES),)) for handle in range(1, 5))
    with Session(device) as session:
        session.restore(SavedSession(buffers), NEVER)
        assert session.capture(NEVER).buffers == buffers


def test_work_that_goes_on_is_not_stopped_by_who_waits_for_it_to_be_saved(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        handle = work.buffer(struct.pack("<I", 1))
        work.warm_up(0)
        assert work.affine(1, 0, 0, work.place(handle)) == 0
        assert work.nap(0.3) == 0
        assert work.affine(5, 6, 0, work.place(handle)) == 0
        with pytest.raises(InvokeTimeout):
            puppet.session.capture(Deadline.after(0.01))
        assert puppet.session.failure is None
        assert contents(puppet.session.capture(Deadline.after(LONG_S)).buffers[0]) == struct.pack("<I", 11)
        assert puppet.sync() == 0


def test_a_table_that_is_only_looked_up_is_there_again(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        kernel, handle = puppet.load(LOOKUP, b"lookup"), Work(puppet).buffer(bytes(4))
        saved = puppet.session.capture(Deadline.after(LONG_S))
    with restored(device, saved, compiled=compiled, guarded=guarded) as puppet:
        work = Work(puppet)
        for index, value in enumerate((11, 22, 33, 44)):
            assert puppet.start(kernel, encode_argv([work.place(handle), u32(index)]), block=(1, 1, 1)) == 0
            assert work.contents(handle, 4) == struct.pack("<I", value)


def test_a_session_that_cannot_be_saved_is_refused_by_name_and_continues(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        assert puppet.graph_begin(0) == 0
        with pytest.raises(NotCapturable, match="stream 0 records"):
            puppet.session.capture(NEVER)
        graph = puppet.graph_end(0)
        assert graph > 0
        with pytest.raises(NotCapturable, match="graphs"):
            puppet.session.capture(NEVER)
        assert puppet.graph_destroy(graph) == 0
        kernel = puppet.load(COUNT, b"count")
        assert kernel > 0
        with pytest.raises(NotCapturable, match="'count'"):
            puppet.session.capture(NEVER)
        assert puppet.unload(kernel) == 0
        assert puppet.session.capture(NEVER).kernels == ()


def test_a_refused_restore_leaves_nothing_on_the_device(device):
    with Session(device, SessionLimits(allocations=2)) as session:
        before = device.statistics()
        buffers = tuple(SavedBuffer(handle, 100, ()) for handle in (1, 2, 3))
        with pytest.raises(QuotaExceeded):
            session.restore(SavedSession(buffers, streams=(1, 2)), NEVER)
        new = NOTHING.replace(b"sm_70", b"sm_999")
        with pytest.raises(UnsupportedPtx, match="'nothing' cannot run here"):
            session.restore(SavedSession(buffers[:2], (SavedKernel(5, new, "nothing"),)), NEVER)
        assert session.failure is None
        assert device.statistics().modules == before.modules
        found = session.statistics()
        assert (found.allocations, found.device_bytes, found.kernels, found.streams) == (0, 0, 0, 0)
        session.restore(SavedSession(buffers[:2]), NEVER)
        assert session.statistics().device_bytes == 200
