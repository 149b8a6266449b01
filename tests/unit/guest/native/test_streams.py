"""Compiled copies and waits."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fakes.pads import NOT_READY, OWN_STREAM
from strategies.argv import around
from strategies.launches import BUFFERS

BUFFER = 257
BUFFER_AT = 1 << 45
BUFFER_BYTES = 4096
KINDS = ("h2d", "d2h")


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def copy(bench, kind: str, handle: int, offset: int, length: int) -> int:
    halves = (signed(handle & 0xFFFF_FFFF), signed(handle >> 32))
    where = (*halves, signed(offset)) if kind == "h2d" else (signed(offset), *halves)
    return bench.call(f"wasi_cuda_memcpy_{kind}", *where, signed(length))


def expected_copy(bench, kind: str, offset: int, length: int, address: int = BUFFER_AT):
    here = bench.memory.address + offset
    ends = (address, here) if kind == "h2d" else (here, address)
    return (kind, *ends, length, OWN_STREAM)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    pages=st.sampled_from([1, 1 << 15, 1 << 16]),
    handle=st.sampled_from(list(BUFFERS)) | around(64),
    offset=st.integers(0, 1 << 15) | around(32),
    length=st.integers(0, 5000) | around(32),
    reached=st.sampled_from([1.0, 1.0, 0.5, 0]),
)
@example(kind="h2d", pages=1 << 16, handle=(1 << 63) - 1, offset=(1 << 32) - 8, length=8, reached=1.0)
@example(kind="d2h", pages=1 << 16, handle=257, offset=1 << 31, length=1 << 31, reached=1.0)
@pytest.mark.rule("1-twin", "5-compiled")
def test_a_copy_is_made_when_both_ends_hold_it(make_bench, kind, pages, handle, offset, length, reached):
    bench = make_bench(pages)
    for each, size in BUFFERS.items():
        bench.hand.put_buffer(each, BUFFER_AT + each, size)
    size_bytes = pages << 16
    reach_bytes = int(size_bytes * reached)
    bench.reach(reach_bytes)
    known = {row.handle: row.size_bytes for row in bench.layout.buffers if row.handle}
    fits = handle in known and 0 < length <= known[handle] and offset + length <= reach_bytes

    answer = copy(bench, kind, handle, offset, length)

    expected = [expected_copy(bench, kind, offset, length, BUFFER_AT + handle)] if fits else []
    assert bench.driver.calls == expected
    assert bench.went_native() == fits == (answer == 0)
    assert bench.layout.copied_bytes == (length if fits else 0)
    assert bench.layout.pending == 0
    if not fits:
        halves = (signed(handle & 0xFFFF_FFFF), signed(handle >> 32))
        order = (*halves, signed(offset)) if kind == "h2d" else (signed(offset), *halves)
        assert bench.calls.fallbacks == [(f"wasi_cuda_memcpy_{kind}", *order, signed(length))]


def put_buffer(bench) -> None:
    bench.hand.put_buffer(BUFFER, BUFFER_AT, BUFFER_BYTES)
    bench.reach()


UNREADY = {
    "not armed": lambda bench: setattr(bench.layout, "armed", 0),
    "another context": lambda bench: setattr(bench.driver, "context", 1),
    "recording": lambda bench: setattr(bench.layout.streams[0], "recording", 1),
    "no stream": lambda bench: setattr(bench.layout.streams[0], "stream", 0),
    "work of another stream": lambda bench: bench.hand.put_stream(5, 0x55, pending=1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unready", UNREADY)
def test_a_copy_that_would_have_to_wait_or_be_refused_is_left_to_python(bench, kind, unready):
    put_buffer(bench)
    UNREADY[unready](bench)
    assert copy(bench, kind, BUFFER, 0, 8) == -99
    assert bench.driver.calls == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_behind_the_work_of_its_own_stream(bench, kind):
    put_buffer(bench)
    bench.hand.put_stream(0, OWN_STREAM, pending=2)
    assert copy(bench, kind, BUFFER, 0, 8) == 0
    assert (bench.layout.pending, bench.layout.streams[0].pending) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_the_driver_refuses_is_left_to_python(bench, kind):
    put_buffer(bench)
    bench.driver.results[f"memcpy_{'htod' if kind == 'h2d' else 'dtoh'}_async"] = 1
    assert copy(bench, kind, BUFFER, 0, 8) == -99
    assert (bench.layout.pending, bench.layout.copied_bytes) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("result", [NOT_READY, 700])
def test_a_copy_that_does_not_end_well_or_soon_is_left_to_python_to_finish(bench, kind, result):
    put_buffer(bench)
    bench.driver.results["stream_query"] = result
    assert copy(bench, kind, BUFFER, 0, 8) == -98
    assert (bench.calls.fallbacks, bench.calls.finished) == ([], 1)
    assert len(bench.driver.calls) == 1
    assert bench.layout.pending == 1


def test_sync_waits_for_every_stream(bench):
    bench.hand.put_stream(0, OWN_STREAM, pending=1)
    bench.hand.put_stream(3, 0x33, pending=4)
    bench.driver.queries[:] = [NOT_READY, 0, NOT_READY, 0]
    assert bench.call("wasi_cuda_sync") == 0
    assert bench.went_native()
    assert bench.driver.queries == []
    assert (bench.layout.pending, bench.layout.streams[0].pending, bench.layout.streams[3].pending) == (0, 0, 0)


def test_sync_with_nothing_to_wait_for_makes_no_driver_call(bench):
    bench.driver.results["stream_query"] = 700
    assert bench.call("wasi_cuda_sync") == 0
    assert bench.went_native()


@pytest.mark.parametrize("result", [NOT_READY, 1, 700])
def test_sync_leaves_what_does_not_end_to_python(bench, result):
    bench.hand.put_stream(3, 0x33, pending=4)
    bench.driver.results["stream_query"] = result
    assert bench.call("wasi_cuda_sync") == -99
    assert (bench.layout.pending, bench.layout.streams[3].pending) == (4, 4)


def test_sync_leaves_a_stream_that_lost_its_row_to_python(bench):
    bench.hand.put_stream(1, 0x11, pending=1)
    bench.hand.put_stream(33, 0x33, pending=1)
    assert bench.call("wasi_cuda_sync") == -99
    assert bench.layout.pending == 1


def test_sync_while_recording_is_left_to_python(bench):
    bench.hand.put_stream(3, 0x33, recording=1)
    assert bench.call("wasi_cuda_sync") == -99


def test_a_drained_stream_takes_no_more_off_than_there_is(bench):
    bench.hand.put_stream(3, 0x33, pending=4)
    bench.layout.pending = 2
    assert bench.call("wasi_cuda_stream_sync", 3) == 0
    assert bench.layout.pending == 2


def test_a_stream_is_waited_for_alone(bench):
    bench.hand.put_stream(3, 0x33, pending=4)
    bench.hand.put_stream(4, 0x44, pending=2)
    assert bench.call("wasi_cuda_stream_sync", 3) == 0
    assert bench.went_native()
    assert (bench.layout.pending, bench.layout.streams[3].pending, bench.layout.streams[4].pending) == (2, 0, 2)


def test_an_idle_stream_is_not_asked(bench):
    bench.hand.put_stream(3, 0x33)
    bench.driver.results["stream_query"] = 700
    assert bench.call("wasi_cuda_stream_sync", 3) == 0


@pytest.mark.parametrize("number", [1, -1, 35, 1 << 32, 7])
def test_a_stream_that_is_not_there_or_records_is_left_to_python(bench, number):
    bench.hand.put_stream(3, 0x33, pending=4)
    bench.hand.put_stream(7, 0x77, recording=1)
    assert bench.call("wasi_cuda_stream_sync", number) == -99
    assert bench.calls.fallbacks == [("wasi_cuda_stream_sync", number)]


@pytest.mark.parametrize("result", [NOT_READY, 700])
def test_a_stream_that_does_not_end_is_left_to_python(bench, result):
    bench.hand.put_stream(3, 0x33, pending=4)
    bench.driver.results["stream_query"] = result
    assert bench.call("wasi_cuda_stream_sync", 3) == -99
    assert bench.layout.pending == 4


@pytest.mark.parametrize("name", ["wasi_cuda_sync", "wasi_cuda_stream_sync"])
def test_waits_of_a_session_that_is_not_ready_are_left_to_python(bench, name):
    args = (0,) if name == "wasi_cuda_stream_sync" else ()
    bench.layout.armed = 0
    assert bench.call(name, *args) == -99
    bench.layout.armed = 1
    bench.driver.context = 1
    assert bench.call(name, *args) == -99
