"""A stream that several sessions give work to: whose deadline counts, and what waits for whom."""

from __future__ import annotations

import threading

import pytest

from tensorwasm.errors import CapacityExhausted, DeviceLost, InvokeTimeout, KernelFault
from tensorwasm.gpu.cuda import core, delays
from tensorwasm.values import MIB, NEVER, Deadline


@pytest.fixture
def soon(monkeypatch):
    """Give the GPU up at once when work has overrun."""
    monkeypatch.setattr(delays, "OVERRUN_GRACE_NS", 0)


def past() -> Deadline:
    return Deadline.after(0.0)


def lives(device) -> bool:
    try:
        device.close_stream(device.open_stream())
    except DeviceLost:
        return False
    return True


@pytest.mark.parametrize("order", ["long first", "short first"])
def test_a_gpu_is_given_up_for_the_latest_deadline_of_the_work_in_a_stream(device, fake, stream, work, soon, order):
    deadlines = [Deadline.after(1000), Deadline.after(0.05)]
    fake.begin()
    for deadline in deadlines if order == "long first" else reversed(deadlines):
        work(stream, deadline)
    with pytest.raises(InvokeTimeout):
        device.synchronize(stream, deadlines[1])
    assert lives(device), "the other's kernel may run on"
    fake.finish()
    device.synchronize(stream, deadlines[0])


def test_a_gpu_is_given_up_for_work_that_all_has_overrun(device, fake, stream, work, soon):
    fake.begin()
    work(stream, Deadline.after(0.05))
    work(stream, Deadline.after(0.04))
    with pytest.raises(InvokeTimeout):
        device.synchronize(stream, Deadline.after(0.06))
    assert not lives(device)


@pytest.mark.parametrize("seen", ["wait", "ask", "event", "event asked", "launch"])
def test_a_deadline_of_work_that_has_ended_does_not_count(device, fake, stream, work, soon, seen):
    event = device.events.open_event()
    work(stream, Deadline.after(1000))
    device.events.record(event, stream)
    {
        "wait": lambda: device.synchronize(stream, NEVER),
        "ask": lambda: device.ended(stream),
        "event": lambda: device.events.synchronize_event(event, NEVER),
        "event asked": lambda: device.events.event_reached(event),
        "launch": lambda: None,  # its end was not seen: the driver is asked before the shorter work begins
    }[seen]()
    deadline = Deadline.after(0.05)
    work(stream, deadline)
    fake.begin()
    with pytest.raises(InvokeTimeout):
        device.synchronize(stream, deadline)
    assert not lives(device)


def test_work_that_others_gave_after_a_mark_is_not_forgotten_with_it(device, fake, stream, work):
    event = device.events.open_event()
    work(stream, Deadline.after(10))
    device.events.record(event, stream)
    longer = Deadline.after(1000)
    work(stream, longer)
    assert device.events.event_reached(event)
    assert stream.dues.latest == longer


def test_a_launch_queries_the_stream_only_if_its_deadline_is_shorter(device, fake, stream, work):
    fake.begin()
    for seconds in (10, 10, 20):
        work(stream, Deadline.after(seconds))
    assert fake.calls["cuStreamQuery"] == 0
    work(stream, Deadline.after(5))
    assert fake.calls["cuStreamQuery"] == 1


def test_a_launch_that_is_refused_leaves_no_deadline_once_the_stream_has_drained(device, fake, stream, work):
    with fake.failing("cuLaunchKernel", 2), pytest.raises(Exception, match="error 2"):
        work(stream, Deadline.after(1000))
    assert device.ended(stream)
    assert stream.dues.latest is None


def test_a_wait_for_what_has_no_deadline_gives_nothing_up(device, fake, stream, work):
    address = device.allocate(64)
    device.fill(address, 64, stream)
    stream.handle.worked = True
    fake.begin()
    with pytest.raises(InvokeTimeout):
        device.synchronize(stream, past())
    assert lives(device)


# ------------------------------------------------------------------------------------------------- events


def test_the_patience_with_a_mark_is_the_latest_deadline_before_it_and_the_grace(device, fake, stream, work):
    fake.begin()
    event = device.events.open_event()
    assert device.events.patience(event) == NEVER
    first, second = Deadline.after(30), Deadline.after(1)
    work(stream, first)
    work(stream, second)
    device.events.record(event, stream)
    work(stream, Deadline.after(1000))
    assert device.events.patience(event) == Deadline(first.at_ns + delays.OVERRUN_GRACE_NS)


