"""Machine code for the host gives what the nest gives in order, stops when told, and puts memory back."""

import ctypes
import itertools
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fakes.hand_programs import (
    affine,
    apply,
    copying,
    double,
    double_bits,
    doubles,
    expected,
    gemm,
    inputs_of,
    jacobi,
    program,
    ready_on_host,
    run_on_host,
    total_program,
)
from strategies.nests import random_memory, random_nest
from tensorwasm.offload.codegen.host import compile_for_host
from tensorwasm.offload.codegen.host_pool import HostOutcome, HostPool
from tensorwasm.offload.declined import Declined
from tensorwasm.offload.nest import (
    ALWAYS,
    Affine,
    Constant,
    Floor,
    Index,
    Load,
    Loop,
    Statement,
    Store,
)
from tensorwasm.offload.program import Compute, Execute, For, If, Kernel
from tensorwasm.offload.scheduling.plan import plan
from tensorwasm.values import NEVER, Deadline

SCALES = {3: double_bits(1.5), 4: double_bits(1.25)}


def agrees(made, memory, inputs=None, threads=2):
    wanted, results = expected(made, memory, inputs)
    run = run_on_host(made, memory, inputs, threads)
    assert run.outcome is HostOutcome.COMPLETED
    assert (memory, run.results) == (wanted, results)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(("size", "unrolled"), [(9, 1), (12, 2), (18, 2), (24, 4), (35, 1)])
def test_a_product_of_matrices_is_that_of_the_nest(size, unrolled, threads):
    agrees(gemm(size, unrolled), doubles(3 * size * size), SCALES, threads)


@pytest.mark.parametrize(("size", "unrolled"), [(11, 1), (12, 2), (34, 4), (3, 1)])
def test_a_stencil_with_a_loop_on_the_host_is_that_of_the_nest(size, unrolled):
    agrees(jacobi(size, 3, unrolled), doubles(2 * size * size))


def test_random_nests_give_the_same_on_the_host():
    completed = 0
    for seed in range(80):
        nest, memory = random_nest(seed), random_memory(seed)
        try:
            made = plan(nest, len(memory))
        except Declined:
            continue
        inputs, before = inputs_of(nest, seed), bytes(memory)
        wanted, results = expected(made, memory, inputs)
        run = run_on_host(made, memory, inputs)
        completed += run.outcome is HostOutcome.COMPLETED
        if run.outcome is HostOutcome.COMPLETED:
            assert (seed, memory, run.results) == (seed, wanted, {local: results[local] for local in run.results})
        else:
            assert (seed, memory) == (seed, before)
    assert completed > 15


def test_a_sum_in_a_cell_is_a_result():
    agrees(total_program(33), doubles(33))


def test_sums_in_private_cells_are_lanes_with_a_stride():
    agrees(total_program(10, parallel=37), doubles(11 * 37))


def test_a_nan_that_is_only_a_result_is_not_used():
    memory = doubles(3)
    struct.pack_into("<d", memory, 8, float("nan"))
    before = bytes(memory)
    run = run_on_host(total_program(3), memory)
    assert (run.outcome, run.results, memory) == (HostOutcome.NOT_A_NUMBER, {}, before)


@pytest.mark.parametrize("place", [0, 12 * 12 + 7, 2 * 12 * 12 + 143])
def test_memory_is_put_back_where_a_nan_of_arithmetic_would_be_stored(place):
    memory = doubles(3 * 12 * 12)
    struct.pack_into("<d", memory, 8 * place, float("nan"))
    before = bytes(memory)
    assert run_on_host(gemm(12), memory, SCALES).outcome is HostOutcome.NOT_A_NUMBER
    assert memory == before


def test_a_nan_that_is_only_moved_keeps_its_bits():
    memory = bytearray(struct.pack("<4Q", 0x7FF4_0000_0000_1234, 0xFFF8_0000_0000_0001, 5, 6) * 10 + bytes(320))
    agrees(copying(40, value=lambda load: apply("f64.neg", load)), memory)


