"""Branches, loops, guards, early exits and jump tables.

Source: PTX ISA 9.7.12 (control flow).
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
