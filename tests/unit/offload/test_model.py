import islpy as isl
import pytest

from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Carried,
    Cell,
    Constant,
    Constraint,
    Effect,
    Floor,
    Load,
    Loop,
    Nest,
    SetCell,
    Statement,
    Store,
)
from tensorwasm.offload.scheduling.model import MAX_DEPTH, MAX_STATEMENTS, NestModel, model

ZERO = Constant("f64", 0)


def pointer(constant: int = 0, **coefficients: int) -> Affine:
    return Affine(constant, tuple((int(name[1:]), value) for name, value in coefficients.items()))


def store(at: Affine, offset: int = 0, opcode: str = "f64.store") -> Store:
    return Store(opcode, at, offset, ZERO)


def looped(*effects: Effect, trip: int = 4, domain=ALWAYS) -> Nest:
    return Nest((Loop(0, Affine(trip), (Statement(0, domain, effects),)),))


def modelled(nest: Nest, memory_bytes: int = 1 << 16) -> NestModel:
    return model(isl.Context(), nest, memory_bytes)


def refused(nest: Nest, memory_bytes: int = 1 << 16) -> DeclineReason:
    with pytest.raises(Declined) as declined:
        modelled(nest, memory_bytes)
    return declined.value.reason


def test_an_array_is_from_the_first_byte_to_the_last_that_an_access_touches():
    made = modelled(looped(store(pointer(16, c0=8))))
    (array,) = made.arrays
    assert (array.first, array.size_bytes, array.read, array.written) == (16, 32, False, True)


def test_accesses_that_overlap_are_in_one_array_and_others_are_not():
    load, near, far = Load("f64.load", pointer(c0=8), 0), store(pointer(24, c0=8)), store(pointer(56, c0=8))
    made = modelled(looped(load, near, far))
    assert [(each.first, each.size_bytes, each.read, each.written) for each in made.arrays] == [
        (0, 56, True, True),
        (56, 32, False, True),
    ]
    assert [made.array_of[each] for each in (load, near, far)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("effects", "granule"),
    [
        ((store(pointer(c0=8)),), 8),
        ((store(pointer(4, c0=8)),), 8),  # from the first byte of the array
        ((store(pointer(c0=8)), store(pointer(4, c0=8))), 4),
        ((store(pointer(c0=8)), store(pointer(2, c0=8), opcode="i32.store16")), 2),
        ((store(pointer(c0=1)),), 1),
    ],
)
def test_the_granule_divides_sizes_and_distances(effects: tuple[Effect, ...], granule: int):
    assert modelled(looped(*effects)).arrays[0].granule_bytes == granule


@pytest.mark.parametrize("constant", [32, 32 + (1 << 32), 32 - (1 << 34)])
def test_a_multiple_of_two_to_the_32_makes_a_pointer_exact(constant: int):
    access = store(pointer(constant, c0=8), offset=8)
    made = modelled(looped(access))
    assert constant + made.wraps[access] == 32
    assert made.arrays[0].first == 40


def test_a_pointer_that_passes_two_to_the_32_is_refused():
    assert refused(looped(store(pointer(0xFFFFFFF0, c0=8)))) is DeclineReason.WRAPS


def test_an_offset_does_not_wrap():
    assert refused(looped(store(pointer(0xFFFFFFF0), offset=64)), 1 << 32) is DeclineReason.OUT_OF_BOUNDS


def test_an_access_beyond_the_end_of_memory_is_refused():
    nest = looped(store(pointer(c0=8)), trip=5)
    assert len(modelled(nest, 40).arrays) == 1
    assert refused(nest, 39) is DeclineReason.OUT_OF_BOUNDS


def test_ranges_are_those_of_the_iterations_that_run():
    first_half = ((Constraint(pointer(1, c0=-1)),),)
    made = modelled(looped(store(pointer(c0=8)), trip=100, domain=first_half), 16)
    assert made.arrays[0].size_bytes == 16


def test_a_statement_that_never_runs_has_no_arrays():
    never = ((Constraint(pointer(-100, c0=1)),),)
    made = modelled(looped(store(pointer(1 << 31)), domain=never))
    assert (made.statements, made.arrays, dict(made.wraps)) == ((), (), {})


def test_a_trip_may_depend_on_outer_counters_and_be_negative():
    inner = Loop(1, pointer(-2, c0=1), (Statement(0, ALWAYS, (store(pointer(c0=64, c1=8)),)),))
    (statement,) = modelled(Nest((Loop(0, Affine(5), (inner,)),))).statements
    assert (statement.lower, statement.upper) == ((3, 0), (4, 1))


def test_quotients_round_down():
    half = Floor(pointer(-1, c0=1), 2)
    made = modelled(looped(store(Affine(64, ((half, 8),))), trip=4))
    assert (made.arrays[0].first, made.arrays[0].size_bytes) == (56, 24)


def test_a_cell_has_as_many_elements_as_its_counters_have_values():
    cell = Cell(0, "f64", (0,))
    made = modelled(looped(SetCell(cell, Carried(cell)), trip=7))
    assert dict(made.cell_extents) == {cell: (7,)}


@pytest.mark.parametrize(
    "nest",
    [
        Nest(tuple(Statement(number, ALWAYS, (store(pointer()),)) for number in range(MAX_STATEMENTS + 1))),
        looped(*(store(pointer()) for _ in range(2000))),
        looped(store(pointer(c0=1 << 70))),
        looped(store(pointer()), domain=tuple((Constraint(pointer(c0=1)),) for _ in range(100))),
    ],
)
def test_what_exceeds_a_limit_is_refused(nest: Nest):
    assert refused(nest) is DeclineReason.TOO_LARGE


def test_loops_in_loops_have_a_limit():
    body: tuple[Loop | Statement, ...] = (Statement(0, ALWAYS, (store(pointer()),)),)
    for counter in range(MAX_DEPTH + 1):
        body = (Loop(counter, Affine(1), body),)
    assert refused(Nest(body)) is DeclineReason.TOO_LARGE


def test_a_counter_outside_its_loop_is_refused():
    assert refused(looped(store(pointer(c5=8)))) is DeclineReason.NOT_AFFINE
