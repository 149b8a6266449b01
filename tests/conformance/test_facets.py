"""What `tensorwasm.gpu.device.protocols` promises, and the queues beneath it, kept by every device."""

from __future__ import annotations

import ctypes
import random
import struct
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from conformance.rig import Rig, mixed, until
from oracles.schedules import outcome
from strategies.schedules import SLOTS, STREAMS, programs
from tensorwasm.errors import LaunchRefused, QuotaExceeded
from tensorwasm.gpu.device.protocols import Advice
from tensorwasm.values import MIB, NEVER, Deadline, Region


@pytest.fixture
def rig(device):
    with Rig(device) as rig:
        yield rig


def word(block, at=0):
    return struct.unpack_from("<I", block, 4 * at)[0]


def put(block, value, at=0):
    block[4 * at : 4 * at + 4] = struct.pack("<I", value)


# ------------------------------------------------------------------------------------------------------ streams


def test_work_in_a_stream_runs_in_the_order_it_was_given(device, rig):
    stream, address = rig.stream(), rig.words(7, 5)
    block, host = rig.host()
    expected = 7
    for factor in range(2, 30):
        rig.mix(stream, address, address + 4, factor)
        expected = mixed(expected, 5, factor)
    device.copy_out(host, address, 4, stream)
    device.fill(address, 4, stream)
    rig.mix(stream, address, address + 4, 1)
    device.copy_out(host + 4, address, 4, stream)
    put(block, 1000, 2)
    device.copy_in(address + 4, host + 8, 4, stream)
    rig.mix(stream, address, address + 4, 10)
    rig.drain(stream)
    assert (word(block), word(block, 1)) == (expected, 6)
    assert rig.look(address, 2) == [1061, 1000]


def test_reading_and_writing_wait_for_the_work_in_the_stream(device, rig):
    stream, address = rig.stream(), rig.words(1)
    rig.mix(stream, address, address, 2)
    into = bytearray(4)
    device.read(address, memoryview(into), stream)
    assert word(into) == 4
    rig.mix(stream, address, address, 2)
    device.write(address, struct.pack("<I", 9), stream)
    assert rig.look(address) == [9]


def test_copies_of_host_memory_that_is_not_registered(device, rig):
    stream, address = rig.stream(), rig.words(0, 0)
    source, target = (ctypes.c_uint32 * 2)(3, 4), (ctypes.c_uint32 * 2)()
    device.copy_in(address, ctypes.addressof(source), 8, stream)
    rig.mix(stream, address, address + 4, 2)
    device.copy_out(ctypes.addressof(target), address, 8, stream)
    rig.drain(stream)
    assert list(target) == [11, 4]


def test_a_part_is_filled_and_nothing_beside_it(device, rig):
    stream, address = rig.stream(), rig.words(*[0xFFFF_FFFF] * 4)
    device.fill(address + 3, 6, stream)
    rig.drain(stream)
    assert rig.look(address, 4) == [0x00FF_FFFF, 0, 0xFFFF_FF00, 0xFFFF_FFFF]


def test_a_stream_that_is_asked_often_enough_ends(device, rig):
    stream, address = rig.stream(), rig.words(1)
    assert device.ended(stream)
    for _ in range(10):
        rig.mix(stream, address, address, 1)
    until(lambda: device.ended(stream))
    assert rig.look(address) == [2**11 - 1]
    assert device.ended(stream)


def test_a_stream_that_waits_for_the_host_has_not_ended(device, rig):
    stream, address = rig.stream(), rig.words(1)
    block, flag = rig.host()
    rig.hold(stream, flag)
    rig.mix(stream, address, address, 1)
    assert not any(device.ended(stream) for _ in range(50))
    put(block, 1)
    until(lambda: device.ended(stream))
    assert rig.look(address) == [3]


def test_a_stream_that_is_still_held_goes_on_at_the_end(device):
    with Rig(device) as rig:
        _, flag = rig.host()
        rig.hold(rig.stream(), flag)


# ------------------------------------------------------------------------------------------------------- events


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=programs())
def test_events_order_streams_as_if_there_were_one(device, steps):
    with Rig(device) as rig:
        streams = [rig.stream() for _ in range(STREAMS)]
        address = rig.words(*range(SLOTS))
        block, host = rig.host()
        block[: 4 * SLOTS] = struct.pack(f"<{SLOTS}I", *(100 + slot for slot in range(SLOTS)))
        events = []
        for step in steps:
            stream, to = streams[step.stream], address + 4 * step.to
            for index in step.after:
                device.events.wait_event(stream, events[index])
            match step.kind:
                case "mix":
                    rig.mix(stream, to, address + 4 * step.source, step.factor)
                case "zero":
                    device.fill(to, 4, stream)
                case "in":
                    device.copy_in(to, host + 4 * step.source, 4, stream)
                case "out":
                    device.copy_out(host + 4 * step.source, to, 4, stream)
            events.append(rig.event())
            device.events.record(events[-1], stream)
            if step.look == "ask":
                device.ended(stream)
            elif step.look == "wait":
                device.events.synchronize_event(events[-1], Deadline.after(30))
        random.Random(len(steps)).shuffle(streams)
        rig.drain(*streams)
        assert (rig.look(address, SLOTS), [word(block, slot) for slot in range(SLOTS)]) == outcome(steps)
        assert all(device.events.event_reached(event) for event in events)


