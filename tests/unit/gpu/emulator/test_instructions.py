import re

import pytest

from fakes.emulation import kernel, store_result
from tensorwasm.errors import MalformedPtx, UnsupportedPtx


@pytest.mark.parametrize(
    ("instruction", "refusal"),
    [
        ("barrier.cluster.arrive", "the emulator has no clusters"),
        (
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r0], %r0, [%r0]",
            "the emulator lacks .async here",
        ),
        ("alloca.u64 %rd0, 16", "the emulator has no stack of variable size"),
        ("tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%rd0, {%r0}]", "the emulator has no textures"),
        ("fence.sideways", "the emulator lacks this form of fence"),
        ("mov.b32 %r1, %pm0", "the emulator has no special register %pm0"),
    ],
)
def test_a_refusal_names_the_instruction_and_what_is_missing(emulation, instruction, refusal):
    mnemonic = instruction.split()[0]
    with pytest.raises(UnsupportedPtx, match=rf"^\d+:\d+: {re.escape(f'{mnemonic}: {refusal}')}$"):
        emulation.launch(kernel(f"{instruction};", params=0))


def test_no_block_is_of_an_explicit_cluster(emulation):
    text = kernel("mov.pred %p0, %is_explicit_cluster; selp.u32 %r1, 1, 2, %p0;" + store_result())
    assert emulation.run(text, 32).tolist() == [2] * 32


@pytest.mark.parametrize(
    ("instruction", "refusal"),
    [
        ("mov.u32 %r1, %is_explicit_cluster", "%is_explicit_cluster is a predicate"),
        ("mov.pred %p0, %laneid", "%laneid is no predicate"),
    ],
)
def test_predicates_and_other_special_registers_are_distinguished(emulation, instruction, refusal):
    with pytest.raises(MalformedPtx, match=refusal):
        emulation.launch(kernel(f"{instruction};", params=0))


@pytest.mark.parametrize(("link", "result"), [("addc.u32 %r1, 5, 0", 5), ("subc.u32 %r1, 5, 0", 4)])
def test_the_carry_flag_is_clear_before_anything_wrote_it(emulation, link, result):
    assert emulation.run(kernel(f"{link};" + store_result()), 32).tolist() == [result] * 32
