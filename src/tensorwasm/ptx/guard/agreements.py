"""Checks that all threads of a warp are there, and go the same way, where they wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guarded import LAUNCH, WHOLE_WARP_ONLY
from tensorwasm.ptx.model import Function, Instruction, Label, Name, Statement, TargetList
from tensorwasm.ptx.templates import agreement, presence
from tensorwasm.ptx.verifier.convergence import TooManyBlocks, hazards, waits
from tensorwasm.watch import Watch

_LEAVES = frozenset({"bra", "brx", "ret", "exit", "call"})
"""Opcodes behind which threads of the warp may be missing."""
_ROUNDS = 16
"""A check is itself an instruction at which threads wait, so it may need others before it."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """What the whole warp executes in the place of some of its threads.

    Attributes:
        instructions: of a function.
        functions: in which there are such instructions, or calls of such functions.
    """

    instructions: Collection[Instruction]
    functions: Collection[str]

    def without(self, body: Sequence[Statement]) -> list[Statement] | None:
        """Return a body in which nobody waits at these instructions; None if it has neither them nor such calls."""
        some = {id(each) for each in self.instructions}
        if not some and not any(_calls(each, self.functions) for each in body):
            return None
        return [_unwaiting(each) if id(each) in some else each for each in body]


def add_presence(body: list[Statement]) -> list[Statement]:
    """Return a body that checks that the whole warp is there before instructions for whole warps."""
    made: list[Statement] = []
    present = False
    for statement in body:
        if isinstance(statement, Label) or (isinstance(statement, Instruction) and statement.opcode in _LEAVES):
            present = False
        elif isinstance(statement, Instruction) and statement.opcode in WHOLE_WARP_ONLY and not present:
            made += presence()
            present = True
        made.append(statement)
    return made


def _is_conditional(statement: Statement) -> bool:
    """Return whether an instruction for whole warps stands under a predicate."""
    if not isinstance(statement, Instruction) or statement.guard is None:
        return False
    return statement.opcode in WHOLE_WARP_ONLY


def add_agreements(
    function: Function,
    body: list[Statement],
    syncing: Collection[str],
    narrow: Narrow,
    watch: Watch,
) -> tuple[list[Statement], set[int]]:
    """Return a body in which every hazard is checked for, and its branches that no thread may leave early.

    Args:
        function: as it was declared.
        body: without scopes.
        syncing: functions in which threads may wait.
        narrow: what the whole warp executes in the place of some of its threads. A check for that would end programs
            that are right: other threads do not have to be there.
        watch: of the deadline.

    Raises:
        UnsupportedPtx: threads may wait at different places, and no check can tell or should.
        InvokeTimeout: the deadline passed.
    """
    lists = {each.label: each.targets for each in body if isinstance(each, TargetList)}
    params = {LAUNCH, *(each.name for each in function.params)} if function.entry else {LAUNCH}
    checked: set[int] = set()
    partial = {at for at, each in enumerate(body) if _is_conditional(each)}

    def find(leaving: Collection[int] = ()) -> list[int]:
        return hazards(body, lists, syncing, checked, params, watch, entry=function.entry, rows=True, leaving=leaving)

    others = narrow.without(body)
    whole = set(syncing).difference(narrow.functions)
    for at_first in (True, *(False,) * _ROUNDS):
        try:
            found = find()
        except TooManyBlocks:
            raise UnsupportedPtx("too many branches between barriers", *function.position) from None
        if found and at_first and others is not None:
            left = hazards(others, lists, whole, (), params, watch, entry=function.entry, rows=True)
            _require_among(body, found, left)
        found = sorted({*found, *partial})
        partial = set()
        if not found:
            return body, _staying(body, find)
        body, checked = _checked(body, found, checked)
    raise UnsupportedPtx("threads of a warp may wait for each other for ever", *function.position)


def _require_among(body: Sequence[Statement], found: Collection[int], others: Collection[int]) -> None:
    """Refuse hazards that come of instructions for some threads of a warp alone."""
    parting = set(found).difference(others)
    if parting:
        position = body[min(parting)].position
        raise UnsupportedPtx("a mask of some threads of a warp where others may be elsewhere", *position)


def _checked(body: list[Statement], found: Collection[int], known: Collection[int]) -> tuple[list[Statement], set[int]]:
    """Return a body with checks before the branches ``found``, and where these and those ``known`` are in it."""
    made: list[Statement] = []
    checked: set[int] = set()
    for at, statement in enumerate(body):
        if at in found:
            if not isinstance(statement, Instruction) or statement.guard is None or statement.opcode == "brx":
                raise UnsupportedPtx("threads of a warp may wait for each other for ever", *statement.position)
            made += agreement(statement.guard.predicate)
        if at in found or at in known:
            checked.add(len(made))
        made.append(statement)
    return made, checked


def _calls(statement: Statement, functions: Collection[str]) -> bool:
    return isinstance(statement, Instruction) and statement.opcode == "call" and waits(statement, functions)


def _unwaiting(statement: Statement) -> Statement:
    """Return an instruction at which nobody waits, with the results of another one."""
    if not isinstance(statement, Instruction):
        return statement
    return Instruction("activemask", ("b32",), statement.operands, statement.guard, statement.position)


def _staying(body: Sequence[Statement], find: Callable[[Collection[int]], list[int]]) -> set[int]:
    """Return the branches backward that no thread may leave before the others.

    Args:
        body: without scopes.
        find: returns the hazards if a thread may go on at some branches, whatever the others do.
    """
    leaving, seen = set[int](), set[str]()
    for at, each in enumerate(body):
        if isinstance(each, Label):
            seen.add(each.name)
        elif isinstance(each, Instruction) and each.opcode == "bra" and each.guard is not None:
            target = each.operands[0]
            if isinstance(target, Name) and target.name in seen:
                leaving.add(at)
    staying = set[int]()
    while leaving and (found := find(leaving)):
        # A hazard elsewhere comes of values that threads have which left: any of the loops may be the one.
        early = leaving.intersection(found) or set(leaving)
        leaving -= early
        staying |= early
    return staying
