"""Streams that sessions share when a device has no more of them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.device import FakeDevice
from tensorwasm.errors import DeviceLost, QuotaExceeded
from tensorwasm.gpu.resources.stream_stock import StreamStock


def stock(most, most_idle=4):
    device = FakeDevice()
    return StreamStock(device.open_stream, device.close_stream, most_idle, most), device


def test_all_streams_of_a_device_with_a_number_of_them_are_made_at_once():
    streams, device = stock(5)
    assert device.statistics().streams == 5
    taken = [streams.take() for _ in range(5)]
    assert len(set(map(id, taken))) == 5
    assert device.statistics().streams == 5


def test_when_all_are_in_use_sessions_share_streams_round_robin():
    streams, device = stock(2)
    users = Counter(id(streams.take()) for _ in range(6))
    assert sorted(users.values()) == [3, 3]
    assert device.statistics().streams == 2


def test_a_stream_taken_alone_is_not_shared():
    streams, _ = stock(2)
    alone = streams.take(alone=True)
    others = [streams.take() for _ in range(4)]
    assert all(other is not alone for other in others)
    with pytest.raises(QuotaExceeded):
        streams.take(alone=True)
    streams.give(alone)
    assert streams.take(alone=True) is alone


def test_a_device_that_makes_fewer_than_it_said_is_used_as_it_is():
    device = FakeDevice()
    made = []

    def make():
        if len(made) == 3:
            raise DeviceLost("no more")
        made.append(device.open_stream())
        return made[-1]

    streams = StreamStock(make, device.close_stream, 4, 10)
    assert len({id(streams.take()) for _ in range(9)}) == 3


@given(st.lists(st.tuples(st.sampled_from(["take", "alone", "give", "discard"]), st.integers(0, 7)), max_size=60))
def test_no_stream_is_lent_after_it_was_released_or_twice_when_alone(steps):
    streams, device = stock(3)
    held: list[tuple[object, bool]] = []
    for step, which in steps:
        if step in {"take", "alone"}:
            try:
                stream = streams.take(alone=step == "alone")
            except QuotaExceeded:
                continue
            assert stream in device.streams
            assert not any(other is stream and (alone or step == "alone") for other, alone in held)
            held.append((stream, step == "alone"))
        elif held:
            stream, _ = held.pop(which % len(held))
            (streams.give if step == "give" else streams.discard)(stream)
    for stream, _ in held:
        streams.give(stream)
    assert streams.close() == []
    assert device.statistics().streams == 0


@pytest.mark.rule("3-stream")
def test_a_discarded_stream_is_not_reused_whichever_user_leaves_last():
    streams, device = stock(1)
    first, second = streams.take(), streams.take()
    assert first is second
    streams.discard(first)
    assert first in device.streams
    streams.give(second)
    assert first not in device.streams
    assert streams.take() is not first


def test_users_that_all_discard_one_stream_take_one_stream_away_and_it_is_replaced():
    streams, device = stock(2)
    other, bad = streams.take(), streams.take()
    users = [streams.take() for _ in range(4)]
    for stream in [bad, *(each for each in users if each is bad)]:
        streams.discard(stream)
    assert device.statistics().streams == 1
    replaced = streams.take()
    assert replaced not in (bad, other)
    assert device.statistics().streams == 2
