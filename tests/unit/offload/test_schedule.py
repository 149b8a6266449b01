import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.nest import faults, run_nest
from oracles.program import Violation, run_program
from strategies.nests import MEMORY_BYTES, random_memory, random_nest
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constant,
    Effect,
    Input,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
    Value,
)
from tensorwasm.offload.program import For, HostLoop, Kernel, NestProgram
from tensorwasm.offload.scheduling import plan as planning
from tensorwasm.offload.scheduling.forwarding import simplified
from tensorwasm.offload.scheduling.model import model
from tensorwasm.offload.scheduling.plan import plan
from tensorwasm.offload.scheduling.polyhedra import limited_context

SIZE = 8
SCALE = Input("f64", 0)
LOCALS = {0: struct.unpack("<Q", struct.pack("<d", 1.25))[0], 1: 0x3FC00000, 2: 12345, 3: 77777777777}


def at(constant: int = 0, **strides: int) -> Affine:
    """The address of an element, from strides in elements."""
    return Affine(SIZE * constant, tuple((int(name[1:]), SIZE * stride) for name, stride in strides.items()))


def load(pointer: Affine) -> Load:
    return Load("f64.load", pointer, 0)


def store(pointer: Affine, value: Value) -> Store:
    return Store("f64.store", pointer, 0, value)


def plus(*values: Value) -> Value:
    first, *others = values
    for other in others:
        first = Operation("f64", "f64.add", (first, other))
    return first


def times(left: Value, right: Value) -> Value:
    return Operation("f64", "f64.mul", (left, right))


def loop(counter: int, trip: int | Affine, *body: Loop | Statement) -> Loop:
    return Loop(counter, trip if isinstance(trip, Affine) else Affine(trip), body)


def trip(constant: int, **factors: int) -> Affine:
    return Affine(constant, tuple((int(name[1:]), factor) for name, factor in factors.items()))


def statement(number: int, *effects: Effect) -> Statement:
    return Statement(number, ALWAYS, effects)


def gemm(rows: int, columns: int, depth: int) -> Nest:
    """``C *= s; C += A * B`` with the columns of an update two at a time."""
    a, b, c = 0, rows * depth, rows * depth + depth * columns
    pairs = columns // 2

    def scale(number: int, counter: str, first: int, count: int) -> Statement:
        effects: list[Effect] = []
        for index in range(count):
            place = at(c + first + index, c0=columns, **{counter: count})
            old = load(place)
            effects += [old, store(place, times(old, SCALE))]
        return statement(number, *effects)

    def update(number: int, counter: str, first: int, count: int) -> Statement:
        effects: list[Effect] = []
        for index in range(count):
            left = load(at(a, c0=depth, c3=1))
            right = load(at(b + first + index, c3=columns, **{counter: count}))
            place = at(c + first + index, c0=columns, **{counter: count})
            old = load(place)
            effects += [left, right, old, store(place, plus(old, times(left, right)))]
        return statement(number, *effects)

    return Nest(
        (
            loop(
                0,
                rows,
                loop(1, pairs, scale(0, "c1", 0, 2)),
                loop(2, columns % 2, scale(1, "c2", 2 * pairs, 1)),
                loop(
                    3,
                    depth,
                    loop(4, pairs, update(2, "c4", 0, 2)),
                    loop(5, columns % 2, update(3, "c5", 2 * pairs, 1)),
                ),
            ),
        )
    )


def jacobi(steps: int, size: int, *, in_place: bool = False, rotating: bool = False) -> Nest:
    """Two sweeps over a square, from one array to another and back; maybe with an element handed on along rows."""
    other = 0 if in_place else size * size

    def sweep(number: int, i: int, j: int, source: int, target: int) -> Loop:
        def point(down: int, right: int) -> Load:
            return load(at(source + size * (1 + down) + 1 + right, **{f"c{i}": size, f"c{j}": 1}))

        place = at(target + size + 1, **{f"c{i}": size, f"c{j}": 1})
        if not rotating:
            loads = [point(0, 0), point(0, -1), point(0, 1), point(1, 0), point(-1, 0)]
            body = statement(number, *loads, store(place, times(plus(*loads), SCALE)))
            return loop(i, size - 2, loop(j, size - 2, body))
        left, middle = Cell(2 * number, "f64", (0, i)), Cell(2 * number + 1, "f64", (0, i))
        starts = [load(at(source + size + column, **{f"c{i}": size})) for column in (0, 1)]
        first = statement(number, *starts, SetCell(left, starts[0]), SetCell(middle, starts[1]))
        loads = [point(0, 1), point(1, 0), point(-1, 0)]
        total = times(plus(Carried(middle), Carried(left), *loads), SCALE)
        changes = [SetCell(left, Carried(middle)), SetCell(middle, loads[0])]
        body = statement(number + 1, *loads, store(place, total), *changes)
        return loop(i, size - 2, first, loop(j, size - 2, body))

    return Nest((loop(0, steps, sweep(0, 1, 2, 0, other), sweep(2, 3, 4, other, 0)),))


