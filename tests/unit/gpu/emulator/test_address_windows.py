"""The judge of guarded kernels: what stays in the window is no fault, and whatever leaves it is."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from oracles.guarding import GuardedText, guarded_text
from oracles.windows import DATA_AT, OWN_AT, SLACK_BYTES, WINDOW_BYTES, Exam
from strategies.hostile import DELIBERATE, PARAMETERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="maps one file again and again")
PARAMS = ", ".join(f".param .{kind} {name}" for name, kind in PARAMETERS.items())
ONE = replace(DELIBERATE["wild/store/0"], grid=(1, 1, 1), block=(32, 1, 1), dynamic_shared_bytes=0)


@pytest.fixture(scope="module")
def exam():
    exam = Exam()
    yield exam
    exam.close()


def attack(body, *, guarded=False):
    last = ", .param .align 8 .b8 __tw_launch[56]" if guarded else ""
    return f""".version 8.0
.target sm_80
.address_size 64
.visible .entry attack({PARAMS}{last})
{{
.reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<3>;
ld.param.u64 %rd1, [own];
ld.param.u64 %rd2, [victim];
{body}
ret;
}}
"""


def test_the_window_is_aligned_and_its_pages_are_one_chunk(exam):
    window = exam.window
    window.clear()
    assert window.base % WINDOW_BYTES == 0
    assert (window.own.address, window.data.address) == (window.base + OWN_AT, window.base + DATA_AT)
    everything = window.bytes_of(window.region)
    for offset in (0, SLACK_BYTES, SLACK_BYTES + WINDOW_BYTES, everything.size - (64 << 20)):
        everything[offset + 4096] += 1
    assert window.scratch[4096] == 4
    everything[SLACK_BYTES + OWN_AT] = 7
    assert window.scratch[(SLACK_BYTES + OWN_AT) % (64 << 20)] == 0


FENCED = """
ld.param.u32 %r1, [__tw_launch];
cvt.u32.u64 %r2, %rd2;
and.b32 %r2, %r2, -4;
mov.b64 %rd3, {%r2, %r1};
"""


@pytest.mark.parametrize("immediate", [0, 8 << 20, -(8 << 20), (64 << 20) - 4])
def test_a_fenced_access_of_the_victims_address_harms_nobody(exam, immediate):
    access = f"st.global.u32 [%rd3+{immediate}], 77;\natom.global.add.u32 %r3, [%rd3+{immediate}], 1;"
    outcome = exam.run(ONE, GuardedText(attack(FENCED + access, guarded=True)))
    assert outcome == type(outcome)()


@pytest.mark.parametrize(
    "body",
    [
        "st.global.u32 [%rd2], 77;",
        "ld.global.u32 %r1, [%rd2];",
        f"st.global.u32 [%rd1+{WINDOW_BYTES + SLACK_BYTES}], 77;",
        f"st.global.u32 [%rd1+-{OWN_AT + SLACK_BYTES + 4}], 77;",
        "st.global.u32 [%rd1+2], 77;",
        "bra L; L: bra L;",
        "trap;",
        ".shared .align 4 .u32 cell[4]; ld.shared.u32 %r1, [cell]; st.global.u32 [%rd1], %r1;",
        ".shared .align 4 .u32 cell[4]; st.shared.u32 [cell+16], 1;",
        ".local .align 4 .u32 cell[4]; st.local.u32 [cell+-4], 1;",
    ],
)
def test_what_leaves_the_window_is_a_violation(exam, body):
    outcome = exam.run(ONE, GuardedText(attack(body, guarded=True)), grace_s=0.1)
    assert len(outcome.violations) == 1


def test_lanes_that_say_different_addresses_of_a_matrix_are_no_violation(exam):
    body = """mov.u32 %r1, %laneid; mul.wide.u32 %rd3, %r1, 256; add.u64 %rd3, %rd1, %rd3;
wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd3];"""
    hostile = replace(ONE, text=attack(body))
    outcome = exam.run(hostile, guarded_text(hostile.text, hostile.entry))
    assert outcome.violations == ()
    assert "different addresses" in outcome.lacking


def test_races_in_shared_memory_are_none(exam):
    body = ".shared .align 4 .u32 cell[4]; mov.u32 %r1, %tid.x; st.shared.u32 [cell], %r1; ld.shared.u32 %r2, [cell];"
    assert exam.run(ONE, GuardedText(attack(body, guarded=True))).violations == ()


def test_a_kernel_that_polls_stops_at_the_deadline_and_when_it_is_told_to(exam):
    body = """
ld.param.u64 %rd3, [__tw_launch+8];
ld.param.u64 %rd4, [__tw_launch+16];
ld.param.u64 %rd5, [__tw_launch+24];
again:
mov.u64 %rd6, %globaltimer;
setp.gt.u64 %p1, %rd6, %rd3;
ld.volatile.global.u32 %r1, [%rd5+4];
setp.ne.or.u32 %p1, %r1, 0, %p1;
@!%p1 bra again;
st.global.u64 [%rd4], 1;
st.global.u32 [%rd4+8], 1;
st.global.u32 [%rd5], 1;
"""
    for stop in (False, True):
        outcome = exam.run(ONE, GuardedText(attack(body, guarded=True)), stop=stop)
        assert (outcome.violations, outcome.stopped) == ((), True)


def test_writing_the_flag_the_status_or_the_request_is_noticed(exam):
    for offset, place in ((16, 0), (16, 4), (16, 8), (16, 12), (24, 0), (24, 4)):
        body = f"ld.param.u64 %rd3, [__tw_launch+{offset}]; st.global.u32 [%rd3+{place}], 5;"
        assert exam.run(ONE, GuardedText(attack(body, guarded=True))).violations


@pytest.mark.parametrize(
    "name", ["wild/victim-immediate/0", "address/A-victim", "address/A-null", "address/A-shuffled", "address/A-xor"]
)
def test_unguarded_attacks_are_violations(exam, name):
    assert exam.run(DELIBERATE[name]).violations
