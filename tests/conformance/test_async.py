"""Asynchronous copies into shared memory, and mbarrier objects.

Source: PTX ISA 9.7.9.25 (cp.async), 9.7.13.15 (mbarrier).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module, random_bits

LANES = 64


@pytest.fixture
def random():
    return np.random.default_rng(6)


# --------------------------------------------------------------------------------- asynchronous copies

WAITS = {
    "wait_all": "cp.async.wait_all;",
    "group": "cp.async.commit_group; cp.async.wait_group 0;",
    "older group": "cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1;",
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    ("form", "size"),
    [
        ("cp.async.ca.shared.global", 4),
        ("cp.async.ca.shared.global", 8),
        ("cp.async.ca.shared.global", 16),
        ("cp.async.cg.shared.global", 16),
        ("cp.async.cg.shared.global.L2::128B", 16),
    ],
)
def test_cp_async(launcher, random, form, size, wait):
    launcher.require(80)
    words = size // 4
    data = random_bits(random, "b32", LANES * words)
    loads = "\n".join(f"ld.shared.b32 %d{i}, [%rd1+{4 * i}];" for i in range(words))
    kernel = LaneKernel(
        "copying",
        (),
        ("b32",) * words,
        f"""
        ld.param.u64 %rd0, [source];
        mad.wide.u32 %rd0, %lane, {size}, %rd0;
        mov.u64 %rd1, slots;
        mad.wide.u32 %rd1, %lane, {size}, %rd1;
        {form} [%rd1], [%rd0], {size};
        {WAITS[wait]}
        bar.sync 0;
        {loads}
        """,
        f".shared .align 16 .b8 slots[{size * LANES}];",
    )
    entry = kernel.text().replace("copying(", "copying(.param .u64 source, ")
    outputs = [np.zeros(LANES, np.uint32) for _ in range(words)]
    results = launcher.launch(module([entry], "sm_80"), "copying", [data, *outputs], block=(LANES, 1, 1))
    assert_array_equal(results[1:], data.reshape(LANES, words).T)


def test_cp_async_fills_what_the_source_does_not_cover_with_zeros(launcher, random):
    launcher.require(80)
    data = random_bits(random, "b8", 16 * LANES)
    text = module(
        [
            """
    .visible .entry partial(.param .u64 source, .param .u64 out)
    {
        .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p;
        .shared .align 16 .b8 slots[1024];
        mov.u32 %r0, %tid.x;
        mul.wide.u32 %rd3, %r0, 16;
        ld.param.u64 %rd0, [source];
        add.u64 %rd0, %rd0, %rd3;
        mov.u64 %rd1, slots;
        add.u64 %rd1, %rd1, %rd3;
        rem.u32 %r1, %r0, 17;
        cp.async.ca.shared.global [%rd1], [%rd0], 16, %r1;
        cp.async.wait_all;
        ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%rd1];
        ld.param.u64 %rd2, [out];
        add.u64 %rd2, %rd2, %rd3;
        st.global.v4.b32 [%rd2], {%r2, %r3, %r4, %r5};
        ret;
    }
    """
        ],
        "sm_80",
    )
    _, out = launcher.launch(text, "partial", [data, np.zeros(16 * LANES, np.uint8)], block=(LANES, 1, 1))
    rows, columns = np.indices((LANES, 16))
    assert_array_equal(out.reshape(LANES, 16), np.where(columns < rows % 17, data.reshape(LANES, 16), 0))


# ------------------------------------------------------------------------------------------- mbarrier

COMMON = """
        mov.u64 %rd0, barrier;
        setp.eq.u32 %p0, %lane, 0;
        @%p0 mbarrier.init.shared.b64 [%rd0], {expected};
        bar.sync 0;
