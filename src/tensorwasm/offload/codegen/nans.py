"""Where the bits of a NaN can show that arithmetic has made.

WebAssembly leaves the sign and the payload of such a NaN open, and machines differ in them. Values that are only moved
keep theirs.
"""

from __future__ import annotations

from tensorwasm.offload.codegen.iterations import in_order, statements_of
from tensorwasm.offload.nest import (
    Carried,
    Cell,
    Load,
    Operation,
    SetCell,
    Store,
    TurningScalar,
    Value,
    accesses_of,
    values_of,
    whiles_of,
)
from tensorwasm.offload.opcodes import KNOWN_BITS, SAME_BITS, SHOWS_BITS
from tensorwasm.offload.program import NestProgram


def unknown_values(program: NestProgram, *, gpu: bool) -> set[Value]:
    """Return the floats whose bits are not known if they are NaN.

    What is read from an array that the nest writes is one of them: its content may be in a register yet, where nobody
    has looked at it. On a GPU so is the result of every instruction, and what a bit pattern is read from: PTX leaves
    the NaN of ``abs`` and ``neg`` open, and LLVM makes these of integer instructions too.
    """
    effects = [effect for statement, _ in statements_of(program.nest.body) for effect in statement.effects]
    changes: list[tuple[Cell | TurningScalar, Value]] = [
        (each.cell, each.value) for each in effects if isinstance(each, SetCell)
    ]
    for loop in whiles_of(effects):
        changes += zip(loop.scalars * 2, (*loop.initial, *loop.after), strict=True)
    accesses = list(accesses_of(effects))
    roots = [effect for effect in accesses if isinstance(effect, Load)]
    values = in_order([*roots, *values_of(effects), *program.nest.results.values()])
    array_of = program.array_of  # without statements that never run
    written = {array_of[effect] for effect in accesses if isinstance(effect, Store) and effect in array_of}
    loads = {load for load in roots if array_of.get(load) in written}
    variables: set[Cell | TurningScalar] = set()
    while True:
        unknown: set[Value] = {load for load in loads if load.type in {"f32", "f64"}}
        for value in values:
            if _is_unknown(value, unknown, variables, gpu=gpu):
                unknown.add(value)
        grown = {variable for variable, value in changes if value in unknown}
        if grown == variables:
            return unknown | (_shown_operands(values) if gpu else set())
        variables = grown


def _shown_operands(values: list[Value]) -> set[Value]:
    operations = [value for value in values if isinstance(value, Operation) and value.opcode in SHOWS_BITS]
    return {value.operands[SHOWS_BITS[value.opcode]] for value in operations}


def _is_unknown(value: Value, unknown: set[Value], variables: set[Cell | TurningScalar], *, gpu: bool) -> bool:
    if isinstance(value, Carried | TurningScalar):
        return (value.cell if isinstance(value, Carried) else value) in variables
    if not isinstance(value, Operation) or value.type not in {"f32", "f64"}:
        return False
    if value.opcode == "select":
        return not unknown.isdisjoint(value.operands[:2])
    if gpu or value.opcode in KNOWN_BITS:
        return gpu
    return value.opcode not in SAME_BITS or value.operands[0] in unknown


def shown_operand(value: Value, unknown: set[Value]) -> Value | None:
    """Return the operand of which an operation shows bits that are not known if it is a NaN; None if there is none."""
    if isinstance(value, Operation) and value.opcode in SHOWS_BITS:
        operand = value.operands[SHOWS_BITS[value.opcode]]
        return operand if operand in unknown else None
    return None
