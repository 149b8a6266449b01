"""Where guarded code counts its work and polls: at branches backward, before loops, and on long ways forward."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.ptx.guard.counting import CountedLoop, NewRegister, counted_loops, turns
from tensorwasm.ptx.guarded import COUNTER, FUEL, FUEL_COMMON, FUEL_USED
from tensorwasm.ptx.model import Directive, Instruction, Label, Name, Statement, TargetList, Variable
from tensorwasm.ptx.templates.polls import (
    Poll,
    again_label,
    back_label,
    charge,
    charged_branch,
    counted_branch,
    pay_turns,
)
from tensorwasm.ptx.verifier.costs import ForwardWork, branch_targets, cost, ends_run, sums
from tensorwasm.ptx.verifier.turns import Turns

_TEMPLATES: Final = 256
"""Work of templates on a way forward, which the verifier sees and the guard does not."""
_MOST_UNCOUNTED: Final = FUEL - _TEMPLATES
_PAYMENT_COST: Final = 64
"""More than the work of a payment for a loop's turns."""


@dataclass(slots=True)
class Charged:
    """A body that counts its work, with its polls, and how many counters of loops it has."""

    body: list[Statement] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    counters: int = 0


def add_charges(
    body: list[Statement],
    functions: Mapping[str, int],
    new: NewRegister,
    varying: Collection[str] | None,
    staying: Collection[int],
    turns: Turns,
) -> Charged:
    """Return a body that counts its work.

    Args:
        body: without scopes.
        functions: cost of each function that it may call.
        new: returns a new register of the program.
        varying: registers whose values may differ between the threads of a warp; None if all may.
        staying: branches, by their index, of loops that no thread may leave early.
        turns: loops that have a greatest number of turns, and count nothing.
    """
    charging = _Charging(body, functions, new, varying, staying, turns)
    for at in range(len(body)):
        charging.statement(at)
    return charging.made


def _calls(body: list[Statement], total: Sequence[int]) -> dict[int, int]:
    """Return the work from the first argument of each call to its end, by where that argument is declared.

    What hands over the launch parameter stands between the arguments and the call, and nothing else may.
    """
    found, first = dict[int, int](), -1
    for at, statement in enumerate(body):
        if isinstance(statement, Variable) and statement.space == "param":
            first = at if first < 0 else first
        elif isinstance(statement, Instruction) and statement.opcode == "call" and first >= 0:
            found[first] = total[at + 1] - total[first]
            first = -1
        elif ends_run(statement):
            first = -1
    return found


