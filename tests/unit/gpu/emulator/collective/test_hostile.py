"""Whatever the modifiers and operands of an instruction, compiling it ends in an op, in None or in our error."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensorwasm.errors import MalformedPtx
from tensorwasm.gpu.emulator.collective import compile_lane_op, compile_warp_op, forms
from tensorwasm.gpu.emulator.ops import LaneMemoryOp, WarpOp
from tensorwasm.ptx.model import Address, Arguments, Float, Instruction, Int, Name, Not, Offset, Pair, Vector

NAMES = st.sampled_from(["%r1", "%p1", "_", "%tid", "slots"]).map(Name)
LEAVES = st.one_of(
    NAMES,
    st.integers(-(2**63), 2**64 - 1).map(Int),
    st.builds(Float, st.integers(0, 2**32 - 1), st.just(32)),
    st.builds(Offset, NAMES, st.integers(-8, 8)),
    st.builds(Address, NAMES | st.integers(0, 99).map(Int), st.integers(-8, 8)),
    st.builds(Address, NAMES, st.just(0), st.tuples(NAMES)),
    st.builds(Not, NAMES),
)
OPERANDS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=9).map(lambda items: Vector(tuple(items))),
        st.builds(Pair, inner, inner),
        st.lists(inner, max_size=2).map(lambda items: Arguments(tuple(items))),
    ),
    max_leaves=12,
)
WORDS = sorted(
    {word for name in forms() for word in name.split(".")[1:]} | {"sp", "bulk", "s99", "", "shared::cluster"}
)
LISTED = st.sampled_from(forms()).map(lambda name: name.split("."))
MADE_UP = st.tuples(
    st.sampled_from(["mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "cp", "mbarrier", "wgmma", "tcgen05"]),
    st.lists(st.sampled_from(WORDS), max_size=10),
).map(lambda pair: [pair[0], *pair[1]])


def type_of(operand):
    if isinstance(operand, Name):
        return "pred" if operand.name.startswith("%p") else "b32"
    return None


@settings(max_examples=300, deadline=None)
@given(words=LISTED | MADE_UP, operands=st.lists(OPERANDS, max_size=6))
@example(words=["wmma", "sync", "L2::128B"], operands=[])
def test_any_instruction(words, operands):
    instruction = Instruction(words[0], tuple(words[1:]), tuple(operands))
    try:
        outcome = compile_warp_op(instruction) or compile_lane_op(instruction, type_of)
    except MalformedPtx as refusal:
        outcome = refusal.message
    assert isinstance(outcome, WarpOp | LaneMemoryOp) or instruction.mnemonic in outcome


@given(name=st.sampled_from(forms()), random=st.randoms(use_true_random=False))
def test_no_order_of_modifiers_gets_past_the_operand_checks(name, random):
    opcode, *modifiers = name.split(".")
    random.shuffle(modifiers)
    registers = (Address(Name("%r1")), Address(Name("%rd1")), Name("%r2"))
    for operands in (registers, (Name("%r1"),)):
        instruction = Instruction(opcode, tuple(modifiers), operands)
        try:
            op = compile_lane_op(instruction, type_of)
        except MalformedPtx:
            continue
        assert op is None or not {"ca", "cg", "wait_group"} & set(modifiers)
