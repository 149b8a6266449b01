"""Instructions of some threads of a warp, and calls through pointers, give guarded what they give as they are."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from oracles.guarded_runs import Launch, guarded_runs
from oracles.guarding import guarded_text
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guarded import TRAPPED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a window maps one file again and again")
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
KERNEL = """.visible .entry k(.param .u64 data, .param .u64 out, .param .u32 n) {
.reg .b64 %data, %out, %d<20>; .reg .b32 %n, %x, %lane, %mask, %t, %r<30>; .reg .pred %odd, %same, %p<9>;
ld.param.u64 %data, [data]; ld.param.u64 %out, [out]; ld.param.u32 %n, [n];
mov.u32 %t, %tid.x; mov.u32 %lane, %laneid;
mul.wide.u32 %d0, %t, 4; add.u64 %data, %data, %d0; mul.wide.u32 %d0, %t, 16; add.u64 %out, %out, %d0;
ld.global.u32 %x, [%data]; and.b32 %r0, %x, 1; setp.ne.u32 %odd, %r0, 0; setp.eq.u32 %same, %r0, %r0;
"""
STORE = "selp.b32 %r20, 1, 2, %p1; st.global.v4.u32 [%out], {%r1, %r2, %r20, %mask};"
THREADS = 96
MASKS = {
    "number": "mov.u32 %mask, -1; and.b32 %mask, %mask, %n; or.b32 %mask, %mask, -1;",
    "halves": "and.b32 %r9, %lane, 16; mov.u32 %mask, 0xffff; shl.b32 %mask, %mask, %r9;",
    "fours": "and.b32 %r9, %lane, 28; mov.u32 %mask, 15; shl.b32 %mask, %mask, %r9;",
    "parity": "and.b32 %r9, %lane, 1; mov.u32 %mask, 0x55555555; shl.b32 %mask, %mask, %r9;",
    "own": "mov.u32 %mask, 1; shl.b32 %mask, %mask, %lane;",
    "active": "activemask.b32 %mask;",
    "left": "setp.gt.u32 %p8, %lane, 20; @%p8 exit; mov.u32 %mask, 0x1fffff;",
    "odd": "@!%odd bra END; activemask.b32 %mask;",
}
"""How threads come to a mask that names them, by name."""
FORMS = {
    "ballot": "vote.sync.ballot.b32 %r1, %odd, %mask; vote.ballot.sync.b32 %r2, !%odd, %mask;",
    "any": "vote.sync.any.pred %p1, %odd, %mask;",
    "any-not": "vote.sync.any.pred %p1, !%odd, %mask;",
    "all": "vote.sync.all.pred %p1, %odd, %mask;",
    "all-not": "vote.sync.all.pred %p1, !%odd, %mask;",
    "all-same": "vote.sync.all.pred %p1, %same, %mask;",
    "uni": "vote.sync.uni.pred %p1, %odd, %mask;",
    "uni-not": "vote.sync.uni.pred %p1, !%odd, %mask;",
    "uni-same": "vote.sync.uni.pred %p1, !%same, %mask;",
    "match": "match.any.sync.b32 %r1, %x, %mask; match.any.sync.b64 %r2, %d0, %mask;",
    "match-all": "match.all.sync.b32 %r1|%p1, %x, %mask; match.all.sync.b32 %r2, %n, %mask;",
    "match-all-same": "match.all.sync.b64 %r1|%p1, %d1, %mask;",
    "bitwise": "redux.sync.and.b32 %r1, %x, %mask; redux.sync.xor.b32 %r2, %x, %mask;",
    "or-add": "redux.sync.or.b32 %r1, %x, %mask; redux.sync.add.s32 %r2, %x, %mask;",
    "unsigned": "redux.sync.min.u32 %r1, %x, %mask; redux.sync.max.u32 %r2, %x, %mask;",
    "signed": "redux.sync.min.s32 %r1, %x, %mask; redux.sync.max.s32 %r2, %x, %mask;",
    "into-its-mask": "vote.sync.ballot.b32 %mask, %odd, %mask; mov.u32 %r1, %mask;",
    "into-its-value": "match.any.sync.b32 %x, %x, %mask; mov.u32 %r1, %x; redux.sync.add.u32 %x, %lane, %mask;",
    "into-its-predicate": "vote.sync.any.pred %odd, !%odd, %mask; selp.b32 %r1, 1, 2, %odd;",
    "shuffle": "shfl.sync.idx.b32 %r1|%p1, %x, %lane, 31, %mask;",
    "shuffle-first": "brev.b32 %r8, %mask; bfind.shiftamt.u32 %r8, %r8; shfl.sync.idx.b32 %r1, %x, %r8, 31, %mask;",
    "barrier": "bar.warp.sync %mask; mov.u32 %r1, %x;",
}


@pytest.fixture(scope="module")
def runs():
    with guarded_runs() as runs:
        yield runs


def both(runs, text, values, numbers=(1,)):
    """Run a kernel as it is and guarded; return what both left, and the status word of the guarded one."""
    out = np.zeros(4 * len(values), np.uint32)
    launch = Launch("k", (1, 1, 1), (len(values), 1, 1), [(values, False), (out, True), *map(np.uint32, numbers)])
    (plain,), _ = runs.run(launch, text)
    (kept,), status = runs.run(launch, guarded_text(text, "k"))
    return plain.view(np.uint32).tolist(), kept.view(np.uint32).tolist(), status


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_gives_the_same_to_the_bit(runs, form, mask):
    text = f"{HEAD}{KERNEL}mov.u32 %r1, 0; mov.b64 %d1, 7;\n{MASKS[mask]}\n{FORMS[form]}\n{STORE}\nEND: ret;\n}}"
    random = np.random.default_rng(len(form))
    for most in (3, 1 << 32):
        plain, kept, status = both(runs, text, random.integers(0, most, THREADS, np.uint32))
        assert kept == plain
        assert any(plain)
        assert status == 0


def test_a_result_that_nothing_uses_holds_nobody_up(runs):
    loop = """mov.u32 %mask, -1; L: add.u32 %r1, %r1, 1; setp.gt.u32 %p1, %r1, %lane;
    vote.sync.ballot.b32 %mask, !%p1, %mask; @!%p1 bra L; bar.sync 0;"""
    store = "st.global.u32 [%out], %r1;"
    plain, kept, status = both(runs, f"{HEAD}{KERNEL}{loop}{store} ret; }}", np.ones(THREADS, np.uint32))
    assert (kept, status) == (plain, 0)


@pytest.mark.parametrize(
    "body",
    [
        "@%odd bra E; vote.sync.ballot.b32 %r1, %odd, 0x55555555; E: bar.sync 0;",
        "@%odd bra E; bar.warp.sync 0x55555555; E: bar.warp.sync -1;",
        "@%odd shfl.sync.bfly.b32 %r1, %x, 2, 31, 0xaaaaaaaa; bar.sync 0;",
    ],
)
def test_a_mask_of_threads_that_have_parted_is_refused_and_not_checked(body):
    with pytest.raises(UnsupportedPtx, match="a mask of some threads of a warp where others may be elsewhere"):
        guarded_text(f"{HEAD}{KERNEL}{body}{STORE} ret; }}", "k")


FUNCTIONS = """.func (.param .b32 got) add(.param .b32 a, .param .b32 b) { .reg .b32 %r<3>;
ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; add.u32 %r2, %r0, %r1; st.param.b32 [got], %r2; ret; }
.func (.param .b32 got) sub(.param .b32 a, .param .b32 b) { .reg .b32 %r<3>;
ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; sub.u32 %r2, %r0, %r1; st.param.b32 [got], %r2; ret; }
.func (.param .b32 got) other(.param .b64 a) { .reg .b32 %r<3>; mov.u32 %r0, 9; st.param.b32 [got], %r0; ret; }
.global .align 8 .u64 table[4] = {add, sub, other, 0};
"""
CALL = """{{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [b], %lane; st.param.b32 [a], %x;
p: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _); {} call (c), %d3, (a, b), p;
ld.param.b32 %r1, [c]; }}"""
BETWEEN = """mov.u64 %d3, add; {{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %x; {}
st.param.b32 [b], %x; {} p: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
call (c), %d3, (a, b), p; ld.param.b32 %r1, [c]; }}"""
FROM_TABLE = "mov.u64 %d2, table; mul.wide.u32 %d3, {}, 8; add.u64 %d2, %d2, %d3; ld.global.u64 %d3, [%d2];"


@pytest.mark.parametrize(
    ("pointer", "when"),
    [
        (FROM_TABLE.format("%r0"), ""),
        (FROM_TABLE.format("%r0"), "@%odd"),
        (FROM_TABLE.format("%r0"), "@!%odd"),
        ("mov.u64 %d4, add; mov.b64 %d5, sub; selp.b64 %d3, %d4, %d5, %odd;", ""),
        ("mov.u64 %d3, add; @%odd mov.u64 %d3, sub; st.global.u64 [%out], %d3; ld.global.u64 %d3, [%out];", ""),
        ("mov.u64 %d3, add; mov.b64 %d5, sub; setp.eq.u64 %p1, %d3, %d5;", ""),
    ],
)
def test_a_call_through_a_pointer_gives_the_same_to_the_bit(runs, pointer, when):
    text = f"{HEAD}{FUNCTIONS}{KERNEL}mov.u32 %r1, 0; mov.u32 %mask, 0; {pointer}{CALL.format(when)}{STORE} ret; }}"
    plain, kept, status = both(runs, text, np.arange(3, THREADS + 3, dtype=np.uint32))
    assert (kept, status) == (plain, 0)


@pytest.mark.parametrize("pointer", [FROM_TABLE.format("2"), FROM_TABLE.format("3"), "mov.u64 %d3, 12345;"])
def test_a_pointer_to_no_function_that_fits_ends_the_launch(runs, pointer):
    text = f"{HEAD}{FUNCTIONS}{KERNEL}{pointer}{CALL.format('')}{STORE} ret; }}"
    values = np.ones(THREADS, np.uint32)
    launch = Launch(
        "k", (1, 1, 1), (THREADS, 1, 1), [(values, False), (np.zeros(4 * THREADS, np.uint32), True), np.uint32(1)]
    )
    assert runs.run(launch, guarded_text(text, "k"))[1] == TRAPPED


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("mov.u64 %d3, k;", "the address of a function"),
        (BETWEEN.format("@%odd bra E;", "E:"), "not next to it"),
        (BETWEEN.format("mov.u32 %x, 3;", ""), "not next to it"),
    ],
)
def test_what_a_pointer_cannot_be_is_refused_by_name(body, why):
    with pytest.raises(UnsupportedPtx, match=why):
        guarded_text(f"{HEAD}{FUNCTIONS}{KERNEL}{body}{STORE} ret; }}", "k")


TABLE = """table: .branchtargets ONE, TWO, THREE;
{} brx.idx {}, table;
bra JOINED;
ONE: mov.u32 %r1, 111; bra JOINED;
TWO: mov.u32 %r1, 222; bra JOINED;
THREE: mov.u32 %r1, 333;
JOINED: bar.warp.sync -1; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
"""


@pytest.mark.parametrize("when", ["", "@%odd", "@!%odd"])
@pytest.mark.parametrize("index", ["%r3", "%r4", "2"])
def test_a_branch_through_a_table_gives_the_same_to_the_bit(runs, when, index):
    body = f"mov.u32 %r1, 9; mov.u32 %mask, 0; rem.u32 %r3, %x, 3; rem.u32 %r4, %n, 3; {TABLE.format(when, index)}"
    values = np.random.default_rng(5).integers(0, 1 << 32, THREADS, np.uint32)
    plain, kept, status = both(runs, f"{HEAD}{KERNEL}{body}{STORE} ret; }}", values)
    assert (kept, status) == (plain, 0)
    assert set(plain[::4]) <= {9, 111, 222, 333}


def test_an_index_past_a_table_goes_to_its_last_label(runs):
    text = f"{HEAD}{KERNEL}mov.u32 %mask, 0; {TABLE.format('', '%x')}{STORE} ret; }}"
    out = np.zeros(4 * THREADS, np.uint32)
    values = np.full(THREADS, 0xFFFFFFFF, np.uint32)
    launch = Launch("k", (1, 1, 1), (THREADS, 1, 1), [(values, False), (out, True), np.uint32(1)])
    (kept,), status = runs.run(launch, guarded_text(text, "k"))
    assert (set(kept.view(np.uint32)[::4].tolist()), status) == ({333}, 0)