def sums_of_rows(rows: int, columns: int) -> Nest:
    total = Cell(0, "f64", (0,))
    first, term, factor = load(at(c0=1)), load(at(64, c0=columns, c1=1)), load(at(32, c1=1))
    return Nest(
        (
            loop(
                0,
                rows,
                statement(0, first, SetCell(total, first)),
                loop(1, columns, statement(1, term, factor, SetCell(total, plus(Carried(total), times(term, factor))))),
                statement(2, store(at(c0=1), Carried(total))),
            ),
        )
    )


def triangular_product(size: int) -> Nest:
    """``B[i][j] = s * (B[i][j] + sum of A[k][i] * B[k][j] for k > i)``."""
    a, b = 0, size * size
    total = Cell(0, "f64", (0, 1))
    place = at(b, c0=size, c1=1)
    old, left, right = load(place), load(at(a + size, c2=size, c0=size + 1)), load(at(b + size, c2=size, c0=size, c1=1))
    inner = loop(
        1,
        size,
        statement(0, old, SetCell(total, old)),
        loop(
            2,
            trip(size - 1, c0=-1),
            statement(1, left, right, SetCell(total, plus(Carried(total), times(left, right)))),
        ),
        statement(2, store(place, times(Carried(total), SCALE))),
    )
    return Nest((loop(0, size, inner),))


def lower_half(size: int, depth: int) -> Nest:
    """``C = s * C + A * A'`` on and below the diagonal."""
    c = size * depth
    first, place = at(c, c0=size, c1=1), at(c, c0=size, c3=1)
    scaled, old, left, right = load(first), load(place), load(at(c0=depth, c2=1)), load(at(c3=depth, c2=1))
    scale = statement(0, scaled, store(first, times(scaled, SCALE)))
    update = statement(1, old, left, right, store(place, plus(old, times(left, right))))
    below = trip(1, c0=1)
    return Nest((loop(0, size, loop(1, below, scale), loop(2, depth, loop(3, below, update))),))


def lu(size: int) -> Nest:
    lower, upper = at(c0=size, c1=1), at(c0=size + 1, c3=1)
    one = [load(lower), load(at(c0=size, c2=1)), load(at(c2=size, c1=1))]
    two = [load(lower), load(at(c1=size + 1))]
    three = [load(upper), load(at(c0=size, c4=1)), load(at(c4=size, c0=1, c3=1))]
    return Nest(
        (
            loop(
                0,
                size,
                loop(
                    1,
                    trip(0, c0=1),
                    loop(2, trip(0, c1=1), statement(0, *one, store(lower, plus(one[0], times(one[1], one[2]))))),
                    statement(1, *two, store(lower, times(two[0], two[1]))),
                ),
                loop(
                    3,
                    trip(size, c0=-1),
                    loop(
                        4, trip(0, c0=1), statement(2, *three, store(upper, plus(three[0], times(three[1], three[2]))))
                    ),
                ),
            ),
        )
    )


def two_vectors(rows: int, columns: int) -> Nest:
    """``s += r * A; q = A * p`` in one statement, which is parallel in two parts only."""
    total = Cell(0, "f64", (0,))
    r, s, p, q, a = 0, 64, 128, 192, 256
    element, factor, old, other = load(at(a, c0=columns, c1=1)), load(at(r, c0=1)), load(at(s, c1=1)), load(at(p, c1=1))
    return Nest(
        (
            loop(
                0,
                rows,
                statement(0, first := load(at(q, c0=1)), SetCell(total, first)),
                loop(
                    1,
                    columns,
                    statement(
                        1,
                        element,
                        factor,
                        old,
                        store(at(s, c1=1), plus(old, times(factor, element))),
                        other,
                        SetCell(total, plus(Carried(total), times(element, other))),
                    ),
                ),
                statement(2, store(at(q, c0=1), Carried(total))),
            ),
        )
    )


