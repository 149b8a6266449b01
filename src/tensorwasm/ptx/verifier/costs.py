"""Bounds of the work of instructions, in units of fuel: how often loops of guarded kernels poll their deadline.

A unit is at most some 0.5 us of a full GPU: an addition of all resident threads takes 0.02 us, a load from scattered
addresses some 100 us, atomic operations of all threads on one word some 300 us. Of shared memory, 64 warps of a
multiprocessor that load 16 bytes a thread from one bank take 8,192 cycles, and an approximation of theirs in single
precision 128.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from tensorwasm.ptx.guarded import FUEL, MASK
from tensorwasm.ptx.layout import variable_bytes
from tensorwasm.ptx.model import Function, Instruction, Label, Name, Statement

_SMALL: Final = FUEL // 8
"""Work of a function that does not check the deadline when it is called."""
_ENDS: Final = frozenset({"bra", "brx", "ret", "exit"})

MAX_QUICK: Final = 64
"""Instructions that a kernel may have before it checks the deadline, all of them quick."""
_QUICK: Final = frozenset({"add", "and", "cvt", "mad", "max", "min", "mov", "mul", "or", "setp", "shl", "shr", "sub"})

_COSTS: Final = {
    **dict.fromkeys(("ld", "ldu", "st", "cp", "wmma", "membar", "fence"), 256),
    **dict.fromkeys(("atom", "red"), 1024),
    **dict.fromkeys(("bar", "barrier", "ldmatrix", "stmatrix", "mma"), 32),
    **dict.fromkeys(("div", "rem", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "mbarrier"), 32),
    "nanosleep": 8192,
}
_CHEAP_SPACES: Final = frozenset({"param", "const"})
_SHARED_SPACES: Final = frozenset({"shared", "shared::cta"})
_NEAR_SPACES: Final = _SHARED_SPACES | {"local"}
_SHARED_COST: Final = 12
_APPROXIMATION_COST: Final = 4


def cost(instruction: Instruction, functions: Mapping[str, int]) -> int:
    """Return a bound of an instruction's work; that of a call is its function's."""
    opcode, words = instruction.opcode, instruction.modifiers
    if opcode == "call":
        return 8 + sum(functions.get(each.name, 0) for each in instruction.operands if isinstance(each, Name))
    if opcode in ("ld", "st", "atom", "red") and words:
        if not _CHEAP_SPACES.isdisjoint(words):
            return 2
        if opcode in ("ld", "st") and not _SHARED_SPACES.isdisjoint(words):
            return _SHARED_COST
        if not _NEAR_SPACES.isdisjoint(words):
            return 32
    if "approx" in words and words[-1] == "f32":
        return _APPROXIMATION_COST
    return _COSTS.get(opcode, 1)


def is_quick(statement: Statement) -> bool:
    """Return whether a statement is an instruction that takes hardly any time, and goes on behind itself."""
    if not isinstance(statement, Instruction):
        return False
    fence = statement.opcode == "lop3" and MASK in statement.operands  # of a wide kernel
    return fence or statement.opcode in _QUICK or (statement.opcode == "ld" and statement.modifiers[:1] == ("param",))


def sums(body: Sequence[Statement], functions: Mapping[str, int], turns: Mapping[int, int] | None = None) -> list[int]:
    """Return the work of all statements before each, and of all.

    Args:
        body: of a function.
        functions: cost of each function that it may call.
        turns: work of all turns but one of loops that have a greatest number of turns, by the index of their heads.
    """
    more = turns or {}
    work = (_statement_cost(each, functions) + more.get(at, 0) for at, each in enumerate(body))
    return list(accumulate(work, initial=0))


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
    function: Function,
    body: Sequence[Statement],
    functions: Mapping[str, int],
    turns: Mapping[int, int],
    *,
    loops: bool,
) -> tuple[int, bool]:
    """Return what a call of a function costs, and whether the function checks the deadline when it is called.

    Args:
        function: its results are cleared when it is called.
        body: what the program does in it.
        functions: cost of each function that it may call.
        turns: work of bounded loops, by where they are entered.
        loops: whether it has polls.
    """
    total = sums(body, functions, turns)[-1] + sum(map(variable_bytes, function.returns))
    return (min(total, FUEL), True) if loops or total > _SMALL else (total, False)
