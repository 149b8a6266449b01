"""Time left, as guests see it."""

import time

import pytest

from fakes.guest import FakeCall
from tensorwasm.guest.imports.call import deadline_remaining_ms, yield_
from tensorwasm.values import Deadline

NOW_NS = 1_000_000_000_000


@pytest.fixture
def call(monkeypatch):
    monkeypatch.setattr(time, "monotonic_ns", lambda: NOW_NS)
    return lambda left_ns: FakeCall(deadline=Deadline(None if left_ns is None else NOW_NS + left_ns))


@pytest.mark.parametrize(
    ("left_ns", "verdict"),
    [(None, 0), (60_000_000_000, 0), (10_000_000, 0), (9_999_999, 1), (1, 1), (0, 2), (-1, 2), (-(10**15), 2)],
)
def test_yield_answers_how_near_the_deadline_is(call, left_ns, verdict):
    assert yield_(call(left_ns)) == verdict


@pytest.mark.parametrize(
    ("left_ns", "answer"),
    [
        (0, 0),
        (-5, 0),
        (999_999, 0),
        (1_000_000, 1),
        (1_500_000_000, 1500),
        (((1 << 31) - 1) * 1_000_000, (1 << 31) - 1),
        ((1 << 31) * 1_000_000, -(1 << 31)),
        (((1 << 32) - 2) * 1_000_000, -2),
        (((1 << 32) - 1) * 1_000_000, -2),
        (1 << 80, -2),
        (None, -1),
    ],
)
def test_remaining_milliseconds_are_whole_and_unsigned(call, left_ns, answer):
    assert deadline_remaining_ms(call(left_ns)) == answer
