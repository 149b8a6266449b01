"""Work that misses its deadline because of others' work does not lose the GPU, and no excuse lasts for ever."""

from __future__ import annotations

import pytest

from tensorwasm.errors import DeviceLost, InvokeTimeout
from tensorwasm.gpu.cuda import delays
from tensorwasm.values import NEVER, Deadline

LONG_S = 1000.0
SHORT_S, AFTER_S = 0.05, 0.06


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Give the GPU up at once when work has overrun."""
    monkeypatch.setattr(delays, "OVERRUN_GRACE_NS", 0)


@pytest.fixture
def other(device):
    return device.open_stream()


@pytest.fixture
def third(device):
    return device.open_stream()


@pytest.fixture
def find_late(device, fake, stream, work):
    """Have work of the stream miss its deadline; return whether the GPU is still there."""

    def miss() -> bool:
        work(stream, Deadline.after(SHORT_S))
        return look()

    def look() -> bool:
        with pytest.raises(InvokeTimeout):
            device.synchronize(stream, Deadline.after(AFTER_S))
        try:
            device.ended(stream)
        except DeviceLost:
            return False
        return True

    miss.again = look
    fake.begin()
    return miss


def end(device, stream):
    stream.handle.worked = False
    assert device.ended(stream)


def test_work_without_rivals_has_no_excuse(device, other, find_late):
    assert not find_late()


def test_others_work_within_its_time_is_an_excuse_until_it_has_ended(device, stream, other, work, find_late):
    work(other, Deadline.after(LONG_S))
    assert find_late()
    assert device.delayed(stream)
    assert find_late.again()
    end(device, other)
    assert not device.delayed(stream)
    assert not find_late.again()


def test_the_grace_begins_when_the_last_excuse_has_gone(device, stream, other, work, find_late, monkeypatch):
    work(other, Deadline.after(LONG_S))
    monkeypatch.setattr(delays, "OVERRUN_GRACE_NS", 10**12)
    assert device.delayed(stream)
    end(device, other)
    assert device.delayed(stream)


def test_work_given_later_excuses_no_delay(device, other, third, work, find_late):
    work(other, Deadline.after(LONG_S))
    assert find_late()
    work(third, Deadline.after(LONG_S))
    work(other, Deadline.after(2 * LONG_S))
    end(device, other)
    work(other, Deadline.after(LONG_S))
    assert not find_late.again()


def test_work_that_was_seen_to_end_excuses_no_delay(device, other, work, find_late):
    work(other, Deadline.after(LONG_S))
    event = device.events.open_event()
    device.events.record(event, other)
    assert find_late()
    work(other, Deadline.after(LONG_S))
    other.handle.worked = False
    assert device.events.event_reached(event)
    other.handle.worked = True
    assert not find_late.again()


def test_an_excuse_ends_with_its_own_deadline(device, stream, other, work, find_late):
    deadline = Deadline.after(LONG_S)
    work(other, deadline)
    assert find_late()
    assert [rival.until_ns for rival in stream.overdue.rivals] == [deadline.at_ns]
    stream.overdue.rivals[0].until_ns = 0
    assert not find_late.again()


@pytest.mark.parametrize("known", ["no deadline", "compiled code's"])
@pytest.mark.parametrize("long", [True, False])
def test_work_that_says_no_deadline_is_an_excuse_for_a_time(other, work, find_late, monkeypatch, known, long):
    if not long:
        monkeypatch.setattr(delays, "UNKNOWN_NS", 0)
    if known == "no deadline":
        work(other, NEVER)
    other.handle.worked = True
    assert find_late() is long


def test_later_work_that_is_late_is_judged_anew(device, stream, other, third, work, find_late):
    work(other, Deadline.after(LONG_S))
    assert find_late()
    end(device, stream)
    end(device, other)
    work(third, Deadline.after(LONG_S))
    assert find_late()
    assert [rival.stream for rival in stream.overdue.rivals] == [third]


def test_late_work_is_judged_anew_once_what_was_ahead_of_it_has_ended(device, stream, other, third, work, find_late):
    work(other, Deadline.after(LONG_S))
    assert find_late()
    event = device.events.open_event()
    device.events.record(event, stream)
    work(stream, Deadline.after(SHORT_S))
    stream.handle.worked = False
    assert device.events.event_reached(event)
    stream.handle.worked = True
    end(device, other)
    work(third, Deadline.after(LONG_S))
    assert find_late.again()
    assert [rival.stream for rival in stream.overdue.rivals] == [third]


def test_a_stream_that_records_is_left_alone(device, other, find_late):
    device.graphs.begin_capture(other)
    assert not find_late()
