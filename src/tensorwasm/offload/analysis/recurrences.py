"""Closed forms of the locals that a loop changes, and how often it runs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from tensorwasm.offload.affine import ONE, add, coefficient, counter, counters, shift, substitute, subtract, wrap
from tensorwasm.offload.analysis.draft import LabelFrame, LocalValue, WalkState
from tensorwasm.offload.analysis.integers import BITS, Comparison, Integer
from tensorwasm.offload.analysis.merging import merge_roughly
from tensorwasm.offload.analysis.scope import Scope, is_symbol, symbol
from tensorwasm.offload.analysis.tree import CodeBlock, locals_of
from tensorwasm.offload.analysis.trips import ExitTest, passes
from tensorwasm.offload.analysis.walk import CodeWalk
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Constant, Constraint, Load, Operation, Value, ValueType

_MAX_ROUNDS: Final = 5
_EXACT: Final = {"f32": 1 << 24, "f64": 1 << 53}
"""Integers up to these are floats."""


@dataclass(frozen=True, slots=True)
class FloatCounter:
    """A float that grows by an integer in each iteration, and is exact in all of them.

    Attributes:
        affine: its value when an iteration begins.
        step: what is added, as the value that the code adds, which is the first operand if it is ``step_first``.
    """

    kind: ValueType
    affine: Affine
    step: Value
    step_first: bool


@dataclass(slots=True, eq=False)
class LoopPlan:
    """What is known of a loop before its effects are recorded.

    Attributes:
        closed: locals that are an affine expression in the loop's counter when an iteration begins.
        steps: locals that grow in each iteration by an expression in outer counters.
        same: other locals that keep what they held before the loop.
        reloads: locals that hold what a load of the iteration before has read, as that load with its former pointer.
        floats: locals that hold an integer as a float, and grow by one.
        test: the branch that ends it.
        tests: all branches that leave it.
        bound: the place of one of these at which another iteration is always tested for, and how many begin at most.
        trip: iterations; a constraint if the loop must be told apart by it first; None if they cannot be counted.
        depends_on_data: whether it may end because of what it has read or computed.
        is_left_early: whether there is another way out than by the tests.
        repeats: whether any path goes on to another iteration.
        leavers: states that left the loop, with the place of the frame that they go to, None for the loop's end.
        resolved: symbols of the last round of which an expression is known.
        first_symbol: symbols from this one on are of the last round.
    """

    counter: int
    closed: dict[int, Integer] = field(default_factory=dict)
    steps: dict[int, Affine] = field(default_factory=dict)
    same: set[int] = field(default_factory=set)
    reloads: dict[int, Load] = field(default_factory=dict)
    floats: dict[int, FloatCounter] = field(default_factory=dict)
    test: ExitTest | None = None
    tests: tuple[ExitTest, ...] = ()
    bound: tuple[int, Affine] | None = None
    trip: Affine | Constraint | None = None
    is_left_early: bool = False
    repeats: bool = True
    depends_on_data: bool = False
    leavers: list[tuple[int | None, WalkState]] = field(default_factory=list)
    resolved: dict[int, Affine] = field(default_factory=dict)
    first_symbol: int = 0

    def resolve(self, value: Affine) -> Affine | None:
        """Return an expression without symbols of the last round; None if there is none."""
        result = Affine(value.constant)
        for term, number in value.terms:
            known = self.resolved.get(term) if isinstance(term, int) else None
            if known is None:
                if any(each >= self.first_symbol for each in counters(Affine(0, ((term, 1),)))):
                    return None
                known = Affine(0, ((term, 1),))
            result = add(result, known, number)
        return result

    def at(self, value: Affine, iteration: Affine) -> Affine:
        """Return the value of an expression in a certain iteration."""
        return substitute(value, {self.counter: iteration})

    def last(self) -> Affine | None:
        """Return the iteration in which the loop is left."""
        if self.test is None or not isinstance(self.trip, Affine):
            return None
        return shift(self.trip, -1) if self.test.at_end else self.trip


def plan_loop(walk: CodeWalk, block: CodeBlock, state: WalkState) -> LoopPlan:
    """Walk a loop's body roughly until no more is found out about it; neither the state nor the nest is changed."""
    rounds = _Rounds(walk, block, state)
    for _ in range(_MAX_ROUNDS):
        latch = rounds.walk_body()
        if latch is None:
            rounds.plan.repeats = False
            return rounds.plan
        if rounds.refuted(latch):
            continue
        is_new = rounds.learn(latch)
        if not is_new or rounds.complete():
            break
    else:
        raise Declined(DeclineReason.CONTROL_FLOW, "recurrences of a loop")
    if not walk.rough:
        rounds.find_reloads(latch)
        rounds.find_bound()
        rounds.find_floats(latch)
    plan = rounds.plan
    walk.remembered[block.start] = {
        local: coefficient(value.affine, plan.counter) for local, value in plan.closed.items()
    }
    return plan