def test_a_nan_that_is_compared_only_does_not_matter():
    memory = bytearray(struct.pack("<4Q", 0x7FF4_0000_0000_1234, 0xFFF8_0000_0000_0001, 5, 6) * 10 + bytes(320))

    def chosen(load):
        doubled = apply("f64.add", load, load)
        return apply("select", double(1.0), double(2.0), apply("f64.lt", doubled, double(3.0)))

    agrees(copying(40, value=chosen), memory)


def test_copies_that_read_what_another_copy_writes_stay_in_order():
    """Of ``a[2i] = b[i]; a[2i+1] = a[2i]`` the copies look alike, and the second one reads what the first one wrote."""
    count, effects = 20, []
    for copy in range(2):
        load = Load("f64.load", affine(0, c0=16), 8 * copy)
        effects += [load, Store("f64.store", affine(0, c0=16), 8 * copy + 8, apply("f64.add", load, double(1.0)))]
    body = [Loop(0, affine(count), (Statement(0, ALWAYS, tuple(effects)),))]
    order = [Kernel(0, (For("i", 0, count - 1, 1, (Execute(0, ("i",)),)),))]
    agrees(program(body, order, [(0, 16 * count + 8)]), doubles(2 * count + 1))
    # In every third place there is no dependence between iterations, so that they are parallel.
    effects = []
    for copy in range(2):
        load = Load("f64.load", affine(0, c0=24), 8 * copy)
        effects += [load, Store("f64.store", affine(0, c0=24), 8 * copy + 8, apply("f64.add", load, double(1.0)))]
    body = [Loop(0, affine(count), (Statement(0, ALWAYS, tuple(effects)),))]
    order = [Kernel(0, (For("i", 0, count - 1, 1, (Execute(0, ("i",)),), parallel=True),))]
    agrees(program(body, order, [(0, 24 * count)]), doubles(3 * count))


def test_a_statement_that_reads_what_it_has_just_written_in_a_loop_of_the_thread():
    """Of ``d[k] = c; c = c + a[k]`` with c in memory the place stays in a register, and d sees every value."""
    rows, count = 5, 9
    old = Load("f64.load", affine(0, c0=8), 0)
    new = Load("f64.load", affine(64, c0=8 * count, c1=8), 0)
    seen = Store("f64.store", affine(1024, c0=8 * count, c1=8), 0, old)
    change = Store("f64.store", affine(0, c0=8), 0, apply("f64.add", old, new))
    body = [Loop(0, affine(rows), (Loop(1, affine(count), (Statement(0, ALWAYS, (old, new, seen, change)),)),))]
    inner = For("k", 0, count - 1, 1, (Execute(0, ("i", "k")),))
    steps = [Kernel(0, (For("i", 0, rows - 1, 1, (inner,), parallel=True),))]
    made = program(body, steps, [(0, 64), (64, 960), (1024, 360)])
    agrees(made, doubles(200))
    memory = doubles(200)
    struct.pack_into("<Q", memory, 8 + 64, 0x7FF8_0000_0000_0001)
    assert run_on_host(made, memory).outcome is HostOutcome.NOT_A_NUMBER


@pytest.mark.parametrize("size", [7, 20, 150])
def test_a_product_of_matrices_whose_scaling_is_a_kernel_of_its_own_goes_on_in_parts(size):
    """A loop that is all of a thread is done in parts, for all rows in turn; 150 turns are two parts."""
    made = gemm(size, 1)
    (outer,) = made.steps[0].body
    (inner,) = outer.body
    kernels = (replace(outer, body=(replace(inner, body=(part,)),)) for part in inner.body)
    made = replace(made, steps=tuple(Kernel(number, (body,)) for number, body in enumerate(kernels)))
    memory = doubles(3 * size * size)
    a, b, c = ([memory_row(memory, size, n * size + i) for i in range(size)] for n in range(3))
    for i, k in itertools.product(range(size), range(size)):
        start = [1.25 * value for value in c[i]] if k == 0 else c[i]
        scaled = 1.5 * a[i][k]
        c[i] = [old + scaled * right for old, right in zip(start, b[k], strict=True)]
    assert run_on_host(made, memory, SCALES).outcome is HostOutcome.COMPLETED
    assert [memory_row(memory, size, 2 * size + i) for i in range(size)] == c


