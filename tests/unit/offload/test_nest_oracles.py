"""The interpreters of nests and programs: what they compute, and that they see what is wrong."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.nest import Trace, faults, run_nest
from oracles.program import Violation, compute, run_program
from oracles.wasm_numeric import Trapped
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constant,
    Constraint,
    Floor,
    Index,
    Input,
    Load,
    Loop,
    Nest,
    Operation,
    SetCell,
    Statement,
    Store,
)
from tensorwasm.offload.program import Array, CellStorage, Compute, Execute, For, HostLoop, If, Kernel, NestProgram

ONE = Constant("i32", 1)


def word(at: Affine | int, offset: int = 0) -> Load:
    return Load("i32.load", at if isinstance(at, Affine) else Affine(at), offset)


def counter(number: int, times: int = 4, plus: int = 0) -> Affine:
    return Affine(plus, ((number, times),))


def shifted(by: int, trip: int = 6, *, adds: bool = True) -> Nest:
    """Return ``for i: a[i + 1] = a[i + 1 - by] + 1`` over words, or without the addition."""
    load = word(counter(0, plus=4 - 4 * by))
    value = Operation("i32", "i32.add", (load, ONE)) if adds else load
    store = Store("i32.store", counter(0, plus=4), 0, value)
    return Nest((Loop(0, Affine(trip), (Statement(0, ALWAYS, (load, store)),)),))


def parallel(nest: Nest, trip: int = 6, **changes: object) -> NestProgram:
    """Return the program that has the one loop of a nest of one statement as its grid."""
    body = For("i", 0, trip - 1, 1, (Execute(0, ("i",)),), parallel=True)
    accesses = [effect for effect in nest.body[0].body[0].effects if not isinstance(effect, SetCell)]
    arrays = (Array(0, 0, 64, 4, read=True, written=True),)
    made = NestProgram(nest, (Kernel(0, (body,)),), arrays, {}, dict.fromkeys(accesses, 0), dict.fromkeys(accesses, 0))
    return replace(made, **changes)


def words(*values: int) -> bytearray:
    return bytearray(struct.pack(f"<{len(values)}I", *values))


def judge(
    program: NestProgram, memory: bytearray, seed: int = 0, locals_: dict[int, int] | None = None
) -> dict[int, int]:
    in_order = bytearray(memory)
    expected, trace = run_nest(program.nest, locals_ or {}, in_order)
    found = run_program(program, locals_ or {}, memory, trace, seed)
    assert (found, memory) == (expected, in_order)
    return found


def test_statements_run_in_program_order():
    memory = words(*[0] * 8)
    assert faults(shifted(1)) == []
    run_nest(shifted(1), {}, memory)
    assert memory == words(0, 1, 2, 3, 4, 5, 6, 0)


def test_cells_change_at_once_at_the_end_of_a_statement():
    x, y = Cell(0, "i32", ()), Cell(1, "i32", ())
    first = Statement(0, ALWAYS, (SetCell(x, Constant("i32", 7)), SetCell(y, Input("i32", 2))))
    swap = Statement(1, ALWAYS, (SetCell(x, Carried(y)), SetCell(y, Carried(x))))
    nest = Nest((first, Loop(0, Affine(3), (swap,))), {5: Carried(x), 6: Operation("i32", "i32.eqz", (Carried(y),))})
    assert faults(nest) == []
    assert run_nest(nest, {2: 9}, bytearray())[0] == {5: 9, 6: 0}


def test_a_load_reads_what_the_stores_before_it_wrote():
    load, after = word(0), word(0)
    write = Store("i32.store8", Affine(0), 1, Constant("i32", 0x1FF))
    nest = Nest((Statement(0, ALWAYS, (load, write, after, Store("i32.store", Affine(4), 0, load))),))
    memory = words(1, 0)
    run_nest(nest, {}, memory)
    assert memory == words(0xFF01, 1)


@given(st.integers(-40, 40), st.integers(2, 5))
def test_quotients_round_down(value, divisor):
    nest = Nest((), {0: Index("i64", Affine(0, ((Floor(Affine(value), divisor), 1),)))})
    assert run_nest(nest, {}, bytearray())[0] == {0: (value // divisor) % (1 << 64)}


def test_a_domain_is_a_union_and_pointers_wrap():
    ends = ((Constraint(counter(0, 1), equality=True),), (Constraint(counter(0, 1, -4)),))
    store = Store("i32.store", counter(0, 4, -(1 << 32)), 0, ONE)
    memory = words(*[0] * 6)
    run_nest(Nest((Loop(0, Affine(6), (Statement(0, ends, (store,)),)),)), {}, memory)
    assert memory == words(1, 0, 0, 0, 1, 1)


def test_an_access_out_of_bounds_traps():
    with pytest.raises(Trapped):
        run_nest(shifted(0), {}, words(*[0] * 6))


def test_what_breaks_the_rules_of_a_nest_is_found():
    load, cell = word(counter(1)), Cell(0, "i32", (0,))
    effects = (Store("f64.store", Affine(0), 0, load), SetCell(cell, Operation("i32", "f64.lt", (ONE, ONE))), load)
    found = faults(Nest((Statement(0, ALWAYS, effects), Statement(0, ALWAYS, ())), {0: Index("i32", counter(3))}))
    assert any("statement 0 twice" in fault for fault in found)
    assert any("before its use" in fault for fault in found)
    assert any("f64.store of i32" in fault for fault in found)
    assert any("in other loops" in fault for fault in found)
    assert any("f64.lt from" in fault for fault in found)
    assert any("counter 3" in fault for fault in found)


# ----------------------------------------------------------------------------------------------------------- programs


@pytest.mark.parametrize("seed", range(3))
def test_independent_iterations_may_run_in_any_order(seed):
    memory = words(*range(8), *[0] * 8)
    judge(parallel(shifted(0)), memory, seed)
    assert memory[:32] == words(0, 2, 3, 4, 5, 6, 7, 7)


@pytest.mark.parametrize("by", [1, -1, -2])
def test_dependent_iterations_in_parallel_are_a_race_even_if_the_numbers_are_equal(by):
    with pytest.raises(Violation, match="threads"):
        judge(parallel(shifted(by, 3), 3), words(*[5] * 16))


def test_dependent_iterations_in_a_wrong_order_are_found_even_if_the_numbers_are_equal():
    backwards = For("i", 0, 5, 1, (Execute(0, (Compute("sub", (5, "i")),)),))
    nest = shifted(1, adds=False)
    with pytest.raises(Violation, match="has its value from"):
        judge(parallel(nest, steps=(Kernel(0, (backwards,)),)), words(*[5] * 16))


def test_host_loops_and_conditions_run_in_order():
    body = If(Compute("eq", (Compute("mod", ("t", 2)), 0)), (Execute(0, ("t",)),), (Execute(0, ("t",)),))
    judge(parallel(shifted(1), steps=(HostLoop("t", 0, 5, (Kernel(0, (body,)),)),)), words(*range(16)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": (Array(0, 0, 24, 4, read=True, written=True),)}, "outside"),
        ({"arrays": (Array(0, 0, 64, 8, read=True, written=True),)}, "granule"),
        ({"arrays": (Array(0, 0, 64, 4, read=True, written=False),)}, "is not what"),
        ({"arrays": (Array(0, 0, 64, 4, read=False, written=True),)}, "is not what"),
        ({"arrays": (Array(0, 0, 64, 4, True, True), Array(1, 60, 4, 4, True, True))}, "overlaps"),
        ({"arrays": (Array(0, 0, 68, 4, True, True),)}, "ends behind"),
        ({"steps": (Kernel(0, (For("i", 0, 4, 1, (Execute(0, ("i",)),), parallel=True),)),)}, "missing"),
        ({"steps": (Kernel(0, (For("i", 0, 6, 1, (Execute(0, ("i",)),), parallel=True),)),)}, "missing"),
        ({"steps": (Kernel(0, (For("i", 0, 5, 1, (Execute(0, (0,)), Execute(0, ("i",)))),)),)}, "missing|twice"),
        ({"steps": (Kernel(0, (Execute(0, (0,)), For("i", 1, 5, 1, (Execute(0, ("i",)),), parallel=True))),)}, "grid"),
    ],
)
def test_what_breaks_the_rules_of_a_program_is_found(changes, message):
    with pytest.raises(Violation, match=message):
        judge(parallel(shifted(0), **changes), words(*[0] * 16))


def test_a_wrong_wrap_is_found():
    program = parallel(shifted(0))
    with pytest.raises(Violation, match="should be"):
        judge(replace(program, wraps=dict.fromkeys(program.wraps, 1 << 32)), words(*[0] * 16))


def private_sums(*, private: bool, strides: tuple[int, ...] = (1,), count: int = 4) -> NestProgram:
    """Return ``for i { s = 0; for j s += a[i + j]; b[i] = s }``, the sum a cell that the loop over i indexes."""
    cell = Cell(0, "i32", (0,))
    load = word(Affine(0, ((0, 4), (1, 4))))
    store = Store("i32.store", counter(0), 32, Carried(cell))
    start = Statement(0, ALWAYS, (SetCell(cell, Constant("i32", 0)),))
    step = Statement(1, ALWAYS, (load, SetCell(cell, Operation("i32", "i32.add", (Carried(cell), load)))))
    nest = Nest((Loop(0, Affine(4), (start, Loop(1, Affine(3), (step,)), Statement(2, ALWAYS, (store,)))),))
    thread = (Execute(0, ("i",)), For("j", 0, 2, 1, (Execute(1, ("i", "j")),)), Execute(2, ("i",)))
    arrays = (Array(0, 0, 32, 4, read=True, written=False), Array(1, 32, 16, 4, read=False, written=True))
    storage = (CellStorage(cell, strides, count, private),)
    steps = (Kernel(0, (For("i", 0, 3, 1, thread, parallel=True),)),)
    return NestProgram(nest, steps, arrays, storage, {load: 0, store: 1}, {load: 0, store: 0})


@pytest.mark.parametrize("private", [True, False])
def test_cells_are_registers_or_elements(private):
    memory = words(*range(16))
    judge(private_sums(private=private), memory, seed=1)
    assert memory[32:48] == words(3, 6, 9, 12)


def test_threads_that_share_an_element_race():
    with pytest.raises(Violation, match="threads"):
        judge(private_sums(private=False, strides=(0,)), words(*range(16)))


def test_an_element_behind_the_end_is_found():
    with pytest.raises(Violation, match="element 3 of 3"):
        judge(private_sums(private=False, count=3), words(*range(16)))


def test_a_register_does_not_outlive_its_kernel():
    program = private_sums(private=True)
    whole = program.steps[0].body[0].body
    kernels = tuple(
        Kernel(number, (For("i", 0, 3, 1, part, parallel=True),)) for number, part in enumerate((whole[:2], whole[2:]))
    )
    with pytest.raises(Violation, match="in kernels 0 and 1"):
        judge(replace(program, steps=kernels), words(*range(16)))
    with pytest.raises(Violation, match="before it is set"):
        judge(replace(program, steps=(Kernel(0, (For("i", 0, 3, 1, whole[1:], parallel=True),)),)), words(*range(16)))


def test_expressions_divide_down_and_stay_in_64_bits():
    assert compute(Compute("floor_div", (-7, 2)), {}) == -4
    assert compute(Compute("mod", (-7, 4)), {}) == 1
    assert compute(Compute("select", (Compute("lt", ("x", 3)), 1, 2)), {"x": 3}) == 2
    with pytest.raises(Violation):
        compute(Compute("mul", (1 << 40, "x")), {"x": 1 << 40})
    with pytest.raises(Violation):
        compute(Compute("mod", (5, "x")), {"x": 2})


def test_a_trace_has_everything_that_ran():
    trace = run_nest(shifted(0, 3), {}, words(*[0] * 16))[1]
    assert isinstance(trace, Trace)
    assert trace.executed == [(0, (0,)), (0, (1,)), (0, (2,))]
    assert trace.last[4:16] == [(0, (0,))] * 4 + [(0, (1,))] * 4 + [(0, (2,))] * 4