def symmetric_product(rows: int, columns: int) -> Nest:
    """``C += A * B`` from the lower triangle of ``A``: a row's sum, and its part of rows above, in one statement."""
    total = Cell(0, "f64", (0, 1))
    a, b, c = 0, rows * rows, rows * rows + rows * columns
    above, place = at(c, c2=columns, c1=1), at(c, c0=columns, c1=1)
    zero, old, own, left = Constant("f64", 0), load(above), load(at(b, c0=columns, c1=1)), load(at(a, c0=rows, c2=1))
    other, last = load(at(b, c2=columns, c1=1)), load(place)
    inner = statement(
        1,
        *(old, own, left, store(above, plus(old, times(own, left)))),
        *(other, SetCell(total, plus(Carried(total), times(other, left)))),
    )
    body = loop(2, trip(0, c0=1), inner)
    end = statement(2, last, store(place, plus(last, Carried(total))))
    return Nest((loop(0, rows, loop(1, columns, statement(0, SetCell(total, zero)), body, end)),))


def shortest_paths(size: int, *, weighted: bool = False) -> Nest:
    place = at(c1=size, c2=1)
    loads = [load(place), load(at(c1=size, c0=1)), load(at(c0=size, c2=1))]
    loads += [load(at(size * size, c1=size, c2=1))] if weighted else []
    body = statement(0, *loads, store(place, plus(*loads)))
    return Nest((loop(0, size, loop(1, size, loop(2, size, body))),))


def shifted(distance: int, length: int = 20) -> Nest:
    """``a[i + 8] = a[i + 8 - distance] + s``."""
    value = load(at(8 - distance, c0=1))
    return Nest((loop(0, length, statement(0, value, store(at(8, c0=1), plus(value, SCALE)))),))


def repeated(first: int = 0) -> Nest:
    """``h[i] += s`` some times over."""
    place = at(**{f"c{first + 1}": 1})
    value = load(place)
    body = statement(first, value, store(place, plus(value, SCALE)))
    return Nest((loop(first, 6, loop(first + 1, 9, body)),))


def shape(steps: Sequence[HostLoop | Kernel]) -> str:
    """Host loops as brackets, and kernels as the number of their parallel loops."""
    words = []
    for step in steps:
        if isinstance(step, HostLoop):
            words.append(f"({shape(step.body)})")
        else:
            body, dimensions = step.body, 0
            while len(body) == 1 and isinstance(body[0], For) and body[0].parallel:
                body, dimensions = body[0].body, dimensions + 1
            words.append(str(dimensions))
    return " ".join(words)


def judge(nest: Nest, program: NestProgram, memory: bytearray, seeds: int = 3) -> None:
    """See that a program does what the nest does, in any order of threads."""
    expected = bytearray(memory)
    results, trace = run_nest(nest, LOCALS, expected)
    if program.nest is not nest:
        assert faults(program.nest) == []
        rewritten = bytearray(memory)
        found, trace = run_nest(program.nest, LOCALS, rewritten)
        assert (found, rewritten) == (results, expected)
    for seed in range(seeds):
        shuffled = bytearray(memory)
        assert run_program(program, LOCALS, shuffled, trace, seed) == results
        assert shuffled == expected


@pytest.mark.parametrize(
    ("nest", "expected"),
    [
        (gemm(8, 8, 8), "2"),
        (gemm(12, 13, 12), "2 1"),
        (jacobi(3, 9), "(2 2)"),
        (jacobi(3, 9, rotating=True), "(2 2)"),
        (sums_of_rows(7, 8), "1"),
        (triangular_product(9), "2 2"),
        (lower_half(7, 6), "2"),
        (lu(8), "(1)"),
        (two_vectors(30, 31), "1 1"),
        (symmetric_product(15, 6), "2"),
        (shifted(0), "1"),
        (shifted(8, 8), "1"),
        (repeated(), "1"),
        (shortest_paths(7), "(1 1 2)"),
        (shortest_paths(7, weighted=True), "(2 2 2 2 2 2 2 2 2)"),
    ],
)
def test_a_nest_runs_in_the_order_that_it_should(nest: Nest, expected: str):
    program = plan(nest, MEMORY_BYTES)
    assert shape(program.steps) == expected
    judge(nest, program, random_memory(1))


def test_a_launch_more_is_worth_the_threads_of_a_large_nest():
    assert shape(plan(lu(80), MEMORY_BYTES).steps) == "(1 2)"


