"""Whether a kernel may change the variables of its module, or only looks things up in them.

Compilers put tables in global memory, for the reduction of an angle for instance, that no kernel ever writes. A
variable may be written if its address, moved about and reckoned with, comes to anything but a load. The answer may be
yes although it never happens, and is no only if it cannot: registers are told apart by their names alone.

Source: PTX ISA 5.1.4 (Global State Space), 6.4 (Using Addresses, Arrays, and Vectors), 9.7.9 (Data Movement).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tensorwasm.ptx.model import Function, Instruction, Module, Operand, Variable
from tensorwasm.ptx.reach import mentioned, names, reachable, statements
from tensorwasm.values import NEVER, Deadline
from tensorwasm.watch import Watch

_MOVES: Final = frozenset(
    {"add", "and", "cvt", "cvta", "mad", "max", "min", "mov", "mul", "not", "or", "selp", "shl", "shr", "sub", "xor"}
)
"""Opcodes whose first operand is an address only if one of the others is, or a part of one."""
_LOOKS: Final = frozenset({"isspacep", "ld", "ldu", "prefetch", "prefetchu", "setp"})
"""Opcodes that do no more with an address than to read what is there, or to compare it."""


def may_write(module: Module, entry: str, deadline: Deadline = NEVER) -> bool:
    """Return whether a kernel may write to variables of its module in global memory.

    Takes time proportional to the size of what the kernel reaches.

    Args:
        module: consistent, as ``parse`` returns it.
        entry: name of one of its kernels.
        deadline: when to give up.

    Raises:
        InvokeTimeout: the deadline passed.
    """
    function = module.entry(entry)
    if function is None:
        return False
    watch = Watch(deadline, "while the uses of the module's variables were traced")
    reached = reachable(module, function, watch)
    variables = frozenset(variable.name for variable in watch.over(_variables(reached)) if variable.space == "global")
    pointed = (name for item in _variables(reached) for name in mentioned(item))
    if not variables.isdisjoint(watch.over(pointed)):
        return True
    return any(_leaks(item, variables, watch) for item in reached if isinstance(item, Function))


def _variables(items: Iterable[Function | Variable]) -> Iterator[Variable]:
    """Yield variables of the module and of functions' bodies."""
    for item in items:
        if isinstance(item, Variable):
            yield item
        else:
            yield from (each for each in statements(item.body or ()) if isinstance(each, Variable))


def _leaks(function: Function, variables: frozenset[str], watch: Watch) -> bool:
    """Return whether the address of one of the variables comes to what is neither a move nor a load."""
    readers: dict[str, list[Instruction]] = {}
    elsewhere: set[str] = set()
    for statement in watch.over(statements(function.body or ())):
        if not isinstance(statement, Instruction) or statement.opcode in _LOOKS:
            continue
        if statement.opcode in _MOVES and statement.operands:
            for name in set(_names(statement.operands[1:])):
                readers.setdefault(name, []).append(statement)
        else:
            elsewhere.update(_names(statement.operands))
    seen, waiting, done = set(variables), list(variables), set[int]()
    while waiting:
        for instruction in watch.over(readers.pop(waiting.pop(), ())):
            if id(instruction) in done:
                continue
            done.add(id(instruction))
            found = set(names(instruction.operands[0])) - seen
            seen |= found
            waiting += found
    return not seen.isdisjoint(elsewhere)


def _names(operands: Iterable[Operand]) -> Iterator[str]:
    for operand in operands:
        yield from names(operand)
