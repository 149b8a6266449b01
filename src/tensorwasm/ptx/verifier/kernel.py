"""What is known of a kernel while the verifier reads its functions, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from tensorwasm.errors import UnsupportedPtx
from tensorwasm.ptx.guarded import Arrays, Width
from tensorwasm.ptx.model import Function, Instruction, Name, Statement, Variable
from tensorwasm.ptx.printer import render_instruction
from tensorwasm.ptx.templates.polls import Poll
from tensorwasm.ptx.verifier.turns import Turns
from tensorwasm.watch import Watch


@dataclass(slots=True)
class KernelFacts:
    """What is known of a kernel.

    Attributes:
        width: of its launch parameter; every function has the same.
        names: of all functions of the module.
        functions: that have been accepted, by name: those that later ones may call.
        costs: of these.
        syncing: those in which threads may wait for each other.
        least_shared_bytes: where accesses at known places of dynamic shared memory end.
        whole_rows: whether threads wait for each other in the same order only if rows of a block are whole warps.
        whole_warps: whether there are instructions that only whole warps execute.
    """

    arrays: Arrays
    shared_base: int
    watch: Watch
    width: Width
    names: frozenset[str]
    functions: dict[str, Function] = field(default_factory=dict)
    costs: dict[str, int] = field(default_factory=dict)
    syncing: set[str] = field(default_factory=set)
    least_shared_bytes: int = 0
    whole_rows: bool = False
    whole_warps: bool = False


@dataclass(frozen=True, slots=True)
class Payment:
    """Where turns of a counted loop are paid for.

    Attributes:
        at: index of the statement in the function's body that takes them.
        counter: register that holds how many.
        amount: work that is counted for each.
        whole: work that is counted at most.
        fuel: register in which it is counted.
    """

    at: int
    counter: str
    amount: int
    whole: int
    fuel: Name


@dataclass(slots=True)
class ReadFunction:
    """A function of the text, divided into the program's statements and what the guard has put around them.

    Attributes:
        registers: how many of the program's registers it declares, by their bits.
        counts: registers of each of the guard's families.
        reserved: names of all registers of the guard.
        readable: those that the program's instructions may read.
        params: parameters of it and of its calls, by name.
        body: the program's statements and the fences.
        end: where the epilogue begins in the text's body.
        charges: work that is counted before each statement of ``body``, by its index.
        payments: of counted loops, by the label before each.
        counted: branches backward, by their index, whose turns a register counts.
        polls: of the charges.
        leaving: branches, by their index, at which a thread that has to stop leaves a loop.
        lists: labels of each list for branches.
        labels: index of each label in ``body``.
        trusted: indices of statements that are parts of the guard's templates.
        agreed: predicates that a whole warp was found to agree on before a statement, by its index.
        traps: whether it has a way to the trap.
        checked: how many statements of ``body`` stand before the check of the deadline, -1 if the prologue has it.
        turns: the loops whose turns are bounded, None while they have not been looked for.
    """

    function: Function
    registers: dict[int, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    readable: set[str] = field(default_factory=set)
    params: dict[str, Variable] = field(default_factory=dict)
    body: list[Statement] = field(default_factory=list)
    end: int = 0
    charges: dict[int, int] = field(default_factory=dict)
    payments: dict[str, Payment] = field(default_factory=dict)
    counted: dict[int, str] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    trusted: set[int] = field(default_factory=set)
    agreed: dict[int, str] = field(default_factory=dict)
    traps: bool = False
    checked: int = -1
    turns: Turns | None = None

    def refuse(self, why: str, at: Statement | Function) -> NoReturn:
        """Refuse the text because of a statement."""
        shown = f": {render_instruction(at)}" if isinstance(at, Instruction) else ""
        raise UnsupportedPtx(f"{self.function.name}: {why}{shown}", *at.position)
