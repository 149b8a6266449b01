"""The compiled scheduler against its twin."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.guest import FakeCall
from tensorwasm.gpu.native.layout import NO_DEADLINE_NS
from tensorwasm.guest.imports import call as scheduler
from tensorwasm.values import Deadline

NAMES = {"yield": scheduler.yield_, "deadline-remaining-ms": scheduler.deadline_remaining_ms}
MS = 1_000_000


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(list(NAMES)), left_ns=st.integers(-(1 << 62), 1 << 62) | st.integers(-20 * MS, 20 * MS))
@example(name="deadline-remaining-ms", left_ns=(1 << 31) * MS)
@example(name="deadline-remaining-ms", left_ns=((1 << 32) - 1) * MS)
@example(name="deadline-remaining-ms", left_ns=1 << 53)
@pytest.mark.rule("1-twin")
def test_compiled_answers_lie_between_the_fallbacks_answers_before_and_after(make_bench, name, left_ns):
    bench = make_bench(1)
    at_ns = max(0, time.monotonic_ns() + left_ns)
    # The export sets the deadline of its own call, so the layout is set behind its back: a call that sets none.
    before = NAMES[name](FakeCall(deadline=Deadline(at_ns)))
    answer = with_deadline(bench, name, at_ns)
    after = NAMES[name](FakeCall(deadline=Deadline(at_ns)))
    assert bench.went_native()
    low, high = sorted((before % (1 << 32), after % (1 << 32)))
    assert low <= answer % (1 << 32) <= high


def with_deadline(bench, name: str, at_ns: int | None) -> int:
    """Call with this very deadline, even one that has passed."""
    state = bench.instance._state
    arm = type(state).arm

    def arm_otherwise(self, started_ns, _deadline_ns):
        arm(self, started_ns, at_ns)
        self.deadline_ns = None  # the clock may not stop the guest for it

    type(state).arm = arm_otherwise
    try:
        return bench.call(name)
    finally:
        type(state).arm = arm


@pytest.mark.parametrize(("name", "answer"), [("yield", 0), ("deadline-remaining-ms", -1)])
def test_without_a_deadline_there_is_no_end(bench, name, answer):
    assert with_deadline(bench, name, None) == answer
    assert bench.layout.deadline_ns == NO_DEADLINE_NS


@pytest.mark.parametrize(("name", "answer"), [("yield", 2), ("deadline-remaining-ms", 0)])
@pytest.mark.parametrize("at_ns", [-5, 0, 1])
def test_a_deadline_that_has_passed_has_passed(bench, name, answer, at_ns):
    assert with_deadline(bench, name, at_ns) == answer


@pytest.mark.parametrize(("name", "answer"), [("yield", 0), ("deadline-remaining-ms", -2)])
@pytest.mark.parametrize("at_ns", [(1 << 64) - 1, 1 << 64, 1 << 90])
def test_a_deadline_past_the_end_of_the_clock_is_one(bench, name, answer, at_ns):
    assert with_deadline(bench, name, at_ns) == answer
