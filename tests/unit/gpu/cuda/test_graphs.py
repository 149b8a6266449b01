import ctypes

import pytest

from tensorwasm.errors import InvalidHandle, InvokeTimeout, LaunchRefused
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.values import NEVER, Deadline


@pytest.fixture
def record(device, stream, work):
    """Record that many launches."""

    def record(launches=3):
        device.graphs.begin_capture(stream)
        for _ in range(launches):
            work(stream)
        return device.graphs.end_capture(stream)

    return record


def test_recorded_work_runs_at_replay_and_not_before(device, fake, record):
    graph = record()
    assert fake.launches == []
    assert device.statistics().launches == 0
    other = device.open_stream()
    for _ in range(2):
        device.graphs.replay(graph, other, (), NEVER)
    assert len(fake.launches) == 6
    assert device.statistics().launches == 2


def test_copies_and_fills_are_recorded_too(device, stream):
    address = device.allocate(64)
    source, target = ctypes.create_string_buffer(b"recorded"), ctypes.create_string_buffer(8)
    device.graphs.begin_capture(stream)
    device.copy_in(address, ctypes.addressof(source), 8, stream)
    device.copy_out(ctypes.addressof(target), address, 8, stream)
    device.fill(address, 4, stream)
    graph = device.graphs.end_capture(stream)
    assert target.raw == bytes(8)
    device.graphs.replay(graph, stream, (), NEVER)
    device.synchronize(stream, NEVER)
    assert target.raw == b"recorded"
    into = bytearray(8)
    device.read(address, memoryview(into), stream)
    assert bytes(into) == bytes(4) + b"rded"


def test_housekeeping_is_not_recorded_and_a_replay_is_behind_every_clearing(device, stream, work):
    device.graphs.begin_capture(stream)
    device.free(device.allocate(64))
    pool = device.pools.open_pool(1 << 20)
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, 512))
    device.pools.close_pool(pool)
    device.native.confine(stream, (), NEVER)
    work(stream)
    assert stream.handle.waits == []
    graph = device.graphs.end_capture(stream)
    assert len(stream.handle.waits) == 1
    device.allocate(64)
    device.graphs.replay(graph, stream, (), NEVER)
    assert len(stream.handle.waits) == 2


REFUSED = {
    "begin": lambda device, stream: device.graphs.begin_capture(stream),
    "ended": lambda device, stream: device.ended(stream),
    "synchronize": lambda device, stream: device.synchronize(stream, NEVER),
    "write": lambda device, stream: device.write(device.allocate(8), bytes(8), stream),
    "read": lambda device, stream: device.read(device.allocate(8), memoryview(bytearray(8)), stream),
    "notify": lambda device, stream: device.native.notify(stream, 1, 2),
    "prefetch": lambda device, stream: device.unified.prefetch(0, 1, stream, to_host=True),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_operation_that_would_spoil_a_recording_is_refused_and_does_not_spoil_it(device, fake, stream, work, what):
    device.graphs.begin_capture(stream)
    work(stream)
    with pytest.raises(LaunchRefused, match="recording"):
        REFUSED[what](device, stream)
    device.graphs.replay(device.graphs.end_capture(stream), stream, (), NEVER)
    assert len(fake.launches) == 1


def test_a_stream_that_records_replays_nothing(device, record, stream):
    graph = record()
    device.graphs.begin_capture(stream)
    with pytest.raises(LaunchRefused):
        device.graphs.replay(graph, stream, (), NEVER)
    device.graphs.end_capture(stream)


def test_an_end_without_a_beginning_is_refused(device, stream):
    with pytest.raises(LaunchRefused, match="not recording"):
        device.graphs.end_capture(stream)


def test_a_recording_that_was_spoilt_is_thrown_away_and_the_stream_runs_again(device, fake, stream, work):
    device.graphs.begin_capture(stream)
    stream.handle.spoilt = True
    with pytest.raises(LaunchRefused, match="spoilt"):
        device.graphs.end_capture(stream)
    work(stream)
    device.synchronize(stream, NEVER)
    assert len(fake.launches) == 1
    assert device.statistics().graphs == 0


@pytest.mark.parametrize("function", ["cuStreamEndCapture", "cuGraphInstantiate"])
@pytest.mark.parametrize("code", [1, 801, 901])
def test_a_graph_that_cannot_be_replayed_is_refused_and_leaves_nothing(device, fake, stream, work, function, code):
    device.graphs.begin_capture(stream)
    work(stream)
    fake.fail_once(function, 1, code)
    with pytest.raises(LaunchRefused):
        device.graphs.end_capture(stream)
    assert not any(handle.kind in {"graph", "exec"} for handle in fake.handles)
    work(stream)
    device.synchronize(stream, NEVER)
    assert device.statistics().graphs == 0


def test_only_the_executable_graph_is_kept_and_it_is_closed_once(device, fake, record):
    graph = record()
    assert [handle.kind for handle in fake.handles if handle.kind in {"graph", "exec"}] == ["exec"]
    assert device.graphs.graph_handle(graph) == int(graph.handle)
    assert device.statistics().graphs == 1
    device.graphs.close_graph(graph)
    with pytest.raises(InvalidHandle):
        device.graphs.close_graph(graph)
    with pytest.raises(InvalidHandle):
        device.graphs.graph_handle(graph)
    assert device.statistics().graphs == 0


def test_a_replay_after_its_deadline_starts_nothing(device, fake, record, stream):
    with pytest.raises(InvokeTimeout):
        device.graphs.replay(record(), stream, (), Deadline(at_ns=1))
    assert fake.launches == []


@pytest.mark.parametrize("close", ["close_stream", "close"])
def test_a_recording_that_was_not_ended_is_released_with_its_stream(device, fake, stream, work, close):
    device.graphs.begin_capture(stream)
    work(stream)
    if close == "close":
        device.close()
        assert fake.leftovers() == []
        assert device.statistics() == DeviceStatistics()
    else:
        device.close_stream(stream)
        assert not any(handle.kind == "graph" for handle in fake.handles)
