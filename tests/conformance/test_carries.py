"""Chains of carries across instructions: what one instruction leaves in CC.CF, read by another kind of instruction.

A subtraction is the addition of the complement, and CC.CF is the carry of that addition: 1 where nothing was borrowed.
The manual calls it a borrow (PTX ISA 9.7.2.3 and .4), which chains of subtractions alone cannot tell apart. What is
expected here is what an H100 answers.
"""

from __future__ import annotations

import numpy as np
import pytest

from strategies.lanes import LaneKernel

CHAINS = [
    ("sub_addc", "sub.cc.u32 %r0, 1, 2; addc.u32 %d0, 0, 0;", 0),
    ("sub_addc_without_borrow", "sub.cc.u32 %r0, 2, 1; addc.u32 %d0, 0, 0;", 1),
    ("sub_of_equals_addc", "sub.cc.s32 %r0, 2, 2; addc.s32 %d0, 0, 0;", 1),
    ("sub_subc", "sub.cc.u32 %r0, 1, 2; subc.u32 %d0, 5, 0;", 4),
    ("sub_subc_without_borrow", "sub.cc.u32 %r0, 2, 1; subc.u32 %d0, 5, 0;", 5),
    ("add_subc", "add.cc.u32 %r0, 0, 0; subc.u32 %d0, 0, 0;", 0xFFFFFFFF),
    ("add_subc_after_carry", "add.cc.u32 %r0, -1, 1; subc.u32 %d0, 0, 0;", 0),
    ("mad_subc", "mad.lo.cc.u32 %r0, 3, 5, 7; subc.u32 %d0, 9, 2;", 6),
    ("mad_subc_after_carry", "mad.lo.cc.u32 %r0, 3, 5, -7; subc.u32 %d0, 9, 2;", 7),
    ("sub_madc", "sub.cc.u32 %r0, 1, 2; madc.lo.u32 %d0, 3, 5, 7;", 22),
    ("sub_madc_without_borrow", "sub.cc.u32 %r0, 2, 1; madc.hi.u32 %d0, 3, 5, 7;", 8),
    ("subc_addc", "add.cc.u32 %r0, 0, 0; subc.cc.u32 %r0, 1, 1; addc.u32 %d0, 0, 0;", 0),
    ("addc_subc", "sub.cc.u32 %r0, 1, 1; addc.cc.u32 %r0, -1, 0; subc.u32 %d0, 8, 0;", 8),
    ("wide_sub_addc", "sub.cc.u64 %rd0, 1, 2; addc.u32 %d0, 0, 0;", 0),
    ("wide_sub_subc", "sub.cc.s64 %rd0, 1, 2; subc.u64 %rd1, 5, 0; cvt.u32.u64 %d0, %rd1;", 4),
    ("a_guard_keeps_it", "sub.cc.u32 %r0, 2, 1; @!%p0 sub.cc.u32 %r0, 1, 2; addc.u32 %d0, 0, 0;", 1),
]


@pytest.mark.parametrize(("name", "body", "expected"), CHAINS, ids=[name for name, _, _ in CHAINS])
def test_a_carry_reaches_the_next_instruction(launcher, name, body, expected):
    kernel = LaneKernel(name, (), ("u32",), f"setp.eq.u32 %p0, 0, 0; {body}")
    (result,) = launcher.run_lanes(kernel, [], lanes=32)
    assert result.tolist() == [expected] * 32


LIMBS = LaneKernel(
    "limbs",
    ("u64",) * 4,
    ("u64",) * 2,
    """
    sub.cc.u64 %rd0, %a0, %a2; subc.cc.u64 %rd1, %a1, %a3;
    addc.u32 %r0, 0, 0; setp.eq.u32 %p0, %r0, 0;
    @%p0 add.cc.u64 %rd0, %rd0, %a2; @%p0 addc.u64 %rd1, %rd1, %a3;
    mov.b64 %d0, %rd0; mov.b64 %d1, %rd1;
    """,
)


def test_a_step_of_a_128_bit_division_takes_back_what_was_too_much(launcher):
    random = np.random.default_rng(11)
    pool = np.array([0, 1, 2, 2**63, 2**64 - 1, 2**32], np.uint64)
    limbs = [
        np.where(random.random(64) < 0.6, random.choice(pool, 64), random.integers(0, 2**64, 64, dtype=np.uint64))
        for _ in range(4)
    ]
    low, high = launcher.run_lanes(LIMBS, limbs, lanes=64)
    for lane in range(64):
        a0, a1, b0, b1 = (int(limb[lane]) for limb in limbs)
        a, b = a1 << 64 | a0, b1 << 64 | b0
        assert int(high[lane]) << 64 | int(low[lane]) == (a - b if a >= b else a)
