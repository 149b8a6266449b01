"""Texts of guarded kernels: what the verifier takes for one, narrow or wide, and where the time is checked."""

from __future__ import annotations

import re

import pytest

from tensorwasm import ptx
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.ptx.guard import guard
from tensorwasm.ptx.verifier import verify

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(".reg .b64 %d<", ".reg .b64 %d01;\n\t.reg .b64 %d<"),
        lambda text: text.replace(".reg .b32 %tw_hi;", ".reg .b32 %tw_hi;\n\t.reg .b32 r1;"),
        lambda text: text.replace("__tw_launch[56]", "__tw_launch[48]"),
        lambda text: text.replace(".target sm_80", ".target sm_80, debug"),
        lambda text: text.replace("exit;", "ret;"),
        lambda text: text + ".extern .func other();\n",
        lambda text: text.replace(".visible", ".weak .visible"),
    ],
)
def test_a_text_of_another_form_is_refused(damage):
    text = (
        HEAD + ".visible .entry k(.param .u64 p) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; st.u32 [%rd1], 1; ret; }"
    )
    printed = ptx.render(guard(ptx.extract(ptx.parse(text), "k")).module)
    verify(printed)
    assert damage(printed) != printed
    with pytest.raises(MalformedPtx):
        verify(damage(printed))


def test_long_straight_code_is_counted():
    loads = "\n".join(f"ld.volatile.global.u32 %r{at % 8}, [%rd1+{4 * at}];" for at in range(600))
    head = f"{HEAD}.visible .entry k(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<9>; ld.param.u64 %rd1, [p];"
    text = ptx.render(guard(ptx.extract(ptx.parse(f"{head}\n{loads}\nret; }}"), "k")).module)
    assert text.count("add.u32 %tw_fuel") == 2
    assert verify(text).entry == "k"
    with pytest.raises(UnsupportedPtx, match="too much work"):
        verify(re.sub(r"(add.u32 %tw_fuel, %tw_fuel), \d+", r"\1, 0", text))


@pytest.mark.parametrize("count", [0, 3, 64, 65, 200])
def test_the_deadline_is_checked_before_what_takes_time(count):
    quick = "add.u32 %r1, %r1, 1;\n" * count
    load = "ld.global.u32 %r2, [%rd1];"
    text = f"{HEAD}.visible .entry k(.param .u64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<3>; {quick} {load} ret; }}"
    printed = ptx.render(guard(ptx.extract(ptx.parse(text), "k")).module)
    verify(printed)
    check = "\tsetp.gt.u64 %tw_q, %tw_now, %tw_limit;\n\t@%tw_q bra __tw_look;\n__tw_go:\n"
    assert printed.count(check) == 1
    before = printed.partition(check)[0]
    assert before.count("add.u32 %r") == min(count, 64)
    moved = printed.replace(check, "").replace("\tret;", f"{check}\tret;")
    never = printed.replace(check, "__tw_go:\n")
    for damaged in (never, moved):
        with pytest.raises(UnsupportedPtx, match=r"deadline|form|code"):
            verify(damaged)


@pytest.mark.parametrize(
    ("arrays", "late"),
    [
        (".shared .b8 s[4];", True),
        (".shared .b8 s[16384];", True),
        (".shared .b8 s[16400];", False),
        (".shared .b8 s[4]; .local .b8 l[4];", False),
    ],
)
def test_much_memory_is_cleared_behind_the_check_of_the_time(arrays, late):
    text = f"{HEAD}.visible .entry k() {{ {arrays} .reg .b32 %r<2>; st.shared.u32 [s], 1; ret; }}"
    printed = ptx.render(guard(ptx.extract(ptx.parse(text), "k")).module)
    verify(printed)
    place = re.search(r"\tmov.u32 %tw_\w+, __tw_shared;\n\tsetp.ne.u32 .*\n\tsetp.gt.or.u64 .*\n", printed)
    clear, access = printed.index("__tw_clear:"), re.search(r"st\.shared\.[ub]32", printed).start()
    assert (clear < place.start()) == late
    assert place.start() < access
    for line in place[0].splitlines()[1:]:
        with pytest.raises(UnsupportedPtx):
            verify(printed.replace(f"{line}\n", "", 1))


def test_an_instruction_of_the_whole_warp_may_come_first():
    matrix = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r2,%r3,%r4,%r5},{%r1,%r1,%r1,%r1},{%r1,%r1},"
    text = f"{HEAD}.visible .entry k() {{ .reg .b32 %r<9>; mov.u32 %r1, 5; {matrix} {{%r2,%r2,%r2,%r2}}; ret; }}"
    assert verify(ptx.render(guard(ptx.extract(ptx.parse(text), "k")).module)).whole_warps


BODY = """.global .u32 cells[4];
.func (.param .b32 got) first(.param .b64 at) { .reg .b64 %rd<3>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [at]; ld.global.u32 %r1, [%rd1+100000000]; st.param.b32 [got], %r1; ret; }
.visible .entry k(.param .u64 p) { .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .pred %p<2>;
ld.param.u64 %rd1, [p]; mov.u64 %rd2, cells; st.global.u32 [%rd1+4], 1; st.global.u32 [cells+4], 3;
mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r2, 0;
{ .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; call (b), first, (a); ld.param.b32 %r1, [b]; }
atom.global.add.u64 %rd3, [%rd1+-8], 5; st.global.u32 [%rd1], %r1; ret; }
"""


def guarded(width):
    """Return the same kernel, with a function and a variable, for windows of a width."""
    return ptx.render(guard(ptx.extract(ptx.parse(HEAD + BODY), "k"), width=width).module)


