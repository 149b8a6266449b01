from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles.nest import contains, evaluate
from tensorwasm.offload.affine import add, counter, quotient, subtract
from tensorwasm.offload.analysis.scope import Scope, symbol
from tensorwasm.offload.declined import Declined
from tensorwasm.offload.nest import Affine, Constraint

small = st.integers(-6, 6)


@st.composite
def linear(draw, count):
    total = Affine(draw(small))
    for number in range(count):
        total = add(total, counter(number), draw(st.integers(-3, 3)))
    return total


@st.composite
def affines(draw, count):
    return add(draw(linear(count)), quotient(draw(linear(count)), draw(st.integers(2, 5))), draw(small))


@st.composite
def scopes(draw):
    scope, points = Scope(), [()]
    for number in range(draw(st.integers(1, 3))):
        last = draw(affines(number)) if number else Affine(draw(st.integers(0, 8)))
        index = counter(number)
        scope = Scope(scope, (Constraint(index), Constraint(subtract(last, index))))
        points = [
            (*point, value) for point in points for value in range(max(evaluate(last, dict(enumerate(point))), -1) + 1)
        ]
        points = points[:400]
    assume(len(points) < 400)
    count = len(points[0]) if points else 1
    if draw(st.booleans()):
        condition = Constraint(draw(affines(count)), equality=draw(st.booleans()))
        scope = Scope(scope, (condition,))
        points = [point for point in points if contains(((condition,),), dict(enumerate(point)))]
    return scope, count, points


@given(scopes(), st.data())
def test_bounds_hold_at_every_point(drawn, data):
    scope, count, points = drawn
    value = data.draw(affines(count))
    values = [evaluate(value, dict(enumerate(point))) for point in points]
    lower, upper = scope.lower(value), scope.upper(value)
    assert not values or lower is None or lower <= min(values)
    assert not values or upper is None or upper >= max(values)
    if scope.empty():
        assert not points
    for unit in (2, 3, 4):
        residue = scope.residue(value, unit)
        assert residue is None or all(each % unit == residue for each in values)


@given(scopes(), st.data(), st.sampled_from((2, 3, 5)))
def test_what_is_exact_is_in_its_range_and_equal_modulo_its_size(drawn, data, bits):
    scope, count, points = drawn
    value, first = data.draw(affines(count)), data.draw(small)
    exact, multiples = scope.exact(value, first, bits), scope.multiples(value, bits)
    for point in points:
        there = evaluate(value, dict(enumerate(point)))
        if exact is not None:
            found = evaluate(exact, dict(enumerate(point)))
            assert first <= found < first + (1 << bits)
            assert (found - there) % (1 << bits) == 0
        assert multiples is None or there % (1 << bits) or there in multiples


@given(scopes(), st.data())
def test_values_proved_equal_are(drawn, data):
    scope, count, points = drawn
    one, other = data.draw(affines(count)), data.draw(affines(count))
    if scope.equal(one, other, 4):
        assert all((evaluate(one, at) - evaluate(other, at)) % 16 == 0 for at in map(dict, map(enumerate, points)))


def test_triangular_bounds_are_exact():
    outer = Scope(None, (Constraint(counter(0)), Constraint(Affine(9, ((0, -1),)))))
    inner = Scope(outer, (Constraint(counter(1)), Constraint(subtract(counter(0), counter(1)))))
    distance = subtract(counter(0), counter(1))
    assert (inner.lower(distance), inner.upper(distance)) == (0, 9)


def test_parity_tightens_a_bound():
    even = Constraint(add(counter(0), quotient(counter(0), 2), -2), equality=True)
    scope = Scope(Scope(None, (Constraint(counter(0)), Constraint(Affine(7, ((0, -1),))))), (even,))
    assert scope.upper(counter(0)) == 6


def test_an_unknown_integer_is_in_its_unsigned_range():
    assert Scope().upper(counter(symbol(3, 32))) == (1 << 32) - 1
    assert Scope().lower(counter(symbol(3, 64))) == 0


def test_all_bounds_together_have_a_limit():
    scope = Scope(
        None, tuple(Constraint(add(counter(one), counter(other), -1)) for one, other in product(range(9), range(9, 12)))
    )

    def search():
        for number in range(1_000_000):
            scope.upper(Affine(number, ((0, 1), (10, -2), (5, 3))))

    with pytest.raises(Declined):
        search()
