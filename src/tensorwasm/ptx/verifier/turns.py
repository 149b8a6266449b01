"""Loops that have a greatest number of turns, whatever a kernel does, so that nothing in them has to count their work.

Such a loop has one entry, and one way back: a branch at its end that depends on a comparison of a register that every
turn adds the same number to. From between which numbers that begins (`tensorwasm.ptx.verifier.ranges`) follows after
how many turns the comparison ends the loop. Threads may leave it before.

Source: PTX ISA 9.7.6 (Comparison and Selection).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

from tensorwasm.ptx.guarded import FUEL
from tensorwasm.ptx.model import Function, Guard, Instruction, Int, Label, Name, Operand, Statement
from tensorwasm.ptx.verifier.costs import ends_run
from tensorwasm.ptx.verifier.definitions import BEGINNING, Definitions, written_by
from tensorwasm.ptx.verifier.ranges import MOST_STEPS, Induction, Range, Ranges, number, signed, unsigned
from tensorwasm.watch import Watch

MOST_WORK: Final = FUEL // 2
"""Work of all turns of a loop: one with more counts it."""
MAX_BLOCK_THREADS: Final = 1024
_MOST_TURNS: Final = 1 << 16
_MOST_BEFORE: Final = 64
"""Statements before a loop among which a comparison is looked for that leads past it."""
_INVERSE: Final = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
_BITS: Final = {"%r": 32, "%d": 64}


class BoundedLoop(NamedTuple):
    """A loop of at most some turns each time it is entered.

    Attributes:
        head: index of the label where it begins.
        branch: index of the branch that ends it.
        turns: how often its statements run at most.
        counter: register that the branch depends on.
        step: what a turn adds to it.
    """

    head: int
    branch: int
    turns: int
    counter: str
    step: int


class _Held(NamedTuple):
    """What a register held where a run of statements began, and what was added since; of no register if not known."""

    register: str
    added: int


class _Test(NamedTuple):
    """The comparison on which the end of a loop depends."""

    at: int
    compared: str
    kind: str
    value: _Held
    limit: Operand


@dataclass(slots=True)
class Turns:
    """The loops of a function that have a greatest number of turns.

    Attributes:
        definitions: of the function.
        ranges: of its registers; they are narrower once the loops are known.
        counting: indices of statements before which work is counted, and of branches backward that count some: there
            are none in such a loop.
        work: of all statements before each, as `tensorwasm.ptx.verifier.costs.sums` returns it.
        most_work: of all turns of a loop.
        loops: those found, by the index of the branch that ends each.
        more: work of all turns but one of each, by the index of its head.
    """

    definitions: Definitions
    ranges: Ranges
    counting: Collection[int]
    work: Sequence[int]
    most_work: int = MOST_WORK
    loops: dict[int, BoundedLoop] = field(default_factory=dict)
    more: dict[int, int] = field(default_factory=dict)
    _innermost: dict[int, BoundedLoop] = field(default_factory=dict)

    def find(self) -> None:
        """Find the loops, inner ones first."""
        counting, last = sorted(self.counting, reverse=True), BEGINNING
        finished: list[tuple[int, int]] = []
        for at, branch in enumerate(self.definitions.body):
            while counting and counting[-1] <= at:
                last = counting.pop()
            head = self._head(branch, at)
            if head is None or last > head or not self._is_closed(head, at):
                continue
            found = self._bounded(head, at)
            inside = 0
            while finished and finished[-1][0] > head:
                inside += finished.pop()[1]
            whole = self.work[at + 1] - self.work[head] + inside
            if found is None or found.turns * whole > self.most_work:
                continue
            self.loops[at] = found
            self.more[head] = (found.turns - 1) * whole
            finished.append((head, inside + self.more[head]))
            for each in range(head + 1, at):
                self._innermost.setdefault(each, found)
            self.ranges.learn(self._induction)

    def _head(self, branch: Statement, at: int) -> int | None:
        """Return where the loop begins that a guarded branch ends, None if it ends none."""
        if isinstance(branch, Instruction) and branch.opcode == "bra" and branch.guard is not None:
            target = branch.operands[0]
            head = self.definitions.labels.get(target.name, at) if isinstance(target, Name) else at
            return head if head < at else None
        return None

    def _is_closed(self, head: int, end: int) -> bool:
        """Return whether a loop is entered at its head alone, goes back there from its end alone, and has no others."""
        definitions = self.definitions
        if list(definitions.arrivals(head)) != [end] or definitions.steps + end - head > MOST_STEPS:
            return False
        definitions.steps += end - head
        for at in range(head + 1, end):
            statement = definitions.body[at]
            for each in definitions.arrivals(at):
                if not head < each < end or (each > at and each not in self.loops):
                    return False
            if isinstance(statement, Instruction) and statement.opcode in ("bra", "brx", "call"):
                target = statement.operands[0]
                if statement.opcode != "bra" or not isinstance(target, Name):
                    return False
                if definitions.labels.get(target.name, end) <= head:
                    return False
        return True

    def _bounded(self, head: int, end: int) -> BoundedLoop | None:
        """Return a loop with its greatest number of turns, None if it has none."""
        body, branch = self.definitions.body, self.definitions.body[end]
        start = end
        while start > head + 1 and not ends_run(body[start - 1]):
            start -= 1
        if not isinstance(branch, Instruction) or branch.guard is None:
            return None
        held, test = _run(body, start, end, branch.guard.predicate)
        if test is None:
            return None
        name, bits = test.value.register, _BITS.get(test.value.register[:2], 0)
        turned = held.get(name)
        if turned is None or turned.register != name or test.kind not in (f"s{bits}", f"u{bits}", f"b{bits}"):
            return None
        step = number(Range(turned.added, turned.added), bits, "s").low
        begins = self._entering(name, head, end)
        if not step or self.definitions.written_between(name, head, start) or begins is None:
            return None
        begins = self._apart(begins, name, head)
        first = Range(begins.low + test.value.added, begins.high + test.value.added)
        limit = self.ranges.at(test.limit, test.at, bits)
        compared = _INVERSE.get(test.compared, "") if branch.guard.negated else test.compared
        turns = most_turns(compared, test.kind[0], bits, first, step, limit)
        return None if turns is None or turns > _MOST_TURNS else BoundedLoop(head, end, turns, name, step)

    def _entering(self, name: str, head: int, end: int) -> Range | None:
        """Return the range of a register where a loop is entered, None if the loop itself may have written it."""
        writes = self.definitions.reaching(name, head, end)
        if any(head <= each <= end for each in writes):
            return None
        return self.ranges.union(writes, _BITS[name[:2]])

    def _apart(self, begins: Range, name: str, head: int) -> Range:
        """Return the range of a register where a loop is entered, without numbers for which a branch leads past it."""
        definitions = self.definitions
        passed: list[tuple[int, Guard]] = []
        for at in range(head - 1, max(head - _MOST_BEFORE, 0) - 1, -1):
            each = definitions.body[at]
            guard = each.guard if isinstance(each, Instruction) else None
            if guard is not None and isinstance(each, Instruction) and each.opcode == "bra":
                if not self._may_go_on(at, each):
                    passed.append((at, guard))
            elif isinstance(each, Label) or ends_run(each):
                break
            for branch, taken in passed:
                number = _compared_number(each, taken, name)
                if number is None or definitions.written_between(taken.predicate.name, at + 1, branch):
                    continue
                if not definitions.written_between(name, at, head) and begins.low < begins.high:
                    begins = Range(begins.low + (begins.low == number), begins.high - (begins.high == number))
        return begins

    def _may_go_on(self, at: int, branch: Instruction) -> bool:
        """Return whether a thread may go on behind a branch whose predicate holds: it leaves a loop to stop."""
        target = branch.operands[0]
        forward = isinstance(target, Name) and self.definitions.labels.get(target.name, at) > at
        return not forward or at in self.definitions.leaving

    def _induction(self, at: int) -> Induction | None:
        """Return what a write in a loop adds to a register in each turn, if nothing else in the loop writes that."""
        loop, write = self._innermost.get(at), self.definitions.body[at]
        target = write.operands[0] if isinstance(write, Instruction) else None
        if loop is None or not isinstance(target, Name) or not isinstance(write, Instruction):
            return None
        name, bits = target.name, _BITS.get(target.name[:2], 0)
        if not bits or self.definitions.written_between(name, loop.head, loop.branch) != [at]:
            return None
        added = _copied(write, {})
        step = loop.step if name == loop.counter else added.added if added and added.register == name else 0
        begins = self._entering(name, loop.head, loop.branch) if step else None
        return None if begins is None else Induction(loop.head, begins, step, loop.turns)


def find_turns(
    function: Function,
    body: Sequence[Statement],
    lists: Mapping[str, tuple[str, ...]],
    work: Sequence[int],
    watch: Watch,
    *,
    leaving: Collection[int] = (),
    counting: Collection[int] = (),
    most_steps: int = MOST_STEPS,
    most_work: int = MOST_WORK,
) -> Turns:
    """Return the loops of a function that have a greatest number of turns.

    Args:
        function: which function it is.
        body: its statements, without scopes.
        lists: labels of each list for branches.
        work: of all statements before each.
        watch: of the deadline.
        leaving: branches, by their index, that may go on behind them even if they are not guarded.
        counting: where work is counted.
        most_steps: blocks of the function that are looked at; the guard takes fewer, so that the verifier finds all.
        most_work: of all turns of a loop.
    """
    definitions = Definitions(body, lists, leaving, watch)
    ranges = Ranges(definitions, _threads(function), most_steps)
    made = Turns(definitions, ranges, counting, work, most_work)
    made.find()
    return made


def _threads(function: Function) -> int:
    """Return the most threads of a block that runs a function."""
    sizes = [prod(map(int, each.arguments)) for each in function.directives if each.name in ("maxntid", "reqntid")]
    if not function.entry or not sizes or min(sizes) < 1:  # a size of 0 may mean that there is no limit
        return MAX_BLOCK_THREADS
    return min(max(sizes), MAX_BLOCK_THREADS)


def _run(
    body: Sequence[Statement], start: int, end: int, predicate: Name
) -> tuple[dict[str, _Held | None], _Test | None]:
    """Return what registers hold at the end of straight code, and the last comparison that a predicate has there."""
    held: dict[str, _Held | None] = {}
    test: _Test | None = None
    for at in range(start, end):
        each = body[at]
        if not isinstance(each, Instruction):
            continue
        written = written_by(each)
        if predicate.name in written:
            test = _compared(each, at, predicate, held)
        made = _copied(each, held)
        held.update(dict.fromkeys(written, made))
    return held, test


def _compared(instruction: Instruction, at: int, predicate: Name, held: Mapping[str, _Held | None]) -> _Test | None:
    """Return the comparison of a register that an instruction makes, None if it makes another one."""
    match instruction.opcode, instruction.guard, instruction.modifiers, instruction.operands:
        case "setp", None, (compared, kind), (target, Name(name, None), limit) if target == predicate:
            value = held.get(name, _Held(name, 0))
            return None if value is None else _Test(at, compared, kind, value, limit)
    return None


def _copied(instruction: Instruction, held: Mapping[str, _Held | None]) -> _Held | None:
    """Return what an instruction that always runs writes, if it is what a register held and a number."""
    target, *sources = instruction.operands or (None,)
    bits = _BITS.get(target.name[:2], 0) if isinstance(target, Name) else 0
    source = sources[0] if sources else None
    if not isinstance(source, Name) or _BITS.get(source.name[:2], 0) != bits or source.component is not None:
        return None
    if instruction.guard is not None or instruction.modifiers not in {(f"{kind}{bits}",) for kind in "sub"}:
        return None
    value = held.get(source.name, _Held(source.name, 0))
    match instruction.opcode, sources[1:]:
        case "mov", []:
            return value
        case "add" | "sub" as opcode, [Int(added)] if value is not None:
            return _Held(value.register, value.added + (added if opcode == "add" else -added))
    return None


def _compared_number(statement: Statement, taken: Guard, name: str) -> int | None:
    """Return the number that a register does not hold if a branch is not taken, by the comparison that decides it."""
    bits = _BITS.get(name[:2], 0)
    match statement:
        case Instruction("setp", (compared, kind), (target, Name(register, None), Int(number)), None) if (
            target == taken.predicate and register == name and kind in (f"s{bits}", f"u{bits}", f"b{bits}")
        ):
            return number if compared == ("ne" if taken.negated else "eq") else None
    return None


def most_turns(compared: str, kind: str, bits: int, first: Range, step: int, limit: Range) -> int | None:
    """Return how many turns a loop has at most that goes on while a comparison holds, None if that is not certain.

    Args:
        compared: how a value is compared with a limit at the end of each turn.
        kind: ``s`` or ``u`` for numbers with or without a sign; ``b`` for equality alone.
        bits: of the value.
        first: range of what is compared in the first turn.
        step: by how much it is greater in each following turn, modulo ``2**bits``.
        limit: range of the limit; it may change.
    """
    if compared == "ne" and limit.low == limit.high and step:
        if step < 0:
            first, limit, step = Range(-first.high, -first.low), Range(-limit.low, -limit.low), -step
        left = (limit.low - first.high) % (1 << bits) + first.high - first.low
        known = first.low == first.high or step == 1
        return left // step + 1 if known and left % step == 0 else None
    if kind not in ("s", "u") or compared not in ("lt", "le", "gt", "ge"):
        return None
    whole = signed(bits) if kind == "s" else unsigned(bits)
    first, limit = number(first, bits, kind), number(limit, bits, kind)
    if compared in ("gt", "ge"):
        first, limit, whole = (Range(-each.high, -each.low) for each in (first, limit, whole))
        step = -step
    last = limit.high - (compared in ("lt", "gt"))
    if step <= 0 or last + step > whole.high:
        return None
    return 1 if first.low > last else (last - first.low) // step + 2
