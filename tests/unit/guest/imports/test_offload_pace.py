"""How often guests with offloaded loops poll, whatever their instructions take."""

from __future__ import annotations

import pytest

from tensorwasm.offload import costs
from tensorwasm.offload.costs import LEAST_BUDGET, TARGET_NS, PollPace
from tensorwasm.offload.polling import BUDGET, FIRST_BUDGET

MISS_NS = 100.0


class Clock:
    """Time that passes when instructions run."""

    def __init__(self):
        self.now_ns = 0

    def monotonic_ns(self):
        return self.now_ns

    def run(self, instructions, each_ns):
        taken_ns = int(instructions * each_ns)
        self.now_ns += taken_ns
        return taken_ns


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(costs, "time", made)
    return made


def test_a_guest_that_misses_all_caches_polls_in_time_from_its_second_poll_on(clock):
    polls = PollPace()
    assert clock.run(FIRST_BUDGET, MISS_NS) < 6 * TARGET_NS
    for _ in range(10):
        assert clock.run(polls.next(), MISS_NS) == pytest.approx(TARGET_NS, rel=0.01)


def test_a_quick_guest_polls_seldom(clock):
    polls = PollPace()
    clock.run(FIRST_BUDGET, 0.3)
    for _ in range(10):
        budget = polls.next()
        clock.run(budget, 0.3)
        assert budget == BUDGET


def test_one_slow_phase_is_forgotten_with_the_next_poll(clock):
    polls = PollPace()
    clock.run(FIRST_BUDGET, 1e6)  # a loop that ran elsewhere for long
    assert polls.next() == LEAST_BUDGET
    clock.run(LEAST_BUDGET, 0.3)
    assert polls.next() == BUDGET