def memory_row(memory, size, row):
    return list(struct.unpack_from(f"<{size}d", memory, 8 * size * row))


def test_a_quotient_of_the_lanes_counter_is_a_gather():
    count = 50
    load = Load("f64.load", Affine(0, ((Floor(Affine(2, ((0, 1),)), 3), 8),)), 0)
    value = apply("f64.add", load, apply("f64.convert_i32_s", Index("i32", Affine(-4, ((Floor(affine(c0=1), 2), 1),)))))
    store = Store("f64.store", affine(8 * count, c0=8), 0, value)
    body = [Loop(0, affine(count), (Statement(0, ALWAYS, (load, store)),))]
    grid = For("i", 0, count - 1, 1, (Execute(0, ("i",)),), parallel=True)
    agrees(program(body, [Kernel(0, (grid,))], [(0, 8 * count), (8 * count, 8 * count)]), doubles(2 * count))


def test_a_pointer_that_wraps_is_made_exact():
    count = 40
    load = Load("i32.load", affine((1 << 32) - 256, c0=4), 256 + 16)
    store = Store("i32.store", affine(-512, c0=4), 512 + 400, load)
    body = [Loop(0, affine(count), (Statement(0, ALWAYS, (load, store)),))]
    grid = For("i", 0, count - 1, 1, (Execute(0, ("i",)),), parallel=True)
    made = program(body, [Kernel(0, (grid,))], [(16, 160), (400, 160)], wraps={load: -(1 << 32)})
    memory = doubles(80)
    wanted = bytes(memory[16:176])
    assert run_on_host(made, memory).outcome is HostOutcome.COMPLETED
    assert memory[400:560] == wanted


def test_a_kernel_that_a_compiler_takes_long_for_declines():
    def value(load):
        for _ in range(2000):
            load = apply("f64.add", load, load)
        return load

    with pytest.raises(Declined):
        compile_for_host(copying(8, value=value))


def test_triangles_conditions_and_quotients():
    """Rows of different length, and elements that are met two or three times: bounds and quotients of counters."""
    rows = 23
    column = Affine(0, ((Floor(Affine(1, ((1, 2),)), 3), 8), (0, 8 * rows)))
    load, value = Load("i32.load", column, 0), Index("i32", affine(-5, c0=3, c1=-7))
    store = Store(
        "i32.store16", Affine(0, ((Floor(Affine(1, ((1, 2),)), 3), 8), (0, 8 * rows))), 4, apply("i32.add", load, value)
    )
    body = [Loop(0, affine(rows), (Loop(1, affine(1, c0=1), (Statement(0, ALWAYS, (load, store)),)),))]
    inner = For("j", 0, "i", 1, (Execute(0, ("i", "j")),))
    steps = [Kernel(0, (For("i", 0, rows - 1, 1, (inner,), parallel=True),))]
    agrees(program(body, steps, [(0, 8 * rows * rows)]), doubles(rows * rows))


