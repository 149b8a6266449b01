"""Where the bits of a NaN can show that arithmetic has made.

WebAssembly leaves the sign and the payload of such a NaN open, and machines differ in them. Values that are only moved
keep theirs.
"""

from __future__ import annotations

from tensorwasm.offload.codegen.iterations import in_order, statements_of
from tensorwasm.offload.nest import Carried, Cell, Load, Operation, SetCell, Store, Value
from tensorwasm.offload.opcodes import KNOWN_BITS, SAME_BITS, SHOWS_BITS
from tensorwasm.offload.program import NestProgram


def unknown_values(program: NestProgram, *, gpu: bool) -> set[Value]:
    """Return the floats whose bits are not known if they are NaN.

    What is read from an array that the nest writes is one of them: its content may be in a register yet, where nobody
    has looked at it. On a GPU so is the result of every instruction, and what a bit pattern is read from: PTX leaves
    the NaN of ``abs`` and ``neg`` open, and LLVM makes these of integer instructions too.
    """
    effects = [effect for statement, _ in statements_of(program.nest.body) for effect in statement.effects]
    changes = [effect for effect in effects if isinstance(effect, SetCell)]
    roots = [effect if isinstance(effect, Load) else effect.value for effect in effects]
    values = in_order([*roots, *program.nest.results.values()])
    array_of = program.array_of  # without statements that never run
    written = {array_of[effect] for effect in effects if isinstance(effect, Store) and effect in array_of}
    loads = {effect for effect in effects if isinstance(effect, Load) and array_of.get(effect) in written}
    cells: set[Cell] = set()
    while True:
        unknown: set[Value] = {load for load in loads if load.type in {"f32", "f64"}}
        for value in values:
            if _is_unknown(value, unknown, cells, gpu=gpu):
                unknown.add(value)
        grown = {change.cell for change in changes if change.value in unknown}
        if grown == cells:
            return unknown | (_shown_operands(values) if gpu else set())
        cells = grown


def _shown_operands(values: list[Value]) -> set[Value]:
    operations = [value for value in values if isinstance(value, Operation) and value.opcode in SHOWS_BITS]
    return {value.operands[SHOWS_BITS[value.opcode]] for value in operations}


def _is_unknown(value: Value, unknown: set[Value], cells: set[Cell], *, gpu: bool) -> bool:
    if isinstance(value, Carried):
        return value.cell in cells
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