def test_work_without_a_deadline_has_no_end_to_its_patience(device, stream, work):
    event = device.events.open_event()
    work(stream, NEVER)
    device.events.record(event, stream)
    assert device.events.patience(event) == NEVER


# ------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("copy", ["read", "write"])
def test_a_copy_without_a_stream_waits_for_no_kernel(device, fake, stream, work, copy):
    address = device.allocate(8)
    work(stream)
    fake.begin()
    into = bytearray(b"12345678")
    getattr(device, copy)(address, memoryview(into), None, Deadline.after(30))
    assert fake.calls["cuEventSynchronize"] == 0
    assert bytes(into) == (bytes(8) if copy == "read" else b"12345678")


def test_a_copy_is_ordered_after_the_clearing_of_its_memory(device):
    address = device.allocate(8)
    device.write(address, b"12345678", None)
    into = bytearray(8)
    device.read(address, memoryview(into), None)
    assert into == b"12345678"
    copying = device._core.streams.own("copying")
    assert len(copying.handle.waits) == 1


def test_many_threads_copy_at_once(device):
    places = [device.allocate(64) for _ in range(16)]

    def copy(at: int) -> None:
        for turn in range(20):
            data, into = bytes([at + turn]) * 64, bytearray(64)
            device.write(places[at], data, None)
            device.read(places[at], memoryview(into), None)
            if into != data:
                wrong.append(at)

    wrong: list[int] = []
    threads = [threading.Thread(target=copy, args=(at,)) for at in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("copy", ["read", "write"])
def test_a_copy_that_the_gpu_does_not_come_to_ends_at_its_deadline_and_was_not_started(device, fake, copy):
    address = device.allocate(8)
    device._core.streams.own("copying").handle.worked = True
    fake.begin()
    before = fake.calls.copy()
    with pytest.raises(InvokeTimeout):
        getattr(device, copy)(address, memoryview(bytearray(8)), None, Deadline.after(0.01))
    for function in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
        assert fake.calls[function] == before[function]
    assert lives(device)
    fake.finish()
    getattr(device, copy)(address, memoryview(bytearray(8)), None, Deadline.after(10))


def test_a_copy_that_was_started_is_waited_for_until_the_gpu_is_lost(device, fake, monkeypatch):
    monkeypatch.setattr(core.DeviceStreams, "wait", lambda self, stream, deadline: device._core.gpu.lose("test"))
    with pytest.raises(DeviceLost):
        device.read(device.allocate(8), memoryview(bytearray(8)), None)


def test_a_fault_is_named_where_a_copy_meets_it(device, fake):
    address = device.allocate(8)
    with fake.failing("cuEventQuery", 700), pytest.raises(KernelFault):
        device.read(address, memoryview(bytearray(8)), None)


def test_the_streams_of_the_device_are_there_before_any_kernel_runs(device, fake, stream, work):
    made = fake.calls["cuStreamCreate"]
    work(stream)
    address = device.allocate(8)
    device.write(address, bytes(8), None)
    device.pools.pool_allocate(device.pools.open_pool(MIB), 64)
    assert fake.calls["cuStreamCreate"] == made


# -------------------------------------------------------------------------------------------------- pools


@pytest.fixture
def busy(device, fake, monkeypatch):
    """A driver that does not come to what pools do."""
    monkeypatch.setattr(core, "POOL_LIMIT_S", 0.01)
    device._core.streams.own("pooling").handle.worked = True
    return fake.begin


def test_memory_that_does_not_come_in_time_is_refused_and_not_kept(device, fake, busy):
    pool = device.pools.open_pool(MIB)
    busy()
    for _ in range(3):
        with pytest.raises(CapacityExhausted):
            device.pools.pool_allocate(pool, 64)
    assert fake.memory == {}
    assert device.statistics().allocations == 0
    assert lives(device)
    fake.finish()
    device.pools.pool_free(pool, device.pools.pool_allocate(pool, 64))
    device.pools.close_pool(pool)


def test_a_pool_whose_frees_do_not_end_in_time_stays_open_and_may_be_closed_later(device, fake, busy):
    pool = device.pools.open_pool(MIB)
    busy()
    with pytest.raises(CapacityExhausted):
        device.pools.close_pool(pool)
    assert device.statistics().pools == 1
    fake.finish()
    device.pools.close_pool(pool)
    assert device.statistics().pools == 0
