"""Loads and stores in every state space, width, vector and mode; address conversion.

Source: PTX ISA 5.1 (state spaces), 9.7.9 (data movement and conversion instructions).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.launcher import Launcher
from strategies.lanes import LaneKernel, module, random_bits, width_bytes

LANES = 64
TYPES = [f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in "bus"] + ["f32", "f64"]
SHAPES = [(type_, count) for type_ in TYPES for count in (1, 2, 4) if count * width_bytes(type_) <= 16]


@pytest.fixture
def random():
    return np.random.default_rng(5)


def vector(count: int) -> str:
    return "" if count == 1 else f".v{count}"


def registers(letter: str, count: int) -> str:
    names = ", ".join(f"%{letter}{i}" for i in range(count))
    return names if count == 1 else f"{{{names}}}"


# ------------------------------------------------------------------------------ every type, vector, space

# Where the lane's own slot is: declarations, and instructions that leave its address in %rd0 given its size in bytes.
SLOTS = {
    "shared": (
        ".shared .align 16 .b8 slots[{all}];",
        "mov.u64 %rd0, slots; mad.wide.u32 %rd0, %lane, {size}, %rd0;",
        ".shared",
    ),
    "local": (".local .align 16 .b8 slot[64];", "mov.u64 %rd0, slot; add.u64 %rd0, %rd0, 16;", ".local"),
    "generic shared": (
        ".shared .align 16 .b8 slots[{all}];",
        "mov.u64 %rd0, slots; cvta.shared.u64 %rd0, %rd0; mad.wide.u32 %rd0, %lane, {size}, %rd0;",
        "",
    ),
    "generic local": (
        ".local .align 16 .b8 slot[64];",
        "mov.u64 %rd0, slot; cvta.local.u64 %rd0, %rd0; add.u64 %rd0, %rd0, 32;",
        "",
    ),
    "global": (
        "",
        "mov.u64 %rd0, scratch; mad.wide.u32 %rd0, %lane, {size}, %rd0;",
        ".global",
    ),
    "generic global": (
        "",
        "mov.u64 %rd0, scratch; cvta.global.u64 %rd0, %rd0; mad.wide.u32 %rd0, %lane, {size}, %rd0;",
        "",
    ),
}
SCRATCH = f".global .align 16 .b8 scratch[{16 * LANES}];"


def round_trip(space: str, type_: str, count: int) -> LaneKernel:
    """Store a vector into a space and load it back."""
    declarations, place, suffix = SLOTS[space]
    size = count * width_bytes(type_)
    form = f"{suffix}{vector(count)}.{type_}"
    body = f"""
        {place.format(size=size)}
        st{form} [%rd0], {registers("a", count)};
        ld{form} {registers("d", count)}, [%rd0];
    """
    name = f"trip_{space.replace(' ', '_')}_v{count}_{type_}"
    return LaneKernel(name, (type_,) * count, (type_,) * count, body, declarations.format(all=LANES * size))


@pytest.mark.parametrize("space", SLOTS)
def test_every_vector_survives_a_round_trip(launcher, random, space):
    kernels = {shape: round_trip(space, *shape) for shape in SHAPES}
    text = module([SCRATCH, *kernels.values()])
    for (type_, count), kernel in kernels.items():
        sources = [random_bits(random, type_, LANES) for _ in range(count)]
        results = launcher.run_lanes(kernel, sources, lanes=LANES, text=text)
        assert_array_equal(results, sources, err_msg=kernel.name)


@pytest.mark.parametrize("type_", ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32"])
def test_a_load_extends_to_a_wider_register_by_its_type(launcher, random, type_):
    data = random_bits(random, type_, LANES)
    wide = "b32" if width_bytes(type_) < 4 and type_[0] != "f" else "b64"
    if type_ == "f32":
        wide = "b32"  # floating-point registers have exactly the width of the type
    kernel = LaneKernel(
        f"extend_{type_}",
        (type_,),
        (wide,),
        f"""
        mov.u64 %rd0, slot;
        mad.wide.u32 %rd0, %lane, {width_bytes(type_)}, %rd0;
        st.shared.{type_} [%rd0], %a0;
        ld.shared.{type_} %d0, [%rd0];
        """,
        f".shared .align 8 .b8 slot[{LANES * 8}];",
    )
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES)
    signed = data.view(f"i{width_bytes(type_)}") if type_[0] == "s" else data
    assert_array_equal(got, signed.astype(np.int64).astype(got.dtype))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("type_", ["s8", "u8", "s16"])
def test_a_vector_load_extends_every_element(launcher, random, type_, count):
    data = [random_bits(random, type_, LANES) for _ in range(count)]
    form = f".shared{vector(count)}.{type_}"
    kernel = LaneKernel(
        f"extend_v{count}_{type_}",
        (type_,) * count,
        ("b32",) * count,
        f"""
        mov.u64 %rd0, slot;
        mad.wide.u32 %rd0, %lane, {count * width_bytes(type_)}, %rd0;
        st{form} [%rd0], {registers("a", count)};
        ld{form} {registers("d", count)}, [%rd0];
        """,
        f".shared .align 8 .b8 slot[{LANES * 8}];",
    )
    expected = [(d.view(f"i{d.itemsize}") if type_[0] == "s" else d).astype(np.int64) & 0xFFFFFFFF for d in data]
    assert_array_equal(launcher.run_lanes(kernel, data, lanes=LANES), expected)


def test_a_narrow_store_leaves_its_neighbours_alone(launcher, random):
    data = random_bits(random, "b32", LANES)
    kernel = LaneKernel(
        "narrow",
        ("b32",),
        ("b32",),
        """
        mov.u64 %rd0, slot;
        mad.wide.u32 %rd0, %lane, 4, %rd0;
        st.shared.b32 [%rd0], %a0;
        st.shared.b8 [%rd0+1], %lane;
        st.shared.u16 [%rd0+2], %lane;
        ld.shared.b32 %d0, [%rd0];
        """,
        f".shared .align 4 .b8 slot[{LANES * 4}];",
    )
    lanes = np.arange(LANES, dtype=np.uint32)
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES)
    assert_array_equal(got, data & 0xFF | lanes << 8 | lanes << 16)


# ------------------------------------------------------------------------------------ modes and qualifiers

LOADS = (
    [(70, f"ld.global{mode}{hint}.b32") for mode in ("", ".ca", ".cg", ".cs", ".lu", ".cv") for hint in ("",)]
    + [(70, f"ld{weak}.{space}.b32") for weak in (".weak", ".volatile") for space in ("global", "shared")]
    + [
        (70, f"ld.{order}.{scope}.{space}.b32")
        for order in ("relaxed", "acquire")
        for scope in ("cta", "gpu", "sys")
        for space in ("global", "shared")
    ]
    + [(70, "ld.global.nc.b32"), (70, "ld.global.ca.nc.b32"), (70, "ldu.global.b32"), (70, "ld.volatile.b32")]
    + [(70, f"ld.global.L1::{hint}.b32") for hint in ("evict_normal", "evict_last", "evict_first", "no_allocate")]
    + [(75, f"ld.global.L2::{size}.b32") for size in ("64B", "128B")]
    + [(80, "ld.global.L2::256B.b32"), (80, "ld.relaxed.gpu.global.L1::evict_last.L2::128B.b32")]
)
STORES = (
    [(70, f"st.global{mode}.b32") for mode in ("", ".wb", ".cg", ".cs", ".wt")]
    + [(70, f"st{weak}.{space}.b32") for weak in (".weak", ".volatile") for space in ("global", "shared")]
    + [
        (70, f"st.{order}.{scope}.{space}.b32")
        for order in ("relaxed", "release")
        for scope in ("cta", "gpu", "sys")
        for space in ("global", "shared")
    ]
    + [(70, f"st.global.L1::{hint}.b32") for hint in ("evict_normal", "evict_last", "evict_first", "no_allocate")]
    + [(70, "st.volatile.b32")]
)


def mode_kernel(form: str) -> LaneKernel:
    space = "shared" if "shared" in form else "global"
    plain_load, plain_store = (f"{opcode}.{space}.b32" for opcode in ("ld", "st"))
    store, load = (plain_store, form) if form.startswith("ld") else (form, plain_load)
    declarations, place, _ = SLOTS[space]
    body = f"""
        {place.format(size=4)}
        {store} [%rd0], %a0;
        {load} %d0, [%rd0];
    """
    name = "mode_" + form.replace(".", "_").replace(":", "")
    return LaneKernel(name, ("b32",), ("b32",), body, declarations.format(all=4 * LANES))


@pytest.mark.parametrize(("target", "form"), [*LOADS, *STORES], ids=str)
def test_cache_operators_orders_and_hints_move_the_same_data(launcher, random, target, form):
    launcher.require(target)
    kernel, data = mode_kernel(form), random_bits(random, "b32", LANES)
    # Non-coherent loads may see what another kernel left, not what this one wrote: give those two launches.
    text = module([SCRATCH, kernel], f"sm_{max(70, target)}")
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES, text=text)
    if ".nc" in form or "ldu" in form:
        (got,) = launcher.run_lanes(kernel, [data], lanes=LANES, text=text)
    assert_array_equal(got, data)


def test_prefetch_changes_nothing(launcher, random):
    data = random_bits(random, "b32", LANES)
    body = """
        ld.param.u64 %rd0, [p0];
        mad.wide.u32 %rd0, %lane, 4, %rd0;
        prefetch.global.L1 [%rd0];
        prefetch.global.L2 [%rd0];
        prefetchu.L1 [%rd0];
        ld.global.b32 %d0, [%rd0];
    """
    (got,) = launcher.run_lanes(LaneKernel("prefetching", ("b32",), ("b32",), body), [data], lanes=LANES)
    assert_array_equal(got, data)


def test_cache_policies_change_nothing(launcher, random):
    launcher.require(80)
    data = random_bits(random, "b32", LANES)
    body = """
        mov.u64 %rd0, scratch;
        applypriority.global.L2::evict_normal [%rd0], 128;
        discard.global.L2 [%rd0], 128;
        createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd1, 0.5;
        createpolicy.fractional.L2::evict_first.b64 %rd2;
        mad.wide.u32 %rd0, %lane, 4, %rd0;
        bar.sync 0;
        st.global.L2::cache_hint.b32 [%rd0], %a0, %rd1;
        ld.global.L2::cache_hint.b32 %d0, [%rd0], %rd2;
    """
    kernel = LaneKernel("policies", ("b32",), ("b32",), body)
    variable = f".global .align 128 .b8 scratch[{16 * LANES}];"
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES, text=module([variable, kernel], "sm_80"))
    assert_array_equal(got, data)


# --------------------------------------------------------------------------------------- module variables


def test_constants_and_initialised_globals(launcher):
    variables = """
    .const .align 4 .u32 table[5] = {10, 20, 30, 40};
    .const .align 8 .f64 half = 0.5;
    .global .align 2 .s16 words[2][2] = {{-1, 2}, {3, -4}};
    .global .align 8 .u64 place = words;
    .const .b8 letters[4] = {97, 98, 0xff, 0};
    """
    body = """
        and.b32 %r0, %lane, 3;
        mov.u64 %rd0, table;
        mad.wide.u32 %rd1, %r0, 4, %rd0;
        ld.const.u32 %d0, [%rd1+4];
        ld.const.f64 %d1, [half];
        ld.global.u64 %rd2, [place];
        mad.wide.u32 %rd2, %r0, 2, %rd2;
        ld.global.s16 %d2, [%rd2];
        cvta.const.u64 %rd3, letters;
        cvt.u64.u32 %rd4, %r0;
        add.u64 %rd3, %rd3, %rd4;
        ld.u8 %d3, [%rd3];
    """
    kernel = LaneKernel("constants", (), ("b32", "b64", "b32", "b32"), body)
    table, half, words, letters = launcher.run_lanes(kernel, [], lanes=8, text=module([variables, kernel]))
    assert_array_equal(table, [20, 30, 40, 0] * 2)
    assert_array_equal(half.view(np.float64), 0.5)
    assert_array_equal(words.view(np.int32), [-1, 2, 3, -4] * 2)
    assert_array_equal(letters, [97, 98, 0xFF, 0] * 2)


def test_a_global_keeps_its_value_between_launches_and_each_module_has_its_own(device):
    counter = ".global .u32 counter = 5;"
    body = "ld.global.u32 %d0, [counter]; add.u32 %r0, %d0, 1; st.global.u32 [counter], %r0;"
    kernel = LaneKernel("count", (), ("b32",), body)
    seen = []
    for _ in range(2):
        with Launcher(device) as launcher:
            seen += [
                int(launcher.run_lanes(kernel, [], lanes=1, text=module([counter, kernel]))[0][0]) for _ in range(3)
            ]
    assert seen == [5, 6, 7] * 2


def test_kernel_parameters_of_every_kind(launcher):
    text = module(
        [
            """
    .visible .entry parameters(.param .u64 out, .param .u8 byte, .param .s16 word, .param .f64 real,
                               .param .align 16 .b8 block[20], .param .u32 index)
    {
        .reg .b64 %rd<5>; .reg .b32 %r<8>; .reg .b16 %h<3>; .reg .b64 %f;
        ld.param.u64 %rd0, [out];
        ld.param.u8 %r0, [byte];
        ld.param.s16 %r1, [word];
        ld.param.f64 %f, [real];
        ld.param.u32 %r2, [index];
        ld.param.v2.b32 {%r3, %r4}, [block+8];
        mov.u64 %rd1, block;
        mad.wide.u32 %rd1, %r2, 4, %rd1;
        ld.param.b32 %r5, [%rd1];
        st.global.v4.b32 [%rd0], {%r0, %r1, %r3, %r4};
        st.global.b32 [%rd0+16], %r5;
        st.global.b64 [%rd0+24], %f;
        ret;
    }
    """
        ]
    )
    block = np.arange(5, dtype=np.uint32) * 1000 + 1
    out = np.zeros(4, np.uint64)
    packed = block.view("V20")[0]
    args = [out, np.uint8(0xFE), np.int16(-3), np.float64(2.5), packed, np.uint32(4)]
    (out,) = launcher.launch(text, "parameters", args, block=(1, 1, 1))
    assert_array_equal(out.view(np.int32)[:5], [0xFE, -3, 2001, 3001, 4001])
    assert out.view(np.float64)[3] == 2.5


@pytest.mark.parametrize("shared_bytes", [256, 1024])
def test_dynamic_shared_memory(launcher, random, shared_bytes):
    lanes = shared_bytes // 4
    data = random_bits(random, "b32", lanes)
    kernel = LaneKernel(
        "dynamic",
        ("b32",),
        ("b32", "b32"),
        """
        mov.u64 %rd0, pool;
        mad.wide.u32 %rd1, %lane, 4, %rd0;
        st.shared.b32 [%rd1], %a0;
        bar.sync 0;
        mov.u32 %r0, %ntid.x;
        sub.u32 %r0, %r0, %lane;
        sub.u32 %r0, %r0, 1;
        mad.wide.u32 %rd1, %r0, 4, %rd0;
        ld.shared.b32 %d0, [%rd1];
        mov.u32 %d1, %dynamic_smem_size;
        """,
    )
    text = module([".extern .shared .align 16 .b8 pool[];", kernel])
    args = [data, np.zeros(lanes, np.uint32), np.zeros(lanes, np.uint32)]
    _, got, size = launcher.launch(text, "dynamic", args, block=(lanes, 1, 1), shared_bytes=shared_bytes)
    assert_array_equal(got, data[::-1])
    assert_array_equal(size, shared_bytes)


def test_shared_memory_belongs_to_its_block(launcher):
    text = module(
        [
            """
    .visible .entry blocks(.param .u64 out)
    {
        .reg .b64 %rd<3>; .reg .b32 %r<4>;
        .shared .u32 cell;
        mov.u32 %r0, %ctaid.x;
        mul.lo.u32 %r1, %r0, 3;
        st.shared.u32 [cell], %r1;
        bar.sync 0;
        ld.shared.u32 %r2, [cell];
        ld.param.u64 %rd0, [out];
        mad.wide.u32 %rd0, %r0, 4, %rd0;
        st.global.u32 [%rd0], %r2;
        ret;
    }
    """
        ]
    )
    (out,) = launcher.launch(text, "blocks", [np.zeros(50, np.uint32)], grid=(50, 1, 1), block=(1, 1, 1))
    assert_array_equal(out, np.arange(50) * 3)


def test_local_memory_is_each_lanes_own_and_indexable(launcher):
    kernel = LaneKernel(
        "local_index",
        ("b32",),
        ("b32",),
        """
        mov.u32 %r0, 0;
        mov.u64 %rd0, depot;
    fill:
        mad.wide.u32 %rd1, %r0, 4, %rd0;
        mad.lo.u32 %r1, %lane, 100, %r0;
        st.local.u32 [%rd1], %r1;
        add.u32 %r0, %r0, 1;
        setp.lt.u32 %p0, %r0, 16;
        @%p0 bra fill;
        mad.wide.u32 %rd1, %a0, 4, %rd0;
        ld.local.u32 %d0, [%rd1];
        """,
        ".local .align 8 .b8 depot[64];",
    )
    index = np.arange(LANES, dtype=np.uint32) * 7 % 16
    (got,) = launcher.run_lanes(kernel, [index], lanes=LANES)
    assert_array_equal(got, np.arange(LANES) * 100 + index)


# ------------------------------------------------------------------------------------------- addresses

WINDOWS = {"global": "scratch", "shared": "in_shared", "local": "in_local", "const": "in_const"}


@pytest.mark.parametrize("of", WINDOWS)
def test_isspacep_and_cvta_agree_on_where_an_address_is(launcher, of):
    queries = "\n".join(f"isspacep.{space} %d{i}, %rd1;" for i, space in enumerate(WINDOWS))
    body = f"""
        mov.u64 %rd0, {WINDOWS[of]};
        cvta.{of}.u64 %rd1, %rd0;
        {queries}
        cvta.to.{of}.u64 %rd2, %rd1;
        sub.u64 %d4, %rd2, %rd0;
    """
    declarations = ".shared .b32 in_shared; .local .b32 in_local;"
    kernel = LaneKernel(f"where_{of}", (), ("pred",) * 4 + ("b64",), body, declarations)
    text = module([SCRATCH, ".const .u32 in_const = 1;", kernel])
    *answers, difference = launcher.run_lanes(kernel, [], lanes=2, text=text)
    assert [bool(answer.all()) for answer in answers] == [space == of for space in WINDOWS]
    assert_array_equal(difference, 0)


def test_a_fence_lets_one_thread_see_what_another_wrote(launcher):
    fences = ["membar.cta", "membar.gl", "membar.sys"]
    fences += [f"fence.{order}.{scope}" for order in ("sc", "acq_rel") for scope in ("cta", "gpu", "sys")]
    kernels = [
        LaneKernel(
            f"fence_{i}",
            ("b32",),
            ("b32",),
            f"""
        mov.u64 %rd0, slots;
        mad.wide.u32 %rd1, %lane, 4, %rd0;
        st.shared.b32 [%rd1], %a0;
        {fence};
        bar.sync 0;
        xor.b32 %r0, %lane, 33;
        mad.wide.u32 %rd1, %r0, 4, %rd0;
        ld.shared.b32 %d0, [%rd1];
        """,
            f".shared .align 4 .b8 slots[{4 * LANES}];",
        )
        for i, fence in enumerate(fences)
    ]
    text = module(kernels)
    data = np.arange(LANES, dtype=np.uint32) * 3
    for kernel in kernels:
        (got,) = launcher.run_lanes(kernel, [data], lanes=LANES, text=text)
        assert_array_equal(got, data[np.arange(LANES) ^ 33])
