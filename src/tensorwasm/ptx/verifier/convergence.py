"""Where the threads of a warp may wait for each other at different places, and for ever.

A barrier, a shuffle, a vote or a matrix instruction waits until all threads of the warp that have not exited arrive at
it. If some of them wait at one such instruction and some at another, the GPU hangs, and no loop is there to poll. So
all threads of a warp have to come to these instructions in the same order. That is so if at every branch

- all threads of the warp go the same way, or
- the first such instruction is the same on all ways, or there is none, or it comes where the ways have met again.

The branches for which neither is certain are the hazards. Warps may be in different places: the only barrier that they
share is one, barrier 0.

Source: PTX ISA 9.7.13.1 (bar, barrier), 9.7.13.2 (bar.warp.sync), 9.7.9.6 (shfl.sync), 9.7.13.8 (vote.sync), 9.7.14.5
(mma); divergence analysis after Karrenberg and Hack, "Improving Performance of OpenCL on CPUs", CC 2012.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.ptx.model import Address, Instruction, Int, Label, Name, Statement, names
from tensorwasm.ptx.verifier.costs import branch_targets
from tensorwasm.ptx.verifier.regions import Regions, endless
from tensorwasm.watch import Watch

MAX_BLOCKS: Final = 1 << 12
"""Basic blocks of a function that has such instructions."""

_WAITING: Final = frozenset(
    {"bar", "barrier", "shfl", "vote", "match", "redux", "elect", "mma", "wmma", "ldmatrix", "stmatrix"}
)
_ENDS: Final = frozenset({"ret", "exit"})
_NONE: Final = -1
_MANY: Final = -2
_RETURN: Final = -3
"""Stands for what waits behind the end of a function."""
WARP_LANES: Final = 32
_UNIFORM_SPECIALS: Final = frozenset({"%ctaid", "%nctaid", "%ntid"})
_SAME_IN_WARP: Final = frozenset({"vote", "redux", "bar", "barrier"})
"""Opcodes that give all threads of a warp the same."""
_THREAD: Final = Name("%tid", "x")
_ORDERED: Final = frozenset({"lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"})


def waits(statement: Statement, syncing: Collection[str]) -> bool:
    """Return whether threads may wait for each other at an instruction; ``syncing`` are functions in which they may."""
    if not isinstance(statement, Instruction):
        return False
    if statement.opcode == "call":
        return any(isinstance(each, Name) and each.name in syncing for each in statement.operands)
    return statement.opcode in _WAITING


def hazards(
    body: Sequence[Statement],
    lists: Mapping[str, tuple[str, ...]],
    syncing: Collection[str],
    checked: Collection[int],
    params: Collection[str],
    watch: Watch,
    *,
    entry: bool,
    rows: bool,
    leaving: Collection[int] = (),
) -> list[int]:
    """Return the indices of the branches, and of the waiting instructions under a predicate, that are hazards.

    Args:
        body: of a function, without scopes.
        lists: labels that a branch through a list may go to, by its name.
        syncing: functions in which threads may wait.
        checked: indices of branches before which the kernel checks that the whole warp goes the same way.
        params: parameters that all threads have the same values of.
        watch: of the deadline.
        entry: whether the function is a kernel, after whose end no thread waits.
        rows: whether the rows of a block, along x, are whole warps, or there is one row.
        leaving: indices of branches at which threads that have to stop go on, whatever the others do.

    Raises:
        TooManyBlocks: more than `MAX_BLOCKS`.
    """
    if not any(waits(each, syncing) for each in body):
        return []
    return _Analysis(body, lists, syncing, checked, params, watch, entry=entry, rows=rows, leaving=leaving).hazards()


def varying_registers(
    body: Sequence[Statement],
    lists: Mapping[str, tuple[str, ...]],
    params: Collection[str],
    watch: Watch,
    *,
    entry: bool,
) -> set[str]:
    """Return the registers whose values may differ between the threads of a warp; arguments as of `hazards`.

    Raises:
        TooManyBlocks: more than `MAX_BLOCKS`.
    """
    return _Analysis(body, lists, (), (), params, watch, entry=entry, rows=True).varying()


class TooManyBlocks(Exception):
    """A function with waiting instructions has too many basic blocks to be analysed."""


@dataclass(slots=True)
class _CodeBlock:
    """A basic block: statements from ``start`` to before ``stop``; it ends at a branch or a waiting instruction.

    Attributes:
        successors: blocks that may follow.
        first: the first waiting instruction on all ways from the block's start, `_NONE` or `_MANY`.
    """

    start: int
    stop: int
    successors: list[int] = field(default_factory=list)
    predecessors: list[int] = field(default_factory=list)
    first: int = _NONE


class _Analysis:
    def __init__(
        self,
        body: Sequence[Statement],
        lists: Mapping[str, tuple[str, ...]],
        syncing: Collection[str],
        checked: Collection[int],
        params: Collection[str],
        watch: Watch,
        *,
        entry: bool,
        rows: bool,
        leaving: Collection[int] = (),
    ) -> None:
        self._body = body
        self._lists = lists
        self._syncing = syncing
        self._checked = checked
        self._params = params
        self._watch = watch
        self._rows = rows
        self._leaving = leaving
        self._end = _NONE if entry else _RETURN
        self._ways: list[set[int]] = []
        self._nodes = self._divide()
        if len(self._nodes) > MAX_BLOCKS:
            raise TooManyBlocks

    def varying(self) -> set[str]:
        """Return the registers whose values may differ between the threads of a warp."""
        self._find_first(frozenset())
        # Threads on a way on which no thread waits any more wait for nobody, and nobody for them.
        nodes, end = self._nodes, len(self._nodes)
        self._ways = [
            {
                *(each for each in node.successors if nodes[each].first != _NONE),
                *((end,) if self._returns(node) else ()),
            }
            for node in nodes
        ]
        for number in endless(self._ways, self._watch):
            self._ways[number] = set(self._nodes[number].successors)
        self._regions = Regions(self._ways, self._watch)
        return self._varying()

    def hazards(self) -> list[int]:
        """Find them."""
        varying = self.varying()
        parting = {number for number, node in enumerate(self._nodes) if self._varies(node, varying)}
        deciding = {number for number, ways in enumerate(self._ways) if len(ways) > 1 and self._decides(number)}
        self._find_first(deciding - parting)
        return [
            node.stop - 1
            for number, node in enumerate(self._nodes)
            if number in parting and self._parts(number, deciding)
        ]

    def _returns(self, node: _CodeBlock) -> bool:
        """Return whether some threads may return at the end of a block to a caller who waits, and others go on."""
        last = self._last(node)
        return self._end == _RETURN and last is not None and last.opcode == "ret" and last.guard is not None

    def _decides(self, number: int) -> bool:
        """Return whether threads wait on some way between a branch and where its ways meet again."""
        return any(self._waits(self._nodes[each]) for each in self._regions.region(number))

    def _parts(self, number: int, deciding: Collection[int]) -> bool:
        """Return whether threads that go different ways at the end of a block may wait at different instructions."""
        node = self._nodes[number]
        if self._waits(node):
            return self._is_guarded(node) and self._after(node) != _NONE
        return number in deciding and self._after(node) == _MANY

    # ------------------------------------------------------------------------------------------------ graph

    def _divide(self) -> list[_CodeBlock]:
        """Return the basic blocks; a waiting instruction and a branch are the last of theirs."""
        body, starts = self._body, {0}
        labels: dict[str, int] = {}
        for at, statement in enumerate(self._watch.over(body)):
            if isinstance(statement, Label):
                starts.add(at)
                labels[statement.name] = at
            elif isinstance(statement, Instruction) and (
                statement.opcode in ("bra", "brx") or statement.opcode in _ENDS or waits(statement, self._syncing)
            ):
                starts |= {at, at + 1}
        ordered = sorted(start for start in starts if start < len(body))
        numbers = {start: number for number, start in enumerate(ordered)}
        nodes = [_CodeBlock(start, stop) for start, stop in zip(ordered, [*ordered[1:], len(body)], strict=True)]
        for number, node in enumerate(nodes):
            last = body[node.stop - 1]
            follows = number + 1 < len(nodes)
            if isinstance(last, Instruction) and last.opcode in ("bra", "brx"):
                found = (labels.get(name) for name in branch_targets(last, self._lists))
                node.successors = [numbers[at] for at in found if at is not None]
                follows = follows and last.guard is not None
            elif isinstance(last, Instruction) and last.opcode in _ENDS:
                follows = follows and last.guard is not None
            if follows:
                node.successors.append(number + 1)
            for each in node.successors:
                nodes[each].predecessors.append(number)
        return nodes

    def _last(self, node: _CodeBlock) -> Instruction | None:
        last = self._body[node.stop - 1]
        return last if isinstance(last, Instruction) else None

    def _waits(self, node: _CodeBlock) -> bool:
        return waits(self._body[node.stop - 1], self._syncing)

    def _find_first(self, common: Collection[int]) -> None:
        """Find the first waiting instruction on the ways from each block, against the direction of the branches.

        The branches that end the blocks ``common`` count as such: the whole warp goes one way there, and comes to them
        in the same order.
        """
        for node in self._nodes:
            node.first = _NONE
        waiting = list(range(len(self._nodes)))
        while waiting:
            self._watch.step()
            number = waiting.pop()
            node = self._nodes[number]
            found = number if number in common else self._after(node)
            if self._waits(node):
                found = _joined(found, number) if self._is_guarded(node) else number
            if found != node.first:
                node.first = _joined(node.first, found)
                waiting += node.predecessors

    def _after(self, node: _CodeBlock) -> int:
        last = self._last(node)
        returns = not node.successors if last is None or last.opcode != "ret" else True
        found = self._end if returns and not (last is not None and last.opcode == "exit") else _NONE
        for each in node.successors:
            found = _joined(found, self._nodes[each].first)
        return found

    def _is_guarded(self, node: _CodeBlock) -> bool:
        last = self._last(node)
        return last is not None and last.guard is not None

    # ------------------------------------------------------------------------------------- varying values

    def _varies(self, node: _CodeBlock, varying: set[str]) -> bool:
        """Return whether the threads of a warp may go different ways at the end of a block."""
        last = self._last(node)
        if node.stop - 1 in self._leaving:
            return True
        if last is None or node.stop - 1 in self._checked:
            return False
        used = set() if last.guard is None else {last.guard.predicate.name}
        if last.opcode == "brx":
            used |= set(names(last.operands[0]))
        return not used.isdisjoint(varying)

    def _varying(self) -> set[str]:
        """Return the registers whose values may differ between the threads of a warp."""
        copies = self._copies()
        readers: dict[str, list[set[str]]] = {}
        rows: dict[str, list[set[str]]] = {}
        varying: set[str] = set()
        for statement in self._watch.over(self._body):
            if not isinstance(statement, Instruction):
                continue
            targets = _targets(statement)
            if not targets or (statement.opcode in _SAME_IN_WARP and statement.guard is None):
                continue
            same = self._rows and _is_same_in_row(statement, copies)
            if not same and self._is_own(statement):
                varying |= targets
            for name in _sources(statement):
                (rows if same else readers).setdefault(name, []).append(targets)
        fresh, diverging = list(varying), set[int]()
        while fresh:
            while fresh:
                self._watch.step()
                for targets in readers.get(fresh.pop(), ()):
                    fresh += targets - varying
                    varying |= targets
            for number, node in enumerate(self._nodes):
                if number in diverging or len(self._ways[number]) < 2:
                    continue
                if self._varies(node, varying):
                    diverging.add(number)
                    written = self._written(self._regions.region(number))
                    written |= {each for name in written for targets in rows.get(name, ()) for each in targets}
                    fresh += written - varying
                    varying |= written
        return varying

    def _copies(self) -> set[str]:
        """Return the registers that are written once, with the thread's number along x."""
        writes: dict[str, int] = {}
        found: set[str] = set()
        for statement in self._body:
            if isinstance(statement, Instruction):
                for name in _targets(statement):
                    writes[name] = writes.get(name, 0) + 1
                    if statement.opcode == "mov" and statement.operands[1] == _THREAD and statement.guard is None:
                        found.add(name)
        return {name for name in found if writes[name] == 1}

    def _written(self, region: Collection[int]) -> set[str]:
        made: set[str] = set()
        for number in region:
            node = self._nodes[number]
            for statement in self._body[node.start : node.stop]:
                if isinstance(statement, Instruction):
                    made.update(_targets(statement))
        return made

    def _is_own(self, statement: Instruction) -> bool:
        """Return whether an instruction gives each thread a value of its own, whatever it is given."""
        opcode = statement.opcode
        if opcode == "ld" and isinstance(statement.operands[1], Address):
            base = statement.operands[1].base
            return not (isinstance(base, Name) and base.name in self._params)
        if opcode in ("ldu", "atom", "call", "shfl", "match", "activemask", "mma", "wmma", "ldmatrix", "elect"):
            return True
        return any(
            name.startswith("%") and not name[2:].isdecimal() and name not in _UNIFORM_SPECIALS
            for name in _sources(statement)
            if not name.startswith("%tw_")
        )