def test_narrow_kernels_have_nothing_of_wide_ones():
    narrow, wide = guarded("narrow"), guarded("wide")
    assert (verify(narrow).width, verify(wide).width) == ("narrow", "wide")
    for word in ("%tw_mask", "%tw_h0", "%tw_w0", "lop3", "__tw_launch[64]"):
        assert word not in narrow
        assert word in wide
    fences = re.findall(r"lop3.*", wide)
    assert {re.sub(r"%tw_([hl])\d+", r"%tw_\1", fence) for fence in fences} == {
        "lop3.b32 %tw_h, %tw_l, %tw_mask, %tw_hi, 234;"
    }


FENCE = "lop3.b32 %tw_h0, %tw_l3, %tw_mask, %tw_hi, 234;"
ADDRESS = "mov.b64 %tw_a0, {%tw_l2, %tw_h0};"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__tw_launch[64]", "__tw_launch[56]"),
        (".param .b64 at, .param .align 8 .b8 __tw_launch[64]", ".param .b64 at, .param .align 8 .b8 __tw_launch[56]"),
        ("__tw_pass_0[64]", "__tw_pass_0[56]"),
        (".reg .b32 %tw_mask;\n", ""),
        (FENCE, FENCE.replace("234", "254")),
        (FENCE, FENCE.replace("%tw_mask", "%tw_l2")),
        (FENCE, FENCE.replace("%tw_hi", "%tw_zero")),
        (FENCE, FENCE.replace("%tw_mask, %tw_hi", "%tw_hi, %tw_mask")),
        (FENCE, FENCE.replace("lop3.b32", "lop3.and.b32")),
        (FENCE, "@%p1 " + FENCE),
        (FENCE, "mov.b32 %tw_h0, %tw_l3;"),
        (FENCE, FENCE + "\nadd.u32 %tw_h0, %tw_h0, 1;"),
        (FENCE, FENCE + "\n@%p0 mov.b32 %tw_h0, %r0;"),
        (FENCE, FENCE + "\nmov.b64 {%tw_l2, %tw_h0}, %d0;"),
        (FENCE, FENCE + "\nmov.b64 {%tw_h0, %tw_l2}, %d0;"),
        (FENCE, FENCE + "\nld.param.u32 %tw_h0, [p];"),
        (FENCE, "mov.u32 %tw_mask, -1;\n" + FENCE),
        (FENCE, "mov.b64 {%tw_mask, %r0}, %d0;\n" + FENCE),
        (FENCE, "mov.b64 {%tw_hi, %tw_l0}, %d0;\n" + FENCE),
        (FENCE, "ld.param.u32 %r0, [__tw_launch+56];\n" + FENCE),
        (ADDRESS, ADDRESS.replace("%tw_h0", "%tw_l3")),
        (ADDRESS, ADDRESS.replace("{%tw_l2, %tw_h0}", "{%tw_h0, %tw_l2}")),
        (ADDRESS, ADDRESS.replace("%tw_h0", "%tw_mask")),
        (ADDRESS, "@%p0 " + ADDRESS),
        (ADDRESS, "mov.b64 %tw_a0, %d0;"),
        ("mov.b32 %tw_h0, %tw_hi;", "mov.b32 %tw_h0, 0;"),
        ("ld.param.u32 %tw_mask, [__tw_launch+56];", "ld.param.u32 %tw_mask, [__tw_launch+48];"),
        ("ld.param.b64 %tw_now, [__tw_launch+56];", "ld.param.b64 %tw_now, [__tw_launch+48];"),
        ("add.s64 %tw_w0, %d0, 100000000;", "add.s64 %tw_a0, %d0, 100000000;"),
        ("[%tw_a0+4]", "[%tw_w0+4]"),
        ("[%tw_a0+4]", "[%tw_a0+8388612]"),
    ],
)
def test_a_wide_text_is_refused_with_any_part_of_a_fence_changed(old, new):
    text = guarded("wide")
    assert old in text
    with pytest.raises(MalformedPtx):
        verify(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".reg .b32 %tw_hi;", ".reg .b32 %tw_hi;\n.reg .b32 %tw_mask;"),
        (".reg .b64 %tw_a<", ".reg .b32 %tw_h<1>;\n.reg .b64 %tw_a<"),
        (".reg .b64 %tw_a<", ".reg .b64 %tw_w<1>;\n.reg .b64 %tw_a<"),
        ("mov.b64 %tw_a0, {%tw_l2, %tw_hi};", "mov.b64 %tw_a0, {%tw_l2, %tw_h0};"),
        ("cvt.u32.u64 %tw_l2, %d0;", "mov.b64 {%tw_l2, %tw_l0}, %d0;"),
        ("__tw_launch[56]", "__tw_launch[64]"),
        (".param .b64 at, .param .align 8 .b8 __tw_launch[56]", ".param .b64 at, .param .align 8 .b8 __tw_launch[64]"),
    ],
)
def test_a_narrow_text_is_refused_with_parts_of_a_wide_one(old, new):
    text = guarded("narrow")
    assert old in text
    with pytest.raises(MalformedPtx):
        verify(text.replace(old, new))


def test_what_registers_hold_at_first_has_been_set_before():
    body = ".local .align 4 .b8 own[48]; mov.u32 %r1, own; mov.u32 %r2, %tid.x; add.u32 %r1, %r1, %r2;"
    body += " st.local.u8 [%r1], 1;"
    text = f"{HEAD}.visible .entry k() {{ .reg .b32 %r<3>; {body} ret; }}"
    printed = ptx.render(guard(ptx.extract(ptx.parse(text), "k")).module)
    verify(printed)
    found, first = "\tmov.u32 %tw_frame, __tw_local;\n", "\tmov.b32 %tw_m0, %tw_frame;\n"
    assert found in printed.partition(first)[0]
    with pytest.raises(UnsupportedPtx):
        verify(printed.replace(found, "").replace(first, first + found))
