"""Loops whose turns can be counted before they begin, so that nothing in them has to poll.

Such a loop ends with ``add k, k, step; setp.lt p, k, limit; @p bra head``. How many turns it has is known where it is
entered; the guard takes as many of them as fit the fuel, pays for them, and lets the loop run by a counter. ptxas can
unroll that as it could the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from tensorwasm.ptx.guard.registers import register_width, written
from tensorwasm.ptx.guarded import TRAP
from tensorwasm.ptx.model import Instruction, Int, Label, Name, Operand, Statement
from tensorwasm.ptx.templates import instruction
from tensorwasm.ptx.verifier.convergence import waits

NewRegister = Callable[[int], Name]
"""Returns a new register of some bits."""

_ENDS: Final = frozenset({"bra", "brx", "ret", "exit"})
_INVERSE: Final = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_MIRRORED: Final = {"gt": "lt", "ge": "le"}


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """A loop whose turns can be counted.

    Attributes:
        branch: index of the branch that ends it.
        counter: register that is added to in each turn.
        step: what is added, a number or a register.
        limit: what the counter is compared with after that.
        compared: ``lt``, ``le`` or ``ne``, in the direction of the step: the loop goes on while it holds.
        down: whether the step is negative.
        bits: of the counter.
        signed: whether the comparison is.
    """

    branch: int
    counter: Name
    step: Operand
    limit: Operand
    compared: str
    down: bool
    bits: int
    signed: bool


def counted_loops(body: list[Statement], bounded: Collection[int]) -> dict[int, CountedLoop]:
    """Return the loops whose turns can be counted, by the index of the label at their head.

    Args:
        body: of a function.
        bounded: heads of loops that are counted nowhere.
    """
    labels = {each.name: at for at, each in enumerate(body) if isinstance(each, Label)}
    aims: Counter[str] = Counter()
    for each in body:
        if isinstance(each, Instruction) and each.opcode == "bra" and isinstance(each.operands[0], Name):
            aims[each.operands[0].name] += 1
        elif not isinstance(each, (Instruction, Label)):
            aims.update(getattr(each, "targets", ()))
    found: dict[int, CountedLoop] = {}
    for at, statement in enumerate(body):
        if isinstance(statement, Instruction) and statement.opcode == "bra" and isinstance(statement.operands[0], Name):
            name = statement.operands[0].name
            head = labels.get(name, at)
            if head < at and head not in bounded and aims[name] == 1 and _is_simple(body[head:at], labels, head):
                made = _counted(body, head, at)
                if made is not None:
                    found[head] = made
    return found


def _is_simple(turn: list[Statement], labels: dict[str, int], head: int) -> bool:
    """Return whether a loop has no loop inside, nothing at which threads wait for others, and no arrays of its own.

    For other loops the counter costs more than polls do.
    """
    for at, each in enumerate(turn, head):
        if isinstance(each, Instruction):
            if waits(each, ()) or each.opcode == "brx" or "local" in each.modifiers:
                return False
            if (
                each.opcode == "bra"
                and isinstance(each.operands[0], Name)
                and labels.get(each.operands[0].name, at) < at
            ):
                return False
    return True


def _counted(body: list[Statement], head: int, branch: int) -> CountedLoop | None:
    """Return a loop whose turns can be counted, None if they cannot."""
    last = body[branch]
    guard = last.guard if isinstance(last, Instruction) else None
    start = branch
    while start > head + 1 and not _breaks(body[start - 1]):
        start -= 1
    before = body[start - 1]
    agreed = isinstance(before, Instruction) and before.operands == (Name(TRAP),)  # a check that has to stay in place
    if guard is None or agreed:
        return None
    writes: dict[str, list[int]] = {}
    for at in range(head, branch):
        each = body[at]
        if isinstance(each, Instruction):
            for name in written(each):
                writes.setdefault(name, []).append(at)
    test = body[max(writes.get(guard.predicate.name, [head]))]
    tests = isinstance(test, Instruction) and test.opcode == "setp" and test.guard is None and len(test.modifiers) == 2
    if not tests or not isinstance(test, Instruction) or writes[guard.predicate.name][-1] < start:
        return None
    counter, limit = test.operands[1:3]
    kept = isinstance(limit, Int) or (isinstance(limit, Name) and _is_kept(limit, writes))
    added = writes.get(counter.name, []) if isinstance(counter, Name) else []
    addition = body[added[0]] if len(added) == 1 else None
    if not kept or not isinstance(counter, Name) or not isinstance(addition, Instruction):
        return None
    known = isinstance(limit, Int) and _begins_with_number(body, head, counter)  # ptxas unrolls all turns
    if known or not start <= added[0] < writes[guard.predicate.name][-1]:
        return None
    compared, kind = test.modifiers
    if guard.negated:
        compared = _INVERSE.get(compared, "")
    return _described(branch, counter, limit, addition, compared, kind, writes)


def _begins_with_number(body: list[Statement], head: int, counter: Name) -> bool:
    """Return whether a register has been given a number shortly before a loop."""
    for at in range(head - 1, -1, -1):
        each = body[at]
        if _breaks(each):
            return False
        if isinstance(each, Instruction) and counter.name in written(each):
            return each.opcode == "mov" and isinstance(each.operands[1], Int)
    return False


def _described(
    branch: int,
    counter: Name,
    limit: Operand,
    addition: Instruction,
    compared: str,
    kind: str,
    writes: dict[str, list[int]],
) -> CountedLoop | None:
    """Return a loop of its parts, None if its turns cannot be counted."""
    bits = register_width(counter)
    if addition.opcode != "add" or addition.guard is not None or addition.operands[1] != counter:
        return None
    if kind[1:] != str(bits) or kind[0] not in "sub" or len(addition.modifiers) != 1 or bits not in (32, 64):
        return None
    step = addition.operands[2]
    down = isinstance(step, Int) and step.value < 0
    if isinstance(step, Name):
        if not _is_kept(step, writes) or bits == 64 or compared not in ("lt", "le"):
            return None
    elif not isinstance(step, Int) or step.value == 0 or abs(step.value) >= 1 << 31:
        return None
    if down:
        compared = _MIRRORED.get(compared, "ne" if compared == "ne" else "")
    power = isinstance(step, Int) and abs(step.value) & (abs(step.value) - 1) == 0
    if compared not in ("lt", "le") and not (compared == "ne" and power):
        return None
    return CountedLoop(branch, counter, step, limit, compared, down, bits, kind[0] == "s")


def _breaks(statement: Statement) -> bool:
    return isinstance(statement, Label) or (isinstance(statement, Instruction) and statement.opcode in _ENDS)


def _is_kept(register: Name, writes: dict[str, list[int]]) -> bool:
    """Return whether a register of the program keeps its value in the loop."""
    return register_width(register) in (32, 64) and register.name not in writes


def turns(loop: CountedLoop, new: NewRegister) -> tuple[list[Statement], Name]:
    """Return what computes how many turns are left where a loop is entered, and the register that is in, 32 bits.

    It may be fewer than there are, and is then at least 1; so it may wrap to 0 for 2**32.
    """
    bits = loop.bits
    far, near = (loop.counter, loop.limit) if loop.down else (loop.limit, loop.counter)
    left, made = new(bits), list[Statement]()
    made.append(instruction(f"sub.s{bits}", left, far, near))
    if loop.compared != "le":
        one = Int(1) if loop.compared == "lt" else _positive(loop.step)
        made.append(instruction(f"sub.s{bits}", left, left, one))
    made += _divided(left, loop, bits)
    made.append(instruction(f"add.s{bits}", left, left, Int(1)))
    if loop.compared != "ne":
        some, kind = new(1), f"{'s' if loop.signed else 'u'}{bits}"
        made.append(instruction(f"setp.{loop.compared}.{kind}", some, near, far))
        made.append(instruction(f"selp.b{bits}", left, left, Int(1), some))
        if isinstance(loop.step, Name):
            ahead = new(1)
            made.append(instruction("setp.gt.s32", ahead, loop.step, Int(0)))
            made.append(instruction("selp.b32", left, left, Int(1), ahead))
    if bits == 32:
        return made, left
    short = new(32)
    made.append(instruction("min.u64", left, left, Int((1 << 31) - 1)))
    made.append(instruction("cvt.u32.u64", short, left))
    return made, short


def _positive(step: Operand) -> Int:
    assert isinstance(step, Int)  # noqa: S101 - a loop that ends at equality has a number as its step
    return Int(abs(step.value))


def _divided(left: Name, loop: CountedLoop, bits: int) -> list[Statement]:
    """Return the division of what is left by the step."""
    if isinstance(loop.step, Name):
        return [instruction("div.u32", left, left, loop.step)]
    size = _positive(loop.step).value
    if size & (size - 1) == 0:
        return [instruction(f"shr.u{bits}", left, left, Int(size.bit_length() - 1))] if size > 1 else []
    return [instruction(f"div.u{bits}", left, left, Int(size))]
