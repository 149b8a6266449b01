import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import tensor as oracle
from strategies import tensor as strategy
from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.collective import compile_warp_op, forms
from tensorwasm.gpu.emulator.collective import mma as table
from tensorwasm.gpu.emulator.ops import DTYPES
from tensorwasm.ptx.model import Float, Instruction, Int, Name, Position, Vector

MMA_FORMS = [name for name in forms() if name.startswith("mma.")]
ROUNDED = {"rz", "rm", "rp"}


def instruction(mnemonic, *counts):
    opcode, *modifiers = mnemonic.split(".")
    operands = [Vector(tuple(Name(f"%r{i}") for i in range(count))) for count in counts]
    return Instruction(opcode, tuple(modifiers), tuple(operands), position=Position(3, 5))


def run(mnemonic, registers):
    """Run on one list of registers per lane; return the same."""
    op = compile_warp_op(instruction(mnemonic, *oracle.register_counts(oracle.read_form(mnemonic))))
    columns = [
        np.array([lane[i] for lane in registers], f"u{int(type_[1:]) // 8}")[None].view(DTYPES[type_])
        for i, type_ in enumerate(op.sources)
    ]
    results = op.run(None, *columns)
    assert [result.dtype.itemsize * 8 for result in results] == [int(t[1:]) for t in op.results]
    return [[int(result[0, lane]) for result in results] for lane in range(32)]


@pytest.mark.parametrize("mnemonic", [name for name in MMA_FORMS if not ROUNDED & set(name.split("."))])
def test_every_form_multiplies_as_the_isa_lays_it_out(mnemonic):
    rng = np.random.default_rng(len(mnemonic))
    form = oracle.read_form(mnemonic)
    registers = strategy.draw_registers(rng, form, strategy.finite_bits)
    results = oracle.accumulators(form, form.d, run(mnemonic, registers))
    for result, *sources in zip(results, *oracle.take_apart(form, registers), strict=True):
        assert oracle.values(result, form.d) == oracle.expect(form, *sources)


@settings(max_examples=30, deadline=None)
@given(mnemonic=st.sampled_from([n for n in MMA_FORMS if ".s32" in n]), seed=st.integers(0, 2**32))
def test_integers_are_exact_for_any_bits(mnemonic, seed):
    form = oracle.read_form(mnemonic)
    rng = np.random.default_rng(seed)
    registers = strategy.draw_registers(rng, form, strategy.near_the_edge)
    results = oracle.accumulators(form, form.d, run(mnemonic, registers))
    for result, *sources in zip(results, *oracle.take_apart(form, registers), strict=True):
        assert oracle.values(result, "s32") == oracle.expect(form, *sources)


@settings(max_examples=30, deadline=None)
@given(
    mnemonic=st.sampled_from([n for n in MMA_FORMS if ".f16.f" in n or ".bf16." in n or "tf32" in n]),
    seed=st.integers(0, 2**32),
)
def test_floats_of_any_size_are_the_rounded_sum(mnemonic, seed):
    form = oracle.read_form(mnemonic)
    registers = strategy.draw_registers(np.random.default_rng(seed), form, strategy.any_finite)
    results = oracle.accumulators(form, form.d, run(mnemonic, registers))
    for result, a, b, c in zip(results, *oracle.take_apart(form, registers), strict=True):
        sources = [oracle.fractions(*source) for source in ((a, form.a), (b, form.b), (c, form.c))]
        exact, scale = oracle.multiply(*sources), oracle.magnitude(*sources)
        for got, wanted, size in zip(flat(oracle.values(result, form.d)), flat(exact), flat(scale), strict=True):
            slack = size / 2**46
            assert oracle.round_to(wanted - slack, form.d) <= got <= oracle.round_to(wanted + slack, form.d)


def flat(matrix):
    return [value for row in matrix for value in row]


def fill(form, a, b, c):
    _, *counts = oracle.register_counts(form)
    lane = [word for count, word in zip(counts, (a, b, c), strict=True) for _ in range(count)]
    return [list(lane) for _ in range(32)]


