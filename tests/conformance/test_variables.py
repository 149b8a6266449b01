"""Variables of a module and of a kernel in every state space, parameters, and the addresses of all of them.

Source: PTX ISA 5.1 (state spaces), 5.4 (variables), 9.7.9.15 to 9.7.9.20 (isspacep, cvta).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.launcher import Launcher
from strategies.lanes import LaneKernel, module, random_bits

LANES = 64
SCRATCH = f".global .align 16 .b8 scratch[{16 * LANES}];"


@pytest.fixture
def random():
    return np.random.default_rng(5)


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
