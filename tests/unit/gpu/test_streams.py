"""Streams, events and graphs of a session: numbers, order, limits, and what a recording forbids."""

import ctypes
import mmap
import struct

import pytest

from fakes.device import FakeDevice
from strategies.kernels import FILL, NOTHING
from tensorwasm.errors import (
    DeviceLost,
    InvalidArgs,
    InvalidDimensions,
    InvalidHandle,
    InvalidKernelArgs,
    InvalidPointer,
    KernelFault,
    LaunchRefused,
    QuotaExceeded,
)
from tensorwasm.gpu.device.arguments import BufferOffset, HostWindow, Scalar
from tensorwasm.gpu.device.limits import SessionLimits
from tensorwasm.gpu.limits.accounts import MemoryLedger
from tensorwasm.gpu.limits.gate import Gate
from tensorwasm.gpu.native.layout import SessionLayout
from tensorwasm.gpu.session import Session
from tensorwasm.values import NEVER, WASM_PAGE_BYTES, LaunchConfig, Region

ONE = LaunchConfig((1, 1, 1), (1, 1, 1))
SIZE = 4 * WASM_PAGE_BYTES
PAGES = mmap.mmap(-1, SIZE)
ADDRESS = ctypes.addressof(ctypes.c_char.from_buffer(PAGES))
MEMORY = Region(ADDRESS, SIZE // 2, host=True)
GROWN = Region(ADDRESS, SIZE, host=True)
ABSENT = [-1, 1, 99, 1 << 32, (1 << 64) - 1]


@pytest.fixture
def device():
    device = FakeDevice(effects=True)
    yield device
    assert device.broken == []


@pytest.fixture
def gate():
    return Gate(1)


@pytest.fixture
def session(device, gate):
    with Session(device, ledger=MemoryLedger(), gate=gate) as session:
        yield session
    assert session.statistics().abandoned or device.holds_nothing()
    assert gate.in_use == 0


@pytest.fixture
def kernel(session):
    return session.kernels.load(FILL, "fill", NEVER)


@pytest.fixture
def buffer(session):
    return session.buffers.allocate(64)


def word(value):
    return Scalar(struct.pack("<I", value))


def fill(session, kernel, handle, value, stream=0):
    session.kernels.submit(kernel, ONE, lambda: (BufferOffset(handle, 0), word(value)), MEMORY, NEVER, stream)


def fill_window(session, kernel, offset, value, stream=0, memory=MEMORY):
    session.kernels.submit(kernel, ONE, lambda: (HostWindow(ADDRESS + offset, 4), word(value)), memory, NEVER, stream)


def value_of(session, handle, offset=0):
    into = bytearray(4)
    session.buffers.read(handle, memoryview(into), NEVER, offset)
    return struct.unpack("<I", into)[0]


def at(offset):
    return struct.unpack("<I", PAGES[offset : offset + 4])[0]


# --------------------------------------------------------------------------------------------------- streams


def test_numbers_start_at_1_and_are_never_used_twice(session):
    assert [session.streams.open(), session.streams.open()] == [1, 2]
    session.streams.close(1, NEVER)
    assert session.streams.open() == 3
    assert [session.events.open(), session.events.open()] == [1, 2]
    session.events.close(2)
    assert session.events.open() == 3


def test_a_session_is_idle_while_nothing_is_under_way(session, kernel, buffer):
    assert value_of(session, buffer) == 0  # which waits
    assert session.streams.idle()
    stream = session.streams.open()
    fill(session, kernel, buffer, 7, stream)
    assert not session.streams.idle()
    session.streams.synchronize(NEVER, stream)
    assert session.streams.idle()


def test_the_rows_of_open_streams_never_meet(session):
    layout = SessionLayout()
    with Session(FakeDevice(), ledger=MemoryLedger(), gate=Gate(1), layout=layout) as other:
        kept = other.streams.open()
        for _ in range(100):
            other.streams.close(other.streams.open(), NEVER)
        number = other.streams.open()
        assert number > 100
        assert layout.streams[number % 32].number == number
        assert layout.streams[kept].number == kept


@pytest.mark.parametrize("number", ABSENT)
def test_handles_that_do_not_exist_are_named(session, kernel, buffer, number):
    window = HostWindow(ADDRESS, 4)
    for use in (
        lambda: session.streams.close(number, NEVER),
        lambda: session.streams.synchronize(NEVER, number),
        lambda: session.streams.ended(number),
        lambda: fill(session, kernel, buffer, 1, number),
        lambda: session.buffers.copy_in(buffer, 0, window, MEMORY, NEVER, number),
        lambda: session.buffers.copy_out(window, MEMORY, buffer, 0, NEVER, number),
        lambda: session.graphs.begin(number),
        lambda: session.events.close(number),
        lambda: session.events.record(number, 0),
        lambda: session.events.wait(0, number),
        lambda: session.events.synchronize(number, NEVER),
        lambda: session.events.reached(number),
        lambda: session.graphs.replay(number, MEMORY, NEVER),
        lambda: session.graphs.close(number, NEVER),
    ):
        with pytest.raises(InvalidHandle):
            use()
    assert session.failure is None


def test_the_instances_own_stream_stays(session):
    with pytest.raises(InvalidArgs):
        session.streams.close(0, NEVER)
    assert session.streams.ended(0)
    session.streams.synchronize(NEVER, 0)


@pytest.mark.parametrize(
    ("limits", "open_one", "close"),
    [
        (
            SessionLimits(streams=3),
            lambda session: session.streams.open(),
            lambda session: session.streams.close(2, NEVER),
        ),
        (SessionLimits(events=3), lambda session: session.events.open(), lambda session: session.events.close(2)),
    ],
    ids=["streams", "events"],
)
def test_there_are_only_so_many(device, limits, open_one, close):
    with Session(device, limits, MemoryLedger()) as session:
        for _ in range(3):
            open_one(session)
        with pytest.raises(QuotaExceeded):
            open_one(session)
        close(session)
        open_one(session)
        assert session.statistics().quota_refusals == 1


def test_waiting_for_one_stream_leaves_the_others_alone(session, device, gate, kernel, buffer):
    stream = session.streams.open()
    session.streams.synchronize(NEVER)
    other = session.buffers.allocate(4)
    session.streams.synchronize(NEVER)
    fill(session, kernel, buffer, 1)
    fill(session, kernel, other, 2, stream)
    session.streams.synchronize(NEVER, stream)
    assert session.streams.ended(stream)
    assert not session.streams.ended(0)
    assert gate.in_use == 1
    device.finish()
    assert session.streams.ended(0)
    assert gate.in_use == 0


@pytest.mark.rule("3-stream")
def test_a_stream_is_closed_once_it_has_drained(session, device, kernel, buffer):
    stream = session.streams.open()
    fill(session, kernel, buffer, 5, stream)
    session.streams.close(stream, NEVER)
    assert value_of(session, buffer) == 5
    with pytest.raises(InvalidHandle):
        session.streams.synchronize(NEVER, stream)


@pytest.mark.rule("4-device")
def test_a_new_buffer_is_zeros_on_every_stream(session, device, kernel):
    before = session.streams.open()
    buffer = session.buffers.allocate(4)
    after = session.streams.open()
    for stream in (before, after):
        fill(session, kernel, buffer, 9, stream)
        handle = session.buffers.allocate(4)
        device.finish(max(device.streams, key=lambda each: each.number))
        session.streams.synchronize(NEVER, stream)
        assert value_of(session, handle) == 0
    assert value_of(session, buffer) == 9


@pytest.mark.rule("4-device")
def test_a_stream_that_was_there_comes_to_a_new_buffer_behind_its_clearing(session, device, kernel):
    stream = session.streams.open()
    mine = max(device.streams, key=lambda each: each.number)
    buffer = session.buffers.allocate(4)
    fill(session, kernel, buffer, 9, stream)
    device.finish(mine)  # before anybody has waited for the instance's own stream, on which it is cleared
    assert value_of(session, buffer) == 9


@pytest.mark.rule("3-buffer")
def test_work_in_any_stream_ends_before_a_buffer_goes(session, device, kernel, buffer):
    fill(session, kernel, buffer, 1, session.streams.open())
    session.buffers.free(buffer, NEVER)
    assert not device.busy


# ---------------------------------------------------------------------------------------------------- copies


def test_copies_go_both_ways_in_the_order_of_their_stream(session, kernel, buffer):
    PAGES[:16] = struct.pack("<4I", 1, 2, 3, 4)
    stream = session.streams.open()
    session.buffers.copy_in(buffer, 8, HostWindow(ADDRESS, 8), MEMORY, NEVER, stream)
    fill(session, kernel, buffer, 7, stream)
    session.buffers.copy_out(HostWindow(ADDRESS + 64, 16), MEMORY, buffer, 0, NEVER, stream)
    session.streams.synchronize(NEVER, stream)
    assert struct.unpack("<4I", PAGES[64:80]) == (7, 0, 1, 2)
    assert session.statistics().pinned_bytes == MEMORY.size_bytes


@pytest.mark.rule("5-copies")
def test_a_copy_is_within_its_ends(session, device, buffer):
    for handle, offset, window, error in [
        (9, 0, HostWindow(ADDRESS, 4), InvalidHandle),
        (buffer, 61, HostWindow(ADDRESS, 4), InvalidArgs),
        (buffer, -1, HostWindow(ADDRESS, 4), InvalidArgs),
        (buffer, 1 << 63, HostWindow(ADDRESS, 0), InvalidArgs),
        (buffer, 0, HostWindow(MEMORY.end - 3, 4), InvalidPointer),
        (buffer, 0, HostWindow(ADDRESS - 1, 4), InvalidPointer),
    ]:
        with pytest.raises(error):
            session.buffers.copy_in(handle, offset, window, MEMORY, NEVER)
        with pytest.raises(error):
            session.buffers.copy_out(window, MEMORY, handle, offset, NEVER)
    session.buffers.copy_in(buffer, 64, HostWindow(MEMORY.end, 0), MEMORY, NEVER)
    assert not {"copy_in", "copy_out"} & set(device.calls)


@pytest.mark.parametrize("offset", [4, 60])
def test_bytes_are_written_and_read_at_an_offset(session, buffer, offset):
    session.buffers.write(buffer, b"abcd", NEVER, offset)
    assert value_of(session, buffer, offset) == struct.unpack("<I", b"abcd")[0]
    with pytest.raises(InvalidArgs):
        session.buffers.write(buffer, b"abcd", NEVER, 61)


# ---------------------------------------------------------------------------------------------------- events


def test_an_event_orders_streams(session, device, kernel, buffer):
    first, second, event = session.streams.open(), session.streams.open(), session.events.open()
    assert session.events.reached(event)
    session.events.synchronize(event, NEVER)
    session.events.wait(second, event)
    fill(session, kernel, buffer, 1, first)
    session.events.record(event, first)
    assert not session.events.reached(event)
    session.events.wait(second, event)
    fill(session, kernel, buffer, 2, second)
    session.events.close(event)
    session.streams.synchronize(NEVER, second)
    assert session.streams.ended(second)
    assert value_of(session, buffer) == 2


def test_waiting_for_an_event_is_waiting_for_what_is_before_it(session, kernel, buffer):
    event = session.events.open()
    fill(session, kernel, buffer, 1)
    session.events.record(event, 0)
    session.events.synchronize(event, NEVER)
    assert session.events.reached(event)


# ---------------------------------------------------------------------------------------------------- graphs


def record(session, stream, *steps):
    session.graphs.begin(stream)
    for step in steps:
        step()
    return session.graphs.end(stream)


def test_a_graph_does_what_was_recorded_each_time_it_is_replayed(session, device, kernel, buffer):
    stream = session.streams.open()
    graph = record(
        session,
        stream,
        lambda: fill(session, kernel, buffer, 3, stream),
        lambda: session.buffers.copy_out(HostWindow(ADDRESS + 128, 4), MEMORY, buffer, 0, NEVER, stream),
    )
    PAGES[128:132] = bytes(4)
    assert value_of(session, buffer) == 0
    for target in (stream, 0):
        session.buffers.write(buffer, bytes(4), NEVER)
        session.graphs.replay(graph, MEMORY, NEVER, target)
        session.streams.synchronize(NEVER)
        assert (value_of(session, buffer), at(128)) == (3, 3)
    statistics = session.statistics()
    assert (statistics.replays, statistics.kernels_launched, statistics.graphs) == (2, 2, 1)
    session.graphs.close(graph, NEVER)
    assert session.statistics().graphs == 0


def test_an_empty_graph_is_a_graph(session):
    graph = record(session, 0)
    session.graphs.replay(graph, None, NEVER)


def test_while_a_stream_records_everything_else_is_refused(session, device, kernel, buffer):
    stream, event = session.streams.open(), session.events.open()
    graph = record(session, 0)
    session.graphs.begin(stream)
    window = HostWindow(ADDRESS, 4)
    for use in (
        lambda: session.buffers.allocate(4),
        lambda: session.buffers.free(buffer, NEVER),
        lambda: session.buffers.write(buffer, b"", NEVER),
        lambda: session.buffers.read(buffer, memoryview(bytearray()), NEVER),
        lambda: session.kernels.load(NOTHING, "nothing", NEVER),
        lambda: session.kernels.unload(kernel, NEVER),
        lambda: session.kernels.launch(kernel, ONE, tuple, MEMORY, NEVER),
        lambda: fill(session, kernel, buffer, 1, 0),
        lambda: session.buffers.copy_in(buffer, 0, window, MEMORY, NEVER),
        lambda: session.buffers.copy_out(window, MEMORY, buffer, 0, NEVER),
        lambda: session.streams.synchronize(NEVER),
        lambda: session.streams.synchronize(NEVER, stream),
        lambda: session.streams.ended(stream),
        session.streams.open,
        lambda: session.streams.close(stream, NEVER),
        session.events.open,
        lambda: session.events.close(event),
        lambda: session.events.record(event, stream),
        lambda: session.events.wait(stream, event),
        lambda: session.events.synchronize(event, NEVER),
        lambda: session.events.reached(event),
        lambda: session.graphs.begin(0),
        lambda: session.graphs.end(0),
        lambda: session.graphs.replay(graph, MEMORY, NEVER, stream),
        lambda: session.graphs.close(graph, NEVER),
    ):
        with pytest.raises(InvalidArgs):
            use()
    fill(session, kernel, buffer, 1, stream)
    assert session.graphs.end(stream) == graph + 1
    with pytest.raises(InvalidArgs):
        session.graphs.end(stream)


def test_compiled_code_gives_nothing_to_a_session_that_records(device):
    layout = SessionLayout()
    with Session(device, ledger=MemoryLedger(), layout=layout) as session:
        stream = session.streams.open()
        session.buffers.allocate(4)
        graph = record(session, stream)
        assert layout.graphs[graph].handle == graph
        session.graphs.begin(stream)
        assert [row.recording for row in layout.streams if row.stream] == [1, 1]
        assert layout.graphs[graph].handle == 0
        session.graphs.end(stream)
        assert not any(row.recording for row in layout.streams)
        assert (layout.graphs[graph].handle, layout.graphs[graph + 1].launches) == (graph, 0)


@pytest.mark.rule("5-recorded")
def test_a_recorded_launch_is_checked_like_any_other(session, device, kernel, buffer):
    session.graphs.begin(0)
    with pytest.raises(InvalidHandle):
        fill(session, kernel, 99, 1)
    with pytest.raises(InvalidKernelArgs):
        session.kernels.submit(kernel, ONE, tuple, MEMORY, NEVER)
    with pytest.raises(InvalidDimensions):
        session.kernels.submit(kernel, LaunchConfig((0, 1, 1), (1, 1, 1)), tuple, MEMORY, NEVER)
    device.failures["launch"] = LaunchRefused("no")
    with pytest.raises(LaunchRefused):
        fill(session, kernel, buffer, 1)
    graph = session.graphs.end(0)
    session.graphs.replay(graph, MEMORY, NEVER)
    assert session.statistics().kernels_launched == 0


def test_a_graph_is_as_long_as_it_may_be(device):
    with Session(device, SessionLimits(graph_launches=3, graphs=2), MemoryLedger()) as session:
        kernel, buffer = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(4)
        session.graphs.begin(0)
        for _ in range(3):
            fill(session, kernel, buffer, 1)
        with pytest.raises(QuotaExceeded):
            fill(session, kernel, buffer, 1)
        with pytest.raises(QuotaExceeded):
            session.buffers.copy_in(buffer, 0, HostWindow(ADDRESS, 4), MEMORY, NEVER)
        first = session.graphs.end(0)
        record(session, 0)
        with pytest.raises(QuotaExceeded):
            session.graphs.begin(0)
        session.graphs.close(first, NEVER)
        session.graphs.begin(0)


def test_the_numbers_are_the_abis():
    limits = SessionLimits()
    assert (limits.streams, limits.events, limits.graphs, limits.graph_launches) == (16, 256, 32, 4096)


@pytest.mark.parametrize("layout", [None, SessionLayout()])
@pytest.mark.rule("5-recorded")
def test_a_graph_is_dead_once_what_it_uses_has_gone(device, layout):
    with Session(device, ledger=MemoryLedger(), layout=layout) as session:
        kernel, other = session.kernels.load(FILL, "fill", NEVER), session.kernels.load(FILL, "fill", NEVER)
        buffers = [session.buffers.allocate(4) for _ in range(3)]
        graphs = [record(session, 0, lambda each=each: fill(session, kernel, each, 1)) for each in buffers]
        graphs.append(record(session, 0, lambda: fill(session, other, buffers[2], 1)))
        session.buffers.free(buffers[0], NEVER)
        session.kernels.unload(other, NEVER)
        for dead in (graphs[0], graphs[3]):
            with pytest.raises(InvalidHandle):
                session.graphs.replay(dead, MEMORY, NEVER)
            assert layout is None or layout.graphs[dead].handle == 0
        for live in graphs[1:3]:
            session.graphs.replay(live, MEMORY, NEVER)
            assert layout is None or layout.graphs[live].handle == live
        session.graphs.close(graphs[0], NEVER)
        with pytest.raises(InvalidHandle):
            session.graphs.close(graphs[0], NEVER)


def test_a_graph_with_a_number_that_may_be_an_address_needs_everything(session, kernel, buffer, device):
    spare = session.buffers.allocate(4)
    (chunk,) = device.memory
    number = Scalar(struct.pack("<Q", chunk))
    graph = record(session, 0, lambda: session.kernels.submit(kernel, ONE, lambda: (number, word(1)), MEMORY, NEVER))
    session.graphs.replay(graph, MEMORY, NEVER)
    session.buffers.free(spare, NEVER)
    with pytest.raises(InvalidHandle):
        session.graphs.replay(graph, MEMORY, NEVER)


def test_windows_of_a_graph_are_reached_in_place(session, device, kernel):
    graph = record(session, 0, lambda: fill_window(session, kernel, 256, 4))
    assert device.registered == {MEMORY.address: MEMORY.size_bytes}
    assert device.calls.index("register") < device.calls.index("begin_capture")
    session.graphs.replay(graph, MEMORY, NEVER)
    session.streams.synchronize(NEVER)
    assert at(256) == 4
    fill_window(session, kernel, GROWN.size_bytes - 4, 1, memory=GROWN)
    PAGES[256:260] = bytes(4)
    session.graphs.replay(graph, GROWN, NEVER)
    session.streams.synchronize(NEVER)
    assert at(256) == 4, "grown memory is registered at the same address"
    device.failures["register"] = LaunchRefused("no")
    shrunk = Region(ADDRESS, WASM_PAGE_BYTES, host=True)
    with pytest.raises(LaunchRefused):
        fill_window(session, kernel, 0, 1, memory=shrunk)
    with pytest.raises(InvalidHandle):
        session.graphs.replay(graph, shrunk, NEVER)


def test_memory_that_grows_while_a_stream_records_is_not_reached(session, kernel):
    session.graphs.begin(0)
    fill_window(session, kernel, 0, 1)
    with pytest.raises(InvalidArgs):
        fill_window(session, kernel, MEMORY.size_bytes, 1, memory=GROWN)
    session.graphs.end(0)


def test_a_graph_without_windows_needs_no_registration(session, device, kernel, buffer):
    device.failures["register"] = LaunchRefused("too much is pinned")
    graph = record(session, 0, lambda: fill(session, kernel, buffer, 8))
    session.graphs.replay(graph, MEMORY, NEVER)
    assert value_of(session, buffer) == 8


def test_an_operation_that_cannot_be_captured_ends_the_recording(session, device, kernel, buffer):
    session.graphs.begin(0)
    fill(session, kernel, buffer, 1)
    device.failures["end_capture"] = LaunchRefused("a copy that cannot be replayed")
    with pytest.raises(LaunchRefused):
        session.graphs.end(0)
    fill(session, kernel, buffer, 2)
    assert value_of(session, buffer) == 2


def test_a_session_that_ends_while_it_records_leaves_nothing(device):
    session = Session(device, ledger=MemoryLedger())
    kernel, buffer = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(4)
    session.streams.synchronize(NEVER)
    session.graphs.begin(0)
    fill(session, kernel, buffer, 1)
    session.close()
    assert device.holds_nothing()


def test_a_failure_while_recording_ends_the_session(device):
    session = Session(device, ledger=MemoryLedger())
    kernel, buffer = session.kernels.load(FILL, "fill", NEVER), session.buffers.allocate(4)
    session.graphs.begin(0)
    device.failures["launch"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        fill(session, kernel, buffer, 1)
    session.close()
    assert device.holds_nothing()


@pytest.mark.parametrize("method", ["fill", "record", "wait_event", "replay", "copy_in", "close_graph"])
def test_a_fault_anywhere_poisons(device, method):
    session = Session(device, ledger=MemoryLedger())
    stream, buffer, event = session.streams.open(), session.buffers.allocate(64), session.events.open()
    graph = record(session, stream)
    session.events.record(event, 0)
    uses = {
        "fill": lambda: session.buffers.allocate(4),
        "record": lambda: session.events.record(event, stream),
        "wait_event": lambda: session.events.wait(stream, event),
        "replay": lambda: session.graphs.replay(graph, None, NEVER),
        "copy_in": lambda: session.buffers.copy_in(buffer, 0, HostWindow(ADDRESS, 4), MEMORY, NEVER),
        "close_graph": lambda: session.graphs.close(graph, NEVER),
    }
    device.failures[method] = fault = KernelFault("thread 0")
    with pytest.raises(KernelFault):
        uses[method]()
    assert session.failure is fault
    session.close()
    assert device.holds_nothing()


def test_windows_on_what_was_reached_before_go_on_being_recorded_when_memory_has_grown(session, kernel, buffer):
    session.graphs.begin(0)
    fill(session, kernel, buffer, 1)
    fill_window(session, kernel, 0, 1, memory=GROWN)
    graph = session.graphs.end(0)
    session.graphs.replay(graph, GROWN, NEVER)


def test_a_recording_that_waits_for_earlier_work_gives_its_permit_back(session, gate, kernel, buffer):
    fill_window(session, kernel, 0, 1)
    assert gate.in_use == 1
    session.graphs.begin(0)
    fill_window(session, kernel, 0, 2, memory=GROWN)
    session.graphs.end(0)
    assert gate.in_use == 0