class _Rounds:
    def __init__(self, walk: CodeWalk, block: CodeBlock, state: WalkState) -> None:
        self.walk, self.block, self.state = walk, block, state
        self.plan = LoopPlan(walk.counters[block.start])
        self.phis: dict[int, LocalValue] = {}
        self.scope = state.scope
        for local, step in walk.remembered.get(block.start, {}).items():
            self._close(local, step)

    def walk_body(self) -> WalkState | None:
        """Walk the body once; return the state in which the next iteration begins."""
        walk, plan, block = self.walk, self.plan, self.block
        plan.first_symbol = symbol(walk.symbols + 1, 32)
        plan.resolved = {}
        state = self.state.copy()
        state.scope = self.scope = Scope(self.state.scope, self._range())
        self.phis = {}
        for local in locals_of(block.assigned):
            if not block.live >> local & 1 or state.locals[local] is None:
                state.locals[local] = None
            elif local in plan.closed:
                state.locals[local] = plan.closed[local]
            else:
                state.locals[local] = self.phis[local] = walk.unknown(walk.types[local])
        frame = LabelFrame(block, len(state.stack), 0, is_loop=True)
        walk.frames.append(frame)
        walk.rough += 1
        ends = walk.items(block.items, [state])
        plan.leavers = [(None, end) for end in ends] + list(frame.exits)
        plan.tests = tuple(dict.fromkeys(frame.tests))
        plan.test = plan.tests[0] if len(plan.tests) == 1 else None
        plan.is_left_early = any(not leaver.left for _, leaver in plan.leavers)
        plan.depends_on_data = any(test.stay is None for test in frame.tests)
        united = merge_roughly(walk, frame.arrivals, block.live, len(self.state.stack))
        walk.rough -= 1
        walk.frames.pop()
        return united[0] if united else None

    def _range(self) -> tuple[Constraint, ...]:
        index = counter(self.plan.counter)
        last = self.plan.last()
        return (Constraint(index), Constraint(subtract(last, index))) if last is not None else (Constraint(index),)

    def refuted(self, latch: WalkState) -> bool:
        """Drop closed forms that do not hold in the next iteration; return whether there were any."""
        plan = self.plan
        wrong = []
        for local, form in plan.closed.items():
            value, after = latch.locals[local], plan.at(form.affine, shift(counter(plan.counter), 1))
            if not isinstance(value, Integer) or not self.scope.equal(value.affine, after, BITS[form.type]):
                wrong.append(local)
        for local in wrong:
            del plan.closed[local]
        if wrong:
            plan.trip, plan.test = None, None
        return bool(wrong)

    def learn(self, latch: WalkState) -> bool:
        """Take what a round has found out; return whether anything is new."""
        plan = self.plan
        known, counted = len(plan.closed), isinstance(plan.trip, Affine)
        plan.steps, plan.same = {}, set()
        for local, phi in self.phis.items():
            value = latch.locals[local]
            if value is phi or value == phi:
                self._close(local, 0)
                plan.same.add(local)
            elif isinstance(value, Integer) and isinstance(phi, Integer):
                step = wrap(subtract(value.affine, phi.affine), BITS[phi.type])
                if not step.terms:
                    self._close(local, step.constant)
                elif all(each < plan.counter or self._is_outer_symbol(each) for each in counters(step)):
                    plan.steps[local] = step
        while self._wrap_around(latch):
            pass
        trip = None if plan.test is None else self._trip(plan.test)
        plan.trip = plan.trip if trip is None else trip
        return len(plan.closed) > known or (not counted and isinstance(plan.trip, Affine))

    def _is_outer_symbol(self, each: int) -> bool:
        return is_symbol(each) and each < self.plan.first_symbol

    def complete(self) -> bool:
        """Return whether another round cannot find out more."""
        open_integers = [
            local
            for local, phi in self.phis.items()
            if isinstance(phi, Integer) and local not in self.plan.closed and local not in self.plan.same
        ]
        return not open_integers and isinstance(self.plan.trip, Affine)

    def _close(self, local: int, step: int) -> None:
        """Record that a local grows by a constant."""
        start = self.state.locals[local]
        if isinstance(start, Integer):
            affine = add(start.affine, counter(self.plan.counter), step)
            self._known(local, Integer(start.type, wrap(affine, BITS[start.type])))

    def _known(self, local: int, form: Integer) -> None:
        self.plan.closed[local] = form
        phi = self.phis.get(local)
        if isinstance(phi, Integer):
            self.plan.resolved[phi.affine.terms[0][0]] = form.affine  # type: ignore[index]  # a symbol is an int

    def _wrap_around(self, latch: WalkState) -> bool:
        """Find a local that holds what an expression was in the iteration before."""
        plan = self.plan
        for local, phi in self.phis.items():
            value, start = latch.locals[local], self.state.locals[local]
            if local in plan.closed or not isinstance(value, Integer) or not isinstance(start, Integer):
                continue
            found = plan.resolve(value.affine)
            if found is None or not isinstance(phi, Integer):
                continue
            if self.state.scope.equal(plan.at(found, Affine(-1)), start.affine, BITS[phi.type]):
                self._known(local, Integer(phi.type, plan.at(found, shift(counter(plan.counter), -1))))
                return True
        return False

    def find_bound(self) -> None:
        """Find a test that limits a loop of several."""
        for test in self.plan.tests:
            trip = self._trip(test)
            if self.plan.bound is None and isinstance(trip, Affine):
                self.plan.bound = test.place, trip if test.at_end else add(trip, ONE)

    def find_floats(self, latch: WalkState) -> None:
        """Find locals that count in floats."""
        last = self.plan.last()
        most = None if last is None else self.state.scope.upper(last)
        if most is None:
            return
        for local, phi in self.phis.items():
            start, value = self.state.locals[local], latch.locals[local]
            if not isinstance(start, Constant) or not isinstance(value, Operation) or phi not in value.operands:
                continue
            if value.opcode not in {"f32.add", "f64.add"}:
                continue
            step = value.operands[value.operands[0] is phi]
            first, by = _whole(start), _whole(step)
            if first is None or by is None or abs(first) + abs(by) * (most + 1) > _EXACT[value.type]:
                continue
            affine = add(Affine(first), counter(self.plan.counter), by)
            self.plan.floats[local] = FloatCounter(value.type, affine, step, value.operands[0] is step)

    def _trip(self, test: ExitTest) -> Affine | Constraint | None:
        plan, stay = self.plan, test.stay
        if stay is None:
            return None
        left, right = plan.resolve(stay.left), plan.resolve(stay.right)
        if left is None or right is None:
            return None
        passed = passes(Comparison(stay.relation, left, right, stay.bits), plan.counter, self.state.scope)
        return add(passed, ONE) if isinstance(passed, Affine) and test.at_end else passed

    def find_reloads(self, latch: WalkState) -> None:
        """Find locals that hold what a load has read in the iteration before."""
        plan = self.plan
        waiting = [local for local in self.phis if local not in plan.closed and local not in plan.same]
        by_phi = {id(phi): local for local, phi in self.phis.items()}
        found = True
        while found:
            found = False
            for local in waiting:
                value, start = latch.locals[local], self.state.locals[local]
                if not isinstance(value, Load):
                    value = plan.reloads.get(by_phi.get(id(value), -1))
                if local in plan.reloads or value is None or not isinstance(start, Load):
                    continue
                pointer = plan.resolve(value.pointer)
                if pointer is None or (start.opcode, start.offset) != (value.opcode, value.offset):
                    continue
                if self.state.scope.equal(plan.at(pointer, Affine(-1)), start.pointer, 32):
                    before = plan.at(pointer, shift(counter(plan.counter), -1))
                    plan.reloads[local] = Load(value.opcode, before, value.offset)
                    found = True


def _whole(value: LocalValue | None) -> int | None:
    """Return the integer that a float is; None if it is none, or a zero with a sign."""
    if not isinstance(value, Constant) or value.type not in _EXACT:
        return None
    as_float, as_bits = ("<f", "<I") if value.type == "f32" else ("<d", "<Q")
    number = struct.unpack(as_float, struct.pack(as_bits, value.bits))[0]
    is_negative_zero = not number and value.bits
    return int(number) if number.is_integer() and not is_negative_zero else None