def test_an_event_is_reached_when_the_work_before_it_has_ended(device, rig):
    stream, address, event = rig.stream(), rig.words(1), rig.event()
    block, flag = rig.host()
    events = device.events
    assert events.event_reached(event)
    events.synchronize_event(event, NEVER)
    events.wait_event(stream, event)
    rig.hold(stream, flag)
    rig.mix(stream, address, address, 1)
    events.record(event, stream)
    assert not any(events.event_reached(event) for _ in range(50))
    put(block, 1)
    until(lambda: events.event_reached(event))
    assert rig.look(address) == [3]


def test_an_event_does_not_wait_for_what_is_given_after_it(device, rig):
    stream, address, event = rig.stream(), rig.words(1), rig.event()
    block, flag = rig.host()
    rig.mix(stream, address, address, 1)
    device.events.record(event, stream)
    rig.hold(stream, flag)
    device.events.synchronize_event(event, Deadline.after(20))
    assert rig.look(address) == [3]
    assert not device.ended(stream)
    put(block, 1)
    rig.drain(stream)


def test_a_stream_waits_for_what_was_recorded_even_if_the_event_is_recorded_anew_or_closed(device, rig):
    first, second, third, address = rig.stream(), rig.stream(), rig.stream(), rig.words(1, 10)
    event = device.events.open_event()
    rig.mix(first, address, address, 1)
    device.events.record(event, first)
    device.events.wait_event(second, event)
    device.events.record(event, third)
    device.events.close_event(event)
    rig.mix(second, address, address + 4, 2)
    rig.drain(second)
    assert rig.look(address) == [17]
    rig.drain(first, third)


# ------------------------------------------------------------------------------------------------------- graphs


def test_a_graph_records_instead_of_running_and_replays_as_often_as_asked(device, rig):
    stream, other, address = rig.stream(), rig.stream(), rig.words(1, 3, 9)
    block, host = rig.host()
    put(block, 5)
    graphs = device.graphs
    graphs.begin_capture(stream)
    device.copy_in(address + 4, host, 4, stream)
    rig.mix(stream, address, address + 4, 2)
    device.fill(address + 8, 4, stream)
    device.copy_out(host + 4, address, 4, stream)
    graph = rig.graph(stream)
    rig.drain(stream)
    assert rig.look(address, 3) == [1, 3, 9]

    graphs.replay(graph, stream, rig.regions, NEVER)
    rig.drain(stream)
    assert rig.look(address, 3) == [8, 5, 0]
    put(block, 6)
    graphs.replay(graph, stream, rig.regions, NEVER)
    rig.mix(stream, address, address + 4, 1)
    event = rig.event()
    device.events.record(event, stream)
    device.events.wait_event(other, event)
    graphs.replay(graph, other, rig.regions, Deadline.after(30))
    rig.drain(other, stream)
    assert word(block, 1) == rig.look(address)[0] == mixed(mixed(mixed(8, 6, 2), 6, 1), 6, 2)


def test_each_stream_records_for_itself(device, rig):
    first, second, address = rig.stream(), rig.stream(), rig.words(1, 1)
    device.graphs.begin_capture(first)
    device.graphs.begin_capture(second)
    rig.mix(first, address, address, 3)
    rig.mix(second, address + 4, address + 4, 5)
    graphs = [rig.graph(first), rig.graph(second)]
    for graph in graphs * 2:
        device.graphs.replay(graph, first, rig.regions, NEVER)
    rig.drain(first, second)
    assert rig.look(address, 2) == [mixed(5, 5, 3), mixed(7, 7, 5)]


def test_work_of_other_streams_runs_during_a_capture(device, rig):
    recording, running, address = rig.stream(), rig.stream(), rig.words(1)
    device.graphs.begin_capture(recording)
    rig.mix(running, address, address, 1)
    rig.drain(running)
    rig.graph(recording)
    assert rig.look(address) == [3]


def test_a_graph_of_nothing(device, rig):
    stream = rig.stream()
    device.graphs.begin_capture(stream)
    graph = rig.graph(stream)
    device.graphs.replay(graph, stream, [], NEVER)
    rig.drain(stream)


def test_recording_begins_once_and_ends_once(device, rig):
    stream = rig.stream()
    with pytest.raises(LaunchRefused):
        device.graphs.end_capture(stream)
    device.graphs.begin_capture(stream)
    with pytest.raises(LaunchRefused):
        device.graphs.begin_capture(stream)
    rig.graph(stream)
    with pytest.raises(LaunchRefused):
        device.graphs.end_capture(stream)
    rig.drain(stream)


# -------------------------------------------------------------------------------------------------------- pools


