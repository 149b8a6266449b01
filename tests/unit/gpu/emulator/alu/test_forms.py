"""Every form of every instruction against its judge, on the edges of its operand types."""

from __future__ import annotations

import collections
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.alu import agrees, judge
from oracles.formats import FORMATS, Real, decode, log2_floor
from strategies.alu import LUTS, bits, from_bits, instruction, lanes, related, to_bits
from tensorwasm.gpu.emulator import alu
from tensorwasm.gpu.emulator.ops import DTYPES

LANES = 24
OPCODES = collections.defaultdict(list)
for _form in alu.forms():
    OPCODES[_form.partition(".")[0]].append(_form)

ROUNDED = [
    form
    for form in alu.forms()
    if form.partition(".")[0] in {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt"}
    and form.rpartition(".")[2] in FORMATS
    and not {"approx", "full"} & set(form.split("."))
]


def lut_of(form):
    return LUTS[len(form) % len(LUTS)]


def execute(form, sources):
    """Run one form; return its op and a list of arrays, one per result."""
    op = alu.compile_op(instruction(form, lut_of(form)))
    with np.errstate(all="ignore"):
        results = op.run(*sources)
    return op, list(results) if isinstance(results, tuple) else [results]


def check(form, sources):
    """Compare one form with its judge, lane by lane."""
    _, results = execute(form, sources)
    decide = judge(form)
    columns = [to_bits(result) for result in results]
    for lane, operands in enumerate(zip(*map(to_bits, sources), strict=True)):
        expected = decide(*operands)
        assert len(expected) == len(columns), form
        for want, column in zip(expected, columns, strict=True):
            shown = want if callable(want) else hex(want)
            assert agrees(want, column[lane]), f"{form} of {list(map(hex, operands))}: {hex(column[lane])}, not {shown}"


def draw_sources(form, count):
    op = alu.compile_op(instruction(form))
    sources = [lanes(type_, count, f"{form}:{i}") for i, type_ in enumerate(op.sources)]
    if form.startswith("lop3"):
        sources[3] = np.full(count, lut_of(form), np.uint32)
    return sources


@pytest.mark.parametrize("opcode", sorted(OPCODES))
def test_every_form_agrees_with_its_judge(opcode):
    for form in OPCODES[opcode]:
        check(form, draw_sources(form, LANES))


NAMED = [
    # a signalling NaN wins in NumPy's fmin, not in PTX
    ("min.f32", 0x7F800001, 0xC7400001),
    ("max.f16", 0xDC03, 0x7D20),
    # the product overflows, the addend is infinite
    ("fma.rm.f64", 0x543FFFFFFFFFFFFF, 0x6BAF3A43AE15D4CE, 0xFFF0000000000000),
    # the leading terms cancel, and what is left is subnormal
    ("fma.rn.f64", 0x450FFFFFFFFFFFFA, 0x800FFFFFFFFFFFFF, 0x052FFFFFFFFFFFF8),
    # all cancels, at an exponent where half of the least subnormal underflows
    ("fma.rn.f64", 0x43C8000000000000, 0xFC10000000000000, 0x7FE8000000000000),
    # a subnormal f32 beside a tie that the sum in binary64 rounds onto
    ("fma.rn.f32", 0x1A000001, 0x19FFFFFE, 0x201),
    # a factor so large that splitting it would overflow
    ("fma.rn.f64", 0x7E7FFFFFFFFFFFFF, 0x2000000000000001, 0x0010000000000000),
]


@pytest.mark.parametrize(("form", *"abc"), [(*case, None)[:4] for case in NAMED])
def test_cases_that_went_wrong_or_that_random_operands_miss(form, a, b, c):
    type_ = form.rpartition(".")[2]
    check(form, [from_bits([operand], type_) for operand in (a, b, c) if operand is not None])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_form_agrees_with_its_judge_on_any_bits(data):
    form = data.draw(st.sampled_from([form for form in alu.forms() if not form.startswith("lop3")]))
    op = alu.compile_op(instruction(form))
    check(form, [from_bits([data.draw(bits(type_))], type_) for type_ in op.sources])


@pytest.mark.parametrize("form", ROUNDED)
def test_arithmetic_rounds_once_where_that_is_hard(form):
    opcode, type_ = form.partition(".")[0], form.rpartition(".")[2]
    source = random.Random(form)
    operands = [related(source, opcode, type_) for _ in range(120 if "ftz" in form or "sat" in form else 500)]
    # A fast path may look at all lanes before it takes one, so normal and moderate operands also come by themselves.
    for limit in (math.inf, -FORMATS[type_].lowest, 200):
        kept = [lane for lane in operands if all(abs(exponent(bits, type_)) <= limit for bits in lane)]
        check(form, [from_bits(list(column), type_) for column in zip(*kept, strict=True)])


def exponent(bits, type_):
    """Return the exponent of a number, 0 for zero."""
    x = decode(bits, type_)
    return log2_floor(abs(x.value)) if isinstance(x, Real) and x.value else 0


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_a_carry_passes_through_a_full_word(type_):
    a = lanes(type_, 64, "carry")
    for opcode, b in (("addc", ~a), ("subc", a)):
        for carry in (np.ones(64, bool), np.zeros(64, bool)):
            check(f"{opcode}.cc.{type_}", [a, b, carry])


@pytest.mark.parametrize("lut", range(256))
def test_lop3_applies_every_truth_table(lut):
    a, b, c = np.array([0xF0], np.uint32), np.array([0xCC], np.uint32), np.array([0xAA], np.uint32)
    op = alu.compile_op(instruction("lop3.b32", lut))
    table = np.array([lut], np.uint32)
    assert op.run(a, b, c, table)[0] & 0xFF == lut
    sources = [lanes("b32", 8, f"lop3:{name}") for name in "abc"]
    generic = alu._table()[alu.key("lop3.b32")][1].compile("lop3.b32")
    np.testing.assert_array_equal(op.run(*sources, table), generic.run(*sources, np.full(8, lut, np.uint32)))


# ------------------------------------------------------------------------------------------ the contract of ops


@pytest.mark.parametrize("count", [0, 1, 5])
def test_ops_keep_shapes_and_types_and_leave_their_inputs_alone(count):
    for form in alu.forms():
        sources = draw_sources(form, count)
        for source in sources:
            source.flags.writeable = False
        op, results = execute(form, sources)
        assert [result.dtype for result in results] == [DTYPES[type_] for type_ in op.results], form
        assert [result.shape for result in results] == [(count,)] * len(results), form


def test_ops_take_operands_that_are_one_value_for_all_lanes():
    for form in alu.forms():
        sources = [np.broadcast_to(source, 3) for source in draw_sources(form, 1)]
        for result in execute(form, sources)[1]:
            assert len(set(to_bits(np.ascontiguousarray(result)))) == 1, form


# ------------------------------------------------------------------------------------------ all of 16 bits


@pytest.mark.parametrize("form", ["cvt.f32.f16", "cvt.rni.s32.f16", "cvt.rz.f16.bf16", "tanh.approx.bf16"])
def test_every_16_bit_operand(form):
    (type_,) = alu.operands(form)[1]
    check(form, [from_bits(list(range(0x10000)), type_)])


@pytest.mark.parametrize("form", [form for form in alu.forms() if form.endswith(("e4m3x2", "e5m2x2"))])
def test_every_8_bit_operand(form):
    (type_,) = alu.operands(form)[1]
    check(form, [from_bits([byte << 8 | 255 - byte for byte in range(256)], type_)])
