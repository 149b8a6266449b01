"""Innermost loops that count: they go on until a local, which has the same step in all iterations, reaches a bound.

How often that is at most can be computed before such a loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorwasm.offload.analysis.tree import OPENING
from tensorwasm.wasm.instructions import Instruction

_NEGATED: Final = {
    **{"eq": "ne", "ne": "eq", "lt_s": "ge_s", "ge_s": "lt_s", "gt_s": "le_s", "le_s": "gt_s"},
    **{"lt_u": "ge_u", "ge_u": "lt_u", "gt_u": "le_u", "le_u": "gt_u"},
}
_SWAPPED: Final = {
    **{"eq": "eq", "ne": "ne", "lt_s": "gt_s", "ge_s": "le_s", "gt_s": "lt_s", "le_s": "ge_s"},
    **{"lt_u": "gt_u", "ge_u": "le_u", "gt_u": "lt_u", "le_u": "ge_u"},
}
_ZERO: Final = ("i32.const", 0)


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """How a loop counts. Places are in its body, which begins behind its first instruction.

    Attributes:
        relation: of the tested value to the bound as long as the loop goes on, such as ``lt_s``.
        bound: an instruction that leaves the bound on the stack, which is the same in all iterations.
        local: what the tested value is, but for ``offset``, as an iteration begins.
        step: what an iteration adds to it; not 0.
    """

    relation: str
    bound: Instruction
    local: int
    offset: int
    step: int

    def first(self) -> Iterator[Instruction]:
        """Yield what leaves the value on the stack that the next iteration tests."""
        yield ("local.get", self.local)
        if self.offset:
            yield from (("i32.const", self.offset), ("i32.add",))

    def turns(self) -> Iterator[Instruction]:
        """Yield what leaves on the stack how many tests from now on pass at most; -1 if values may wrap."""
        kind, stride = self.relation.partition("_")[0], abs(self.step)
        upper, lower = [self.bound], list(self.first())
        if self.step < 0:
            upper, lower = lower, upper
        yield from (*upper, *lower, ("i32.sub",))
        if kind == "ne":
            if stride > 1:
                yield from (("i32.const", stride.bit_length() - 1), ("i32.rotr",))
            return
        if kind in {"lt", "gt"}:
            yield from (("i32.const", 1), ("i32.sub",))
        if stride & (stride - 1):
            yield from (("i32.const", stride), ("i32.div_u",))
        elif stride > 1:
            yield from (("i32.const", stride.bit_length() - 1), ("i32.shr_u",))
        yield from (("i32.const", 1), ("i32.add",), _ZERO, *self.first(), self.bound)
        yield from ((f"i32.{self.relation}",), ("select",))
        yield from self._wrapping()

    def _wrapping(self) -> Iterator[Instruction]:
        """Yield what makes -1 of the number on the stack if the value may pass by the bound and wrap."""
        room = abs(self.step) - (self.relation[:2] in {"lt", "gt"})
        least, most = (0, (1 << 32) - 1) if self.relation.endswith("_u") else (-(1 << 31), (1 << 31) - 1)
        furthest, relation = (most - room, "gt") if self.step > 0 else (least + room, "lt")
        if room:
            yield from (("i32.const", -1), ("i32.const", 0), self.bound, ("i32.const", _signed(furthest)))
            yield from ((f"i32.{relation}{self.relation[2:]}",), ("select",), ("i32.or",))


@dataclass(frozen=True, slots=True)
class _Term:
    """A local as it is when the iteration begins plus a constant, or the constant alone."""

    local: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class _Test:
    relation: str
    left: _Pushed
    right: _Pushed


@dataclass(frozen=True, slots=True)
class _Pushed:
    """What is on the stack, if it is known, and the instruction, if it is one alone, that has left it there."""

    value: _Term | _Test | None
    alone: Instruction | None = None


def find_count(body: Sequence[Instruction]) -> CountedLoop | None:
    """Return how an innermost loop counts, given what is between its first instruction and its ``end``."""
    branch = _only_branch(body)
    if branch is None:
        return None
    iteration = _Iteration(body[:branch])
    top = iteration.pop()
    if isinstance(top.value, _Term):
        return iteration.count("ne", top, _ZERO)
    test = top.value
    if test is None:
        return None
    ways = (test.relation, test.left, test.right), (_SWAPPED[test.relation], test.right, test.left)
    for relation, value, bound in ways:
        if bound.alone is not None and iteration.is_same(bound.alone):
            found = iteration.count(relation, value, bound.alone)
            if found is not None:
                return found
    return None


def _only_branch(body: Sequence[Instruction]) -> int | None:
    """Return the place of the ``br_if`` that alone goes on with a loop, if that is in no block."""
    depth, found = 0, []
    for place, (name, *immediates) in enumerate(body):
        if name in {"br", "br_if", "br_table"}:
            labels = immediates[0] if name == "br_table" else (immediates[0],)
            if depth in labels:
                found.append((place, name, depth))
        elif name == "try_table":
            return None
        depth += (name in OPENING) - (name == "end")
    return found[0][0] if len(found) == 1 and found[0][1:] == ("br_if", 0) else None


class _Iteration:
    """One iteration up to its branch, as far as it is clear what locals hold."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        self._stack: list[_Pushed] = []  # below it is what is not known
        self._locals: dict[int, _Term | None] = {}  # those that are written
        depth = 0
        for instruction in code:
            name = instruction[0]
            depth += (name in OPENING) - (name == "end")
            if depth or name == "end":
                self._stack.clear()
                if name in {"local.set", "local.tee"}:
                    self._locals[instruction[1]] = None
            else:
                self._do(instruction)

    def count(self, relation: str, value: _Pushed, bound: Instruction) -> CountedLoop | None:
        """Return a count with a tested value and a bound, None if it has no step, or one that does not lead there."""
        term = value.value
        after = self._locals.get(term.local) if isinstance(term, _Term) and term.local is not None else None
        if not isinstance(term, _Term) or term.local is None or after is None or after.local != term.local:
            return None
        step = after.offset
        is_even = relation == "ne" and not step & (step - 1 if step > 0 else -step - 1)
        if not step or not (is_even or relation[:2] in (("lt", "le") if step > 0 else ("gt", "ge"))):
            return None
        return CountedLoop(relation, bound, term.local, term.offset, step)

    def is_same(self, instruction: Instruction) -> bool:
        """Return whether an instruction leaves the same on the stack in all iterations."""
        return instruction[0] == "i32.const" or (
            instruction[0] == "local.get" and instruction[1] not in self._locals
        )

    def pop(self) -> _Pushed:
        """Take what is on top of the stack."""
        return self._stack.pop() if self._stack else _Pushed(None)

    def _do(self, instruction: Instruction) -> None:
        name, *immediates = instruction
        kind, _, operation = name.partition(".")
        if name == "i32.const":
            self._stack.append(_Pushed(_Term(None, immediates[0]), instruction))
        elif name == "local.get":
            held = self._locals.get(immediates[0], _Term(immediates[0], 0))
            self._stack.append(_Pushed(held, instruction))
        elif name in {"local.set", "local.tee"}:
            value = self.pop().value
            self._locals[immediates[0]] = value if isinstance(value, _Term) else None
            if name == "local.tee":
                self._stack.append(_Pushed(value))
        elif kind == "i32" and (operation in {"add", "sub", "and"} or operation in _NEGATED):
            right, left = self.pop(), self.pop()
            self._stack.append(_Pushed(_combined(operation, left, right)))
        elif name == "i32.eqz":
            test = self.pop().value
            negated = _Test(_NEGATED[test.relation], test.left, test.right) if isinstance(test, _Test) else None
            self._stack.append(_Pushed(negated))
        else:
            self._stack.clear()


def _combined(operation: str, left: _Pushed, right: _Pushed) -> _Term | _Test | None:
    one, other = left.value, right.value
    if operation in _NEGATED:
        return _Test(operation, left, right)
    if operation == "and":
        return one if isinstance(one, _Test) and other == _Term(None, 1) else None
    if isinstance(one, _Term) and isinstance(other, _Term):
        if operation == "add" and one.local is None:
            one, other = other, one
        if other.local is None:
            return _Term(one.local, _signed(one.offset + (other.offset if operation == "add" else -other.offset)))
    return None


def _signed(value: int) -> int:
    return ((value + (1 << 31)) % (1 << 32)) - (1 << 31)
