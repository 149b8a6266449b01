"""Turns the body of one function into blocks of steps: scopes, registers, operands, guards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tensorwasm.errors import MalformedPtx, UnsupportedPtx
from tensorwasm.gpu.emulator.faults import Site
from tensorwasm.gpu.emulator.machine import Machine
from tensorwasm.gpu.emulator.names import Names
from tensorwasm.gpu.emulator.operands import Reader
from tensorwasm.gpu.emulator.program import End, Step, Targets
from tensorwasm.ptx.model import (
    Block,
    Directive,
    Instruction,
    Label,
    Not,
    Statement,
    TargetList,
    Variable,
)
from tensorwasm.watch import Watch

Resolve = Callable[[int], int]
EndFactory = Callable[[int, int, Resolve], End]
"""Makes the end of a block from the number of that block, the number of the next one and the places of labels."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a block, before places are known.

    Attributes:
        make: makes it.
        alone: whether the block must hold nothing else, so that lanes can come back to it.
    """

    make: EndFactory
    alone: bool = False


Item = Step | Finish | int
"""A step, an end, or a label by its number."""


class Builder:
    """Builds one function.

    Attributes:
        code: what is known of it so far.
        items: its steps, ends and labels in order.
        names: what names mean at the current statement.
        targets: where indirect branches and calls of the module may lead.
        watch: counts what is built.
    """

    def __init__(self, names: Names, targets: Targets, watch: Watch) -> None:
        """Begin the function that the names are of."""
        self.code = names.code
        self.names = names
        self.targets = targets
        self.watch = watch
        self.items: list[Item] = []
        self._labels: dict[int, int] = {}
        self._label_count = 0

    # ---------------------------------------------------------------------------------------- statements

    def build(self, compile_instruction: Callable[[Builder, Instruction], None]) -> None:
        """Build the whole body, instruction by instruction.

        Raises:
            MalformedPtx: an operand does not fit.
            UnsupportedPtx: the emulator lacks something.
            InvokeTimeout: the deadline has passed.
        """
        self._build_block(self.code.function.body or (), compile_instruction)

    def _build_block(self, body: tuple[Statement, ...], compile_instruction: Callable[..., None]) -> None:
        for statement in body:
            if isinstance(statement, Label):
                self.names.declare(statement.name, statement)
            elif isinstance(statement, TargetList):
                self.names.declare(statement.label, statement)
        for statement in self.watch.over(body):
            if isinstance(statement, Instruction):
                self._build_instruction(statement, compile_instruction)
            elif isinstance(statement, Label):
                self.items.append(self.label(statement.name))
            elif isinstance(statement, Variable):
                self.names.declare(statement.name, statement)
            elif isinstance(statement, Block):
                self.names.enter()
                self._build_block(statement.body, compile_instruction)
                self.names.leave()
            elif isinstance(statement, Directive | TargetList):
                continue

    def _build_instruction(self, instruction: Instruction, compile_instruction: Callable[..., None]) -> None:
        start = len(self.items)
        try:
            compile_instruction(self, instruction)
            if instruction.guard is not None and instruction.opcode not in ("bra", "brx"):
                self._guard(instruction, start)
        except MalformedPtx as error:
            if error.line:
                raise
            where = instruction.position
            kind = UnsupportedPtx if isinstance(error, UnsupportedPtx) else MalformedPtx
            raise kind(f"{instruction.mnemonic}: {error.message}", where.line, where.column) from None

    def _guard(self, instruction: Instruction, start: int) -> None:
        read = self.guard(instruction)
        built = self.items[start:]
        if not any(isinstance(item, Finish) for item in built):
            self.items[start:] = [_guarded(read, step) for step in built if callable(step)]
            return
        after = self.new_label()
        self.items.insert(start, Finish(_skip(read, after)))
        self.items.append(after)

    def guard(self, instruction: Instruction) -> Reader:
        """Return a reader of the instruction's guard, negation included."""
        if instruction.guard is None:
            raise MalformedPtx("no guard")
        predicate = instruction.guard.predicate
        return self.names.reader(Not(predicate) if instruction.guard.negated else predicate, "pred")

    def step(self, step: Step) -> None:
        """Add a step."""
        self.items.append(step)

    def finish(self, make: EndFactory, *, alone: bool = False) -> None:
        """Add the end of a block."""
        self.items.append(Finish(make, alone))

    # -------------------------------------------------------------------------------------------- labels

    def new_label(self) -> int:
        """Return a label of the builder's own."""
        self._label_count += 1
        return self._label_count

    def label(self, name: str) -> int:
        """Return the number of a label of the program.

        Raises:
            MalformedPtx: there is none of that name.
        """
        found = self.names.find(name)
        if not isinstance(found, Label):
            raise MalformedPtx(f"{name} is no label")
        number = self._labels.get(id(found))
        if number is None:
            number = self._labels[id(found)] = self.new_label()
        return number

    def site(self, instruction: Instruction) -> Site:
        """Return how faults name an instruction."""
        return Site(instruction)


def _guarded(read: Reader, step: Step) -> Step:
    return lambda machine: machine.narrowed(read(machine), step)


def _skip(read: Reader, after: int) -> EndFactory:
    def make(_own: int, following: int, resolve: Resolve) -> End:
        return branch_end(read, following, resolve(after))

    return make


def branch_end(read: Reader, taken: int, fallen: int) -> End:
    """Return the end that sends lanes with a set predicate to one place and the others to another."""

    def end(machine: Machine) -> int:
        mask = read(machine)
        yes = np.count_nonzero(mask)
        if yes == machine.count:
            return taken
        if yes == 0 or taken == fallen:
            return fallen
        stays: int = machine.scheduler.split(mask, taken, fallen)
        return stays

    return end
