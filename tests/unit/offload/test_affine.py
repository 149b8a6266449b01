from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.nest import evaluate
from tensorwasm.offload.affine import add, content, counter, quotient, scale, shift, substitute, subtract, wrap
from tensorwasm.offload.declined import Declined
from tensorwasm.offload.nest import Affine

numbers = st.integers(-40, 40)
points = st.fixed_dictionaries({0: numbers, 1: numbers, 2: numbers})


def sum_of(constant, factors):
    total = Affine(constant)
    for number, factor in enumerate(factors):
        total = add(total, counter(number), factor)
    return total


linear = st.builds(sum_of, numbers, st.lists(numbers, min_size=3, max_size=3))
affines = st.recursive(
    linear,
    lambda inner: st.builds(
        lambda one, divisor, other, factor: add(other, quotient(one, divisor), factor),
        inner,
        st.integers(1, 12),
        linear,
        numbers,
    ),
    max_leaves=3,
)


@given(affines, affines, numbers, points)
def test_sums_and_multiples_are_those_of_the_values(one, other, factor, at):
    left, right = evaluate(one, at), evaluate(other, at)
    assert evaluate(add(one, other, factor), at) == left + factor * right
    assert evaluate(subtract(one, other), at) == left - right
    assert evaluate(scale(one, factor), at) == factor * left
    assert evaluate(shift(one, factor), at) == left + factor


@given(affines, st.integers(1, 40), points)
def test_a_quotient_rounds_down(value, divisor, at):
    assert evaluate(quotient(value, divisor), at) == evaluate(value, at) // divisor


@given(affines, st.sampled_from((4, 32)), points)
def test_wrapping_keeps_the_value_modulo_a_power_of_two(value, bits, at):
    wrapped = wrap(value, bits)
    assert (evaluate(wrapped, at) - evaluate(value, at)) % (1 << bits) == 0
    assert all(abs(number) <= 1 << (bits - 1) for _, number in wrapped.terms)


@given(affines, linear, points)
def test_substitution_is_evaluation_elsewhere(value, by, at):
    assert evaluate(substitute(value, {1: by}), at) == evaluate(value, {**at, 1: evaluate(by, at)})


@given(affines, affines)
def test_equal_sums_have_one_form(one, other):
    assert add(one, other) == add(other, one)
    assert add(subtract(one, other), other) == one


@given(linear, points)
def test_the_content_divides_what_the_counters_add(value, at):
    common = content(value)
    assert common == 0 or (evaluate(value, at) - value.constant) % common == 0


def test_quotients_nested_too_deep_decline():
    def nested(depth):
        return quotient(add(nested(depth - 1), counter(1), 3), 2 * depth + 1) if depth else counter(0)

    with pytest.raises(Declined):
        nested(20)