class _Charging:
    def __init__(
        self,
        body: list[Statement],
        functions: Mapping[str, int],
        new: NewRegister,
        varying: Collection[str] | None,
        staying: Collection[int],
        turns: Turns,
    ) -> None:
        self.made = Charged()
        self._body = body
        self._functions = functions
        self._new = new
        self._varying = varying
        self._staying = staying
        self._labels = {each.name: at for at, each in enumerate(body) if isinstance(each, Label)}
        self._lists = {each.label: each.targets for each in body if isinstance(each, TargetList)}
        self._turns = turns
        self._total = sums(body, functions, turns.more)
        self._calls = _calls(body, self._total)
        self._outermost: dict[int, int] = {}
        self._uncounted: set[int] = set()
        for loop in sorted(turns.loops.values(), key=lambda loop: -loop.branch):
            if loop.head not in self._uncounted:
                self._uncounted.update(range(loop.head, loop.branch + 1))
                self._outermost[loop.head] = self._total[loop.branch + 1] - self._total[loop.head]
        self._forward = ForwardWork(functions, self._lists)
        counted = counted_loops(body, {loop.head for loop in turns.loops.values()})
        self._loops = {head: loop for head, loop in counted.items() if loop.branch not in staying}
        self._open: dict[int, tuple[Name, int]] = {}

    def statement(self, at: int) -> None:
        """Add a statement, with what is counted before it and after it."""
        statement, made = self._body[at], self.made
        if isinstance(statement, Directive):
            # Loops that are paid for in advance are quicker unrolled, so the hint stays in those that count nothing.
            made.body += [statement] * (at in self._uncounted)
            return
        if at in self._loops:
            self._pay(at, self._loops[at])
        work = cost(statement, self._functions) if isinstance(statement, Instruction) else 0
        work = self._calls.get(at, work)
        work = self._outermost.get(at, 0 if at in self._uncounted else work)
        if work and self._forward.amount and self._forward.amount + work > _MOST_UNCOUNTED:
            self._count_forward()
        if at in self._open:
            assert isinstance(statement, Instruction)  # noqa: S101 - a loop ends at a branch
            number, fuel = len(made.polls), self._fuel(statement)
            made.body += counted_branch(statement, *self._open[at], number, fuel)
            made.polls.append(Poll(back_label(number), fuel, leaves=True))
            self._forward.add(statement)
            self._forward.counted(FUEL)
            return
        if not (isinstance(statement, Instruction) and self._branch(statement, at)):
            made.body.append(statement)
        self._forward.add(statement)
        self._forward.amount += self._turns.more.get(at, 0)
        known = at in self._loops or at in self._uncounted
        if isinstance(statement, Label) and not known and self._forward.amount > FUEL // 2:
            following = self._body[at + 1] if at + 1 < len(self._body) else None
            # The verifier takes what is counted right before a branch for work of the branch, behind it alone.
            if not (isinstance(following, Instruction) and following.opcode in ("bra", "brx")):
                self._count_forward()

    def _count_forward(self) -> None:
        self._count(min(self._forward.amount + _TEMPLATES, FUEL))

    def _count(self, amount: int) -> None:
        made = self.made
        number = len(made.polls)
        made.body += charge(amount, number)
        made.polls.append(Poll(back_label(number), FUEL_USED))
        self._forward.counted(amount)

    def _pay(self, head: int, loop: CountedLoop) -> None:
        """Pay for turns of a loop before its head, if more than one of them fits the fuel."""
        made, number = self.made, self.made.counters
        compute, left = turns(loop, self._new)
        amount = self._work(head, loop.branch) + sums(compute, {})[-1]
        most = FUEL // 2 // amount - 1
        if most < 2:
            return
        whole = (most + 1) * amount
        if self._forward.amount and self._forward.amount + whole + amount > _MOST_UNCOUNTED:
            self._count_forward()
        branch = self._body[loop.branch]
        fuel = self._fuel(branch) if isinstance(branch, Instruction) else FUEL_USED
        counter = Name(f"{COUNTER}{number}")
        made.counters += 1
        self._open[loop.branch] = counter, number
        made.body += [Label(again_label(number)), *compute, *pay_turns(counter, left, most, amount, fuel)]
        for each in compute:
            self._forward.add(each)
        self._forward.amount += whole

    def _fuel(self, branch: Instruction) -> Name:
        """Return the register that counts the work of a loop, by the branch that closes it."""
        together = branch.guard is None or branch.guard.predicate.name not in (self._varying or ())
        return FUEL_COMMON if self._varying is not None and together else FUEL_USED

    def _work(self, first: int, last: int) -> int:
        """Return the work of statements, with that of the payments among them."""
        loops = sum(first <= head <= last for head in self._loops)
        return self._total[last + 1] - self._total[first] + loops * _PAYMENT_COST

    def _branch(self, branch: Instruction, at: int) -> bool:
        """Add a branch backward that counts its work; return whether it was one that ``bra`` makes."""
        if branch.opcode not in ("bra", "brx"):
            return False
        targets = branch_targets(branch, self._lists)
        first = min((self._labels[name] for name in targets if name in self._labels), default=at)
        if first >= at or at in self._turns.loops:
            return False
        amount = min(self._work(first, at), FUEL)
        if FUEL // 2 < self._forward.amount <= amount < self._forward.amount + _TEMPLATES:
            amount = min(amount + _TEMPLATES, FUEL)  # or the verifier may see more on the way here than is counted
        if branch.opcode == "brx":
            self._count(amount)
            return False
        target = branch.operands[0]
        fuel, number = self._fuel(branch), len(self.made.polls)
        leaves = branch.guard is not None and at not in self._staying
        self.made.body += charged_branch(branch, amount, number, fuel, leaves=leaves)
        self.made.polls.append(Poll(target.name if isinstance(target, Name) else "", fuel, leaves))
        self._forward.counted(amount)
        return True
