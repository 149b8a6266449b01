"""Which instructions may have given a register the value that it has at a place of a function.

Source: Aho, Lam, Sethi and Ullman, "Compilers", 9.2.4 (Reaching Definitions).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tensorwasm.ptx.model import Address, Instruction, Label, Statement, names
from tensorwasm.ptx.verifier.costs import branch_targets
from tensorwasm.watch import Watch

BEGINNING: Final = -1
"""Stands for what clears a register when the function begins."""
_BRANCHES: Final = frozenset({"bra", "brx"})
_ENDS: Final = frozenset({"ret", "exit"})


class Definitions:
    """The writes of a function's registers, and the ways between them.

    Args:
        body: of the function, without scopes.
        lists: labels of each list for branches.
        leaving: branches, by their index, that may go on behind them even if they are not guarded.
        watch: of the deadline.

    Attributes:
        writes: where each register is written, in order.
        labels: index of each label.
        steps: blocks that questions have looked at.
    """

    def __init__(
        self,
        body: Sequence[Statement],
        lists: Mapping[str, tuple[str, ...]],
        leaving: Collection[int],
        watch: Watch,
    ) -> None:
        self.body = body
        self.leaving = leaving
        self.writes: dict[str, list[int]] = {}
        self.labels = {each.name: at for at, each in enumerate(body) if isinstance(each, Label)}
        self.steps = 0
        self._watch = watch
        self._starts: list[int] = [0]
        self._arrivals: dict[int, list[int]] = {}
        self._through: list[bool] = [True]
        ended = False
        for at, statement in enumerate(watch.over(body)):
            if at and (ended or isinstance(statement, Label)):
                self._starts.append(at)
                self._through.append(not ended or self._goes_on(at - 1))
            ended = isinstance(statement, Instruction) and statement.opcode in (_BRANCHES | _ENDS)
            if not isinstance(statement, Instruction):
                continue
            for name in written_by(statement):
                self.writes.setdefault(name, []).append(at)
            if statement.opcode in _BRANCHES:
                for label in branch_targets(statement, lists):
                    self._arrivals.setdefault(self.labels.get(label, BEGINNING), []).append(at)

    def _goes_on(self, at: int) -> bool:
        """Return whether what follows an instruction may run after it."""
        statement = self.body[at]
        return not isinstance(statement, Instruction) or statement.guard is not None or at in self.leaving

    def arrivals(self, label: int) -> Sequence[int]:
        """Return the branches that may lead to a label, by its index; one through a list counts for each entry."""
        return self._arrivals.get(label, ())

    def written_between(self, name: str, first: int, end: int) -> list[int]:
        """Return where a register is written from one statement on and before another."""
        found = self.writes.get(name, [])
        return found[bisect_left(found, first) : bisect_left(found, end)]

    def reaching(self, name: str, at: int, branch: int = BEGINNING) -> set[int]:
        """Return the writes whose value a register may have before a statement, `BEGINNING` among them.

        Args:
            name: of the register.
            at: index of the statement.
            branch: a branch to the statement, a label, that is not taken.
        """
        found: set[int] = set()
        seen: set[int] = set()
        waiting = [(self._block(at), at, branch)]
        while waiting:
            self._watch.step()
            self.steps += 1
            block, end, skipped = waiting.pop()
            start = self._starts[block]
            if self._add_last(name, start, end, found):
                continue
            if not block:
                found.add(BEGINNING)
            elif self._through[block] and block - 1 not in seen:
                seen.add(block - 1)
                waiting.append((block - 1, start, BEGINNING))
            for each in self._arrivals.get(start, ()):
                before = self._block(each)
                if each != skipped and before not in seen:
                    seen.add(before)
                    waiting.append((before, each + 1, BEGINNING))
        return found

    def _block(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1

    def _add_last(self, name: str, start: int, end: int, found: set[int]) -> bool:
        """Add the writes in a block that count at its end; return whether one of them always happens."""
        for at in reversed(self.written_between(name, start, end)):
            found.add(at)
            statement = self.body[at]
            if isinstance(statement, Instruction) and statement.guard is None:
                return True
        return False


def written_by(instruction: Instruction) -> set[str]:
    """Return the registers that an instruction may write, and perhaps others that it names."""
    operands = instruction.operands if instruction.opcode == "call" else instruction.operands[:1]
    return {name for operand in operands if not isinstance(operand, Address) for name in names(operand)}
