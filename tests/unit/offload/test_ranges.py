"""Limits of linear forms from the bounds of loops hold for all values of variables, and are found where expected."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm.offload.codegen.linear import least, linear
from tensorwasm.offload.program import Compute, For


def plus(*parts):
    total = parts[0]
    for part in parts[1:]:
        total = Compute("add", (total, part))
    return total


def times(value, factor):
    return Compute("mul", (value, factor))


def half(value):
    return Compute("floor_div", (value, 2))


def loop(variable, first, last, step=1):
    return For(variable, first, last, step, (), parallel=True)


def test_what_lies_before_a_quotient_of_an_outer_counter_is_apart_from_it():
    loops = [loop("j", 0, plus(half("k"), -1))]
    assert least(linear(plus(times("k", 4), times("j", -8))), loops) == 8
    assert least(linear(plus(times("k", -4), times("j", 8))), loops) is None


def test_what_lies_behind_it_is_too():
    loops = [loop("j", plus(half("k"), 1), "n")]
    assert least(linear(plus(times("k", -4), times("j", 8))), loops) == 4


def test_each_of_several_bounds_is_tried():
    loops = [loop("i", 0, 9), loop("j", 0, Compute("min", ("n", plus("i", -1))))]
    assert least(linear(plus("i", times("j", -1))), loops) == 1


def evaluated(expression, values):
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return values[expression]
    one, other = (evaluated(operand, values) for operand in expression.operands)
    operators = {"add": one + other, "mul": one * other, "min": min(one, other), "max": max(one, other)}
    return one // other if expression.operator == "floor_div" else operators[expression.operator]


small = st.integers(-6, 6)


@st.composite
def bounds(draw, variables):
    """Draw a sum of variables, quotients and a constant."""
    parts = [draw(small)]
    for name in variables:
        term = half(name) if draw(st.booleans()) else name
        parts.append(times(term, draw(st.integers(-2, 2))))
    bound = plus(*parts)
    return Compute(draw(st.sampled_from(("min", "max"))), (bound, draw(small))) if draw(st.booleans()) else bound


@settings(max_examples=300, deadline=None)
@given(st.data(), small)
def test_no_value_is_less_than_the_limit(data, k):
    loops = [loop("i", *(data.draw(bounds(["k"])) for _ in range(2)))]
    loops.append(loop("j", *(data.draw(bounds(["k", "i"])) for _ in range(2))))
    form = data.draw(bounds(["k", "i", "j"]))
    found = least(linear(form), loops)
    for i in range(*_ends(loops[0], {"k": k})):
        for j in range(*_ends(loops[1], {"k": k, "i": i})):
            assert found is None or evaluated(form, {"k": k, "i": i, "j": j}) >= found


def _ends(each, values):
    return evaluated(each.first, values), evaluated(each.last, values) + 1
