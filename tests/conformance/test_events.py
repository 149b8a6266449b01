"""Events of `wasi:cuda/host@0.3.0`, through real Wasm, on every device."""

from __future__ import annotations

import pytest

from conformance.puppet import Puppet
from conformance.work import NOBODYS, Work, chain

ENOUGH_S = 0.15


@pytest.fixture
def puppet(device, compiled, guarded):
    with Puppet(device, compiled=compiled, guarded=guarded) as puppet:
        yield puppet


@pytest.fixture
def work(puppet):
    return Work(puppet)


def test_events_have_numbers_of_their_own_and_lose_them_for_good(puppet):
    numbers = [puppet.event_create() for _ in range(256)]
    assert all(number > 0 for number in numbers)
    assert len(set(numbers)) == 256
    assert puppet.event_create() == -6
    assert puppet.event_destroy(numbers[7]) == 0
    assert puppet.event_destroy(numbers[7]) == -11
    again = puppet.event_create()
    assert again > 0
    assert again not in numbers


@pytest.mark.parametrize("bad", [0, *NOBODYS])
def test_events_that_do_not_exist(puppet, bad):
    assert puppet.event_destroy(bad) == -11
    assert puppet.event_record(bad, 0) == -11
    assert puppet.stream_wait_event(0, bad) == -11
    assert puppet.event_sync(bad) == -11
    assert puppet.event_query(bad) == -11
    assert puppet.error()
    assert puppet.sync() == 0


def test_a_destroyed_event_is_like_one_that_never_was(puppet):
    event = puppet.event_create()
    assert puppet.event_record(event, 0) == 0
    assert puppet.event_destroy(event) == 0
    assert puppet.event_record(event, 0) == -11
    assert puppet.stream_wait_event(0, event) == -11
    assert puppet.event_sync(event) == -11
    assert puppet.event_query(event) == -11


def test_an_event_that_was_not_recorded_counts_as_reached(puppet, work):
    event = puppet.event_create()
    assert puppet.event_query(event) == 0
    assert puppet.event_sync(event) == 0
    assert puppet.stream_wait_event(0, event) == 0
    assert work.affine(0, 6) == 0
    assert puppet.sync() == 0
    assert work.word == 6


def test_an_event_marks_what_the_stream_was_given_so_far(puppet, work):
    stream, event = puppet.stream_create(), puppet.event_create()
    work.warm_up(stream)
    assert work.nap(ENOUGH_S, stream) == 0
    assert work.affine(0, 5, stream) == 0
    assert puppet.event_record(event, stream) == 0
    assert puppet.event_query(event) == 1
    assert work.nap(4 * ENOUGH_S, stream) == 0
    assert puppet.event_sync(event) == 0
    assert work.word == 5
    assert puppet.event_query(event) == 0
    assert puppet.stream_query(stream) == 1
    assert puppet.sync() == 0


def test_a_stream_waits_for_an_event_of_another(puppet, work):
    first, second, event = puppet.stream_create(), puppet.stream_create(), puppet.event_create()
    work.word = 1
    assert work.nap(ENOUGH_S, first) == 0
    assert work.affine(10, 2, first) == 0
    assert puppet.event_record(event, first) == 0
    assert puppet.stream_wait_event(second, event) == 0
    assert work.affine(100, 3, second) == 0
    assert puppet.stream_sync(second) == 0
    assert work.word == chain([(10, 2), (100, 3)], 1)
    assert puppet.stream_query(first) == 0


def test_work_passes_back_and_forth_between_streams(puppet, work):
    streams = [0, puppet.stream_create(), puppet.stream_create()]
    steps = [(3, k) for k in range(12)]
    work.word = 1
    before = None
    for index, step in enumerate(steps):
        stream = streams[index % 3]
        if before is not None:
            assert puppet.stream_wait_event(stream, before) == 0
        assert work.affine(*step, stream) == 0
        before = puppet.event_create()
        assert puppet.event_record(before, stream) == 0
    assert puppet.event_sync(before) == 0
    assert work.word == chain(steps, 1)


def test_an_event_that_is_recorded_anew_marks_the_new_place(puppet, work):
    first, second, event = puppet.stream_create(), puppet.stream_create(), puppet.event_create()
    assert puppet.event_record(event, first) == 0
    assert puppet.event_sync(event) == 0
    assert work.nap(ENOUGH_S, second) == 0
    assert puppet.event_record(event, second) == 0
    assert puppet.event_query(event) == 1
    assert puppet.event_sync(event) == 0
    assert puppet.stream_query(second) == 0


def test_waiters_keep_waiting_when_their_event_is_recorded_again_or_destroyed(puppet, work):
    first, second, event = puppet.stream_create(), puppet.stream_create(), puppet.event_create()
    work.word = 1
    assert work.nap(ENOUGH_S, first) == 0
    assert work.affine(10, 2, first) == 0
    assert puppet.event_record(event, first) == 0
    assert puppet.stream_wait_event(second, event) == 0
    assert puppet.event_record(event, 0) == 0
    assert puppet.event_destroy(event) == 0
    assert work.affine(100, 3, second) == 0
    assert puppet.stream_sync(second) == 0
    assert work.word == 1203


def test_an_event_outlives_the_stream_that_it_marked(puppet, work):
    stream, event = puppet.stream_create(), puppet.event_create()
    assert work.affine(0, 4, stream) == 0
    assert puppet.event_record(event, stream) == 0
    assert puppet.stream_destroy(stream) == 0
    assert puppet.event_query(event) == 0
    assert puppet.event_sync(event) == 0
    assert puppet.stream_wait_event(0, event) == 0
    assert work.word == 4


def test_waiting_for_an_event_twice_and_for_ones_own(puppet, work):
    stream, event = puppet.stream_create(), puppet.event_create()
    assert work.nap(ENOUGH_S / 3, stream) == 0
    assert puppet.event_record(event, stream) == 0
    assert puppet.event_record(event, stream) == 0
    assert puppet.stream_wait_event(stream, event) == 0
    assert puppet.stream_wait_event(stream, event) == 0
    assert work.affine(0, 2, stream) == 0
    assert puppet.stream_sync(stream) == 0
    assert puppet.event_sync(event) == 0
    assert work.word == 2
