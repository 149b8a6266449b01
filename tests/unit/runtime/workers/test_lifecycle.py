import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.runtime.workers.lifecycle import TRANSITIONS, Backoff, Lifecycle, LifecycleEvent, State

BACKOFF = Backoff(first_s=1.0, longest_s=8.0, stable_s=100.0, idle_ends=4)


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def life(clock):
    return Lifecycle(BACKOFF, clock)


def waits(life, clock, blamed, times):
    found = []
    for _ in range(times):
        life.ready()
        life.ended(blamed=blamed)
        found.append(life.starts_at_s - clock.now_s)
    return found


def test_the_last_states_are_final():
    assert {state for state, _ in TRANSITIONS}.isdisjoint({State.RETIRED, State.FAILED})


def test_ends_in_a_row_wait_longer_and_longer_up_to_the_longest(life, clock):
    assert waits(life, clock, True, 7) == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert life.state is State.STARTING


def test_a_process_that_was_ready_for_long_ends_the_row(life, clock):
    waits(life, clock, True, 5)
    life.ready()
    clock.now_s += BACKOFF.stable_s
    life.ended(blamed=True)
    assert life.starts_at_s == clock.now_s


def test_ends_without_a_request_to_blame_are_given_up_after_so_many(life, clock):
    waits(life, clock, False, 3)
    assert life.state is State.STARTING
    life.ended(blamed=False)
    assert life.state is State.FAILED
    assert life.over
    assert not life.takes


def test_an_end_with_a_request_to_blame_begins_the_count_anew(life, clock):
    waits(life, clock, False, 3)
    waits(life, clock, True, 1)
    waits(life, clock, False, 3)
    assert life.state is State.STARTING


def test_a_first_process_that_says_it_is_unfit_is_believed_at_once(life):
    life.ended(blamed=False, unfit=True)
    assert life.state is State.FAILED


def test_a_later_one_is_tried_again(life):
    life.ready()
    life.ended(blamed=True)
    life.ended(blamed=False, unfit=True)
    assert life.state is State.STARTING


def test_a_worker_that_drains_for_good_takes_nothing_and_retires(life):
    life.ready()
    life.drain(replace=False)
    assert (life.state, life.takes) == (State.DRAINING, False)
    life.ended(blamed=True)
    assert (life.state, life.over) == (State.RETIRED, True)


def test_a_worker_that_drains_to_be_replaced_still_takes_what_waits_for_the_next(life):
    life.ready()
    life.drain(replace=True)
    assert (life.state, life.takes) == (State.DRAINING, True)
    life.ended(blamed=True)
    assert (life.state, life.takes) == (State.STARTING, True)
    life.ready()
    assert life.state is State.READY


def test_wanted_gone_for_good_wins_over_a_replacement(life):
    life.ready()
    life.drain(replace=True)
    life.drain(replace=False)
    life.drain(replace=True)
    life.ended(blamed=True)
    assert life.state is State.RETIRED


@given(st.lists(st.sampled_from(["ready", "good", "replace", "blamed", "idle", "unfit", "wait"]), max_size=40))
def test_any_order_of_events_keeps_the_worker_in_an_allowed_state(happenings):
    clock = Clock()
    life = Lifecycle(BACKOFF, clock)
    for what in happenings:
        before = life.state
        if life.over:
            assert not life.takes
            return
        if what == "wait":
            clock.now_s += 50.0
        elif what == "ready" and before is State.STARTING:
            life.ready()
        elif what in {"good", "replace"}:
            life.drain(replace=what == "replace")
        elif what in {"blamed", "idle", "unfit"}:
            life.ended(blamed=what == "blamed", unfit=what == "unfit")
            assert life.over or 0 <= life.starts_at_s - clock.now_s <= BACKOFF.longest_s
        allowed = {after for (state, _), after in TRANSITIONS.items() if state is before}
        assert life.state is before or life.state in allowed


def test_every_event_is_in_the_table():
    assert {event for _, event in TRANSITIONS} == set(LifecycleEvent)
