from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oracles.nest import evaluate
from oracles.wasm_numeric import NUMERIC
from tensorwasm.offload.affine import ZERO, add, counter, quotient
from tensorwasm.offload.analysis.integers import Comparison
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.trips import passes
from tensorwasm.offload.nest import Affine, Constraint

RELATIONS = ("eq", "ne", "lt_s", "lt_u", "gt_s", "gt_u", "le_s", "le_u", "ge_s", "ge_u")
LIMIT = 300
EDGES = (0, 1 << 31, (1 << 32) - 1)
starts = st.builds(lambda edge, by: (edge + by) % (1 << 32), st.sampled_from(EDGES), st.integers(-40, 40))
steps = st.integers(-5, 5)


def simulated(stay, at):
    """Return how often a test is passed, None if that is more often than the limit."""
    for iteration in range(LIMIT):
        values = [evaluate(side, {**at, 1: iteration}) % (1 << 32) for side in (stay.left, stay.right)]
        if not NUMERIC[f"i32.{stay.relation}"](*values):
            return iteration
    return None


@given(st.sampled_from(RELATIONS), starts, starts, steps, steps, st.integers(-3, 3), st.integers(0, 9))
def test_a_loop_runs_as_often_as_is_found(relation, left, right, left_step, right_step, outer, last):
    one = add(add(Affine(left), counter(1), left_step), counter(0), outer)
    other = add(Affine(right), counter(1), right_step)
    scope = Scope(None, (Constraint(counter(0)), Constraint(Affine(last, ((0, -1),)))))
    stay = Comparison(relation, one, other, 32)
    found = passes(stay, 1, scope)
    if found is None:
        return
    for value in range(last + 1):
        expected = simulated(stay, {0: value})
        if isinstance(found, Constraint):
            holds = evaluate(found.value, {0: value}) >= 0
            assert (expected != 0) == holds
        elif expected is None:
            assert evaluate(found, {0: value}) >= LIMIT
        else:
            assert evaluate(found, {0: value}) == expected


def test_an_exit_that_is_stepped_over_is_not_counted():
    stay = Comparison("ne", Affine(0, ((1, 2),)), Affine(7), 32)
    assert passes(stay, 1, Scope()) is None


def test_a_count_up_to_the_last_number_is_not_counted():
    stay = Comparison("le_u", counter(1), Affine((1 << 32) - 1), 32)
    assert passes(stay, 1, Scope()) is None


def test_a_counter_of_few_bits_counts_up_to_where_it_wraps():
    narrow = add(counter(1), quotient(counter(1), 256), -256)
    assert passes(Comparison("ne", narrow, Affine(200), 32), 1, Scope()) == Affine(200)
    assert passes(Comparison("ne", narrow, Affine(300), 32), 1, Scope()) is None


def test_a_test_that_fails_at_once_is_never_passed():
    assert passes(Comparison("lt_s", counter(1), ZERO, 32), 1, Scope()) == ZERO
