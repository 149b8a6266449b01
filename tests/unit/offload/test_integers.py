from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.nest import contains, evaluate
from oracles.wasm_numeric import ARITY, NUMERIC
from tensorwasm.offload.affine import add, counter
from tensorwasm.offload.analysis.integers import Comparison, Integer, apply, check_divisor, number
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Constraint
from tensorwasm.offload.opcodes import ROWS

OPCODES = sorted(
    name
    for name, row in ROWS.items()
    if row.result in {"i32", "i64"} and all(operand in {"i32", "i64"} for operand in row.operands)
)
LAST = 9
SCOPE = Scope(None, (Constraint(counter(0)), Constraint(Affine(LAST, ((0, -1),)))))
constants = st.one_of(
    st.integers(-20, 20),
    st.builds(lambda high, low: (1 << high) - (1 << low), st.integers(0, 63), st.integers(0, 63)),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(st.sampled_from(OPCODES), st.lists(st.tuples(constants, st.integers(-9, 9)), min_size=2, max_size=2))
def test_an_instruction_is_what_it_is_in_every_iteration(opcode, drawn):
    types = ROWS[opcode].operands
    operands = [
        Integer(type_, add(number(type_, constant).affine, counter(0), step))
        for type_, (constant, step) in zip(types, drawn, strict=False)
    ]
    assert len(operands) == ARITY[opcode]
    found = apply(opcode, operands, SCOPE)
    for value in range(LAST + 1):
        bits = [evaluate(each.affine, {0: value}) % (1 << int(each.type[1:])) for each in operands]
        if isinstance(found, Integer):
            expected = NUMERIC[opcode](*bits)
            assert evaluate(found.affine, {0: value}) % (1 << int(found.type[1:])) == expected
        elif isinstance(found, Comparison):
            outcomes = found.outcomes(SCOPE)
            true = [result for result, domain in outcomes or () if contains((domain,), {0: value})]
            assert outcomes is None or true == [bool(NUMERIC[opcode](*bits))]


@pytest.mark.parametrize("divisor", [Integer("i32", counter(0)), number("i32", 0), number("i32", -1)])
def test_a_division_that_may_trap_declines(divisor):
    with pytest.raises(Declined) as declined:
        check_divisor("i32.div_s", divisor)
    assert declined.value.reason is DeclineReason.INSTRUCTION
