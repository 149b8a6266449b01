"""Loads and stores in every state space, width, vector and mode.

Source: PTX ISA 5.1 (state spaces), 9.7.9 (data movement and conversion instructions).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

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
