"""Where guarded code counts its work and polls: at branches backward, and on long ways forward."""

from __future__ import annotations

from collections.abc import Mapping

from tensorwasm.ptx.guarded import FUEL, back_label, charge, charged_branch
from tensorwasm.ptx.model import Instruction, Label, Name, Statement, TargetList
from tensorwasm.ptx.verifier.costs import ForwardWork, branch_targets, cost, sums


def add_charges(body: list[Statement], functions: Mapping[str, int]) -> tuple[list[Statement], list[str]]:
    """Return a body that counts its work, and where each of its polls returns to.

    Args:
        body: without scopes.
        functions: cost of each function that it may call.
    """
    labels = {each.name: at for at, each in enumerate(body) if isinstance(each, Label)}
    lists = {each.label: each.targets for each in body if isinstance(each, TargetList)}
    total = sums(body, functions)
    forward = ForwardWork(functions, lists)
    made: list[Statement] = []
    backs: list[str] = []

    def count(amount: int) -> None:
        made.extend(charge(amount, len(backs)))
        backs.append(back_label(len(backs)))
        forward.counted(amount)

    for at, statement in enumerate(body):
        work = cost(statement, functions) if isinstance(statement, Instruction) else 0
        if work and forward.amount and forward.amount + work > FUEL:
            count(min(forward.amount, FUEL))
        if isinstance(statement, Instruction) and statement.opcode in ("bra", "brx"):
            targets = branch_targets(statement, lists)
            first = min((labels[name] for name in targets if name in labels), default=at)
            amount = min(total[at + 1] - total[first], FUEL)
            if first < at and statement.opcode == "bra":
                made += charged_branch(statement, amount, len(backs))
                target = statement.operands[0]
                backs.append(target.name if isinstance(target, Name) else "")
                forward.add(statement)
                forward.counted(amount)
                continue
            if first < at:
                count(amount)
        made.append(statement)
        forward.add(statement)
        if isinstance(statement, Label) and forward.amount > FUEL // 2:
            count(min(forward.amount, FUEL))
    return made, backs
