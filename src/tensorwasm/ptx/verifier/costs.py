"""Bounds of the work of instructions, in units of fuel: how often loops of guarded kernels poll their deadline.

A unit is at most some 0.5 us of a full GPU: an addition of all resident threads takes 0.02 us, a load from scattered
addresses some 100 us, atomic operations of all threads on one word some 300 us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from tensorwasm.ptx.guarded import FUEL
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Function, Instruction, Label, Name, Statement

_SMALL: Final = FUEL // 8
"""Work of a function that does not check the deadline when it is called."""
_ENDS: Final = frozenset({"bra", "brx", "ret", "exit"})

_COSTS: Final = {
    **dict.fromkeys(("ld", "ldu", "st", "cp", "wmma", "membar", "fence"), 256),
    **dict.fromkeys(("atom", "red"), 1024),
    **dict.fromkeys(("bar", "barrier", "ldmatrix", "stmatrix", "mma"), 32),
    **dict.fromkeys(("div", "rem", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "mbarrier"), 32),
    "nanosleep": 8192,
}
_CHEAP_SPACES: Final = frozenset({"param", "const"})
_NEAR_SPACES: Final = frozenset({"shared", "shared::cta", "local"})


def cost(instruction: Instruction, functions: Mapping[str, int]) -> int:
    """Return a bound of an instruction's work; that of a call is its function's."""
    opcode, words = instruction.opcode, instruction.modifiers
    if opcode == "call":
        return 8 + sum(functions.get(each.name, 0) for each in instruction.operands if isinstance(each, Name))
    if opcode in ("ld", "st", "atom", "red") and words:
        if not _CHEAP_SPACES.isdisjoint(words):
            return 2
        if not _NEAR_SPACES.isdisjoint(words):
            return 32
    return _COSTS.get(opcode, 1)


def sums(body: Sequence[Statement], functions: Mapping[str, int]) -> list[int]:
    """Return the work of all statements before each, and of all."""
    return list(accumulate((_statement_cost(each, functions) for each in body), initial=0))


def _statement_cost(statement: Statement, functions: Mapping[str, int]) -> int:
    return cost(statement, functions) if isinstance(statement, Instruction) else 0


def branch_targets(branch: Instruction, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the labels that a ``bra`` or ``brx`` may go to; ``lists`` are the function's, by their labels."""
    last = branch.operands[-1]
    name = last.name if isinstance(last, Name) else ""
    return lists.get(name, (name,))


def ends_run(statement: Statement) -> bool:
    """Return whether what follows a statement may run without it, or not run after it."""
    return isinstance(statement, Label) or (isinstance(statement, Instruction) and statement.opcode in _ENDS)


class ForwardWork:
    """The most work on any way forward through a function that has not been counted, statement by statement.

    A way backward is not followed: the branch counts the work of its loop.
    """

    def __init__(self, functions: Mapping[str, int], lists: Mapping[str, tuple[str, ...]]) -> None:
        self.amount = 0
        self._functions = functions
        self._lists = lists
        self._arriving: dict[str, int] = {}
        self._seen: set[str] = set()

    def add(self, statement: Statement) -> None:
        """Go on behind a statement."""
        if isinstance(statement, Label):
            self._seen.add(statement.name)
            self.amount = max(self.amount, self._arriving.get(statement.name, 0))
        elif isinstance(statement, Instruction):
            self.amount += cost(statement, self._functions)
            if statement.opcode in ("bra", "brx"):
                for name in branch_targets(statement, self._lists):
                    if name not in self._seen:
                        self._arriving[name] = max(self._arriving.get(name, 0), self.amount)
            if statement.opcode in _ENDS and statement.guard is None:
                self.amount = 0

    def counted(self, amount: int) -> None:
        """Note that work was counted here."""
        if amount >= min(self.amount, FUEL):
            self.amount = 0


def function_cost(
    function: Function, body: Sequence[Statement], functions: Mapping[str, int], *, loops: bool
) -> tuple[int, bool]:
    """Return what a call of a function costs, and whether the function checks the deadline when it is called.

    Args:
        function: its results are cleared when it is called.
        body: what the program does in it.
        functions: cost of each function that it may call.
        loops: whether it has polls.
    """
    total = sums(body, functions)[-1] + sum(map(variable_bytes, function.returns))
    return (min(total, FUEL), True) if loops or total > _SMALL else (total, False)
