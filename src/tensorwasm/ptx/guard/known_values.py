"""Values that registers of a flat function have wherever they are read."""

from __future__ import annotations

from tensorwasm.ptx.guard.registers import written
from tensorwasm.ptx.model import Instruction, Int, Name, Statement
from tensorwasm.watch import Watch


def known_values(body: list[Statement], watch: Watch) -> dict[str, int]:
    """Return the values of registers that are written once, with a number or its sum with another such register."""
    writes: dict[str, int] = {}
    moves: list[Instruction] = []
    for statement in watch.over(body):
        if isinstance(statement, Instruction):
            for name in written(statement):
                writes[name] = writes.get(name, 0) + 1
            if statement.opcode in ("mov", "add") and statement.guard is None:
                moves.append(statement)
    found: dict[str, int] = {}
    for statement in watch.over(moves):
        target, *terms = statement.operands
        if isinstance(target, Name) and writes.get(target.name) == 1:
            values = [term.value if isinstance(term, Int) else found.get(getattr(term, "name", "")) for term in terms]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                found[target.name] = sum(known)
    return found
