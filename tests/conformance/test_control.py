"""Control flow, functions, barriers and special registers.

Source: PTX ISA 9.7.12 (control flow), 9.7.13.1 (bar, barrier), 10 (special registers).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module

LANES = 64
IDS = np.arange(LANES, dtype=np.uint32)


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def run(launcher, kernel, sources=(), lanes=LANES, before=(), target="sm_70"):
    return launcher.run_lanes(kernel, list(sources), lanes=lanes, text=module([*before, kernel], target))


# ---------------------------------------------------------------------------------------------- branches


def test_loops_that_every_lane_leaves_at_its_own_time(launcher):
    body = """
        mov.u32 %d0, 0;
        mov.u32 %r0, %a0;
    again:
        setp.eq.u32 %p0, %r0, 1;
        @%p0 bra done;
        and.b32 %r1, %r0, 1;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 bra even;
        mad.lo.u32 %r0, %r0, 3, 1;
        bra.uni next;
    even:
        shr.u32 %r0, %r0, 1;
    next:
        add.u32 %d0, %d0, 1;
        bra again;
    done:
    """
    (steps,) = run(launcher, LaneKernel("collatz", ("b32",), ("b32",), body), [IDS + 1])
    assert_array_equal(steps, [collatz(n + 1) for n in range(LANES)])


def test_nested_branches_rejoin(launcher):
    body = """
        mov.u32 %d0, 0;
        and.b32 %r0, %lane, 1;
        setp.eq.u32 %p0, %r0, 0;
        and.b32 %r0, %lane, 2;
        setp.eq.u32 %p1, %r0, 0;
        @%p0 bra a;
        @%p1 bra b;
        add.u32 %d0, %d0, 1;
        bra ab;
    b:
        add.u32 %d0, %d0, 2;
    ab:
        add.u32 %d0, %d0, 10;
        bra all;
    a:
        @!%p1 bra c;
        add.u32 %d0, %d0, 3;
    c:
        add.u32 %d0, %d0, 20;
    all:
        bar.sync 0;
        vote.sync.ballot.b32 %d1, %p0, -1;
    """
    got, ballot = run(launcher, LaneKernel("nested", (), ("b32", "b32"), body))
    assert_array_equal(got, np.array([23, 12, 20, 11])[IDS % 4])
    assert_array_equal(ballot, 0x55555555)


def test_guards_on_any_instruction(launcher):
    body = """
        setp.lt.u32 %p0, %lane, 20;
        mov.u32 %d0, 1;
        @%p0 mov.u32 %d0, 2;
        @!%p0 add.u32 %d0, %d0, 4;
        setp.gt.u32 %p1, %lane, 1000;
        @%p1 bra never;
        @%p0 setp.eq.u32 %p1, %lane, 7;
        @%p1 mul.lo.u32 %d0, %d0, 100;
    never:
    """
    (got,) = run(launcher, LaneKernel("guards", (), ("b32",), body))
    assert_array_equal(got, np.where(IDS < 20, np.where(IDS == 7, 200, 2), 5))


@pytest.mark.parametrize("leave", ["ret", "exit"])
def test_a_lane_that_leaves_early_does_not_hold_up_a_barrier(launcher, leave):
    body = f"""
        setp.ge.u32 %p0, %lane, 40;
        @%p0 {leave};
        bar.sync 0;
        mov.u32 %d0, 1;
    """
    (got,) = run(launcher, LaneKernel("leaving", (), ("b32",), body))
    assert_array_equal(got, np.where(IDS < 40, 1, 0xA5A5A5A5))


def test_brx_idx_jumps_through_a_table(launcher):
    body = """
        rem.u32 %r0, %lane, 3;
    table: .branchtargets one, two, three;
        brx.idx %r0, table;
    one:
        mov.u32 %d0, 111;
        bra joined;
    two:
        mov.u32 %d0, 222;
        bra joined;
    three:
        mov.u32 %d0, 333;
    joined:
    """
    (got,) = run(launcher, LaneKernel("table_jump", (), ("b32",), body))
    assert_array_equal(got, 111 * (IDS % 3 + 1))


def test_inner_scopes_have_their_own_names(launcher):
    body = """
        mov.u32 %r0, 1;
        {
            .reg .b32 %r0;
            mov.u32 %r0, 50;
            {
                .reg .b32 %s;
                add.u32 %s, %r0, %lane;
                mov.u32 %d1, %s;
            }
        }
        mov.u32 %d0, %r0;
    """
    outer, inner = run(launcher, LaneKernel("scopes", (), ("b32", "b32"), body))
    assert_array_equal(outer, 1)
    assert_array_equal(inner, IDS + 50)


# --------------------------------------------------------------------------------------------- functions

MULTIPLY_ADD = """
.func (.param .b32 result) multiply_add(.param .b32 a, .param .b32 b, .param .b64 c)
{
    .reg .b32 %r<4>; .reg .b64 %rd;
    ld.param.b32 %r0, [a];
    ld.param.b32 %r1, [b];
    ld.param.b64 %rd, [c];
    cvt.u32.u64 %r2, %rd;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    st.param.b32 [result], %r3;
    ret;
}
"""

CALL = """
        {
            .param .b32 x; .param .b32 y; .param .b64 z; .param .b32 back;
            st.param.b32 [x], %lane;
            st.param.b32 [y], 3;
            cvt.u64.u32 %rd0, %lane;
            st.param.b64 [z], %rd0;
            call (back), multiply_add, (x, y, z);
            ld.param.b32 %d0, [back];
        }
