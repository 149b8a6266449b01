"""Which registers may hold generic addresses of other state spaces than global memory."""

from __future__ import annotations

from typing import Final

from tensorwasm.ptx.guard.flat import FlatFunction
from tensorwasm.ptx.model import Instruction, names
from tensorwasm.watch import Watch

_LOADS: Final = frozenset({"ld", "ldu", "atom", "call", "shfl"})
_NO_RESULT: Final = frozenset({"st", "red", "bra", "bar", "barrier", "ret", "exit"})


def tainted(flat: FlatFunction, watch: Watch) -> set[str]:
    """Return the registers that may hold generic addresses of shared or local memory.

    These are what is converted to such an address, what is loaded or returned, where one may have been stored, and all
    that is calculated from them. A kernel's own parameters are addresses of global memory.
    """
    flows: dict[str, set[str]] = {}
    seen: set[str] = set()
    params = {each.name for each in flat.function.params} if flat.function.entry else set[str]()
    for statement in watch.over(flat.body):
        if not isinstance(statement, Instruction) or not statement.operands or statement.opcode in _NO_RESULT:
            continue
        targets = set(names(statement.operands[0]))
        others = {name for operand in statement.operands[1:] for name in names(operand)}
        made = statement.opcode == "cvta" and {"to", "global"}.isdisjoint(statement.modifiers)
        if made or (statement.opcode in _LOADS and others.isdisjoint(params)):
            seen |= targets
        elif statement.opcode not in _LOADS:
            for name in others:
                flows.setdefault(name, set()).update(targets)
    waiting = list(seen)
    while waiting:
        fresh = flows.get(waiting.pop(), set()) - seen
        seen |= fresh
        waiting += fresh
    return seen
