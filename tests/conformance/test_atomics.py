"""Atomic operations and reductions: every operation, type, space, order and scope.

Source: PTX ISA 9.7.13.5 (atom), 9.7.13.6 (red).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from oracles import atomics
from strategies.lanes import LaneKernel, module, random_bits, raw_dtype, width_bytes

LANES = 64

# (operation, type, least target). red takes all but exch and cas.
INTEGERS = [
    *((operation, f"b{bits}", 70) for operation in ("and", "or", "xor", "exch", "cas") for bits in (32, 64)),
    ("cas", "b16", 70),
    ("add", "u32", 70),
    ("add", "s32", 70),
    ("add", "u64", 70),
    ("inc", "u32", 70),
    ("dec", "u32", 70),
    *((operation, type_, 70) for operation in ("min", "max") for type_ in ("u32", "s32", "u64", "s64")),
]
FLOATS = [
    ("add", "f32", 70),
    ("add", "f64", 70),
    ("add.noftz", "f16", 70),
    ("add.noftz", "f16x2", 70),
    ("add.noftz", "bf16", 90),
    ("add.noftz", "bf16x2", 90),
]
SPACES = ["global", "shared", "generic global", "generic shared"]

PLACES = {
    "global": "mov.u64 %rd0, cells; mad.wide.u32 %rd0, %r0, {size}, %rd0;",
    "shared": "mov.u64 %rd0, in_shared; mad.wide.u32 %rd0, %r0, {size}, %rd0;",
}


def name_of(*parts: str) -> str:
    return "_".join(parts).replace(".", "_").replace(" ", "_")


def cell_kernel(opcode: str, operation: str, type_: str, space: str, qualifiers: str = "") -> LaneKernel:
    """Every lane puts ``%a0`` into its own cell, works on it with ``%a1`` (and ``%a2``), and reads it again."""
    size, where = width_bytes(type_), space.removeprefix("generic ")
    suffix = "" if space.startswith("generic") else f".{space}"
    convert = f"cvta.{where}.u64 %rd1, %rd0;" if space.startswith("generic") else "mov.u64 %rd1, %rd0;"
    operands = "%a1, %a2" if operation == "cas" else "%a1"
    result = "%d0, " if opcode == "atom" else ""
    body = f"""
        mov.u32 %r0, %lane;
        {PLACES[where].format(size=size)}
        {convert}
        st.{where}.b{8 * size} [%rd0], %a0;
        {"" if opcode == "atom" else f"mov.b{8 * size} %d0, %a0;"}
        {opcode}{qualifiers}{suffix}.{operation}.{type_} {result}[%rd1], {operands};
        ld.{where}.b{8 * size} %d1, [%rd0];
    """
    sources = (type_,) * (3 if operation == "cas" else 2)
    declarations = f".shared .align 8 .b8 in_shared[{8 * LANES}];" if where == "shared" else ""
    return LaneKernel(name_of(opcode, operation, type_, space), sources, (type_, type_), body, declarations)


CELLS = f".global .align 8 .b8 cells[{8 * LANES}];"


def integers(random, type_: str) -> list[np.ndarray]:
    """Return a cell, b and c per lane; many of them meet: equal, zero, extreme."""
    cell, b, c = (random_bits(random, type_, LANES) for _ in range(3))
    top = 1 << (8 * width_bytes(type_) - 1)
    cell[:6] = [0, top, top - 1, 2 * top - 1, 5, 5]
    b[:8] = [0, top, top, 0, 5, 4, *map(int, cell[6:8])]
    return [cell, b, c]


def floats(random, type_: str) -> list[np.ndarray]:
    """Return a cell and b per lane, finite numbers whose sums are normal or zero."""
    scalar = atomics.FLOATS[type_.removesuffix("x2")]
    count = LANES * (2 if type_.endswith("x2") else 1)
    return [random.uniform(0.5, 100, count).astype(scalar).view(raw_dtype(type_)) for _ in range(2)]


FORMS = [
    (opcode, *form)
    for opcode in ("atom", "red")
    for form in (*INTEGERS, *FLOATS)
    if opcode == "atom" or form[0] not in {"exch", "cas"}
]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("opcode", "operation", "type_", "target"), FORMS)
def test_every_lane_on_its_own_cell(launcher, opcode, operation, type_, target, space):
    launcher.require(target)
    random = np.random.default_rng(7)
    inputs = (floats if "f" in type_ else integers)(random, type_)
    inputs = inputs if operation == "cas" else inputs[:2]
    kernel = cell_kernel(opcode, operation, type_, space)
    text = module([CELLS, kernel], f"sm_{target}")
    old, new = launcher.run_lanes(kernel, inputs, lanes=LANES, text=text)
    bare = operation.partition(".")[0]
    assert_array_equal(old, inputs[0])
    assert_array_equal(new, [atomics.apply(bare, type_, *map(int, words)) for words in zip(*inputs, strict=True)])


def test_shared_f32_additions_keep_subnormal_numbers(launcher):
    # In global memory hardware flushes them, which the manual allows.
    kernel = cell_kernel("atom", "add", "f32", "shared")
    cell = np.full(LANES, np.float32(1e-40)).view(np.uint32)
    _, new = launcher.run_lanes(kernel, [cell, cell], lanes=LANES)
    assert_array_equal(new.view(np.float32), np.float32(1e-40) + np.float32(1e-40))


# ------------------------------------------------------------------------------------------- contention

CONTENDED = [
    ("add", "u32"),
    ("add", "u64"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("and", "b32"),
    ("or", "b64"),
    ("xor", "b32"),
    ("min", "s32"),
    ("max", "u64"),
    ("add", "f32"),  # of small integers: exact in any order
    ("add.noftz", "f16x2"),
]
BLOCKS = 3


def contended_operands(type_: str, count: int) -> np.ndarray:
    random = np.random.default_rng(8)
    if "f" in type_:
        scalar = atomics.FLOATS[type_.removesuffix("x2")]
        return random.integers(0, 4, count * (2 if type_.endswith("x2") else 1)).astype(scalar).view(raw_dtype(type_))
    return random_bits(random, type_, count)


@pytest.mark.parametrize(("operation", "type_"), CONTENDED)
@pytest.mark.parametrize("opcode", ["atom", "red"])
def test_every_lane_of_every_block_on_one_cell(launcher, opcode, operation, type_):
    size = width_bytes(type_)
    result = "%d, " if opcode == "atom" else ""
    text = module(
        [
            f"""
    .visible .entry contended(.param .u64 cell, .param .u64 operands)
    {{
        .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .b{8 * size} %b, %d;
        mov.u32 %r0, %ctaid.x;
        mov.u32 %r1, %ntid.x;
        mov.u32 %r2, %tid.x;
        mad.lo.u32 %r0, %r0, %r1, %r2;
        ld.param.u64 %rd0, [cell];
        ld.param.u64 %rd1, [operands];
        mad.wide.u32 %rd1, %r0, {size}, %rd1;
        ld.global.b{8 * size} %b, [%rd1];
        {opcode}.global.{operation}.{type_} {result}[%rd0], %b;
        ret;
    }}
    """
        ]
    )
    operands = contended_operands(type_, LANES * BLOCKS)
    if operation in {"inc", "dec"}:
        operands[:] = 50  # the order does not matter only if all wrap at the same place
    start = np.array([7], operands.dtype) if "f" not in type_ else np.zeros(1, operands.dtype)
    (cell, _) = launcher.launch(text, "contended", [start, operands], grid=(BLOCKS, 1, 1), block=(LANES, 1, 1))
    expected = int(start[0])
    for operand in operands:
        expected = atomics.apply(operation.partition(".")[0], type_, expected, int(operand))
    assert int(cell[0]) == expected


def test_old_values_under_contention_are_all_different(launcher):
    kernel = LaneKernel("tickets", (), ("b32",), "atom.global.add.u32 %d0, [ticket], 1;")
    (old,) = launcher.run_lanes(kernel, [], lanes=512, text=module([".global .u32 ticket = 100;", kernel]))
    assert_array_equal(np.sort(old), np.arange(100, 612))


def test_a_lock_made_of_cas_and_exch_lets_one_lane_of_each_warp_in(launcher):
    # One lane per warp spins: lanes of one warp spinning on each other is a deadlock on older hardware.
    body = """
        mov.b32 %d0, 0;
        and.b32 %r0, %lane, 31;
        setp.ne.u32 %p0, %r0, 0;
        @%p0 bra out;
    again:
        atom.acquire.gpu.global.cas.b32 %r1, [lock], 0, 1;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra again;
        ld.relaxed.gpu.global.u32 %d0, [inside];
        add.u32 %r2, %d0, 1;
        st.relaxed.gpu.global.u32 [inside], %r2;
        atom.release.gpu.global.exch.b32 %r3, [lock], 0;
    out:
    """
    kernel = LaneKernel("locking", (), ("b32",), body)
    text = module([".global .u32 lock; .global .u32 inside;", kernel])
    (seen,) = launcher.run_lanes(kernel, [], lanes=256, text=text)
    assert_array_equal(np.sort(seen[::32]), np.arange(8))


# ------------------------------------------------------------------------------------ orders and scopes


@pytest.mark.parametrize("scope", ["", ".cta", ".gpu", ".sys"])
@pytest.mark.parametrize("order", ["", ".relaxed", ".acquire", ".release", ".acq_rel"])
@pytest.mark.parametrize("opcode", ["atom", "red"])
def test_orders_and_scopes_do_the_same_arithmetic(launcher, opcode, order, scope):
    if opcode == "red" and order in {".acquire", ".acq_rel"}:
        order = ".release"  # red has no result to acquire
    random = np.random.default_rng(9)
    for space in ("global", "shared"):
        kernel = cell_kernel(opcode, "add", "u32", space, order + scope)
        cell, b, _ = integers(random, "u32")
        _, new = launcher.run_lanes(kernel, [cell, b], lanes=LANES, text=module([CELLS, kernel]))
        assert_array_equal(new, cell + b)


def test_an_atomic_takes_an_immediate_operand_and_an_address_with_an_offset(launcher):
    body = """
        mov.u64 %rd0, cells;
        mad.wide.u32 %rd0, %lane, 8, %rd0;
        add.u64 %rd0, %rd0, 64;
        st.global.u32 [%rd0+-60], %lane;
        atom.global.max.s32 %d0, [%rd0+-60], 40;
        ld.global.u32 %d1, [%rd0+-60];
    """
    kernel = LaneKernel("offset", (), ("b32", "b32"), body)
    old, new = launcher.run_lanes(kernel, [], lanes=LANES - 8, text=module([CELLS, kernel]))
    assert_array_equal(old, np.arange(LANES - 8))
    assert_array_equal(new, np.maximum(np.arange(LANES - 8), 40))
