import threading
from functools import partial

import pytest

from tensorwasm.errors import DeviceLost, InvalidHandle, InvokeTimeout, KernelFault, LaunchRefused
from tensorwasm.gpu.cuda import delays
from tensorwasm.gpu.device.port import DeviceStatistics
from tensorwasm.values import NEVER, Deadline


@pytest.fixture
def event(device):
    return device.events.open_event()


def test_an_event_that_was_never_recorded_is_reached(device, event):
    assert device.events.event_reached(event)
    device.events.synchronize_event(event, Deadline(at_ns=1))


def test_an_event_is_reached_when_the_work_before_it_has_ended(device, fake, event, stream, work):
    work(stream)
    device.events.record(event, stream)
    fake.begin()
    assert not device.events.event_reached(event)
    fake.finish()
    assert device.events.event_reached(event)


def test_a_stream_is_put_behind_an_event(device, event, stream):
    device.events.wait_event(stream, event)
    assert stream.handle.waits == [event.handle]


def test_a_stream_that_waits_for_another_may_take_as_long_as_that_one(device, fake, event, stream, work):
    slow = device.open_stream()
    work(slow, Deadline.after(1000))
    work(stream, Deadline.after(1))
    device.events.record(event, slow)
    device.events.wait_event(stream, event)
    assert stream.dues.latest == slow.dues.latest
    work(slow)
    device.events.record(event, slow)
    device.events.wait_event(stream, event)
    assert stream.dues.latest == NEVER


def test_a_wait_blocks_in_the_driver_and_not_in_a_loop(device, fake, event, stream, work):
    work(stream)
    device.events.record(event, stream)
    fake.begin()
    fake.on_block = fake.finish
    device.events.synchronize_event(event, NEVER)
    assert fake.calls["cuEventSynchronize"] == 1


@pytest.mark.parametrize("own", ["long ago", "just now", "ahead"])
def test_a_wait_ends_at_its_deadline_and_the_device_is_lost_only_long_after_the_works_own(
    device, fake, event, stream, work, own, monkeypatch
):
    monkeypatch.setattr(delays, "OVERRUN_GRACE_NS", 0 if own == "long ago" else 10**12)
    work(stream, Deadline.after(1000 if own == "ahead" else 0.05))
    device.events.record(event, stream)
    fake.begin()
    with pytest.raises(InvokeTimeout):
        device.events.synchronize_event(event, Deadline.after(0.06))
    if own == "long ago":
        with pytest.raises(DeviceLost, match="past its deadline"):
            device.events.open_event()
    else:
        device.events.close_event(device.events.open_event())


@pytest.mark.parametrize("ask", ["event_reached", "synchronize_event"])
def test_a_fault_is_named_where_it_is_asked_for(device, fake, event, ask):
    arguments = () if ask == "event_reached" else (NEVER,)
    with fake.failing("cuEventQuery", 700), pytest.raises(KernelFault, match="outside memory"):
        getattr(device.events, ask)(event, *arguments)


def test_an_event_is_closed_once_and_counted(device, fake):
    before = fake.leftovers()
    event = device.events.open_event()
    assert device.statistics() == DeviceStatistics(events=1)
    device.events.close_event(event)
    assert device.statistics() == DeviceStatistics()
    with pytest.raises(InvalidHandle):
        device.events.close_event(event)
    assert set(fake.leftovers()) == set(before)


def test_a_stream_that_records_takes_no_part(device, event, stream):
    device.graphs.begin_capture(stream)
    with pytest.raises(LaunchRefused, match="recording"):
        device.events.record(event, stream)
    with pytest.raises(LaunchRefused, match="recording"):
        device.events.wait_event(stream, event)
    device.graphs.end_capture(stream)


def test_waits_from_many_threads_end_together(device, fake, event, stream, work):
    work(stream)
    device.events.record(event, stream)
    fake.begin()
    arrived = threading.Barrier(9)
    fake.on_block = arrived.wait
    done = []

    def wait():
        device.events.synchronize_event(event, NEVER)
        done.append(True)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    arrived.wait()
    assert not done
    fake.finish()
    for thread in threads:
        thread.join()
    assert len(done) == 8


def test_an_event_is_destroyed_only_when_no_thread_waits_for_it_in_the_driver(
    device, fake, event, stream, work, monkeypatch
):
    work(stream, Deadline.after(1000))
    device.events.record(event, stream)
    fake.begin()
    with pytest.raises(InvokeTimeout):
        device.events.synchronize_event(event, Deadline.after(0.01))
    streams, unblocked = device._core.streams, threading.Event()
    unblock = streams._unblock
    monkeypatch.setattr(streams, "_unblock", lambda waited: (unblock(waited), unblocked.set()))
    device.events.close_event(event)
    assert fake.calls["cuEventDestroy"] == 0
    fake.finish()
    assert unblocked.wait(10)
    assert fake.calls["cuEventDestroy"] == 1


@pytest.mark.parametrize("what", ["stream", "device", "event and device"])
def test_closing_leaves_an_event_to_a_thread_that_still_waits_for_it(device, fake, event, stream, work, what):
    """As on an H200: the work had ended, the thread of a wait that was given up was still reading the event."""
    returns, may_return = threading.Event(), threading.Event()
    fake.on_return = lambda: (returns.set(), may_return.wait(10))
    work(stream, Deadline.after(1000))
    device.events.record(event, stream)
    fake.begin()
    if what == "event and device":
        waited, wait = event.handle, partial(device.events.synchronize_event, event)
    else:
        waited, wait = stream.event, partial(device.synchronize, stream)
    with pytest.raises(InvokeTimeout):
        wait(Deadline.after(0.01))
    fake.finish()
    assert returns.wait(10)
    if what == "stream":
        device.close_stream(stream)
        assert waited in fake.handles
        may_return.set()
    else:
        closing = threading.Thread(target=device.close)
        closing.start()
        closing.join(0.05)
        assert waited in fake.handles
        may_return.set()
        closing.join()
    assert device._core.streams.wait_for_threads(Deadline.after(10))
    assert waited not in fake.handles
    assert not device._core.gpu.lost
