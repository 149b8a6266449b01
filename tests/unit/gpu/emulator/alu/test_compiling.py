"""What `compile_op` accepts, refuses and makes of the shape of operands; and that ptxas accepts every form."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from oracles.alu import JUDGES, judge
from strategies.alu import instruction, kernel, lanes
from strategies.instructions import requirements
from strategies.lanes import module
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator import alu
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.model import Instruction, Int, Name, Pair, Position, Vector
from tensorwasm.ptx.parser import parse

A, B, C, D, E = (Name(f"%{letter}") for letter in "abcde")


def test_every_form_has_a_judge():
    assert {form for form in alu.forms() if not callable(judge(form))} == set()
    assert {form.partition(".")[0] for form in alu.forms()} == set(JUDGES)


def test_forms_are_unique_and_sorted():
    assert alu.forms() == sorted(set(alu.forms()))


@pytest.mark.parametrize("opcode", ["ld", "st", "bra", "shfl", "mma", "cvta", "nonsense", ""])
def test_other_opcodes_are_left_to_others(opcode):
    assert alu.compile_op(Instruction(opcode, ("u32",), (A, B))) is None


NONSENSE = "add add.u8 add.rn.u32 add.rn.rn.f32 add.rn.rz.f32 add.f32.f16 fma.f32 mul.s32 max.f16.f16 fma.rn.oob.f16"
NONSENSE += " mov.b128 lop3.xor.b32 cvt.f32.f64 add.sat.u32 setp.ltu.s32 min.relu.u32 cvt.sat.u32.u16 addc.u16"


@pytest.mark.parametrize("mnemonic", NONSENSE.split())
def test_forms_that_do_not_exist_are_refused_by_name(mnemonic):
    opcode, *modifiers = mnemonic.split(".")
    with pytest.raises(UnsupportedPtx, match=rf"^7:5: {mnemonic}") as caught:
        alu.compile_op(Instruction(opcode, tuple(modifiers), (A, B, C), position=Position(7, 5)))
    assert (caught.value.line, caught.value.column) == (7, 5)


def test_modifiers_may_stand_in_any_order():
    usual = alu.compile_op(Instruction("setp", ("lt", "and", "ftz", "f32"), (A, B, C, D)))
    other = alu.compile_op(Instruction("setp", ("ftz", "and", "f32", "lt"), (A, B, C, D)))
    assert (usual.results, usual.sources) == (other.results, other.sources) == (("pred",), ("f32", "f32", "pred"))
    for op in (usual, other):
        outcome = op.run(*(np.array([x], np.float32) for x in (-1, 1e-40)), np.array([True]))
        assert outcome.tolist() == [True]


@pytest.mark.parametrize("operands", [(), (A,), (A, B), (A, B, C, D), (Pair(A, B), C, D), (Vector((A, B)), C, D)])
def test_a_wrong_number_of_operands_is_malformed(operands):
    with pytest.raises(MalformedPtx, match=r"add\.s32 takes 3 operands"):
        alu.compile_op(Instruction("add", ("s32",), operands))


def test_setp_gives_as_many_predicates_as_asked_for():
    for type_ in ("s32", "f32", "f16x2"):
        one = alu.compile_op(Instruction("setp", ("lt", type_), (A, C, D)))
        two = alu.compile_op(Instruction("setp", ("lt", type_), (Pair(A, B), C, D)))
        assert (one.results, two.results) == (("pred",), ("pred", "pred"))
        sources = [lanes(type_, 40, f"setp:{i}") for i in "ab"]
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(one.run(*sources), two.run(*sources)[0])


def test_setp_on_one_half_has_one_predicate():
    with pytest.raises(MalformedPtx):
        alu.compile_op(Instruction("setp", ("lt", "f16"), (Pair(A, B), C, D)))


@pytest.mark.parametrize(("wide", "count"), [("b16", 2), ("b32", 2), ("b32", 4), ("b64", 2), ("b64", 4)])
def test_mov_splits_and_joins_registers_lowest_part_first(wide, count):
    vector = Vector((A, B, C, D)[:count])
    part = int(wide[1:]) // count
    split = alu.compile_op(Instruction("mov", (wide,), (vector, E)))
    join = alu.compile_op(Instruction("mov", (wide,), (E, vector)))
    assert (split.results, split.sources) == (join.sources, join.results) == ((f"b{part}",) * count, (wide,))
    words = lanes(wide, 20, "mov")
    parts = split.run(words)
    expected = [[int(word) >> part * i & 2**part - 1 for word in words] for i in range(count)]
    assert [p.tolist() for p in parts] == expected
    assert {p.dtype for p in parts} == {DTYPES[f"b{part}"]}
    np.testing.assert_array_equal(join.run(*parts), words)


@pytest.mark.parametrize(("type_", "count"), [("u32", 2), ("f64", 2), ("b16", 4), ("b32", 3), ("b32", 1), ("pred", 2)])
def test_mov_refuses_other_vectors(type_, count):
    vector = Vector((A, B, C, D)[:count])
    for operands in ((vector, E), (E, vector), (vector, vector)):
        with pytest.raises(UnsupportedPtx, match=rf"mov\.{type_}"):
            alu.compile_op(Instruction("mov", (type_,), operands))


def test_lop3_wants_a_constant_table():
    for modifiers, operands in ((("b32",), (A, B, C, D, E)), (("or", "b32"), (Pair(A, B), C, D, E, E, A))):
        with pytest.raises(UnsupportedPtx, match="constant"):
            alu.compile_op(Instruction("lop3", modifiers, operands))


def test_prmt_with_a_constant_selector_does_as_with_a_register():
    a, b = lanes("b32", 16, "a"), lanes("b32", 16, "b")
    for selector in (0x3210, 0x7654, 0x0123, 0x7531, 0xBA98, 0x1234_5410):
        fixed = alu.compile_op(Instruction("prmt", ("b32",), (A, B, C, Int(selector))))
        free = alu.compile_op(Instruction("prmt", ("b32",), (A, B, C, D)))
        table = np.full(16, selector, np.uint32)
        np.testing.assert_array_equal(fixed.run(a, b, table), free.run(a, b, table))


def test_carry_flags_are_declared():
    first = alu.compile_op(Instruction("add", ("cc", "u32"), (A, B, C)))
    last = alu.compile_op(Instruction("addc", ("u32",), (A, B, C)))
    assert (first.results, first.writes_carry, first.reads_carry) == (("u32", "pred"), True, False)
    assert (last.sources, last.writes_carry, last.reads_carry) == (("u32", "u32", "pred"), False, True)
    assert alu.operands("madc.lo.cc.u64") == (("u64",), ("u64", "u64", "u64"))


# ------------------------------------------------------------------------------------------ against the assembler


def test_forms_survive_the_parser():
    parsed = parse(module([kernel(form) for form in alu.forms()[::40]], target="sm_90", version="8.2"))
    for form, function in zip(alu.forms()[::40], parsed.functions(), strict=True):
        found = next(i for i in function.body if isinstance(i, Instruction) and i.mnemonic == form)
        assert alu.compile_op(found).sources == alu.compile_op(instruction(form)).sources


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed: no form is checked against it")
@pytest.mark.parametrize("required", sorted({requirements(form) for form in alu.forms()}))
def test_ptxas_accepts_every_form_for_the_target_it_is_said_to_need(tmp_path, required):
    target, version = required
    body = "\n".join(line for form in alu.forms() if requirements(form) == required for line in _scoped(form))
    source = tmp_path / "forms.ptx"
    head = f".version {version}\n.target sm_{target}\n.address_size 64\n"
    source.write_text(f"{head}.visible .entry forms() {{\n{body}\n}}\n")
    command = ["ptxas", f"-arch=sm_{max(target, 90)}", "-O0", str(source), "-o", str(tmp_path / "forms.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[:2000]


def _scoped(form):
    """Yield one form in a scope of its own: only its registers and the instruction."""
    text = kernel(form).text().splitlines()
    yield "{"
    yield from (
        line for line in text if line.strip().startswith(".reg") and not line.strip().startswith(".reg .b32 %lane")
    )
    yield next(line for line in text if line.strip().startswith(f"{form} %d"))
    yield "}"
