"""Branches at which threads of a warp could part, and wait for each other for ever: found, and no others."""

from __future__ import annotations

import pytest

from tensorwasm.ptx import parse
from tensorwasm.ptx.model import Instruction, Label, TargetList
from tensorwasm.ptx.verifier.convergence import hazards
from tensorwasm.watch import UNLIMITED

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) {
.reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %d<9>;
ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x;
setp.lt.u32 %p1, %r2, %r1;
setp.lt.u32 %p2, %r3, %r1;
setp.lt.u32 %p3, %r2, 64;
setp.lt.u32 %p4, %r2, 63;
"""


def found(body, *, rows=True, leaves=(), entry=True):
    """Return the predicates of the hazards; threads may go on at branches under ``leaves``, whatever the others do."""
    kernel = parse(f"{HEAD}{body}\nret;\n}}").entry("k")
    statements = [each for each in kernel.body if isinstance(each, (Instruction, Label, TargetList))]
    guarded = [(at, each.guard) for at, each in enumerate(statements) if isinstance(each, Instruction) and each.guard]
    leaving = {at for at, guard in guarded if guard.predicate.name in leaves}
    at = hazards(
        statements,
        {},
        set(),
        set(),
        {"p", "n"},
        UNLIMITED,
        entry=entry,
        rows=rows,
        leaving=leaving,
    )
    return [statements[each].guard.predicate.name for each in at]


SHUFFLE = "shfl.sync.idx.b32 %r5, %r5, 0, 31, 0xffffffff;"
OTHER = "shfl.sync.bfly.b32 %r6, %r6, 1, 31, 0xffffffff;"


@pytest.mark.parametrize(
    "body",
    [
        f"@%p1 bra E; add.u32 %r4, %r4, 1; E: {SHUFFLE} {OTHER}",
        f"@%p1 bra E; {SHUFFLE} E:",
        f"@%p2 bra E; {SHUFFLE} E: {OTHER}",
        f"@%p3 bra E; {SHUFFLE} E: {OTHER}",
        f"@%p2 bra E; bar.sync 0; E: {SHUFFLE} bar.sync 0;",
        f"mov.u32 %r7, 0; L: {SHUFFLE} add.u32 %r7, %r7, 1; setp.lt.u32 %p5, %r7, %r1; @%p5 bra L; {OTHER}",
        f"mov.u32 %r7, %r2; L: add.u32 %r7, %r7, 1; setp.lt.u32 %p5, %r7, %r1; @%p5 bra L; {SHUFFLE} {OTHER}",
        f"@%p1 bra A; add.u32 %r4, %r4, 1; A: @%p2 bra B; {SHUFFLE} B: {OTHER}",
        f"vote.sync.any.pred %p6, %p1, 0xffffffff; @%p6 bra E; {SHUFFLE} E: {OTHER}",
        f"@%p1 ret; {SHUFFLE} {OTHER}",
    ],
)
def test_a_warp_that_meets_again_in_time_is_no_hazard(body):
    assert found(body) == []


@pytest.mark.parametrize(
    ("body", "predicate"),
    [
        (f"@%p1 bra E; {SHUFFLE} E: {OTHER}", "%p1"),
        (f"@%p4 bra E; {SHUFFLE} E: {OTHER}", "%p4"),
        ("@%p1 bra E; bar.sync 0; E: bar.sync 0;", "%p1"),
        (f"@%p1 {SHUFFLE} {OTHER}", "%p1"),
        (f"mov.u32 %r7, %r2; L: {SHUFFLE} add.u32 %r7, %r7, 1; setp.lt.u32 %p5, %r7, %r1; @%p5 bra L; {OTHER}", "%p5"),
        (f"ld.global.u32 %r8, [%d1]; setp.eq.u32 %p5, %r8, 0; @%p5 bra E; {SHUFFLE} E: {OTHER}", "%p5"),
        (f"mov.u32 %r8, 0; @%p1 mov.u32 %r8, 1; setp.eq.u32 %p5, %r8, 0; @%p5 bra E; {SHUFFLE} E: {OTHER}", "%p5"),
        (
            f"mov.u32 %r8, 0; @%p1 bra A; mov.u32 %r8, 1; A: setp.eq.u32 %p5, %r8, 0; @%p5 bra E; {SHUFFLE} E: {OTHER}",
            "%p5",
        ),
    ],
)
def test_a_warp_that_may_wait_at_two_places_is_a_hazard(body, predicate):
    assert found(body) == [predicate]


def test_numbers_of_threads_are_the_same_in_whole_rows_only():
    body = f"shr.u32 %r8, %r2, 5; setp.eq.u32 %p5, %r8, 0; @%p5 bra E; {SHUFFLE} E: {OTHER}"
    assert found(body) == []
    assert found(body, rows=False) == ["%p5"]


@pytest.mark.parametrize(
    ("body", "hazards_found"),
    [
        # The outer loop has a barrier, and nothing waits behind it: what the inner one decides still ends at its end.
        (
            """O: mov.u32 %r7, 0;
            A: I: add.u32 %r7, %r7, 1; @%p2 bra I;
            setp.lt.u32 %p5, %r7, %r1; @%p5 bra A;
            bar.sync 0; add.u32 %r4, %r4, 1; setp.lt.u32 %p6, %r4, %r1; @%p6 bra O;""",
            [],
        ),
        # Threads that leave have taken fewer turns than the others.
        (
            f"""mov.u32 %r7, 0; L: add.u32 %r7, %r7, 1; setp.lt.u32 %p5, %r7, %r1; @%p5 bra L;
            setp.lt.u32 %p7, %r7, 9; @%p7 bra E; {SHUFFLE} E: {OTHER}""",
            ["%p7"],
        ),
        (
            f"""mov.u32 %r7, 0; L: add.u32 %r7, %r7, 1; setp.lt.u32 %p5, %r7, %r1; @%p5 bra L;
            mov.u32 %r7, %r1; setp.lt.u32 %p7, %r1, 9; @%p7 bra E; {SHUFFLE} E: {OTHER}""",
            [],
        ),
        (
            f"mov.u32 %r7, 0; L: {SHUFFLE} add.u32 %r7, %r7, 1; setp.lt.u32 %p5, %r7, %r1; @%p5 bra L; {OTHER}",
            ["%p5"],
        ),
    ],
)
def test_a_loop_that_some_threads_may_leave_early(body, hazards_found):
    assert found(body, leaves=("%p5", "%p6")) == hazards_found


def test_threads_that_return_early_wait_elsewhere_unless_a_kernel_ends():
    early = f"@%p1 ret; {SHUFFLE} ret;"
    assert found(early) == []
    assert found(early, entry=False) == ["%p1"]
    assert found(f"{SHUFFLE} @%p1 ret; add.u32 %r4, %r4, 1;", entry=False) == []
    assert found(f"@%p3 ret; {SHUFFLE}", entry=False) == []
    assert found(f"L: {SHUFFLE} @%p1 ret; bra L;", entry=False) == ["%p1"]
    assert found(f"@%p1 exit; {SHUFFLE}", entry=False) == []
    assert found(f"@%p1 bra E; {SHUFFLE} E: ret;", entry=False) == ["%p1"]
    assert found(f"@%p1 bra E; {SHUFFLE} ret; E: {OTHER} ret;", entry=False) == ["%p1"]
    assert found(f"@%p2 bra E; @%p1 ret; E: {SHUFFLE}", entry=False) == ["%p1"]
    assert found("@%p1 bra E; add.u32 %r4, %r4, 1; ret; E: ret;", entry=False) == []