@pytest.mark.parametrize("nest", [jacobi(3, 9, in_place=True), shifted(1), shifted(-1), Nest(()), sums_of_rows(1, 9)])
def test_a_nest_without_parallel_loops_is_refused(nest: Nest):
    with pytest.raises(Declined) as declined:
        plan(nest, MEMORY_BYTES)
    assert declined.value.reason is DeclineReason.SEQUENTIAL


def test_neighbouring_threads_take_neighbouring_elements():
    # the loops are the wrong way round for that in the nest
    value = load(at(c1=16, c0=1))
    body = statement(0, value, store(at(256, c1=16, c0=1), plus(value, SCALE)))
    program = plan(Nest((loop(0, 16, loop(1, 8, body)),)), MEMORY_BYTES)
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
    (outer,) = kernel.body
    assert isinstance(outer, For)
    assert (outer.last, outer.body[0].last) == (7, 15)


def test_a_cell_of_one_kernel_is_a_register():
    (storage,) = plan(sums_of_rows(7, 8), MEMORY_BYTES).cells
    assert storage.private


def test_a_cell_that_another_kernel_reads_is_in_memory():
    (storage,) = plan(triangular_product(9), MEMORY_BYTES).cells
    assert (storage.private, storage.strides, storage.count) == (False, (9, 1), 81)


def test_a_cell_that_is_a_result_is_in_memory():
    last = Cell(0, "f64", ())
    value = load(at(c0=1))
    doubled = loop(0, 9, statement(0, value, store(at(64, c0=1), times(value, SCALE))))
    nest = Nest((doubled, statement(1, end := load(at(64)), SetCell(last, end))), {5: Carried(last)})
    program = plan(nest, MEMORY_BYTES)
    assert [storage.private for storage in program.cells] == [False]
    judge(nest, program, random_memory(2))


def test_loads_that_nothing_uses_are_checked_and_not_run():
    unused = loop(0, 9, statement(0, load(at(c0=1))))
    program = plan(Nest((unused, *repeated(1).body)), 200)
    assert shape(program.steps) == "1"
    with pytest.raises(Declined) as declined:
        plan(Nest((loop(0, 26, statement(0, load(at(c0=1)))), *repeated(1).body)), 200)
    assert declined.value.reason is DeclineReason.OUT_OF_BOUNDS


def judge_if_planned(nest: Nest) -> bool:
    try:
        program = plan(nest, MEMORY_BYTES)
    except Declined:
        return False
    judge(nest, program, random_memory(3), seeds=2)
    return True


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_random_nest_runs_in_any_order_of_threads(seed: int):
    judge_if_planned(random_nest(seed))


def test_without_dependences_random_nests_are_wrong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planning, "dependences", lambda _: ())
    wrong = 0
    for seed in range(60):
        try:
            judge_if_planned(random_nest(seed))
        except (AssertionError, Violation):
            wrong += 1
    assert wrong > 10


@pytest.mark.parametrize("nest", [gemm(7, 9, 5), jacobi(3, 9), lu(8)])
def test_an_analysis_that_takes_too_long_is_refused(nest: Nest):
    for limit in range(100, 12_000, 377):
        with pytest.raises(Declined) as declined:
            plan(nest, MEMORY_BYTES, limit)
        assert declined.value.reason is DeclineReason.TOO_LARGE


def test_of_two_elements_that_are_handed_on_one_is_stored_in_between():
    first, second = Cell(0, "f64", (0,)), Cell(1, "f64", (0,))
    loads = [load(at(100, i0=1)), load(at(300, i0=1))]
    begin = Statement(0, ALWAYS, (*loads, SetCell(first, loads[0]), SetCell(second, loads[1])))
    later = [load(at(101, i0=1, i1=1)), load(at(301, i0=1, i1=1))]
    changes = store(at(301, i0=1, i1=1), times(Carried(first), SCALE)), store(at(500, i0=20, i1=1), Carried(second))
    turn = Statement(1, ALWAYS, (*later, *changes, SetCell(first, later[0]), SetCell(second, later[1])))
    nest = Nest((Loop(0, Affine(2), (begin, Loop(1, Affine(9), (turn,)))),))
    with limited_context(1_000_000) as context:
        changed = simplified(nest, model(context, nest, MEMORY_BYTES).array_of)
    assert changed is not nest
    memories = [random_memory(1), random_memory(1)]
    for each, memory in zip((nest, changed), memories, strict=True):
        assert faults(each) == []
        run_nest(each, LOCALS, memory)
    assert memories[0] == memories[1]
