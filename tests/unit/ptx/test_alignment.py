"""What is proved of the low bits of registers holds whatever the kernel does."""

from __future__ import annotations

import pytest

from tensorwasm.ptx import parse
from tensorwasm.ptx.model import Instruction
from tensorwasm.ptx.verifier.alignment import aligned_registers
from tensorwasm.watch import UNLIMITED

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) {
.reg .pred %p<9>; .reg .b32 %r<30>; .reg .b64 %d<20>; .reg .f32 %f<3>;
ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;
"""


@pytest.mark.parametrize(
    ("body", "align"),
    [
        ("mov.b64 %d9, %d1;", 8),
        ("mul.wide.u32 %d2, %r2, 4; add.s64 %d9, %d1, %d2;", 4),
        ("mad.wide.s32 %d9, %r2, 16, %d1;", 8),
        ("shl.b64 %d2, %d3, 3; add.s64 %d9, %d1, %d2;", 8),
        ("and.b64 %d9, %d3, -16;", 16),
        ("mov.b64 %d9, %d1; @%p1 add.s64 %d9, %d9, 4;", 4),
        ("mov.b64 %d9, %d1; L: add.s64 %d9, %d9, 2; bra L;", 2),
        ("cvt.u32.u64 %r3, %d1; cvt.u64.u32 %d9, %r3;", 8),
        ("mov.b64 {%r3, %r4}, %d1; mov.b64 %d9, {%r3, %r2};", 8),
        ("mov.b64 {%r3, %r4}, %d1; mov.b64 %d9, {%r4, %r3};", 1),
        ("add.sat.s32 %r3, %r4, 8; cvt.u64.u32 %d9, %r3;", 1),
        ("cvt.sat.s32.s64 %r3, %d1; cvt.u64.u32 %d9, %r3;", 1),
        ("cvt.rni.u32.f32 %r3, %f1; cvt.u64.u32 %d9, %r3;", 1),
        ("ld.global.u64 %d9, [%d1];", 1),
        ("mul.hi.u64 %d9, %d1, 16;", 1),
        ("cvt.u64.u32 %d9, %laneid;", 1),
        ("shr.u64 %d9, %d1, 1;", 1),
    ],
)
def test_low_bits_are_zero_only_where_they_are(body, align):
    kernel = parse(f"{HEAD}{body}\nst.global.u8 [%d9], 1;\nret;\n}}").entry("k")
    body = [each for each in kernel.body if isinstance(each, Instruction)]
    assert aligned_registers(body, {"p": 8}, UNLIMITED)["%d9"] == align
