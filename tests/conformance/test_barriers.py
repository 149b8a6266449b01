"""Barriers of a block: every form, partial counts, reductions, loops.

Source: PTX ISA 9.7.13.1 (bar, barrier).
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from strategies.lanes import LaneKernel, module

LANES = 64
IDS = np.arange(LANES, dtype=np.uint32)


def run(launcher, kernel, sources=(), lanes=LANES, before=(), target="sm_70"):
    return launcher.run_lanes(kernel, list(sources), lanes=lanes, text=module([*before, kernel], target))


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
