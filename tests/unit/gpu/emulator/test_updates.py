import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tensorwasm.gpu.emulator.steps import atomics

CELLS = 6
SMALL = st.integers(0, 5)
ANY = st.one_of(SMALL, st.integers(0, 2**32 - 1))


def never():
    """Stand in for a look at the clock."""


@st.composite
def accesses(draw, values=ANY, operands=1):
    """Draw memory, one index per access and their operands."""
    count = draw(st.integers(1, 40))
    memory = draw(arrays(np.uint32, CELLS, elements=values))
    index = draw(arrays(np.int64, count, elements=st.integers(0, CELLS - 1)))
    return memory, index, *(draw(arrays(np.uint32, count, elements=values)) for _ in range(operands))


def one_by_one(memory, index, operands, combine):
    memory, before = memory.copy(), []
    for at, *values in zip(index, *operands, strict=True):
        before.append(int(memory[at]))
        memory[at] = combine(int(memory[at]), *map(int, values)) % 2**32
    return memory.tolist(), before


def check(found, memory, index, operands, expected, combine):
    after, before = one_by_one(expected, index, operands, combine)
    assert found.tolist() == before
    assert memory.tolist() == after


@pytest.mark.parametrize(
    ("function", "combine"),
    [
        (np.add, lambda a, b: a + b),
        (np.minimum, min),
        (np.maximum, max),
        (np.bitwise_and, lambda a, b: a & b),
        (np.bitwise_or, lambda a, b: a | b),
        (np.bitwise_xor, lambda a, b: a ^ b),
    ],
)
@given(case=accesses())
def test_accumulated(function, combine, case):
    memory, index, operand = case
    start = memory.copy()
    found = atomics.accumulate(function, memory, index, (operand,), never)
    check(found, memory, index, (operand,), start, combine)


@given(accesses())
def test_exchanged(case):
    memory, index, operand = case
    start = memory.copy()
    found = atomics.exchange(memory, index, operand)
    check(found, memory, index, (operand,), start, lambda _, b: b)


@given(accesses(values=st.integers(0, 3), operands=2))
def test_compared(case):
    memory, index, expected, wanted = case
    start = memory.copy()
    found = atomics.compare_and_swap(memory, index, (expected, wanted), never)
    check(found, memory, index, (expected, wanted), start, lambda a, b, c: c if a == b else a)


def count_up(value, bound):
    return 0 if value >= bound else value + 1


def count_down(value, bound):
    return bound if value == 0 or value > bound else value - 1


@pytest.mark.parametrize(
    ("direction", "function", "combine"),
    [(1, atomics.increment, count_up), (-1, atomics.decrement, count_down)],
)
@given(case=accesses(), bound=ANY)
def test_counted(direction, function, combine, case, bound):
    memory, index, bounds = case
    start = memory.copy()
    found = atomics.in_rounds(function, memory, index, (bounds,), never)
    check(found, memory, index, (bounds,), start, combine)
    memory = start.copy()
    found = atomics.count_cyclic(direction, memory, index, bound)
    check(found, memory, index, (np.full(index.size, bound, np.uint32),), start, combine)


FLOATS = st.floats(width=32, allow_nan=False)


@given(arrays(np.float32, 3, elements=FLOATS), st.lists(st.tuples(st.integers(0, 2), FLOATS), min_size=1, max_size=30))
def test_sums_of_floats_round_after_every_access(memory, operations):
    index = np.array([at for at, _ in operations])
    operand = np.array([value for _, value in operations], np.float32)
    expected, before = memory.copy(), []
    with np.errstate(all="ignore"):
        for at, value in zip(index, operand, strict=True):
            before.append(expected[at])
            expected[at] = expected[at] + value
        found = atomics.accumulate(np.add, memory, index, (operand,), never)
    np.testing.assert_array_equal(found, np.array(before, np.float32))
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.rule("13-deadline")
def test_every_long_update_looks_at_the_clock():
    looks = []
    index, ones = np.zeros(5000, np.int64), np.arange(5000, dtype=np.uint32)
    atomics.in_rounds(atomics.increment, np.zeros(1, np.uint32), index, (ones,), lambda: looks.append(1))
    assert len(looks) == 20
    atomics.compare_and_swap(np.zeros(1, np.uint32), index, (ones, ones + np.uint32(1)), lambda: looks.append(1))
    assert len(looks) == 40
