"""What an H200 was seen to give where the manual is silent or says something else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from oracles.alu import agrees, judge
from strategies.alu import from_bits, instruction, to_bits
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.emulator import alu
from tensorwasm.gpu.emulator.alu.packed import DISPUTED
from tensorwasm.gpu.emulator.alu.rows import spell
from tensorwasm.ptx.model import Instruction, Name, Position

MEASURED = [
    # A result is subnormal if it were below the normal numbers with more exponents to round to.
    ("mul.rp.ftz.f32", (0x00800000, 0x3F7FFFFF), 0),
    ("mul.ftz.f32", (0x1DC1BB8F, 0xA22923EB), 0x80800000),
    ("mul.rm.ftz.f32", (0x21047511, 0x9EF762A9), 0x80800000),
    ("fma.rp.ftz.sat.f32", (0x1CCAB88B, 0x2321A417, 0), 0x00800000),
    ("fma.rn.ftz.sat.f16", (0xA753, 0x985E, 0), 0),
    ("fma.rn.ftz.f16", (0x16F7, 0xA898, 0), 0x8400),
    ("mul.ftz.f16x2", (0x400BC01, 0xBBFF5611), 0x8000D613),
    ("cvt.rn.ftz.f32.f64", (0xB80FFFFFF89C4439,), 0x80800000),
    ("cvt.rn.ftz.sat.f32.f64", (0x380FFFFFED1ACF1D,), 0),
    ("cvt.rp.ftz.f32.f64", (0x380FFFFFFFFF8C69,), 0x00800000),
    ("cvt.rp.ftz.sat.f32.f64", (0x380FFFFFCA90932D,), 0),
    # Subnormal operands of conversions to f16 are not flushed.
    ("cvt.rm.ftz.f16.f32", (0x807FFFFF,), 0x8001),
    ("cvt.rp.ftz.sat.f16.f32", (0x00000001,), 0x0001),
    # What is left of a NaN.
    ("cvt.rn.f32.f64", (0xFFF2F55E62D7908B,), 0xFFD7AAF3),
    ("cvt.rp.f16.f64", (0x7FF0EFD96E4F878C,), 0x7E3B),
    ("cvt.rz.bf16.f64", (0xFFF145843660C3ED,), 0xFFCA),
    ("cvt.f32.f32", (0x7F833229,), 0x7F833229),
    ("cvt.rp.f32.bf16", (0xFF81,), 0xFF810000),
    ("cvt.rz.relu.tf32.f32", (0xFFC00005,), 0x7FFFE000),
    ("cvt.rna.tf32.f32", (0x7FAE857E,), 0x7FAE8000),
    ("cvt.rna.satfinite.tf32.f32", (0x7F800001,), 0x7F7FE000),
    ("testp.normal.f32", (0x80000000,), True),
    ("testp.normal.f64", (0x7FF0000000000000,), False),
    ("fns.b32", (0x2028A048, 0x1C, 0x80000000), 0),
    ("bfe.u64", (0xB3B2657FDFA8B491, 0x80000001, 0x12A44ED5), 0),
    ("bfi.b64", (0x1A30E50A57CFD57D, 0x40, 1, 0x80000001), 0x3461CA14AF9FAAFA),
    # The second operation of a video instruction sees 64 bits; vmad takes everything as signed.
    ("vmin.u32.u32.s32.min", (0x21, 0xF7E57B57, 0xFFFFE660), 0xFFFFE660),
    ("vsub.u32.u32.u32.min", (0x6AE860C5, 0x6C501D34, 0xFFFFFFF6), 0xFFFFFFF6),
    ("vadd.u32.s32.s32.max", (2, 0x7FFFFFFF, 0xCF46FD87), 0x80000001),
    ("vshr.s32.u32.u32.wrap.min", (0xF9CD83A1, 0, 0x7FFFFFFF), 0x7FFFFFFF),
    ("vshl.u32.u32.u32.clamp.max", (0xED0B51B7, 0x21, 0x7FFFFFFF), 0),
    ("vset.s32.u32.gt.min", (0x20, 3, 0x80000000), 0x80000000),
    ("vmad.u32.u32.u32.shr15", (0x1F, 0x1E, 0xF54395CF), 0xFFFFEA87),
]


@pytest.mark.parametrize(("form", "operands", "result"), MEASURED)
def test_emulator_and_judge_follow_the_hardware(form, operands, result):
    op = alu.compile_op(instruction(form))
    sources = [from_bits([bits], type_) for bits, type_ in zip(operands, op.sources, strict=True)]
    with np.errstate(all="ignore"):
        assert to_bits(op.run(*sources)) == [result]
    assert agrees(judge(form)(*operands)[0], result)


def test_the_judge_accepts_the_worst_error_of_the_hardware():
    assert agrees(judge("tanh.approx.bf16")(0xBF3F)[0], 0xBF21)
    assert not agrees(judge("tanh.approx.bf16")(0xBF3F)[0], 0xBF20)
    assert agrees(judge("ex2.approx.f16")(0xCCD8)[0], 0x18)


@pytest.mark.parametrize("mnemonic", [mnemonic for pattern in DISPUTED for mnemonic in spell(pattern)])
def test_forms_on_which_hardware_and_manual_disagree_are_refused_by_name(mnemonic):
    opcode, *modifiers = mnemonic.split(".")
    operands = tuple(Name(f"%{letter}") for letter in "abcd")
    with pytest.raises(UnsupportedPtx, match=rf"{re.escape(mnemonic)}: not emulated: hardware and the ISA disagree"):
        alu.compile_op(Instruction(opcode, tuple(modifiers), operands, position=Position(3, 1)))
    assert mnemonic not in alu.forms()
