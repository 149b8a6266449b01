"""Instructions of some threads of a warp become instructions of the whole warp, with the same results.

What hangs or ends the context depends on a mask's value: a mask that names a thread which is elsewhere, or not the one
that executes it. So no mask of the program stays. All threads of the warp come to the instruction, which
`tensorwasm.ptx.verifier.convergence` checks, the whole warp executes it, and each thread takes of what it learns what
its own mask names. For threads that a program's masks do not name, or name wrongly, PTX defines no result.

An instruction of which no result is used is left out: none of these orders accesses to memory, except barriers.

Source: PTX ISA 9.7.9.6 (shfl.sync), 9.7.13.2 (bar.warp.sync), 9.7.13.8 (vote.sync) to 9.7.13.12 (redux.sync).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tensorwasm.ptx.guard.flat import FlatFunction
from tensorwasm.ptx.guard.known_values import known_values
from tensorwasm.ptx.guard.registers import written
from tensorwasm.ptx.guarded import WHOLE_WARP
from tensorwasm.ptx.model import Guard, Instruction, Int, Label, Name, Not, Operand, Pair, Statement, names
from tensorwasm.ptx.templates import instruction
from tensorwasm.ptx.verifier.convergence import WARP_LANES
from tensorwasm.watch import Watch

_EVERYBODY: Final = Int(WHOLE_WARP)
_NOTHING: Final = Name("_")
_OPERANDS: Final = {"shfl": 5, "vote": 3, "match": 3, "redux": 3, "bar": 1}
"""Operands of the instructions with a mask, which is the last."""
_IDENTITIES: Final = {
    **dict.fromkeys((("add", "u32"), ("add", "s32"), ("max", "u32"), ("or", "b32"), ("xor", "b32")), 0),
    **dict.fromkeys((("min", "u32"), ("and", "b32")), WHOLE_WARP),
    ("min", "s32"): (1 << 31) - 1,
    ("max", "s32"): -(1 << 31),
}
"""What changes nothing when it is added, by operation and type."""


def widen_masks(flat: FlatFunction, watch: Watch) -> None:
    """Rewrite the instructions of a function that have a mask; `FlatFunction.narrow` gets those that were for some."""
    partial = _partial(flat.body, watch)
    unused = _unused(flat.body, set(partial), watch)
    work = _Widening(flat)
    for at, statement in enumerate(watch.over(flat.body)):
        if at in unused:
            continue
        if not isinstance(statement, Instruction) or not _has_mask(statement):
            work.out.append(statement)
        elif at not in partial:
            work.keep(statement)
        else:
            before = len(work.out)
            work.widen(statement, partial[at])
            flat.growth.add(len(work.out) - before)
    flat.body = work.out


def _has_mask(statement: Instruction) -> bool:
    if statement.opcode == "bar":
        return statement.modifiers == ("warp", "sync") and len(statement.operands) == 1
    return "sync" in statement.modifiers and _OPERANDS.get(statement.opcode) == len(statement.operands)


def _partial(body: list[Statement], watch: Watch) -> dict[int, Operand]:
    """Return the masks of instructions that may be for other threads than the whole warp, by their index."""
    everywhere = known_values(body, watch)
    here: dict[str, int] = {}
    found: dict[int, Operand] = {}
    for at, statement in enumerate(watch.over(body)):
        if isinstance(statement, Label):
            here.clear()
        if not isinstance(statement, Instruction):
            continue
        if _has_mask(statement):
            mask = statement.operands[-1]
            if isinstance(mask, Name):
                value = here.get(mask.name, everywhere.get(mask.name))
                mask = mask if value is None else Int(value & WHOLE_WARP)
            if not (isinstance(mask, Int) and mask.value & WHOLE_WARP == WHOLE_WARP):
                found[at] = mask
        for name in written(statement):
            here.pop(name, None)
        match statement:
            case Instruction("mov", operands=(Name(name), Int(value)), guard=None):
                here[name] = value
    return found


def _unused(body: list[Statement], partial: set[int], watch: Watch) -> set[int]:
    """Return which of some instructions have results that nothing uses, but perhaps such instructions."""
    unused = {at for at in partial if isinstance(one := body[at], Instruction) and one.opcode != "bar"}
    writers: dict[str, list[int]] = {}
    read: list[str] = []
    for at, statement in enumerate(watch.over(body)):
        if isinstance(statement, Instruction) and at not in unused:
            read += _read(statement)
        elif isinstance(statement, Instruction):
            for name in written(statement):
                writers.setdefault(name, []).append(at)
    while read:
        watch.step()
        for at in writers.pop(read.pop(), ()):
            statement = body[at]
            if at in unused and isinstance(statement, Instruction):
                unused.discard(at)
                read += _read(statement)
    return unused


def _read(statement: Instruction) -> set[str]:
    """Return the registers that an instruction may read, and perhaps others that it names."""
    operands = statement.operands
    if statement.opcode != "call" and written(statement):
        operands = operands[1:]
    found = {name for operand in operands for name in names(operand)}
    if statement.guard is not None:
        found.add(statement.guard.predicate.name)
    return found


class _Widening:
    def __init__(self, flat: FlatFunction) -> None:
        self.out: list[Statement] = []
        self._flat = flat

    def keep(self, statement: Instruction) -> None:
        """Add an instruction of the whole warp, its mask as a number."""
        known = isinstance(statement.operands[-1], Int)
        self.out.append(statement if known else _with_operands(statement, (*statement.operands[:-1], _EVERYBODY)))

    def widen(self, statement: Instruction, mask: Operand) -> None:
        """Add what the whole warp executes instead of an instruction of some of its threads."""
        rewrite = _REWRITES.get(statement.opcode)
        if rewrite is None:
            self._wait(_with_operands(statement, (*statement.operands[:-1], _EVERYBODY)))
        else:
            rewrite(self, statement, mask)

    def _wait(self, made: Instruction) -> None:
        """Add an instruction at which the threads wait for each other in the place of one for some of them."""
        self.out.append(made)
        self._flat.narrow.append(made)

    def _emit(self, mnemonic: str, *operands: Operand, when: Guard | None = None) -> None:
        made = instruction(mnemonic, *operands)
        self.out.append(Instruction(made.opcode, made.modifiers, made.operands, when))

    def _together(self, statement: Instruction, mnemonic: str, *operands: Operand) -> None:
        made = instruction(mnemonic, *operands, _EVERYBODY)
        self._wait(Instruction(made.opcode, made.modifiers, made.operands, statement.guard, statement.position))

    def _register(self, bits: int = 32) -> Name:
        return self._flat.register(bits)

    def _ballot(self, statement: Instruction, predicate: Operand, mask: Operand) -> Name:
        """Return a register with the threads of a mask for which a predicate holds."""
        all_of_them, found = self._register(), self._register()
        self._together(statement, "vote.sync.ballot.b32", all_of_them, predicate)
        self._emit("and.b32", found, all_of_them, mask)
        return found

    def _living(self, statement: Instruction, mask: Operand) -> Name:
        """Return a register with the threads of a mask that have not exited."""
        holds = self._register(1)
        self._emit("setp.eq.u32", holds, Int(0), Int(0))
        return self._ballot(statement, holds, mask)

    def vote(self, statement: Instruction, mask: Operand) -> None:
        """Count the votes of the threads in the mask."""
        target, predicate = statement.operands[:2]
        if isinstance(predicate, Int):
            constant, predicate = predicate, self._register(1)
            self._emit("setp.ne.u32", predicate, constant, Int(0))
        words = statement.modifiers
        if "ballot" in words:
            self._emit("mov.b32", target, self._ballot(statement, predicate, mask), when=statement.guard)
            return
        some, none = self._register(1), self._register(1)
        if "any" in words or "uni" in words:
            self._emit("setp.ne.u32", some, self._ballot(statement, predicate, mask), Int(0))
        if "all" in words or "uni" in words:
            self._emit("setp.eq.u32", none, self._ballot(statement, self._inverse(predicate), mask), Int(0))
        if "uni" in words:
            self._emit("not.pred", some, some)
            self._emit("or.pred", some, some, none)
        self._emit("mov.pred", target, none if "all" in words else some, when=statement.guard)

    def _inverse(self, predicate: Operand) -> Name:
        """Return a register with the opposite of a predicate that may be negated."""
        if isinstance(predicate, Not):
            return predicate.operand
        made = self._register(1)
        self._emit("not.pred", made, predicate)
        return made

    def match(self, statement: Instruction, mask: Operand) -> None:
        """Compare with the threads in the mask."""
        target, value = statement.operands[:2]
        same, found = self._register(), self._register()
        self._together(statement, f"match.any.sync.{statement.modifiers[-1]}", same, value)
        if "any" in statement.modifiers:
            self._emit("and.b32", found, same, mask)
            self._emit("mov.b32", target, found, when=statement.guard)
            return
        asked, whole = self._living(statement, mask), self._register(1)
        self._emit("and.b32", found, same, asked)
        self._emit("setp.eq.u32", whole, found, asked)
        first, second = (target.first, target.second) if isinstance(target, Pair) else (target, _NOTHING)
        if first != _NOTHING:
            self._emit("selp.b32", first, asked, Int(0), whole, when=statement.guard)
        if second != _NOTHING:
            self._emit("mov.pred", second, whole, when=statement.guard)

    def reduce(self, statement: Instruction, mask: Operand) -> None:
        """Add up the values of the threads in the mask, one after the other."""
        target, value = statement.operands[:2]
        operation = tuple(word for word in statement.modifiers if word != "sync")
        if len(operation) != 2 or operation not in _IDENTITIES:
            self.out.append(statement)  # the verifier refuses it
            return
        own, asked, total = self._register(), self._living(statement, mask), self._register()
        self._emit("mov.b32", own, value)
        self._emit("mov.b32", total, Int(_IDENTITIES[operation]))
        for lane in range(WARP_LANES):
            other, bit, named = self._register(), self._register(), self._register(1)
            self._together(statement, "shfl.sync.idx.b32", other, own, Int(lane), Int(WARP_LANES - 1))
            self._emit("and.b32", bit, asked, Int(1 << lane))
            self._emit("setp.ne.u32", named, bit, Int(0))
            self._emit(".".join(operation), total, total, other, when=Guard(named))
        self._emit("mov.b32", target, total, when=statement.guard)


def _with_operands(statement: Instruction, operands: tuple[Operand, ...]) -> Instruction:
    return Instruction(statement.opcode, statement.modifiers, operands, statement.guard, statement.position)


_REWRITES: Final[dict[str, Callable[[_Widening, Instruction, Operand], None]]] = {
    "vote": _Widening.vote,
    "match": _Widening.match,
    "redux": _Widening.reduce,
}
