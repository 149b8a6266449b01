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
    "eq": "ne",
    "ne": "eq",
    **{
        f"{one}_{sign}": f"{other}_{sign}"
        for sign in "su"
        for one, other in (("lt", "ge"), ("ge", "lt"), ("gt", "le"), ("le", "gt"))
    },
}
_SWAPPED: Final = {
    "eq": "eq",
    "ne": "ne",
    **{
        f"{one}_{sign}": f"{other}_{sign}"
        for sign in "su"
        for one, other in (("lt", "gt"), ("gt", "lt"), ("le", "ge"), ("ge", "le"))
    },
}
_ZERO: Final = ("i32.const", 0)
_EVEN_STEPS: Final = tuple([1 << exponent for exponent in range(9)])
"""A distance that is no multiple of one of these has no less than 2**24 when it is turned by as many bits."""


@dataclass(frozen=True, slots=True)
class LoopCount:
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

    def turns(self, first: Sequence[Instruction] = (), bound: Sequence[Instruction] = ()) -> Iterator[Instruction]:
        """Yield what leaves on the stack how many tests pass at most, without a sign.

        It is 2**24 or more if values may wrap, or pass by the bound.

        Args:
            first: what leaves the value on the stack that the first iteration tests; if none, that of the local now.
            bound: what leaves the bound there; if none, that of now.
        """
        first = first or LocalTerm(self.local, self.offset).code()
        bound = bound or (self.bound,)
        kind, stride = self.relation.partition("_")[0], abs(self.step)
        yield from (*bound, *first) if self.step > 0 else (*first, *bound)
        yield ("i32.sub",)
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
        yield from (("i32.const", 1), ("i32.add",), _ZERO, *first, *bound)
        yield from ((f"i32.{self.relation}",), ("select",))
        yield from self._wrapping(bound)

    def _wrapping(self, bound: Sequence[Instruction]) -> Iterator[Instruction]:
        """Yield what makes -1 of the number on the stack if the value may pass by the bound and wrap."""
        room = abs(self.step) - (self.relation[:2] in {"lt", "gt"})
        least, most = (0, (1 << 32) - 1) if self.relation.endswith("_u") else (-(1 << 31), (1 << 31) - 1)
        furthest, relation = (most - room, "gt") if self.step > 0 else (least + room, "lt")
        if room:
            yield from (("i32.const", -1), ("i32.const", 0), *bound, ("i32.const", _signed(furthest)))
            yield from ((f"i32.{relation}{self.relation[2:]}",), ("select",), ("i32.or",))


@dataclass(frozen=True, slots=True)
class LocalTerm:
    """A local as it was at the start of some code plus a constant, or the constant alone."""

    local: int | None
    offset: int

    def code(self) -> tuple[Instruction, ...]:
        """Return what leaves it on the stack, at the start of that code."""
        if self.local is None:
            return (("i32.const", self.offset),)
        added: tuple[Instruction, ...] = (("i32.const", self.offset), ("i32.add",)) if self.offset else ()
        return ("local.get", self.local), *added

    def plus(self, constant: int) -> LocalTerm:
        """Return it with another constant added."""
        return LocalTerm(self.local, _signed(self.offset + constant))


@dataclass(frozen=True, slots=True)
class _Comparison:
    relation: str
    left: _Pushed
    right: _Pushed


@dataclass(frozen=True, slots=True)
class _Pushed:
    """What is on the stack, if it is known, and the instruction, if it is one alone, that has left it there."""

    value: LocalTerm | _Comparison | None
    alone: Instruction | None = None


def find_count(body: Sequence[Instruction]) -> LoopCount | None:
    """Return how an innermost loop counts, given what is between its first instruction and its ``end``."""
    branch = _only_branch(body)
    if branch is None:
        return None
    state = LocalState(body[:branch])
    top = state.pop()
    if isinstance(top.value, LocalTerm):
        return state.count("ne", top, _ZERO)
    test = top.value
    if test is None:
        return None
    ways = (test.relation, test.left, test.right), (_SWAPPED[test.relation], test.right, test.left)
    for relation, value, bound in ways:
        if bound.alone is not None and state.is_same(bound.alone):
            found = state.count(relation, value, bound.alone)
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


