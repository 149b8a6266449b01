"""Arrays whose first content does not matter are found, and no others."""

from dataclasses import replace

import pytest

from oracles.nest import run_nest
from oracles.program import Violation, run_program
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Constant,
    Constraint,
    Effect,
    Load,
    Loop,
    Nest,
    Operation,
    Statement,
    Store,
    Value,
)
from tensorwasm.offload.scheduling.plan import plan

MEMORY_BYTES = 4096
OUT, DATA = 1024, 2048
N = 6
ZERO = Constant("f64", 0)


def at(base: int, **strides: int) -> Affine:
    return Affine(base, tuple((int(name[1:]), 8 * stride) for name, stride in strides.items()))


def load(base: int, **strides: int) -> Load:
    return Load("f64.load", at(base, **strides), 0)


def store(value: Value, base: int, **strides: int) -> Store:
    return Store("f64.store", at(base, **strides), 0, value)


def plus(left: Value, right: Value) -> Value:
    return Operation("f64", "f64.add", (left, right))


def loop(counter: int, *body: Loop | Statement, trip: Affine = Affine(N)) -> Loop:  # noqa: B008 - a value
    return Loop(counter, trip, body)


def does(number: int, *effects: Effect, domain=ALWAYS) -> Statement:
    return Statement(number, domain, effects)


def filled(*body: Loop | Statement) -> list[int]:
    """Return where filled arrays begin, after the program has run with other bytes in them."""
    nest = Nest(body)
    program = plan(nest, MEMORY_BYTES)
    for seed in range(2):
        memory = bytearray(range(1, 65)) * (MEMORY_BYTES // 64)
        expected = bytearray(memory)
        _, trace = run_nest(nest, {}, expected)
        if program.nest is not nest:
            _, trace = run_nest(program.nest, {}, bytearray(memory))
        run_program(program, {}, memory, trace, seed)
        assert memory == expected
    return [array.first for array in program.arrays if array.filled]


def copied(domain=ALWAYS, **strides: int) -> Statement:
    value = load(DATA, c0=N, c1=1)
    return does(0, value, store(value, OUT, **strides), domain=domain)


def summed(first: Statement, *, start: int = OUT) -> Loop:
    """Return ``for i, j { first; for k out[i][j] += data[i][k] }``, sums from another place if it begins there."""
    old, data = load(start, c0=N, c1=1), load(DATA, c0=N, c2=1)
    step = does(1, old, data, store(plus(old, data), OUT, c0=N, c1=1))
    return loop(0, loop(1, first, loop(2, step)))


ZEROED = does(0, store(ZERO, OUT, c0=N, c1=1))
LOWER = (Constraint(Affine(0, ((0, 1), (1, -1)))),)  # j <= i


def test_an_array_that_is_only_written_and_has_no_holes_is_filled():
    assert filled(loop(0, loop(1, copied(c0=N, c1=1)))) == [OUT]


def test_a_transposed_array_is_filled():
    assert filled(loop(0, loop(1, copied(c0=1, c1=N)))) == [OUT]


def test_an_array_with_holes_is_not_filled():
    assert filled(loop(0, loop(1, copied(c0=N + 1, c1=1)))) == []


def test_an_array_of_which_a_condition_leaves_out_a_part_is_not_filled():
    assert filled(loop(0, loop(1, copied((LOWER,), c0=N, c1=1)))) == []


def test_two_triangles_fill_a_square():
    value = load(DATA, c0=N, c1=1)
    both = does(0, value, store(value, OUT, c0=N, c1=1), store(value, OUT, c0=1, c1=N), domain=(LOWER,))
    assert filled(loop(0, loop(1, both))) == [OUT]


def test_a_sum_that_begins_with_zero_in_the_same_iteration_fills_its_array():
    assert filled(summed(ZEROED)) == [OUT]


def test_a_sum_that_goes_on_from_what_was_there_does_not():
    assert filled(summed(does(0, store(ZERO, 0, c0=N, c1=1)))) == [0]


def test_a_sum_that_begins_with_zero_under_a_condition_does_not():
    assert filled(summed(does(0, store(ZERO, OUT, c0=N, c1=1), domain=(LOWER,)))) == []


def test_what_a_loop_before_has_filled_may_be_read():
    value = load(OUT, c2=1)
    reads = loop(2, does(1, value, store(plus(value, value), 0, c2=1)), trip=Affine(N * N))
    assert filled(loop(0, loop(1, copied(c0=N, c1=1))), reads) == [0, OUT]


def test_what_is_read_before_it_is_overwritten_is_not_filled():
    value = load(OUT, c2=1)
    reads = loop(2, does(1, value, store(plus(value, value), 0, c2=1)), trip=Affine(N * N))
    assert filled(reads, loop(0, loop(1, copied(c0=N, c1=1)))) == [0]


def test_what_an_iteration_reads_before_it_writes_it_is_not_filled():
    old = load(OUT, c0=1)
    assert filled(loop(0, does(0, old, store(plus(old, old), OUT, c0=1)))) == []


def test_what_the_iteration_before_has_written_counts_as_read_first():
    old = load(OUT - 8, c0=1)
    new = does(1, old, store(plus(old, old), 0, c0=1))
    assert filled(loop(0, new, does(0, store(ZERO, OUT, c0=1)))) == [0]


def test_an_oracle_finds_an_array_that_is_said_to_be_filled_and_is_not():
    nest = Nest((loop(0, loop(1, copied((LOWER,), c0=N, c1=1))),))
    program = plan(nest, MEMORY_BYTES)
    wrong = replace(program, arrays=tuple(replace(each, filled=each.written) for each in program.arrays))
    memory = bytearray(MEMORY_BYTES)
    _, trace = run_nest(nest, {}, bytearray(memory))
    with pytest.raises(Violation, match="not filled"):
        run_program(wrong, {}, memory, trace, 0)
