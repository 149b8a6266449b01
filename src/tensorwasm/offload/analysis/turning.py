"""Records loops whose end data decides, and all loops in them: as one effect of a statement."""

from __future__ import annotations

from tensorwasm.offload.affine import counter, shift, subtract
from tensorwasm.offload.analysis.draft import LabelFrame, TurningLoop, WalkState
from tensorwasm.offload.analysis.integers import BITS, Integer, number
from tensorwasm.offload.analysis.merging import unite_ways
from tensorwasm.offload.analysis.recurrences import LoopPlan
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.tree import CodeBlock, locals_of
from tensorwasm.offload.analysis.walk import CodeWalk
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Constraint, Load, TurningScalar, Value, While


class TurningRecord:
    """One loop of data; whatever ends a turn is a way of forks, and what the ways do not agree in is selected."""

    def __init__(self, walk: CodeWalk, block: CodeBlock, state: WalkState, plan: LoopPlan) -> None:
        self.walk, self.block, self.state, self.plan = walk, block, state, plan
        self.turns = None if plan.bound is None else plan.bound[1]
        place = None if plan.bound is None else plan.bound[0]
        self.frame = LabelFrame(block, len(state.stack), 0, is_loop=True, bound=place)
        self.scalars: dict[int, TurningScalar] = {}
        self.initial: list[Value] = []

    def run(self) -> list[WalkState]:
        """Walk the body, and put the loop into the state's statement; return the states behind its end."""
        walk, state, plan = self.walk, self.state, self.plan
        walk.open(state)
        start = state.copy()
        start.tested = False
        index = counter(plan.counter)
        limits = () if self.turns is None else (Constraint(subtract(shift(self.turns, -1), index)),)
        start.scope = Scope(state.scope, (Constraint(index), *limits))
        for local in locals_of(self.block.assigned):
            if not self.block.live >> local & 1 or start.locals[local] is None:
                start.locals[local] = None
            elif local in plan.closed:
                start.locals[local] = plan.closed[local]
            elif local not in plan.same:
                start.locals[local] = self._scalar(local)
        reason = DeclineReason.DATA_DEPENDENT if plan.depends_on_data else DeclineReason.CONTROL_FLOW
        walk.frames.append(self.frame)
        walk.turning.append(TurningLoop(reason))
        leavers: list[tuple[int | None, WalkState]] = [(None, end) for end in walk.items(self.block.items, [start])]
        effects = walk.turning.pop().effects
        walk.frames.pop()
        return self._finish(start, [*leavers, *self.frame.exits], effects)

    def _scalar(self, local: int) -> TurningScalar:
        walk, value = self.walk, self.state.locals[local]
        kind = walk.types[local]
        self.scalars[local] = TurningScalar(kind)
        self.initial.append(walk.constant(kind, 0) if value is None else walk.value(value))
        return self.scalars[local]

    def _finish(
        self, start: WalkState, leavers: list[tuple[int | None, WalkState]], effects: list[Load | While]
    ) -> list[WalkState]:
        walk, state = self.walk, self.state
        targets = list(dict.fromkeys(target for target, _ in leavers))
        live = {target: self._live_at(target) for target in targets}
        changing = list(self.scalars)
        for local in locals_of(self.block.assigned):
            outs = [leaver.locals[local] for target, leaver in leavers if live[target] >> local & 1]
            if local not in self.scalars and any(out is not None and out is not state.locals[local] for out in outs):
                self._scalar(local)
        for latch in self.frame.arrivals:
            self._check(latch)
            self._settle(latch, start, 0, changing)
        for target, leaver in leavers:
            kept = [local for local in self.scalars if live[target] >> local & 1]
            self._settle(leaver, start, 1 + targets.index(target), kept)
        together = sum(1 << local for local in self.scalars)
        ends = unite_ways(walk, [*self.frame.arrivals, *(leaver for _, leaver in leavers)], together)
        if len(ends) != 1 or ends[0].guards != state.guards:
            raise Declined(DeclineReason.CONTROL_FLOW, "how a loop of data goes on")
        after = [walk.value(self._held(ends[0], local)) for local in self.scalars]
        marker = walk.value(ends[0].stack[0])
        chosen = TurningScalar("i32")
        scalars = [*self.scalars.values(), *([chosen] if len(targets) > 1 else [])]
        if len(targets) > 1:
            self.initial.append(walk.constant("i32", 0))
            after.append(marker)
        again = walk.operation("i32", "i32.eqz", (marker,))
        entered = walk.guarded(state)
        loop = While(
            *(self.plan.counter, self.turns, entered, tuple(scalars), tuple(self.initial)),
            *(tuple(effects), tuple(after), again),
        )
        walk.record(state, loop)
        for scalar in scalars:
            walk.scalars[scalar] = walk.open(state)
        for local in locals_of(self.block.assigned):
            if local in self.scalars:
                state.locals[local] = self.scalars[local]
            elif not any(each >> local & 1 for each in live.values()):
                state.locals[local] = None
        return self._continued(targets, chosen)

    def _live_at(self, target: int | None) -> int:
        if target is None:
            return self.block.live_after
        frame = self.walk.frames[target]
        if frame.arity:
            raise Declined(DeclineReason.INSTRUCTION, "a block with results around a loop")
        return frame.block.live

    def _check(self, latch: WalkState) -> None:
        """See that another turn begins as it is assumed to."""
        plan, index = self.plan, counter(self.plan.counter)
        if self.turns is not None and not latch.tested:
            raise Declined(DeclineReason.DATA_DEPENDENT, "a loop's end")
        for local, form in plan.closed.items():
            value, after = latch.locals[local], plan.at(form.affine, shift(index, 1))
            if not isinstance(value, Integer) or not latch.scope.equal(value.affine, after, BITS[form.type]):
                raise Declined(DeclineReason.CONTROL_FLOW, "a recurrence")

    def _settle(self, end: WalkState, start: WalkState, mark: int, known: list[int]) -> None:
        """Make a turn's end comparable with others; scalars that are not known there keep what they hold."""
        end.left = end.tested = end.done = False
        end.scope, end.stack = start.scope, [number("i32", mark)]
        for local, scalar in self.scalars.items():
            if local not in known or end.locals[local] is None:
                end.locals[local] = scalar

    @staticmethod
    def _held(state: WalkState, local: int) -> Value | Integer:
        value = state.locals[local]
        if value is None:
            raise Declined(DeclineReason.MALFORMED)
        return value  # type: ignore[return-value]  # `CodeWalk.value` takes comparisons too

    def _continued(self, targets: list[int | None], chosen: TurningScalar) -> list[WalkState]:
        """Send the state to each label that the loop leaves to."""
        walk, ways = self.walk, [self.state]
        for index in range(1, len(targets)):
            test = walk.operation("i32", "i32.eq", (chosen, walk.constant("i32", index)))
            ways[-1:] = [side for _, side in walk.part_ways(ways[-1], test)]
        behind = []
        for target, way in zip(targets, ways, strict=True):
            if target is None:
                behind.append(way)
            else:
                walk.leave(target, way)
        return behind
