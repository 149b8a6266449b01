"""Turns the body of one function into steps, ends of blocks and labels: scopes, guards, branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.execution.machine import End, SimtMachine, Step
from tensorwasm.gpu.emulator.program.names import Names
from tensorwasm.gpu.emulator.program.program import Reader, Targets
from tensorwasm.ptx.model import Block, Instruction, Label, Not, Statement, TargetList, Variable
from tensorwasm.watch import Watch

Resolve = Callable[[int], int]
EndFactory = Callable[[int, Resolve], End]
"""Makes the end of a block from the number of the next block and the blocks of labels."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a block, before the blocks of labels are known.

    ``alone`` is whether the block must hold nothing else, so that lanes can come back to it.
    """

    make: EndFactory
    alone: bool = False


Item = Step | Finish | int
"""A step, an end, or a label by its number."""
CompileInstruction = Callable[["Builder", Instruction], None]


class Builder:
    """Builds one function: ``items`` are its steps, ends and labels in order."""

    def __init__(self, names: Names, targets: Targets, watch: Watch) -> None:
        """Begin the function whose names are given; ``watch`` counts what is built."""
        self.code, self.names, self.targets, self._watch = names.code, names, targets, watch
        self.items: list[Item] = []
        self._labels: dict[int, int] = {}
        self._label_count = 0

    # ---------------------------------------------------------------------------------------- statements

    def build(self, body: tuple[Statement, ...], compile_instruction: CompileInstruction) -> None:
        """Build a block of statements, instruction by instruction; errors as in `load`."""
        for statement in body:
            if isinstance(statement, Label):
                self.names.declare(statement.name, statement)
            elif isinstance(statement, TargetList):
                self.names.declare(statement.label, statement)
        for statement in self._watch.over(body):
            if isinstance(statement, Instruction):
                self._build_instruction(statement, compile_instruction)
            elif isinstance(statement, Label):
                self.items.append(self.label(statement.name))
            elif isinstance(statement, Variable):
                self.names.declare(statement.name, statement)
            elif isinstance(statement, Block):
                self.names.enter()
                self.build(statement.body, compile_instruction)
                self.names.leave()

    def _build_instruction(self, instruction: Instruction, compile_instruction: CompileInstruction) -> None:
        start = len(self.items)
        try:
            compile_instruction(self, instruction)
            read = None if instruction.opcode in ("bra", "brx") else self.guard(instruction)
            if read is not None:
                self._apply_guard(read, start)
        except MalformedPtx as error:
            if error.line:
                raise
            kind = UnsupportedPtx if isinstance(error, UnsupportedPtx) else MalformedPtx
            raise kind(f"{instruction.mnemonic}: {error.message}", *instruction.position) from None

    def _apply_guard(self, read: Reader, start: int) -> None:
        """Guard the items from ``start`` on: each step by a mask, or all by a branch if they end a block."""
        built = self.items[start:]
        if not any(isinstance(item, Finish) for item in built):
            self.items[start:] = [_guarded(read, step) for step in built if callable(step)]
            return
        after = self.new_label()
        self.items.insert(start, Finish(lambda following, resolve: branch_end(read, following, resolve(after))))
        self.items.append(after)

    def guard(self, instruction: Instruction) -> Reader | None:
        """Return a reader of the instruction's guard, negation included; None without one."""
        if instruction.guard is None:
            return None
        predicate = instruction.guard.predicate
        return self.names.reader(Not(predicate) if instruction.guard.negated else predicate, "pred")

    def step(self, step: Step) -> None:
        """Add a step."""
        self.items.append(step)

    def finish(self, end: End, *, alone: bool = False) -> None:
        """Add the end of a block; ``alone`` as in `Finish`."""
        self.items.append(Finish(lambda _following, _resolve: end, alone))

    def branch(self, make: EndFactory) -> None:
        """Add the end of a block that refers to labels."""
        self.items.append(Finish(make))

    # -------------------------------------------------------------------------------------------- labels

    def new_label(self) -> int:
        """Return the number of a new label."""
        self._label_count += 1
        return self._label_count

    def label(self, name: str) -> int:
        """Return the number of a label of the program."""
        found = self.names.find(name)
        if not isinstance(found, Label):
            raise MalformedPtx(f"{name} is no label")
        if id(found) not in self._labels:
            self._labels[id(found)] = self.new_label()
        return self._labels[id(found)]


def _guarded(read: Reader, step: Step) -> Step:
    return lambda machine: machine.run_masked(read(machine), step)


def branch_end(read: Reader, taken: int, fallen: int) -> End:
    """Return the end that sends lanes with a set predicate to one block and the others to another."""

    def end(machine: SimtMachine, _pc: int) -> int:
        mask = read(machine)
        yes = np.count_nonzero(mask)
        if yes == machine.count:
            return taken
        if yes == 0 or taken == fallen:
            return fallen
        stays: int = machine.scheduler.split(mask, taken, fallen)
        return stays

    return end