"""


def test_a_call_passes_parameters_and_a_result(launcher):
    (got,) = run(launcher, LaneKernel("calling", (), ("b32",), CALL), before=[MULTIPLY_ADD])
    assert_array_equal(got, 4 * IDS)


def test_a_call_by_some_lanes(launcher):
    body = f"""
        mov.u32 %d0, 9;
        setp.lt.u32 %p0, %lane, 10;
        @!%p0 bra over;
        {CALL}
    over:
        bar.sync 0;
    """
    (got,) = run(launcher, LaneKernel("some_call", (), ("b32",), body), before=[MULTIPLY_ADD])
    assert_array_equal(got, np.where(IDS < 10, 4 * IDS, 9))


def test_functions_with_register_parameters_and_none(launcher):
    functions = """
    .func (.reg .b32 out) twice(.reg .b32 in) { add.u32 out, in, in; ret; }
    .global .u32 bell;
    .func ring() { red.global.add.u32 [bell], 1; ret; }
    """
    body = """
        call.uni (%d0), twice, (%lane);
        call.uni ring;
        bar.sync 0;
        ld.relaxed.gpu.global.u32 %d1, [bell];
    """
    doubled, rings = run(launcher, LaneKernel("register_call", (), ("b32", "b32"), body), before=[functions])
    assert_array_equal(doubled, 2 * IDS)
    assert_array_equal(rings, LANES)


def test_a_function_passes_structures_and_has_its_own_local_memory(launcher):
    functions = """
    .func (.param .align 8 .b8 back[16]) swap(.param .align 8 .b8 pair[16])
    {
        .reg .b64 %rd<4>;
        .local .align 8 .b8 spill[8];
        ld.param.b64 %rd0, [pair];
        st.local.b64 [spill], %rd0;
        ld.param.b64 %rd1, [pair+8];
        ld.local.b64 %rd2, [spill];
        st.param.v2.b64 [back], {%rd1, %rd2};
        ret;
    }
    """
    body = """
        {
            .param .align 8 .b8 pair[16];
            .param .align 8 .b8 back[16];
            cvt.u64.u32 %rd0, %lane;
            st.param.b64 [pair], %rd0;
            st.param.b64 [pair+8], 77;
            call (back), swap, (pair);
            ld.param.b64 %d0, [back];
            ld.param.b64 %d1, [back+8];
        }
    """
    functions = functions.replace(".align 8", ".align 16")
    kernel = LaneKernel("structures", (), ("b64", "b64"), body.replace(".align 8", ".align 16"))
    first, second = run(launcher, kernel, before=[functions])
    assert_array_equal(first, 77)
    assert_array_equal(second, IDS)


def test_recursion(launcher):
    functions = """
    .func (.param .b32 out) factorial(.param .b32 in)
    {
        .reg .b32 %r<4>; .reg .pred %p;
        ld.param.b32 %r0, [in];
        setp.gt.u32 %p, %r0, 1;
        @%p bra more;
        st.param.b32 [out], 1;
        ret;
    more:
        sub.u32 %r1, %r0, 1;
        {
            .param .b32 x; .param .b32 y;
            st.param.b32 [x], %r1;
            call (y), factorial, (x);
            ld.param.b32 %r2, [y];
        }
        mul.lo.u32 %r3, %r2, %r0;
        st.param.b32 [out], %r3;
        ret;
    }
    """
    body = """
        and.b32 %r0, %lane, 7;
        {
            .param .b32 x; .param .b32 y;
            st.param.b32 [x], %r0;
            call (y), factorial, (x);
            ld.param.b32 %d0, [y];
        }
    """
    (got,) = run(launcher, LaneKernel("recursion", (), ("b32",), body), lanes=32, before=[functions])
    assert_array_equal(got, np.array([1, 1, 2, 6, 24, 120, 720, 5040])[np.arange(32) % 8])


@pytest.mark.parametrize("how", ["callprototype", "calltargets"])
def test_an_indirect_call_takes_every_lane_to_its_own_function(launcher, how):
    functions = "".join(
        f"""
    .func (.param .b32 out) {name}(.param .b32 in)
    {{
        .reg .b32 %r<2>;
        ld.param.b32 %r0, [in];
        {operation}.u32 %r1, %r0, 5;
        st.param.b32 [out], %r1;
        ret;
    }}
    """
        for name, operation in (("plus", "add"), ("times", "mul.lo"))
    )
    table = {
        "callprototype": "shape: .callprototype (.param .b32 _) _ (.param .b32 _);",
        "calltargets": "shape: .calltargets plus, times;",
    }[how]
    body = f"""
        and.b32 %r0, %lane, 1;
        mul.wide.u32 %rd1, %r0, 8;
        mov.u64 %rd0, functions;
        add.u64 %rd0, %rd0, %rd1;
        ld.global.u64 %rd2, [%rd0];
        {{
            .param .b32 x; .param .b32 y;
            st.param.b32 [x], %lane;
            {table}
            call (y), %rd2, (x), shape;
            ld.param.b32 %d0, [y];
        }}
    """
    variables = ".global .align 8 .u64 functions[2] = {plus, times};"
    (got,) = run(launcher, LaneKernel("indirect", (), ("b32",), body), before=[functions, variables])
    assert_array_equal(got, np.where(IDS % 2 == 0, IDS + 5, IDS * 5))


# ---------------------------------------------------------------------------------------------- barriers

BARRIERS = [
    "bar.sync 0;",
    "bar.sync 3;",
    f"bar.sync 1, {LANES};",
    "barrier.sync 2;",
    f"barrier.sync.aligned 4, {LANES};",
    "bar.cta.sync 0;",
    "barrier.cta.sync 15;",
    "mov.u32 %r9, 5; bar.sync %r9;",
]


@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_barrier_orders_shared_memory(launcher, barrier):
    body = f"""
        mov.u32 %r0, slots;
        mad.lo.u32 %r1, %lane, 4, %r0;
        st.shared.u32 [%r1], %lane;
        {barrier}
        sub.u32 %r2, {LANES - 1}, %lane;
        mad.lo.u32 %r1, %r2, 4, %r0;
        ld.shared.u32 %d0, [%r1];
    """
    kernel = LaneKernel("barrier_order", (), ("b32",), body, f".shared .align 4 .b8 slots[{4 * LANES}];")
    (got,) = run(launcher, kernel)
    assert_array_equal(got, IDS[::-1])


def test_one_warp_produces_and_another_consumes(launcher):
    body = """
        mov.u32 %r0, slots;
        and.b32 %r1, %lane, 31;
        mad.lo.u32 %r2, %r1, 4, %r0;
        mov.u32 %d0, 0;
        setp.ge.u32 %p0, %lane, 32;
        @%p0 bra consumer;
        mul.lo.u32 %r3, %lane, 7;
        st.shared.u32 [%r2], %r3;
        bar.arrive 1, 64;
        bra done;
    consumer:
        bar.sync 1, 64;
        xor.b32 %r1, %r1, 1;
        mad.lo.u32 %r2, %r1, 4, %r0;
        ld.shared.u32 %d0, [%r2];
    done:
    """
    kernel = LaneKernel("producer", (), ("b32",), body, ".shared .align 4 .b8 slots[128];")
    (got,) = run(launcher, kernel)
    assert_array_equal(got, np.where(IDS < 32, 0, (IDS % 32 ^ 1) * 7))


@pytest.mark.parametrize("family", ["bar", "barrier"])
@pytest.mark.parametrize("case", ["none", "all", "some", "one"])
def test_reductions_across_a_barrier(launcher, family, case):
    flags = {"none": IDS < 0, "all": IDS >= 0, "some": IDS % 5 == 2, "one": IDS == 50}[case]
    body = f"""
        {family}.red.popc.u32 %d0, 0, %a0;
        {family}.red.and.pred %d1, 0, %a0;
        {family}.red.or.pred %d2, 0, %a0;
        {family}.red.popc.u32 %d3, 1, {LANES}, !%a0;
    """
    kernel = LaneKernel("barrier_red", ("pred",), ("b32", "pred", "pred", "b32"), body)
    count, every, some, others = run(launcher, kernel, [flags.astype(np.uint32)])
    assert_array_equal(count, flags.sum())
    assert_array_equal(every, flags.all())
    assert_array_equal(some, flags.any())
    assert_array_equal(others, LANES - flags.sum())


def test_a_barrier_in_a_loop(launcher):
    # A parallel prefix sum: each round reads what the round before wrote.
    body = """
        mov.u32 %r0, slots;
        mad.lo.u32 %r1, %lane, 4, %r0;
        st.shared.u32 [%r1], %a0;
        mov.u32 %d0, %a0;
        mov.u32 %r2, 1;
    again:
        bar.sync 0;
        mov.u32 %r3, 0;
        setp.lt.u32 %p0, %lane, %r2;
        @%p0 bra short;
        sub.u32 %r4, %lane, %r2;
        mad.lo.u32 %r5, %r4, 4, %r0;
        ld.shared.u32 %r3, [%r5];
    short:
        bar.sync 0;
        add.u32 %d0, %d0, %r3;
        st.shared.u32 [%r1], %d0;
        shl.b32 %r2, %r2, 1;
        setp.lt.u32 %p1, %r2, 256;
        @%p1 bra again;
    """
    kernel = LaneKernel("prefix", ("b32",), ("b32",), body, ".shared .align 4 .b8 slots[1024];")
    data = np.random.default_rng(10).integers(0, 1000, 256, dtype=np.uint32)
    (got,) = run(launcher, kernel, [data], lanes=256)
    assert_array_equal(got, np.cumsum(data))


# -------------------------------------------------------------------------------------- special registers


def test_where_a_thread_is(launcher):
    names = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    stores = "\n".join(f"mov.u32 %r0, {name}; st.global.u32 [%rd0+{4 * i}], %r0;" for i, name in enumerate(names))
    block, grid = (4, 3, 2), (3, 2, 2)
    text = module(
        [
            f"""
    .visible .entry places(.param .u64 out)
    {{
        .reg .b32 %r<8>; .reg .b64 %rd0;
        mov.u32 %r1, %ctaid.z;
        mov.u32 %r4, %ctaid.y;
        mad.lo.u32 %r1, %r1, {grid[1]}, %r4;
        mov.u32 %r4, %ctaid.x;
        mad.lo.u32 %r1, %r1, {grid[0]}, %r4;
        mov.u32 %r2, %tid.z;
        mov.u32 %r4, %tid.y;
        mad.lo.u32 %r2, %r2, {block[1]}, %r4;
        mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, {block[0]}, %r4;
        mad.lo.u32 %r3, %r1, {np.prod(block)}, %r2;
        ld.param.u64 %rd0, [out];
        mad.wide.u32 %rd0, %r3, 48, %rd0;
        {stores}
        ret;
    }}
    """
        ]
    )
    threads = int(np.prod(block) * np.prod(grid))
    (out,) = launcher.launch(text, "places", [np.zeros((threads, 4, 3), np.uint32)], grid=grid, block=block)
    expected = [
        [(x, y, z), block, (bx, by, bz), grid]
        for bz in range(grid[2])
        for by in range(grid[1])
        for bx in range(grid[0])
        for z in range(block[2])
        for y in range(block[1])
        for x in range(block[0])
    ]
    assert_array_equal(out, expected)


def test_lanes_warps_and_their_masks(launcher):
    masks = [f"lanemask_{order}" for order in ("eq", "lt", "le", "gt", "ge")]
    body = "mov.u32 %d0, %laneid; mov.u32 %d5, WARP_SZ;\n" + "\n".join(
        f"mov.u32 %d{6 + i}, %{name};" for i, name in enumerate(masks)
    )
    body += "mov.u32 %d1, %warpid; mov.u32 %d2, %nwarpid; mov.u32 %d3, %smid; mov.u32 %d4, %nsmid;"
    kernel = LaneKernel("masks", (), ("b32",) * 11, body)
    laneid, warpid, nwarpid, smid, nsmid, warp_size, eq, lt, le, gt, ge = run(launcher, kernel)
    bit = np.uint32(1) << (IDS % 32)
    assert_array_equal(laneid, IDS % 32)
    assert_array_equal(warp_size, 32)
    assert_array_equal([eq, lt, le], [bit, bit - 1, bit | (bit - 1)])
    assert_array_equal([gt, ge], [~(bit | (bit - 1)), ~(bit - 1)])
    # Where a warp sits is the hardware's choice, and may even change; only the bounds are promised.
    assert (warpid < nwarpid).all()
    assert (smid < nsmid).all()


def test_a_block_outside_a_cluster_is_one_of_its_own(launcher):
    launcher.require(90)
    names = ["clusterid.x", "nclusterid.x", "cluster_ctaid.x", "cluster_nctaid.x", "cluster_ctarank"]
    names += ["cluster_nctarank", "nclusterid.y", "cluster_nctaid.z"]
    stores = "\n".join(f"mov.u32 %r0, %{name}; st.global.u32 [%rd0+{4 * i}], %r0;" for i, name in enumerate(names))
    text = module(
        [
            f"""
    .visible .entry alone(.param .u64 out)
    {{
        .reg .b32 %r<2>; .reg .b64 %rd0;
        mov.u32 %r1, %ctaid.x;
        ld.param.u64 %rd0, [out];
        mad.wide.u32 %rd0, %r1, 32, %rd0;
        {stores}
        ret;
    }}
    """
        ],
        "sm_90",
    )
    (out,) = launcher.launch(text, "alone", [np.full((3, 8), 7, np.uint32)], grid=(3, 1, 1), block=(1, 1, 1))
    assert_array_equal(out, [[block, 3, 0, 1, 0, 1, 1, 1] for block in range(3)])


def test_clocks_run_forward(launcher):
    body = """
        mov.u64 %rd0, %globaltimer;
        mov.u64 %rd1, %clock64;
        mov.u32 %r0, %clock;
        bar.sync 0;
        mov.u64 %rd2, %clock64;
        mov.u64 %rd3, %globaltimer;
        setp.le.u64 %d0, %rd0, %rd3;
        setp.le.u64 %d1, %rd1, %rd2;
        setp.ne.u64 %d2, %rd0, 0;
    """
    results = run(launcher, LaneKernel("clocks", (), ("pred",) * 3, body))
    assert_array_equal(results, np.ones((3, LANES)))


def test_grids_and_shared_sizes(launcher):
    body = """
        mov.u32 %d0, %total_smem_size;
        mov.u32 %d1, %dynamic_smem_size;
        mov.u64 %d2, %gridid;
        st.shared.u32 [cell], 1;
    """
    kernel = LaneKernel("sizes", (), ("b32", "b32", "b64"), body, ".shared .align 4 .u32 cell;")
    total, dynamic, _ = run(launcher, kernel, lanes=1)
    assert total[0] >= 4
    assert dynamic[0] == 0


def test_directives_and_instructions_without_effect(launcher):
    text = module(
        [
            """
    .visible .entry quiet(.param .u64 out)
    .maxntid 64, 1, 1
    .minnctapersm 1
    {
        .reg .b32 %r0; .reg .b64 %rd0;
        .pragma "nounroll";
        nanosleep.u32 20;
        mov.u32 %r0, 3;
        pmevent 1;
        ld.param.u64 %rd0, [out];
        st.global.u32 [%rd0], %r0;
        ret;
    }
    """
        ]
    )
    (out,) = launcher.launch(text, "quiet", [np.zeros(1, np.uint32)], block=(1, 1, 1))
    assert out[0] == 3
