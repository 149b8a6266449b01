"""A nest while it is built: statements that grow, loops, and the states of the function's locals and stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tensorwasm.offload.analysis.integers import Comparison, Integer
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.tree import CodeBlock
from tensorwasm.offload.analysis.trips import ExitTest
from tensorwasm.offload.declined import DeclineReason
from tensorwasm.offload.nest import Affine, Effect, Load, Store, Value, While

LocalValue = Value | Integer | Comparison


@dataclass(slots=True, eq=False)
class LoopDraft:
    """A loop of the nest; times count loads and stores in the order of the program."""

    counter: int
    trip: Affine
    body: list[LoopDraft | StatementDraft] = field(default_factory=list)
    began: int = 0
    ended: int = 0


@dataclass(slots=True, eq=False)
class StatementDraft:
    """A statement of the nest."""

    scope: Scope
    loops: tuple[LoopDraft, ...]
    began: int
    effects: list[Effect] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class TimedAccess:
    """A load or store, when it was, and the statement that it is in."""

    effect: Load | Store
    time: int
    statement: StatementDraft


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """A condition that data decides; both ways are walked, and what differs between them is selected."""

    condition: Value


Guard = tuple[Fork, bool]
"""A way of a fork: that for a condition that is not 0, or the other one."""


@dataclass(slots=True, eq=False)
class WalkState:
    """What the function's locals and stack hold on one path, and where the path's effects go.

    Attributes:
        guards: forks that the path went through, each with its way. Effects run whatever the conditions are.
        statement: the one that is open; None if the next effect begins one.
        left: the path has left the loop, though not yet its code.
        tested: the path has passed the test that ends the loop.
        done: it may have no more effects before the next iteration.
        twin: of a path that left the loop, the one that went on.
    """

    locals: list[LocalValue | None]
    stack: list[LocalValue]
    scope: Scope
    loops: tuple[LoopDraft, ...] = ()
    guards: tuple[Guard, ...] = ()
    statement: StatementDraft | None = None
    left: bool = False
    tested: bool = False
    done: bool = False
    twin: WalkState | None = None

    def copy(self) -> WalkState:
        """Return the same state; both go on in the open statement."""
        return replace(self, locals=list(self.locals), stack=list(self.stack))


@dataclass(slots=True, eq=False)
class TurningLoop:
    """A loop of data that is being walked.

    Attributes:
        reason: why it may not have other effects.
        effects: of a turn.
    """

    reason: DeclineReason
    effects: list[Load | While] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class LabelFrame:
    """A block whose content is walked.

    Attributes:
        height: of the stack below the block's own values.
        arity: how many values a branch to its label takes.
        arrivals: states that branched to its label.
        exits: of a loop, the states that branched further out, with the place of that label's frame.
        tests: of a loop, the branches that leave it.
        leaving: the test that ends the loop, once it is known.
        trip: iterations, once they are known.
        has_effects: whether an iteration had an effect so far.
        bound: of a loop of data, the place of a test that limits its turns.
    """

    block: CodeBlock
    height: int
    arity: int
    is_loop: bool
    arrivals: list[WalkState] = field(default_factory=list)
    exits: list[tuple[int, WalkState]] = field(default_factory=list)
    tests: list[ExitTest] = field(default_factory=list)
    leaving: ExitTest | None = None
    trip: Affine | None = None
    has_effects: bool = False
    bound: int | None = None


def statements(body: list[LoopDraft | StatementDraft]) -> Iterator[StatementDraft]:
    """Yield all statements in order."""
    for item in body:
        if isinstance(item, LoopDraft):
            yield from statements(item.body)
        else:
            yield item