class LocalState:
    """What locals of i32 hold behind some code, as far as that is clear; branches to its end do not count."""

    def __init__(self, code: Sequence[Instruction] = ()) -> None:
        self._stack: list[_Pushed] = []  # below it is what is not known
        self._locals: dict[int, LocalTerm | None] = {}  # those that are written
        depth = 0
        for instruction in code:
            name = instruction[0]
            depth += (name in OPENING) - (name == "end")
            if depth or name == "end":
                self.forget((instruction,))
            else:
                self.do(instruction)

    def forget(self, code: Sequence[Instruction]) -> None:
        """Go on at a border of a block: what is on the stack is not known, nor locals that some code writes."""
        self._stack.clear()
        self._locals.update({item[1]: None for item in code if item[0] in {"local.set", "local.tee"}})

    def term(self, local: int) -> LocalTerm | None:
        """Return what a local holds."""
        return self._locals.get(local, LocalTerm(local, 0))

    def count(self, relation: str, value: _Pushed, bound: Instruction) -> LoopCount | None:
        """Return a count with a tested value and a bound, None if it has no step, or one that does not lead there."""
        term = value.value
        after = self._locals.get(term.local) if isinstance(term, LocalTerm) and term.local is not None else None
        if not isinstance(term, LocalTerm) or term.local is None or after is None or after.local != term.local:
            return None
        step = after.offset
        is_even = relation == "ne" and abs(step) in _EVEN_STEPS
        if not step or not (is_even or relation[:2] in (("lt", "le") if step > 0 else ("gt", "ge"))):
            return None
        return LoopCount(relation, bound, term.local, term.offset, step)

    def is_same(self, instruction: Instruction) -> bool:
        """Return whether an instruction leaves the same on the stack in all iterations."""
        return instruction[0] == "i32.const" or (instruction[0] == "local.get" and instruction[1] not in self._locals)

    def pop(self) -> _Pushed:
        """Take what is on top of the stack."""
        return self._stack.pop() if self._stack else _Pushed(None)

    def do(self, instruction: Instruction) -> None:
        """Go on behind an instruction that is no border of a block."""
        name, *immediates = instruction
        kind, _, operation = name.partition(".")
        if name == "i32.const":
            self._stack.append(_Pushed(LocalTerm(None, immediates[0]), instruction))
        elif name == "local.get":
            self._stack.append(_Pushed(self.term(immediates[0]), instruction))
        elif name in {"local.set", "local.tee"}:
            value = self.pop().value
            self._locals[immediates[0]] = value if isinstance(value, LocalTerm) else None
            if name == "local.tee":
                self._stack.append(_Pushed(value))
        elif kind == "i32" and (operation in {"add", "sub", "and"} or operation in _NEGATED):
            right, left = self.pop(), self.pop()
            self._stack.append(_Pushed(_combined(operation, left, right)))
        elif name == "i32.eqz":
            test = self.pop().value
            negated = (
                _Comparison(_NEGATED[test.relation], test.left, test.right) if isinstance(test, _Comparison) else None
            )
            self._stack.append(_Pushed(negated))
        else:
            self._stack.clear()


def _combined(operation: str, left: _Pushed, right: _Pushed) -> LocalTerm | _Comparison | None:
    one, other = left.value, right.value
    if operation in _NEGATED:
        return _Comparison(operation, left, right)
    if operation == "and":
        return one if isinstance(one, _Comparison) and other == LocalTerm(None, 1) else None
    if isinstance(one, LocalTerm) and isinstance(other, LocalTerm):
        if operation == "add" and one.local is None:
            one, other = other, one
        if other.local is None:
            return one.plus(other.offset if operation == "add" else -other.offset)
    return None


def _signed(value: int) -> int:
    return ((value + (1 << 31)) % (1 << 32)) - (1 << 31)