@pytest.mark.parametrize(
    ("mnemonic", "a", "b", "c", "d"),
    [
        # infinity times zero; infinity minus infinity; a NaN passes: each the canonical NaN
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 0x7C007C00, 0, 0, 0x7FFFFFFF),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 0x7C007C00, 0x3C003C00, 0xFF800000, 0x7FFFFFFF),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", 0x7E01FE01, 0x3C003C00, 0, 0x7FFF7FFF),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 0x7FF0 << 48, 0, 0, 0x7FF8 << 48),
        # overflow of an f16 accumulator
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", 0x7BFF7BFF, 0x7BFF7BFF, 0, 0x7C007C00),
        # the tiniest f16 product is no subnormal of f32: 8 * 2**-48
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 0x00010001, 0x00010001, 0, (127 - 45) << 23),
        # tf32 ignores its low 13 bits: infinity stays one, and no NaN appears
        ("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", 0x7F801FFF, 0x3F801FFF, 0, 0x7F800000),
    ],
)
def test_special_values(mnemonic, a, b, c, d):
    form = oracle.read_form(mnemonic)
    assert run(mnemonic, fill(form, a, b, c)) == [[d] * oracle.register_counts(form)[0]] * 32


def test_saturation_clamps_the_sum_and_wrapping_does_not():
    plain, saturating = (f"mma.sync.aligned.m8n8k16.row.col{flag}.s32.s8.s8.s32" for flag in ("", ".satfinite"))
    registers = fill(oracle.read_form(plain), 0x7F7F7F7F, 0x7F7F7F7F, 0x7FFFFFFF)
    wrapped = (0x7FFFFFFF + 16 * 127 * 127) & 0xFFFFFFFF
    assert run(plain, registers) == [[wrapped] * 2] * 32
    assert run(saturating, registers) == [[0x7FFFFFFF] * 2] * 32


@pytest.mark.parametrize(("mode", "steps"), [("rn", 0), ("rz", 0), ("rm", 0), ("rp", 4)])
def test_double_products_round_in_their_mode_at_every_step(mode, steps):
    mnemonic = f"mma.sync.aligned.m8n8k4.row.col.{mode}.f64.f64.f64.f64"
    tiny, one, above = (int(np.float64(x).view(np.uint64)) for x in (2.0**-60, 1.0, 1 + steps * 2.0**-52))
    assert run(mnemonic, fill(oracle.read_form(mnemonic), tiny, one, one)) == [[above] * 2] * 32


def test_warps_do_not_mix():
    mnemonic = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    op = compile_warp_op(instruction(mnemonic, 4, 4, 2, 4))
    rng = np.random.default_rng(1)
    sources = [rng.integers(0, 0x7BFF, (3, 32), np.uint32) for _ in range(6)]
    sources += [np.zeros((3, 32), np.uint32)] * 4
    together = op.run(None, *sources)
    for warp in range(3):
        alone = op.run(None, *(source[warp : warp + 1] for source in sources))
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], many[warp])


@pytest.mark.parametrize(
    ("mnemonic", "named"),
    [
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "sparse"),
        ("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32", "kind::f8f6f4"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "wgmma"),
        ("tcgen05.mma.cta_group::1.kind::f16", "tcgen05"),
        ("mma.sync.aligned.m16n8k8.col.row.f32.f16.f16.f32", "col.row"),
        ("mma.sync.aligned.m7n8k8.row.col.f32.f16.f16.f32", "m7n8k8"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8", "m16n16"),
    ],
)
def test_unsupported_forms_are_refused_by_name_and_place(mnemonic, named):
    with pytest.raises(UnsupportedPtx, match=named) as refusal:
        compile_warp_op(instruction(mnemonic, 4, 4, 2, 4))
    assert (refusal.value.line, refusal.value.column) == (3, 5)
    assert mnemonic in refusal.value.message


def test_a_wrong_number_of_registers_is_malformed():
    with pytest.raises(MalformedPtx, match="operands") as refusal:
        compile_warp_op(instruction("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 4, 3, 1, 4))
    assert not isinstance(refusal.value, UnsupportedPtx)


@pytest.mark.parametrize(("constant", "fits"), [(Float(0x3F800000, 32), True), (Int(1), False)])
def test_an_accumulator_may_be_floating_point_constants(constant, fits):
    registers = [Vector((Name("%r1"),) * count) for count in (4, 2, 1)]
    constants = Vector((constant,) * 4)
    mma = Instruction(
        "mma", ("sync", "aligned", "m16n8k8", "row", "col", "f32", "f16", "f16", "f32"), (*registers, constants)
    )
    if fits:
        assert compile_warp_op(mma).sources[-4:] == ("f32",) * 4
    else:
        with pytest.raises(MalformedPtx, match="operands"):
            compile_warp_op(mma)


def test_other_instructions_are_not_ours():
    assert compile_warp_op(Instruction("add", ("s32",))) is None
    assert compile_warp_op(Instruction("mbarrier", ("init", "b64"))) is None


def test_the_table_names_no_form_twice():
    names = [name for name, _ in table.forms()]
    assert len(names) == len(set(names))
