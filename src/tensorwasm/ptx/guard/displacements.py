"""Accesses of shared memory below their base register: from where one fence serves all of them in a block of code.

What may stay outside a fence is not negative, since nothing of the kernel's lies before its array. If a block of code
accesses ``[base-64]`` in any case, a right program has ``base-64`` in its array there: then that is fenced, and the
block's other accesses from the same base are at a distance from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwasm.ptx.guard.registers import is_register, written
from tensorwasm.ptx.model import Address, Instruction, Label, Name, Statement
from tensorwasm.watch import Watch

_ENDS = frozenset({"bra", "brx", "ret", "exit", "call"})
_PLAIN = frozenset({"ld", "st", "atom", "red"})


class Lowest:
    """The lowest displacement that a block accesses anyway from one value of a register; 0 if none is negative."""

    __slots__ = ("displacement",)

    def __init__(self) -> None:
        self.displacement = 0


def lowest_displacements(body: Sequence[Statement], watch: Watch) -> dict[int, Lowest]:
    """Return, by index, what each plain access of shared memory through a register has in common with its block's."""
    found: dict[int, Lowest] = {}
    current: dict[str, Lowest] = {}
    for index, statement in enumerate(watch.over(body)):
        if isinstance(statement, Label):
            current = {}
        if not isinstance(statement, Instruction):
            continue
        for base, displacement in _shared_accesses(statement):
            lowest = found[index] = current.setdefault(base, Lowest())
            if statement.guard is None:
                lowest.displacement = min(lowest.displacement, displacement)
        if statement.opcode in _ENDS:
            current = {}
        for name in written(statement):
            current.pop(name, None)
    return found


def _shared_accesses(statement: Instruction) -> list[tuple[str, int]]:
    if statement.opcode not in _PLAIN or "shared" not in statement.modifiers:
        return []
    return [
        (each.base.name, each.offset)
        for each in statement.operands
        if isinstance(each, Address) and isinstance(each.base, Name) and is_register(each.base.name)
    ]