def test_a_condition_on_the_grid_chooses_between_statements():
    count = 50
    stores = [Store("i32.store", affine(0, c0=4), 0, Constant("i32", value)) for value in (7, 9)]
    first, second = (Statement(number, ALWAYS, (store,)) for number, store in enumerate(stores))
    even = Compute("eq", (Compute("mod", (Compute("sub", ("i", 25)), 2)), 0))
    choice = If(even, (Execute(0, ("i",)),), (Execute(1, ("i",)),))
    made = program(
        [Loop(0, affine(count), (first, second))],
        [Kernel(0, (For("i", 0, count - 1, 1, (choice,), parallel=True),))],
        [(0, 4 * count)],
    )
    memory = bytearray(4 * count)
    assert run_on_host(made, memory).outcome is HostOutcome.COMPLETED
    assert list(struct.unpack(f"<{count}i", memory)) == [7 if number % 2 else 9 for number in range(count)]


def endless(turns):
    """Add up one place, very often."""
    load = Load("i32.load", affine(0), 0)
    store = Store(
        "i32.store",
        affine(0),
        0,
        apply("i32.mul", apply("i32.add", load, Index("i32", affine(1, c1=1))), Index("i32", affine(3, c1=2))),
    )
    body = [Loop(0, affine(1), (Loop(1, affine(turns), (Statement(0, ALWAYS, (load, store)),)),))]
    inner = For("k", 0, turns - 1, 1, (Execute(0, (0, "k")),))
    return program(body, [Kernel(0, (inner,))], [(0, 4)])


@pytest.mark.parametrize("host_loop", [False, True])
def test_a_run_past_its_deadline_stops_and_puts_memory_back(host_loop):
    made = endless(1 << 40)
    if host_loop:
        made = jacobi(34, 1 << 40)
    memory = doubles(2 * 34 * 34)
    before = bytes(memory)
    anchor = (ctypes.c_char * len(memory)).from_buffer(memory)
    with HostPool(2) as pool:
        function = ready_on_host(made)
        started = time.monotonic()
        run = pool.run(function, ctypes.addressof(anchor), {}, Deadline.after(0.05))
        assert run.outcome is HostOutcome.STOPPED
        asked = threading.Event()
        asked.set()
        run = pool.run(function, ctypes.addressof(anchor), {}, NEVER, asked.is_set)
        assert run.outcome is HostOutcome.STOPPED
        assert time.monotonic() - started < 5
    assert memory == before


def test_tenants_whose_runs_meet_share_the_threads():
    with HostPool(4) as pool:
        with pool._lent("a") as alone, pool._lent("b") as late, pool._lent("a") as again:
            assert (alone, late, again) == (4, 1, 1)
        with pool._lent("c") as alone, pool._lent("a") as one:
            assert (alone, one) == (4, 1)
        with pool._lent("b"), pool._lent("a") as one, pool._lent("c") as other:
            assert (one, other) == (1, 1)
        with pool._lent("a") as alone:
            assert alone == 4


def test_a_run_goes_on_beside_one_that_does_not_end():
    hog, began, stop = doubles(2 * 34 * 34), threading.Event(), threading.Event()
    anchor = (ctypes.c_char * len(hog)).from_buffer(hog)

    def must_stop():
        began.set()
        return stop.is_set()

    with HostPool(2) as pool, ThreadPoolExecutor(1) as thread:
        endless_plan = ready_on_host(jacobi(34, 1 << 40))
        running = thread.submit(pool.run, endless_plan, ctypes.addressof(anchor), {}, NEVER, must_stop, tenant="a")
        assert began.wait(20)
        made, memory = gemm(12), doubles(3 * 12 * 12)
        wanted, _ = expected(made, memory, SCALES)
        other = (ctypes.c_char * len(memory)).from_buffer(memory)
        for _ in range(3):
            plan_ = ready_on_host(made)
            before, kept = bytes(memory), []
            run = pool.run(plan_, ctypes.addressof(other), SCALES, NEVER, tenant="b", kept=kept)
            assert (run.outcome, memory) == (HostOutcome.COMPLETED, before)
        assert {first: wanted[first : first + len(content)] for first, content in kept} == dict(kept)
        assert not running.done()
        stop.set()
        assert running.result(20).outcome is HostOutcome.STOPPED
