from __future__ import annotations

from tensorwasm.offload.costs import (
    ELSEWHERE_RUNS,
    FIRST_PATIENCE,
    GUEST_RUNS,
    LEAST_NS,
    MOST_NS,
    RegionCosts,
    RunPlace,
)

WORK = 1_000_000


def measured(elsewhere_ns: int, guest_ns: int) -> RegionCosts:
    costs = RegionCosts(1000)
    for _ in range(ELSEWHERE_RUNS):
        assert costs.choose(0, WORK) is RunPlace.ELSEWHERE
        costs.note_elsewhere(0, WORK, elsewhere_ns)
    for _ in range(GUEST_RUNS):
        assert costs.choose(0, WORK) is RunPlace.MEASURED_GUEST
        costs.note_guest(0, WORK, guest_ns)
    return costs


def test_the_faster_place_is_kept_and_the_other_one_tried_seldom():
    for times, faster, slower in (
        ((WORK, 2 * WORK), RunPlace.ELSEWHERE, RunPlace.MEASURED_GUEST),
        ((2 * WORK, WORK), RunPlace.GUEST, RunPlace.ELSEWHERE),
    ):
        costs = measured(*times)
        assert {costs.choose(0, WORK) for _ in range(FIRST_PATIENCE)} == {faster}
        assert costs.choose(0, WORK) is slower
        assert {costs.choose(0, WORK) for _ in range(2 * FIRST_PATIENCE)} == {faster}


def test_a_run_that_is_over_before_another_place_has_begun_stays():
    assert RegionCosts(1000).choose(0, int(1000 / MOST_NS) - 1) is RunPlace.GUEST


def test_what_is_clear_is_not_tried_in_the_guest():
    for ns, place in ((LEAST_NS / 2, RunPlace.ELSEWHERE), (MOST_NS * 2, RunPlace.GUEST)):
        costs = RegionCosts(1000)
        for _ in range(ELSEWHERE_RUNS):
            costs.note_elsewhere(0, WORK, int(ns * WORK))
        assert costs.choose(0, WORK) is place


def test_a_place_that_is_hardly_faster_is_not_taken():
    assert measured(95 * WORK // 100, WORK).choose(0, WORK) is RunPlace.GUEST


def test_the_guest_is_always_tried_where_it_cannot_be_felt():
    costs = RegionCosts(1000, least_ns=0.0)
    for _ in range(ELSEWHERE_RUNS):
        costs.note_elsewhere(0, WORK, int(LEAST_NS / 2 * WORK))
    assert costs.choose(0, WORK) is RunPlace.MEASURED_GUEST


def test_other_regions_and_other_amounts_of_work_are_measured_for_themselves():
    costs = measured(2 * WORK, WORK)
    assert costs.choose(0, WORK) is RunPlace.GUEST
    assert costs.choose(1, WORK) is costs.choose(0, 4 * WORK) is RunPlace.ELSEWHERE
