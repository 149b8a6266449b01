"""A session that is read into plain values: what is kept of it, and what is refused by name."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import FakeDevice
from fakes.world import ONE, World, fill, read, word
from oracles.sessions import assert_sparse, contents
from strategies.kernels import ASTRAY, COUNT, FILL, LOOKUP, padded
from strategies.sessions import SIZES
from tensorwasm.errors import (
    DeviceLost,
    InvalidSnapshot,
    InvokeTimeout,
    KernelFault,
    NotCapturable,
)
from tensorwasm.gpu.device.arguments import BufferOffset
from tensorwasm.gpu.session.snapshots import RunCollector
from tensorwasm.saved import PAGE_BYTES, SavedBuffer, SavedKernel, SavedRun, SavedSession
from tensorwasm.values import NEVER, Deadline

SOON = 0.002


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


# ----------------------------------------------------------------------------------------------------- runs


@given(st.data(), SIZES)
def test_the_pages_that_differ_are_kept_in_as_few_runs_as_can_be(data, size):
    pages = -(-size // PAGE_BYTES)
    state = st.lists(st.sampled_from([0, 0, 1, 2]), min_size=pages, max_size=pages)
    old, new = (
        b"".join(bytes([value]) * PAGE_BYTES for value in data.draw(state, label))[:size] for label in ("old", "new")
    )
    parent = SavedBuffer(1, size, collect(old, data.draw(st.integers(1, 4))))
    assert contents(parent) == old
    assert_sparse(parent)
    added = SavedBuffer(1, size, collect(new, data.draw(st.integers(1, 4)), parent.runs))
    assert contents(added, parent) == new
    assert_sparse(added, parent)


def collect(content, pages, base=()):
    """Return the runs of a buffer that is read so many pages at a time."""
    collector = RunCollector(base)
    for offset in range(0, len(content), pages * PAGE_BYTES):
        collector.add(offset, memoryview(content)[offset : offset + pages * PAGE_BYTES])
    return collector.finish()


@pytest.mark.parametrize("pages", [1, 2])
def test_a_buffer_of_several_chunks_is_read_whole(world, monkeypatch, pages):
    monkeypatch.setattr("tensorwasm.gpu.session.snapshots.CHUNK_BYTES", pages * PAGE_BYTES)
    content = bytes(range(256)) * 30 + bytes(9000) + b"end"
    with world.open() as session:
        handle = session.buffers.allocate(len(content))
        session.buffers.write(handle, content, NEVER)
        saved = session.capture(NEVER)
    assert contents(saved.buffers[0]) == content
    assert_sparse(saved.buffers[0])
    with world.open() as session:
        session.restore(saved, NEVER)
        assert read(session, handle, len(content)) == content


# -------------------------------------------------------------------------------------------- what is refused


def refused(session, what):
    with pytest.raises(NotCapturable, match=what):
        session.capture(NEVER)


def test_a_stream_that_records_and_graphs_are_refused_by_name(world):
    with world.open() as session:
        number = session.streams.open()
        session.graphs.begin(number)
        refused(session, f"stream {number} records")
        graph = session.graphs.end(number)
        refused(session, "1 graphs")
        session.graphs.close(graph, NEVER)
        assert dict(session.capture(NEVER).next_numbers)["graph"] == 2
    refused(session, "closed")


def test_a_session_that_failed_is_refused(world):
    with world.open() as session:
        handle = session.buffers.allocate(4)
        kernel = session.kernels.load(ASTRAY, "astray", NEVER)
        session.kernels.submit(kernel, ONE, lambda: [BufferOffset(handle, 0)], None, NEVER)
        with pytest.raises(KernelFault):
            session.capture(Deadline.after(60))
        refused(session, "is over")
        with pytest.raises(DeviceLost):
            session.restore(SavedSession(), NEVER)


def test_a_staged_launch_whose_call_has_not_ended_is_refused(fake):
    with fake.open(layout=True) as session:
        session.layout.staged = 1
        refused(session, "launch")
        session.layout.staged = 0
        assert session.capture(NEVER) == SavedSession(next_numbers=session.capture(NEVER).next_numbers)


def test_a_kernel_that_may_write_to_variables_is_refused_by_name(world):
    with world.open() as session:
        kernel = session.kernels.load(COUNT, "count", NEVER)
        refused(session, "kernel 'count' may have written")
        session.kernels.unload(kernel, NEVER)
        assert session.capture(NEVER).kernels == ()


@pytest.mark.parametrize("space", [".const", ".global"])
def test_variables_that_are_only_looked_up_are_loaded_anew_and_charged(world, space):
    text = LOOKUP.replace(b".global .align", f"{space} .align".encode()).replace(b"ld.global", f"ld{space}".encode())
    with world.open() as session:
        kernel = session.kernels.load(text, "lookup", NEVER)
        handle = session.buffers.allocate(4)
        saved = session.capture(NEVER)
        assert saved.kernels == (SavedKernel(kernel, text, "lookup"),)
        assert session.statistics().device_bytes == 20
        with world.open() as other:
            other.restore(saved, NEVER)
            assert other.statistics().device_bytes == 20
            fill(other, kernel, handle, 2)
            assert read(other, handle, 4) == struct.pack("<I", 33)


def test_work_that_does_not_end_in_time_changes_nothing(fake):
    with fake.open() as session:
        handle = session.buffers.allocate(4)
        kernel = session.kernels.load(FILL, "fill", NEVER)
        session.kernels.submit(kernel, ONE, lambda: [BufferOffset(handle, 0), word(7)], None, NEVER)
        with pytest.raises(InvokeTimeout):
            session.capture(Deadline.after(SOON))
        assert session.failure is None
        assert "synchronize" not in fake.devices[0].calls  # which a device may take for a reason to give up
        fake.devices[0].finish()
        assert contents(session.capture(Deadline.after(60)).buffers[0]) == struct.pack("<I", 7)


def test_a_copy_that_is_not_begun_in_time_changes_nothing(fake):
    with fake.open() as session:
        session.buffers.allocate(4)
        fake.devices[0].finish()
        fake.devices[0].fail("read", 1, InvokeTimeout("busy"))
        with pytest.raises(InvokeTimeout):
            session.capture(NEVER)
        assert session.failure is None
        session.capture(NEVER)


def test_a_parent_of_another_session_is_refused(world):
    with world.open() as session:
        handle = session.buffers.allocate(100)
        for buffer in (
            SavedBuffer(handle, 99, ()),
            SavedBuffer(0, 100, ()),
            SavedBuffer(handle, 100, (SavedRun(5, b"x"),)),
        ):
            with pytest.raises(InvalidSnapshot):
                session.capture(NEVER, SavedSession((buffer,)))
        assert session.capture(NEVER, SavedSession()).buffers == (SavedBuffer(handle, 100, ()),)


# --------------------------------------------------------------------------------------------- what is kept


def test_a_capture_outlives_its_session_and_sees_nothing_of_what_comes_later(world):
    with world.open() as session:
        handle = session.buffers.allocate(PAGE_BYTES)
        session.buffers.write(handle, b"before", NEVER)
        saved = session.capture(NEVER)
        session.buffers.write(handle, b"later!", NEVER)
    assert contents(saved.buffers[0])[:6] == b"before"


@pytest.mark.rule("4-device")
def test_a_capture_has_nothing_of_a_session_before(world):
    with world.open() as session:
        for _ in range(3):
            session.buffers.write(session.buffers.allocate(70_000), b"\xab" * 70_000, NEVER)
    with world.open() as session:
        for size in (5, 70_000, 9000):
            session.buffers.allocate(size)
        assert all(buffer.runs == () for buffer in session.capture(NEVER).buffers)
    saved = SavedSession(
        tuple(SavedBuffer(handle, 70_000, (SavedRun(PAGE_BYTES, b"x" * PAGE_BYTES),)) for handle in (1, 2))
    )
    with world.open() as session:
        session.restore(saved, NEVER)
        assert session.capture(NEVER).buffers == saved.buffers


def test_a_kernel_that_compiled_code_loaded_is_kept_with_its_text(fake):
    session = fake.open(layout=True)
    session.kernels.load(FILL, "fill", NEVER)
    assert session.renew()
    layout = session.layout
    kernel, row = layout.next_kernel, layout.kernels[layout.next_kernel % len(layout.kernels)]
    row.id, row.head, layout.loaded[0] = kernel, layout.offers[0].head, 0
    layout.loads, layout.loaded_bytes, layout.next_kernel, layout.budget = 1, len(FILL), kernel + 1, layout.budget - 1
    saved = session.capture(NEVER)
    session.close()
    assert saved.kernels == (SavedKernel(kernel, FILL, "fill"),)
    assert dict(saved.next_numbers)["kernel"] == kernel + 1


def test_the_text_of_a_kernel_is_kept_once(world):
    text = padded(FILL, 100_000)
    with world.open() as one, world.open() as other:
        for session in (one, other):
            session.kernels.load(bytes(bytearray(text)), "fill", NEVER)
        assert one.capture(NEVER).kernels[0].text is other.capture(NEVER).kernels[0].text
