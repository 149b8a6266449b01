"""Spans of a call whose loops may run elsewhere."""

import pytest

from tensorwasm.guest.imports.offload import recording
from tensorwasm.guest.imports.offload.recording import SpanKind, SpanLog


@pytest.fixture
def clock(monkeypatch):
    """Have a clock that goes on by 10 ns each time that it is read."""
    times = iter(range(0, 1 << 20, 10))
    monkeypatch.setattr(recording.time, "perf_counter_ns", lambda: next(times))


def test_a_region_in_the_guest_takes_its_time_without_that_of_spans_in_it(clock):
    log = SpanLog()
    log.enter_guest(0, "sequential")
    log.enter_guest(2, "not_worth")
    assert log.is_in_guest(0)
    log.region = 1
    with log.measure(SpanKind.RUN) as span:
        span.amount = 5
    log.leave_guest()
    log.leave_guest()
    assert not log.is_in_guest(0)
    assert [(span.kind, span.region, span.ended_ns - span.began_ns, span.own_ns) for span in log.spans] == [
        (SpanKind.RUN, 1, 10, 10),
        (SpanKind.GUEST, 2, 30, 20),
        (SpanKind.GUEST, 0, 50, 20),
    ]
    assert log.totals[SpanKind.RUN, 1].amount == 5


def test_spans_beyond_the_most_count_in_totals(clock, monkeypatch):
    monkeypatch.setattr(recording, "MOST_SPANS", 3)
    log = SpanLog()
    for _ in range(5):
        with log.measure(SpanKind.PLAN):
            pass
    total = log.totals[SpanKind.PLAN, 0]
    assert (len(log.spans), total.count, total.own_ns) == (3, 5, 50)


def test_regions_that_an_instance_leaves_in_the_guest_end_with_it(clock):
    log = SpanLog()
    log.enter_guest(0, "sequential")
    log.enter_guest(1, "sequential")
    log.abandon_guest()
    assert [span.region for span in log.spans] == [1, 0]
