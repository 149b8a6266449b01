"""Where a request's time goes: spans are parts of it, in order, and never more than the whole."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.telemetry.timeline import CURRENT, MOST_WAITS, RequestTimeline, add_relay, waiting

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "gate", "load", "sandbox", "guest", "output", "close"]),
        st.integers(0, 3_000_000),
        st.floats(-1, 1, allow_nan=False) | st.just(1e-4),
        st.just(0.0) | st.floats(-1, 1, allow_nan=False) | st.just(5e-5),
        st.just(0.0) | st.floats(-1, 1, allow_nan=False) | st.just(5e-5),
    ),
    max_size=12,
)


class Clock:
    """Time that stands still between steps."""

    def __init__(self):
        self.ns = 10

    def __call__(self):
        return self.ns


def told(steps):
    """Return a timeline that was told of steps, and its clock."""
    clock = Clock()
    timeline = RequestTimeline(clock.ns, now_ns=clock)
    for name, length_ns, elapsed_s, *device_s in steps:
        if name in ("gate", "load", "sandbox"):
            with timeline.waiting(name):
                clock.ns += length_ns
            continue
        clock.ns += length_ns
        if name == "guest":
            timeline.end_guest(elapsed_s, *(device_s or [0.0]))
        else:
            {"admit": timeline.admit, "output": timeline.begin_output, "close": timeline.close}[name]()
    return timeline, clock


@given(STEPS)
def test_spans_are_parts_of_the_time_one_after_the_other(steps):
    timeline, clock = told(steps)
    spans, total_ns = timeline.spans()
    assert total_ns == clock.ns - 10
    at_ns = 0
    for _, start_ns, length_ns in spans:
        assert start_ns >= at_ns
        assert length_ns > 0
        at_ns = start_ns + length_ns
    assert at_ns <= total_ns


@given(STEPS)
def test_nothing_is_missing_once_the_guest_has_ended(steps):
    timeline, _ = told([("admit", 5, 0.0), *(each for each in steps if each[0] not in ("admit", "close")),
                        ("guest", 7, 1e-6)])  # fmt: skip
    spans, total_ns = timeline.spans()
    assert sum(each.length_ns for each in spans) == total_ns


@given(STEPS)
def test_the_header_adds_up(steps):
    timeline, _ = told(steps)
    header = timeline.header()
    if not header:
        assert not any(name == "admit" for name, *_ in steps)
        return
    entries = header.split(", ")
    assert all(re.fullmatch(r"[a-z]+;dur=\d+\.\d{3}", each) for each in entries)
    *parts, (last, total) = [(name, round(float(ms) * 1000)) for name, ms in (each.split(";dur=") for each in entries)]
    assert last == "total"
    assert len({name for name, _ in parts}) == len(parts)
    assert sum(us for _, us in parts) <= total


def test_a_request_that_waited_and_ran():
    timeline, clock = told([("admit", 20_000, 0), ("gate", 300_000, 0), ("guest", 150_000, 1e-4)])
    clock.ns += 7_000
    assert timeline.header() == (
        "queue;dur=0.020, gate;dur=0.300, dispatch;dur=0.050, guest;dur=0.100, answer;dur=0.007, total;dur=0.477"
    )


def test_what_a_guest_waited_for_the_device_is_told_apart_and_is_at_its_end():
    timeline, clock = told([("admit", 20_000, 0), ("guest", 150_000, 1e-4, 7e-5)])
    clock.ns += 7_000
    assert timeline.header() == (
        "queue;dur=0.020, dispatch;dur=0.050, guest;dur=0.030, kernel;dur=0.070, answer;dur=0.007, total;dur=0.177"
    )
    assert [each for each in timeline.spans()[0] if each.name in ("guest", "kernel")] == [
        ("guest", 70_000, 30_000),
        ("kernel", 100_000, 70_000),
    ]


def test_loops_that_ran_elsewhere_are_told_apart():
    timeline, _ = told([("admit", 20_000, 0), ("guest", 150_000, 1e-4, 3e-5, 5e-5)])
    assert timeline.header() == (
        "queue;dur=0.020, dispatch;dur=0.050, guest;dur=0.020, offload;dur=0.050, kernel;dur=0.030, total;dur=0.170"
    )


def test_a_guest_waits_no_longer_than_it_runs():
    timeline, _ = told([("admit", 20_000, 0), ("guest", 150_000, 1e-4, 5.0)])
    assert timeline.header() == "queue;dur=0.020, dispatch;dur=0.050, kernel;dur=0.100, total;dur=0.170"


def test_a_stream_that_has_begun_knows_its_first_output():
    timeline, clock = told([("admit", 20_000, 0), ("output", 400_000, 0)])
    clock.ns += 9_000
    assert timeline.header() == "queue;dur=0.020, first;dur=0.400, answer;dur=0.009, total;dur=0.429"


def test_nothing_is_told_before_the_request_was_admitted():
    timeline, _ = told([("gate", 300_000, 0), ("guest", 1, 1e-4)])
    assert not timeline.header()
    assert timeline.spans() == ([], 300_001)


def test_a_closed_timeline_takes_nothing():
    timeline, _ = told([("admit", 1000, 0), ("close", 0, 0), ("gate", 1000, 0), ("guest", 1000, 1e-6)])
    assert timeline.header() == "queue;dur=0.001, total;dur=0.003"


def test_waits_are_bounded():
    timeline, _ = told([("admit", 0, 0), *[("gate", 1000, 0)] * (MOST_WAITS + 5), ("guest", 0, 0.0)])
    spans, _ = timeline.spans()
    assert [each.name for each in spans].count("gate") == MOST_WAITS


def test_waiting_is_measured_for_the_current_request_alone():
    clock = Clock()
    timeline = RequestTimeline(clock.ns, now_ns=clock)
    timeline.admit()
    with waiting("gate"):
        clock.ns += 1000
    with timeline.current():
        assert CURRENT.get() is timeline
        with waiting("load"):
            clock.ns += 500
    assert CURRENT.get() is None
    timeline.end_guest(0.0, 0.0)
    assert [(each.name, each.length_ns) for each in timeline.spans()[0]] == [("dispatch", 1000), ("load", 500)]


@pytest.mark.parametrize(
    ("total_ns", "relay", "total"),
    [(5_000_000, "relay;dur=3.000", "total;dur=5.000"), (1_000_000, "relay;dur=0.000", "total;dur=2.000")],
)
def test_a_relayed_answer_has_the_time_between_both_processes(total_ns, relay, total):
    """A clock that says less than the primary does makes no span negative."""
    assert add_relay("queue;dur=0.500, guest;dur=1.000, total;dur=2.000", total_ns) == (
        f"{relay}, queue;dur=0.500, guest;dur=1.000, {total}"
    )