"""


def meeting(name: str, wait: str, expected: int = LANES) -> LaneKernel:
    """Every lane stores, arrives, waits and reads the lane opposite."""
    body = f"""
        {COMMON.format(expected=expected)}
        mov.u64 %rd1, slots;
        mad.wide.u32 %rd2, %lane, 4, %rd1;
        st.shared.b32 [%rd2], %a0;
        {wait}
        sub.u32 %r0, {LANES - 1}, %lane;
        mad.wide.u32 %rd2, %r0, 4, %rd1;
        ld.shared.b32 %d0, [%rd2];
    """
    return LaneKernel(
        name, ("b32",), ("b32",), body, f".shared .align 8 .b64 barrier; .shared .align 4 .b8 slots[{4 * LANES}];"
    )


MEETINGS = {
    "test_wait": (
        80,
        """
        mbarrier.arrive.shared.b64 %rd3, [%rd0];
    again:
        mbarrier.test_wait.shared.b64 %p1, [%rd0], %rd3;
        @!%p1 bra again;
        """,
    ),
    "generic address": (
        80,
        """
        cvta.shared.u64 %rd0, %rd0;
        mbarrier.arrive.b64 %rd3, [%rd0];
    again:
        mbarrier.test_wait.b64 %p1, [%rd0], %rd3;
        @!%p1 bra again;
        """,
    ),
    "try_wait.parity": (
        90,
        """
        mbarrier.arrive.release.cta.shared.b64 _, [%rd0];
    again:
        mbarrier.try_wait.parity.shared.b64 %p1, [%rd0], 0;
        @!%p1 bra again;
        """,
    ),
    "try_wait with a time limit": (
        90,
        """
        mbarrier.arrive.shared.b64 %rd3, [%rd0], 1;
    again:
        mbarrier.try_wait.acquire.cta.shared.b64 %p1, [%rd0], %rd3, 1000;
        @!%p1 bra again;
        """,
    ),
    "no completion": (
        80,
        """
        @!%p0 mbarrier.arrive.noComplete.shared.b64 %rd3, [%rd0], 1;
        bar.sync 0;
        @%p0 mbarrier.arrive.shared.b64 %rd3, [%rd0];
    again:
        mbarrier.test_wait.shared.b64 %p1, [%rd0], %rd3;
        @!%p1 bra again;
        """,
    ),
}


@pytest.mark.parametrize("how", MEETINGS)
def test_lanes_meet_at_an_mbarrier(launcher, random, how):
    target, wait = MEETINGS[how]
    launcher.require(target)
    data = random_bits(random, "b32", LANES)
    kernel = meeting("meeting", wait)
    (got,) = launcher.run_lanes(kernel, [data], lanes=LANES, text=module([kernel], f"sm_{target}"))
    assert_array_equal(got, data[::-1])


def test_an_mbarrier_counts_phases_and_what_is_pending(launcher):
    launcher.require(80)
    body = """
        mov.u64 %rd0, barrier;
        mbarrier.init.shared.b64 [%rd0], 3;
        mbarrier.arrive.shared.b64 %rd1, [%rd0];
        mbarrier.pending_count.b64 %d0, %rd1;
        mbarrier.test_wait.shared.b64 %d1, [%rd0], %rd1;
        mbarrier.arrive.noComplete.shared.b64 %rd2, [%rd0], 1;
        mbarrier.pending_count.b64 %d2, %rd2;
        mbarrier.arrive.shared.b64 %rd3, [%rd0];
        mbarrier.test_wait.shared.b64 %d3, [%rd0], %rd1;
        mbarrier.arrive_drop.shared.b64 %rd4, [%rd0];
        mbarrier.arrive.shared.b64 %rd5, [%rd0];
        mbarrier.arrive.shared.b64 %rd5, [%rd0];
        mbarrier.test_wait.shared.b64 %d4, [%rd0], %rd4;
        mbarrier.arrive.shared.b64 %rd6, [%rd0];
        mbarrier.pending_count.b64 %d5, %rd6;
        mbarrier.inval.shared.b64 [%rd0];
    """
    kernel = LaneKernel(
        "phases", (), ("b32", "pred", "b32", "pred", "pred", "b32"), body, ".shared .align 8 .b64 barrier;"
    )
    first, open_, second, closed, dropped, next_ = (
        int(result[0]) for result in launcher.run_lanes(kernel, [], lanes=1, text=module([kernel], "sm_80"))
    )
    assert (first, open_, second, closed, dropped) == (3, 0, 2, 1, 1)
    assert next_ == 2, "one of three participants has dropped out"


def test_cp_async_arrives_at_an_mbarrier_when_its_copies_are_done(launcher, random):
    launcher.require(80)
    data = random_bits(random, "b32", LANES)
    kernel = LaneKernel(
        "copying",
        (),
        ("b32",),
        f"""
        {COMMON.format(expected=LANES)}
        ld.param.u64 %rd1, [source];
        mad.wide.u32 %rd1, %lane, 4, %rd1;
        mov.u64 %rd2, slots;
        mad.wide.u32 %rd3, %lane, 4, %rd2;
        cp.async.ca.shared.global [%rd3], [%rd1], 4;
        cp.async.mbarrier.arrive.noinc.shared.b64 [%rd0];
    again:
        mbarrier.test_wait.parity.shared.b64 %p1, [%rd0], 0;
        @!%p1 bra again;
        sub.u32 %r0, {LANES - 1}, %lane;
        mad.wide.u32 %rd3, %r0, 4, %rd2;
        ld.shared.b32 %d0, [%rd3];
        """,
        f".shared .align 8 .b64 barrier; .shared .align 16 .b8 slots[{4 * LANES}];",
    )
    entry = kernel.text().replace("copying(", "copying(.param .u64 source, ")
    args = [data, np.zeros(LANES, np.uint32)]
    _, got = launcher.launch(module([entry], "sm_80"), "copying", args, block=(LANES, 1, 1))
    assert_array_equal(got, data[::-1])