def _is_same_in_row(statement: Instruction, copies: set[str]) -> bool:
    """Return whether an instruction gives all threads of a warp the same, of their numbers, where rows are whole."""
    opcode, operands, words = statement.opcode, statement.operands, statement.modifiers
    if statement.guard is not None or len(operands) < 2:
        return False
    source = operands[1]
    if opcode == "mov":
        return isinstance(source, Name) and source.name == "%tid" and source.component in ("y", "z")
    amount = operands[2] if len(operands) == 3 else None
    along_x = source == _THREAD or (isinstance(source, Name) and source.name in copies)
    if not along_x or not isinstance(amount, Int):
        return False
    value = amount.value
    if opcode == "setp":
        compared = len(words) == 2 and words[0] in _ORDERED and words[1] in ("u32", "s32") and value >= 0
        return compared and (value + (words[0] in ("le", "gt", "ls", "hi"))) % WARP_LANES == 0
    return (opcode == "shr" and 5 <= value < WARP_LANES) or (opcode == "and" and value % WARP_LANES == 0)


def _targets(statement: Instruction) -> set[str]:
    if statement.opcode in ("st", "red", "bra", "brx", "ret", "exit", "membar", "fence", "cp", "nanosleep", "stmatrix"):
        return set()
    operands = statement.operands if statement.opcode == "call" else statement.operands[:1]
    return {name for operand in operands for name in names(operand)}


def _sources(statement: Instruction) -> set[str]:
    made = {name for operand in statement.operands[1:] for name in names(operand)}
    if statement.guard is not None:
        made.add(statement.guard.predicate.name)
    return made


def _joined(one: int, other: int) -> int:
    if one in (_NONE, other):
        return other
    return one if other == _NONE else _MANY
