"""Special registers, and directives without effect on results.

Source: PTX ISA 10 (Special Registers), 11.4 (Performance-Tuning Directives).
"""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module

LANES = 64
IDS = np.arange(LANES, dtype=np.uint32)


def run(launcher, kernel, sources=(), lanes=LANES, before=(), target="sm_70"):
    return launcher.run_lanes(kernel, list(sources), lanes=lanes, text=module([*before, kernel], target))


def test_special_registers_give_the_position_of_a_thread(launcher):
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
