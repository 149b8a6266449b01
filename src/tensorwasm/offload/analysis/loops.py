"""Records loops: their iterations' effects, the cells that iterations hand on, and what is behind them."""

from __future__ import annotations

from tensorwasm.offload.affine import counter, counters, shift, subtract
from tensorwasm.offload.analysis.draft import LabelFrame, LocalValue, LoopDraft, WalkState
from tensorwasm.offload.analysis.integers import BITS, Comparison, Integer
from tensorwasm.offload.analysis.merging import unite_ways
from tensorwasm.offload.analysis.recording import may_overlap, may_overlap_other_iteration
from tensorwasm.offload.analysis.recurrences import LoopPlan, plan_loop
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.tree import CodeBlock, locals_of
from tensorwasm.offload.analysis.turning import TurningRecord
from tensorwasm.offload.analysis.walk import CodeWalk
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    Affine,
    Carried,
    Cell,
    Constraint,
    Index,
    Load,
    Operation,
    SetCell,
    TurningScalar,
    Value,
    ValueType,
)


class NestWalk(CodeWalk):
    """Walks a region, its loops included."""

    def block(self, block: CodeBlock, state: WalkState) -> list[WalkState]:
        """Walk a block or loop from one state; return the states behind its end."""
        if block.kind != "loop":
            return super().block(block, state)
        if block.params or block.results:
            raise Declined(DeclineReason.INSTRUCTION, "a loop with parameters or results")
        if state.left or state.done:
            raise Declined(DeclineReason.CONTROL_FLOW, "a loop behind a loop's exit")
        plan = plan_loop(self, block, state)
        if not plan.repeats:
            return self._once(block, state)
        if self.rough:
            return self._pass_over(block, state, plan)
        last = plan.last()
        if self.turning or plan.is_left_early:
            last = None
        elif isinstance(plan.trip, Constraint):
            if plan.trip in state.scope.constraints:
                raise Declined(DeclineReason.TOO_LARGE, "bounds of a loop")
            rest = Constraint(subtract(Affine(-1), plan.trip.value))
            sides = self.split(state, [(True, (plan.trip,)), (False, (rest,))])
            return [after for _, side in sides for after in self.block(block, side)]
        if last is None:
            return TurningRecord(self, block, state, plan).run()
        while True:
            recorded = LoopRecord(self, block, state, plan, last)
            if recorded.run():
                return recorded.finish()

    def _once(self, block: CodeBlock, state: WalkState) -> list[WalkState]:
        """Walk the body of a loop that does not repeat."""
        height = len(state.stack)
        frame = LabelFrame(block, height, 0, is_loop=False)
        self.frames.append(frame)
        ends = self.items(block.items, [state])
        self.frames.pop()
        if frame.arrivals:
            raise Declined(DeclineReason.CONTROL_FLOW, "a loop that repeats only sometimes")
        return self.merge(ends, block.live_after, height)

    def _pass_over(self, block: CodeBlock, state: WalkState, plan: LoopPlan) -> list[WalkState]:
        """Return what is known behind a loop that is only walked roughly."""
        last = plan.last()
        behind = []
        for target, leaver in plan.leavers:
            for local in locals_of(block.assigned):
                if local in plan.same and local not in plan.closed:
                    leaver.locals[local] = state.locals[local]
                    continue
                value = leaver.locals[local]
                if value is not None:
                    leaver.locals[local] = self._rough_exit(value, plan, last)
            leaver.scope, leaver.left = state.scope, state.left
            if target is None:
                behind.append(leaver)
            else:
                self.leave(target, leaver)
        return self.merge(behind, block.live_after, len(state.stack))

    def _rough_exit(self, value: LocalValue, plan: LoopPlan, last: Affine | None) -> LocalValue:
        if isinstance(value, Integer):
            found = plan.resolve(value.affine)
            if found is not None and plan.counter in counters(found):
                found = None if last is None else plan.at(found, last)
            if found is not None:
                return Integer(value.type, found)
        return self.unknown("i32" if isinstance(value, Comparison) else value.type)