@pytest.fixture
def pool(device):
    pool = device.pools.open_pool(64 * MIB)  # a multiple of what pools of any driver grow by
    yield pool
    device.pools.close_pool(pool)


def test_a_pool_holds_no_more_than_its_cap(device, pool):
    if not device.pools.capped:
        pytest.skip("the driver knows no cap")
    with pytest.raises(QuotaExceeded):
        device.pools.pool_allocate(pool, 128 * MIB)
    for _ in range(5):
        address = device.pools.pool_allocate(pool, 64 * MIB)
        with pytest.raises(QuotaExceeded):
            device.pools.pool_allocate(pool, 4 * MIB)
        device.pools.pool_free(pool, address)


def test_memory_of_a_pool_is_device_memory(device, pool, rig):
    stream = rig.stream()
    address = device.pools.pool_allocate(pool, 8)
    assert address % 256 == 0
    rig.regions.append(Region(address, 8, host=False))
    device.write(address, struct.pack("<II", 6, 7), stream)
    rig.mix(stream, address, address + 4, 2)
    device.fill(address + 4, 4, stream)
    rig.drain(stream)
    assert rig.look(address, 2) == [20, 0]
    device.pools.pool_free(pool, address)


def test_giving_memory_back_waits_for_no_kernel(device, pool, rig):
    stream = rig.stream()
    block, flag = rig.host()
    address = device.pools.pool_allocate(pool, MIB)
    rig.hold(stream, flag)
    assert not device.ended(stream)
    device.pools.pool_free(pool, address)
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, MIB))
    assert not device.ended(stream)
    put(block, 1)
    rig.drain(stream)


# ------------------------------------------------------------------------------------------------------ unified


def test_host_and_kernels_see_each_others_writes_in_managed_memory(device, rig):
    unified, stream = device.unified, rig.stream()
    if not unified.managed:
        pytest.skip("no managed memory")
    size = 1 << 16
    address = unified.allocate_managed(size)
    cells = (ctypes.c_uint32 * (size // 4)).from_address(address)
    try:
        assert address % 4096 == 0
        assert not any(cells)
        rig.regions.append(Region(address, size, host=True))
        cells[1] = 41
        rig.mix(stream, address, address + 4, 1)
        rig.drain(stream)
        assert cells[0] == 42
        for advice in Advice:
            assert unified.advise(address, size, advice) in (True, False)
        assert unified.prefetch(address, size, stream, to_host=False) in (True, False)
        rig.mix(stream, address, address + 4, 1)
        assert unified.prefetch(address, size, stream, to_host=True) in (True, False)
        rig.drain(stream)
        assert cells[0] == 84
    finally:
        unified.free_managed(address)


def test_managed_memory_beyond_what_is_free_is_refused(device):
    if not device.unified.managed:
        pytest.skip("no managed memory")
    with pytest.raises(QuotaExceeded):
        device.unified.allocate_managed(device.unified.free_bytes() + (1 << 30))


def test_a_range_grows_in_place_and_keeps_its_data(device, rig):
    unified, stream = device.unified, rig.stream()
    if not unified.growable:
        pytest.skip("no ranges that grow")
    size = unified.granularity_bytes
    address = unified.reserve(16 * size)
    try:
        unified.map(address, size)
        cells = (ctypes.c_uint32 * (2 * size // 4)).from_address(address)
        last, behind = size // 4 - 1, size // 4
        cells[0], cells[last] = 5, 7
        unified.map(address + size, size)
        assert (cells[0], cells[last]) == (5, 7)
        assert not any(cells[behind : 2 * size // 4])
        rig.regions.append(Region(address, 2 * size, host=True))
        rig.mix(stream, address + size, address, 1)
        rig.mix(stream, address + size - 4, address + size, 3)
        rig.drain(stream)
        assert (cells[behind], cells[last]) == (6, 28)
        unified.unmap(address + size, size)
        unified.map(address + size, size)
        assert (cells[0], cells[behind]) == (5, 0)
        unified.unmap(address + size, size)
        unified.unmap(address, size)
    finally:
        unified.unreserve(address, 16 * size)


TOUCH = """
import ctypes, faulthandler, sys
faulthandler.disable()
from tensorwasm.gpu.opening import open_device
unified = open_device(sys.argv[1])[0].unified
if not unified.growable:
    sys.exit(77)
size = unified.granularity_bytes
address = unified.reserve(4 * size)
unified.map(address, size)
ctypes.memset(address, 1, size)
print("reached", flush=True)
ctypes.memset(address + size, 1, 1)
print("beyond", flush=True)
"""


@pytest.mark.parametrize("choice", ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_unmapped_part_of_a_range_faults_in_the_host(choice, request):
    if choice == "cuda":
        request.getfixturevalue("gpu")
    done = subprocess.run([sys.executable, "-c", TOUCH, choice], capture_output=True, check=False, timeout=60)
    if done.returncode == 77:
        pytest.skip("no ranges that grow")
    assert done.stdout.split() == [b"reached"]
    assert done.returncode < 0