class LoopRecord:
    """One loop's effects; they become part of the nest when it is finished."""

    def __init__(self, walk: NestWalk, block: CodeBlock, state: WalkState, plan: LoopPlan, last: Affine) -> None:
        self.walk, self.block, self.state, self.plan, self.last = walk, block, state, plan, last
        self.at_end = plan.test is not None and plan.test.at_end
        trip = shift(last, 1) if self.at_end else last
        self.loop = LoopDraft(plan.counter, trip, began=walk.time)
        self.outer = tuple([loop.counter for loop in state.loops])
        self.cells: dict[int, Cell] = {}
        self.virtual: dict[int, Load] = {}
        self.floats: dict[int, Value] = {}
        self.frame = LabelFrame(block, len(state.stack), 0, is_loop=True, leaving=plan.test, trip=trip)
        self.ends: list[WalkState] = []
        self.latch_values: dict[int, list[Value]] = {}
        self.behind: list[Load] = []

    def run(self) -> bool:
        """Walk the body; return False if a local's closed form turned out wrong and was dropped from the plan."""
        walk, plan = self.walk, self.plan
        state = self.state.copy()
        index = counter(plan.counter)
        state.scope = Scope(self.state.scope, (Constraint(index), Constraint(subtract(self.last, index))))
        state.tested, state.loops, state.statement = False, (*self.state.loops, self.loop), None
        around, walk.body = walk.body, self.loop.body
        stores = len(walk.stores)
        self._begin(state)
        walk.frames.append(self.frame)
        self.ends = walk.items(self.block.items, [state])
        walk.frames.pop()
        self.loop.ended = walk.time
        self._hand_on()
        walk.body = around
        wrong = [local for local in self.virtual if self._overwritten(local, stores)]
        for local in wrong:
            del plan.reloads[local]
        if wrong:
            del walk.stores[stores:]
        return not wrong

    def _begin(self, state: WalkState) -> None:
        """Give the locals that the loop changes the values that they hold when an iteration begins."""
        walk, plan = self.walk, self.plan
        for local in locals_of(self.block.assigned):
            start = state.locals[local]
            if not self.block.live >> local & 1 or start is None:
                state.locals[local] = None
            elif local in plan.closed:
                state.locals[local] = plan.closed[local]
            elif local in plan.same:
                continue
            elif local in plan.steps and isinstance(start, Integer):
                state.locals[local] = self._growing(start, plan.steps[local])
            elif local in plan.floats:
                form = plan.floats[local]
                kind: ValueType = "i32" if form.kind == "f32" else "i64"
                held = walk.value(Integer(kind, form.affine))
                state.locals[local] = self.floats[local] = walk.operation(
                    form.kind, f"{form.kind}.convert_{kind}_s", (held,)
                )
            elif local in plan.reloads:
                self.virtual[local] = load = Load(
                    plan.reloads[local].opcode, plan.reloads[local].pointer, plan.reloads[local].offset
                )
                walk.record(state, load)
                walk.virtual.add(load)
                state.locals[local] = load
            else:
                self.cells[local] = walk.new_cell(walk.types[local], self.outer)
                state.locals[local] = Carried(self.cells[local])

    def _growing(self, start: Integer, step: Affine) -> Value:
        walk, kind = self.walk, start.type
        factors = (walk.value(Integer(kind, step)), walk.value(Integer(kind, counter(self.plan.counter))))
        product = walk.operation(kind, f"{kind}.mul", factors)
        return walk.operation(kind, f"{kind}.add", (walk.value(start), product))

    def _hand_on(self) -> None:
        """Set the cells at the end of an iteration, and check the closed forms."""
        walk, plan = self.walk, self.plan
        for latch in unite_ways(walk, self.frame.arrivals, self.block.live):
            self._require_same_guards(latch)
            if latch.left or not latch.tested:
                raise Declined(DeclineReason.CONTROL_FLOW, "a loop goes on without its test")
            for local, form in plan.closed.items():
                value, after = latch.locals[local], plan.at(form.affine, shift(counter(plan.counter), 1))
                if not isinstance(value, Integer) or not latch.scope.equal(value.affine, after, BITS[form.type]):
                    raise Declined(DeclineReason.CONTROL_FLOW, "a recurrence")
            for local, held in self.floats.items():
                count = plan.floats[local]
                operands = (count.step, held) if count.step_first else (held, count.step)
                if latch.locals[local] is not walk.operation(count.kind, f"{count.kind}.add", operands):
                    raise Declined(DeclineReason.CONTROL_FLOW, "a recurrence")
            for local, cell in self.cells.items():
                value = latch.locals[local]
                if value is None:
                    raise Declined(DeclineReason.MALFORMED)
                after_value = walk.value(value)
                self.latch_values.setdefault(local, []).append(after_value)
                if not (isinstance(after_value, Carried) and after_value.cell is cell):
                    walk.record(latch, SetCell(cell, after_value))

    def _require_same_guards(self, state: WalkState) -> None:
        if state.guards != self.state.guards:
            raise Declined(DeclineReason.DATA_DEPENDENT, "how a loop goes on")

    def _overwritten(self, local: int, first_store: int) -> bool:
        """Return whether a store may change what a reload repeats, between the first load and its use."""
        walk, load = self.walk, self.virtual[local]
        here, first = walk.loads[load], self.state.locals[local]
        there = walk.loads.get(first) if isinstance(first, Load) else None
        if there is None or there.statement.loops != self.state.loops:
            return True
        before = [store for store in walk.stores[:first_store] if store.time > there.time]
        inside = walk.stores[first_store:]
        return any(may_overlap(there, store) for store in before) or any(
            may_overlap_other_iteration(here, store, self.plan.counter) for store in inside
        )

    # ----------------------------------------------------------------------------------------------------- what follows

    def finish(self) -> list[WalkState]:
        """Put the loop into the nest; return the states behind its end."""
        walk, state = self.walk, self.state
        leavers = [(None, end) for end in self.ends] + list(self.frame.exits)
        if not leavers or any(not leaver.left for _, leaver in leavers):
            raise Declined(DeclineReason.CONTROL_FLOW, "a loop is left in more than one place")
        target = leavers[0][0]
        for _, leaver in leavers:
            self._require_same_guards(leaver)
        if any(place != target for place, _ in leavers):
            raise Declined(DeclineReason.CONTROL_FLOW, "a loop is left to several places")
        live = self.block.live_after if target is None else walk.frames[target].block.live
        if target is not None and walk.frames[target].arity:
            raise Declined(DeclineReason.INSTRUCTION, "a block with results around a loop")
        for local, cell in self.cells.items():
            start = state.locals[local]
            if start is not None:
                walk.record(state, SetCell(cell, walk.value(start)))
        after: dict[int, LocalValue] = {}
        around, walk.body = walk.body, self.loop.body
        for local in locals_of(self.block.assigned & live):
            after[local] = self._behind(local, [leaver for _, leaver in leavers])
        walk.body = around
        state.statement = None
        if self.loop.body:
            walk.body.append(self.loop)
        for local in locals_of(self.block.assigned):
            state.locals[local] = after.get(local)
        for load in self.behind:
            walk.record(state, load)
        if target is None:
            return [state]
        walk.leave(target, state)
        return []

    def _behind(self, local: int, leavers: list[WalkState]) -> LocalValue:
        """Return what a local holds behind the loop."""
        values = [leaver.locals[local] for leaver in leavers]
        found = [None if value is None else self._free(value) for value in values]
        first = found[0]
        if first is not None:
            if all(each is first for each in found):
                return first
            if isinstance(first, Integer):
                bits, scope = BITS[first.type], self.state.scope
                if all(isinstance(each, Integer) and scope.equal(each.affine, first.affine, bits) for each in found):
                    return first
        return self._exit_cell(local, leavers)

    def _exit_cell(self, local: int, leavers: list[WalkState]) -> LocalValue:
        walk = self.walk
        values = []
        for leaver in leavers:
            value = leaver.locals[local]
            if value is None:
                raise Declined(DeclineReason.MALFORMED)
            values.append(walk.value(value))
        if not self.at_end:
            raise Declined(DeclineReason.CONTROL_FLOW, "a local behind a loop")
        for other, latched in self.latch_values.items():
            if len(values) == len(latched) == 1 and values[0] is latched[0]:
                return Carried(self.cells[other])
        cell = walk.new_cell(values[0].type, self.outer)
        for leaver, value in zip(leavers, values, strict=True):
            if leaver.twin is not None:
                walk.record(leaver.twin, SetCell(cell, value))
        return Carried(cell)

    def _free(self, value: LocalValue) -> LocalValue | None:
        """Return a value as it is in the last iteration, if it can be told without a cell."""
        plan, last = self.plan, self.last
        if isinstance(value, Integer):
            return Integer(value.type, plan.at(value.affine, last))
        if isinstance(value, Comparison):
            left, right = plan.at(value.left, last), plan.at(value.right, last)
            return Comparison(value.relation, left, right, value.bits)
        return self._free_value(value, {})

    def _free_value(self, value: Value, done: dict[Value, Value | None]) -> Value | None:
        if value in done:
            return done[value]
        result: Value | None = value
        if isinstance(value, Index):
            if self.plan.counter in counters(value.affine):
                result = self.walk.value(Integer(value.type, self.plan.at(value.affine, self.last)))
        elif isinstance(value, Carried):
            inside = self.plan.counter in value.cell.counters
            own = self.at_end and value.cell in self.cells.values()
            result = None if inside or own else value
        elif isinstance(value, Load):
            if not self.at_end and value in self.virtual.values():
                result = Load(value.opcode, self.plan.at(value.pointer, self.last), value.offset)
                self.behind.append(result)
            elif self.loop in self.walk.loads[value].statement.loops:
                result = None
        elif isinstance(value, TurningScalar):
            result = None if self.loop in self.walk.scalars[value].loops else value
        elif isinstance(value, Operation):
            operands = [self._free_value(operand, done) for operand in value.operands]
            known = tuple([operand for operand in operands if operand is not None])
            result = None if len(known) < len(operands) else self.walk.operation(value.type, value.opcode, known)
        done[value] = result
        return result
