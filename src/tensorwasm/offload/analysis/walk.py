"""Walks the code of a region for concrete integers, and records what it does to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tensorwasm.offload.affine import counter, shift, subtract
from tensorwasm.offload.analysis.draft import LabelFrame, LocalValue, WalkState
from tensorwasm.offload.analysis.integers import (
    BITS,
    Comparison,
    Integer,
    Outcome,
    apply,
    apply_to_comparisons,
    check_divisor,
    number,
    truth,
)
from tensorwasm.offload.analysis.merging import merge, merge_roughly
from tensorwasm.offload.analysis.recording import Recorder, record_copy, record_fill
from tensorwasm.offload.analysis.scope import Scope, Split
from tensorwasm.offload.analysis.tree import CodeBlock
from tensorwasm.offload.analysis.trips import ExitTest
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.lanes import AS_DATA
from tensorwasm.offload.nest import LOAD_BYTES, STORE_BYTES, Affine, Constraint, Load, Store, load_of
from tensorwasm.offload.opcodes import DIVISIONS, ROWS
from tensorwasm.wasm.instructions import Instruction

_MAX_STEPS: Final = 50_000
_MAX_STATES: Final = 16


class CodeWalk(Recorder):
    """Executes code on states whose values are expressions.

    It either records effects, or is ``rough``: then it only finds out how locals change, takes both ways where it
    cannot tell, and forgets what differs between them.
    """

    _steps = 0

    # ------------------------------------------------------------------------------------------------------- structure

    def items(self, items: Sequence[Instruction | CodeBlock], states: list[WalkState]) -> list[WalkState]:
        """Walk a sequence; return the states that reach its end."""
        for item in items:
            if not states:
                break
            self._steps += len(states)
            if self._steps > _MAX_STEPS or len(states) > _MAX_STATES:
                raise Declined(DeclineReason.TOO_LARGE, "paths")
            if isinstance(item, CodeBlock):
                states = [after for state in states for after in self.block(item, state)]
            else:
                step = _STEPS.get(item[0])
                if step is None:
                    raise Declined(DeclineReason.INSTRUCTION, item[0])
                states = [after for state in states for after in step(self, item, state)]
        return states

    def block(self, block: CodeBlock, state: WalkState) -> list[WalkState]:
        """Walk a block from one state; return the states behind its end."""
        if block.kind == "if":
            return self._if(block, state)
        return self._plain(block, [(block.items, state)])

    def _if(self, block: CodeBlock, state: WalkState) -> list[WalkState]:
        sides = self.branches(state, state.stack.pop())
        return self._plain(block, [(block.items if taken else block.otherwise or [], side) for taken, side in sides])

    def _plain(
        self, block: CodeBlock, ways: list[tuple[Sequence[Instruction | CodeBlock], WalkState]]
    ) -> list[WalkState]:
        height = len(ways[0][1].stack) - block.params
        frame = LabelFrame(block, height, block.results, is_loop=False)
        self.frames.append(frame)
        ends = [end for items, state in ways for end in self.items(items, [state])]
        self.frames.pop()
        return self.merge([*frame.arrivals, *ends], block.live, height + block.results)

    def merge(self, states: list[WalkState], live: int, height: int) -> list[WalkState]:
        """Unite states that meet, as far as their values allow it."""
        if self.rough:
            return merge_roughly(self, states, live, height)
        return merge(self, states, live, height)

    def innermost_loop(self, below: int | None = None) -> int:
        """Return the place of the innermost loop's frame, -1 if there is none."""
        for place in range(len(self.frames) if below is None else below, 0, -1):
            if self.frames[place - 1].is_loop:
                return place - 1
        return -1

    def leave(self, target: int, state: WalkState) -> None:
        """Send a state to the label of a frame, or to the loop that it leaves on the way there."""
        loop = self.innermost_loop()
        if target < loop:
            self.frames[loop].exits.append((target, state))
        else:
            self.frames[target].arrivals.append(state)

    # -------------------------------------------------------------------------------------------------------- branches

    def branches(self, state: WalkState, condition: LocalValue) -> list[tuple[bool, WalkState]]:
        """Return the states in which a condition is true, and those in which it is not."""
        if isinstance(condition, Integer):
            condition = truth(condition)
        if isinstance(condition, Comparison):
            outcomes = condition.outcomes(state.scope)
            if outcomes is not None and (len(outcomes) == 1 or not self.turning):
                return self.split(state, outcomes)
        if self.rough:
            return [(True, state.copy()), (False, state)]
        return self.part_ways(state, self.value(condition))

    @staticmethod
    def split(state: WalkState, outcomes: list[Outcome]) -> list[tuple[bool, WalkState]]:
        """Return the state in each part of its scope that is not empty."""
        if len(outcomes) == 1:
            return [(outcomes[0][0], state)]
        scopes = [(taken, Scope(state.scope, constraints)) for taken, constraints in outcomes]
        scopes = [(taken, scope) for taken, scope in scopes if not scope.empty()]
        if len(scopes) == 1:
            return [(scopes[0][0], state)]
        split = Split(len(scopes))
        sides = []
        for taken, scope in scopes:
            side = state.copy()
            scope.split = split
            side.scope, side.statement = scope, None
            sides.append((taken, side))
        return sides

    def branch(self, state: WalkState, depth: int) -> list[WalkState]:
        """Send a state to a label."""
        target = len(self.frames) - 1 - depth
        if target < 0:
            raise Declined(DeclineReason.MALFORMED, "a branch leaves the region")
        frame = self.frames[target]
        if len(state.stack) < frame.height + frame.arity:
            raise Declined(DeclineReason.MALFORMED)
        kept = state.stack[len(state.stack) - frame.arity :]
        state.stack = state.stack[: frame.height] + kept
        self.leave(target, state)
        return []

    def branch_if(self, state: WalkState, depth: int, place: int) -> list[WalkState]:
        """Send a state to a label if the condition on its stack holds."""
        condition = state.stack.pop()
        target, loop = len(self.frames) - 1 - depth, self.innermost_loop()
        if target <= loop:
            if isinstance(condition, Integer):
                condition = truth(condition)
            sides = self._exit_test(state, condition, self.frames[loop], place, stays=target == loop)
            state.tested |= not self.rough and self.frames[loop].bound == place
            if sides is not None:
                taken, staying = sides
                self.branch(taken, depth)
                return staying
        result = []
        for is_taken, side in self.branches(state, condition):
            result += self.branch(side, depth) if is_taken else [side]
        return result

    def branch_table(self, instruction: Instruction, state: WalkState) -> list[WalkState]:
        """Send a state to the label whose number is on its stack, or to the last one."""
        if isinstance(state.stack[-1], Comparison):
            return self._decide(instruction, state, 1)
        labels = instruction[1]
        index, states = state.stack.pop(), [state]
        for case, depth in enumerate(labels[:-1]):
            others = []
            for each in states:
                for is_taken, side in self.branches(each, self._is_case(index, case)):
                    others += self.branch(side, depth) if is_taken else [side]
            states = others
        for each in states:
            self.branch(each, labels[-1])
        return []

    def _is_case(self, index: LocalValue, case: int) -> LocalValue:
        if isinstance(index, Integer):
            return Comparison("eq", index.affine, Affine(case), BITS[index.type])
        return self.operation("i32", "i32.eq", (self.value(index), self.constant("i32", case)))

    def _exit_test(
        self, state: WalkState, condition: LocalValue, frame: LabelFrame, place: int, *, stays: bool
    ) -> tuple[WalkState, list[WalkState]] | None:
        """Return the states for a branch that may end a loop, and for no branch; None if it is not what ends it."""
        if self.rough:
            if isinstance(condition, Comparison) and len(condition.outcomes(state.scope) or ()) == 1:
                return None
            stay = condition if isinstance(condition, Comparison) else None
            if stay is not None and not stays:
                stay = stay.opposite()
            frame.tests.append(ExitTest(place, stay, at_end=stays or frame.has_effects))
            taken = state.copy()
            (state if stays else taken).left = True
            return taken, [state]
        test = frame.leaving
        if test is None or test.place != place:
            return None
        if state.left or state.tested:
            raise Declined(DeclineReason.CONTROL_FLOW, "a loop is left twice")
        going, leaving = state, state.copy()
        leaving.left, leaving.twin, going.tested = True, going, True
        goes = [going]
        if test.at_end:
            going.done = True
        elif frame.trip is not None:
            last = subtract(shift(frame.trip, -1), counter(state.loops[-1].counter))
            going.scope = Scope(going.scope, (Constraint(last),))
            if going.scope.empty():
                goes = []
        if not stays:
            return leaving, goes
        return going, [leaving]

    # --------------------------------------------------------------------------------------------------- instructions

    def numeric(self, instruction: Instruction, state: WalkState) -> list[WalkState]:
        """Execute a numeric instruction."""
        name = instruction[0]
        row = ROWS[name]
        count = len(row.operands)
        operands = state.stack[-count:]
        if any(isinstance(operand, Comparison) for operand in operands):
            known = apply_to_comparisons(name, operands)
            if known is None:
                return self._decide(instruction, state, count)
            state.stack[-count:] = [known]
            return [state]
        result: LocalValue | None = None
        integers = [operand for operand in operands if isinstance(operand, Integer)]
        if len(integers) == count:
            result = apply(name, integers, state.scope)
        if result is None:
            if name in DIVISIONS and not self.rough:
                check_divisor(name, operands[1])
            result = self.operation(row.result, name, tuple([self.value(operand) for operand in operands]))
        state.stack[-count:] = [result]
        return [state]

    def _decide(self, instruction: Instruction, state: WalkState, count: int) -> list[WalkState]:
        """Execute an instruction once for each outcome of the first comparison among its operands."""
        place = next(
            place
            for place in range(len(state.stack) - count, len(state.stack))
            if isinstance(state.stack[place], Comparison)
        )
        condition = state.stack[place]
        step = _STEPS[instruction[0]]
        if (self.rough or self.turning) and not self._is_certain(condition, state):
            state.stack[place] = self.unknown("i32") if self.rough else self.value(condition)
            return step(self, instruction, state)
        result = []
        for is_true, side in self.branches(state, condition):
            side.stack[place] = number("i32", int(is_true))
            result += step(self, instruction, side)
        return result

    @staticmethod
    def _is_certain(condition: LocalValue, state: WalkState) -> bool:
        return isinstance(condition, Comparison) and len(condition.outcomes(state.scope) or ()) == 1

    def select(self, instruction: Instruction, state: WalkState) -> list[WalkState]:
        """Execute a ``select``: of data as an operation, else by going both ways."""
        first, second, condition = state.stack[-3:]
        if isinstance(condition, Integer):
            condition = truth(condition)
        if self.turning and not self.rough and not self._is_certain(condition, state):
            condition = self.value(condition)
        if not isinstance(condition, Comparison):
            if isinstance(first, Comparison) or isinstance(second, Comparison):
                return self._decide(instruction, state, 3)
            values = (self.value(first), self.value(second), self.value(condition))
            state.stack[-3:] = [self.operation(values[0].type, "select", values)]
            return [state]
        del state.stack[-3:]
        if self.rough and not self._is_certain(condition, state):
            kind = first.type if not isinstance(first, Comparison) else "i32"
            state.stack.append(first if first == second else self.unknown(kind))
            return [state]
        result = []
        for is_true, side in self.branches(state, condition):
            side.stack.append(first if is_true else second)
            result.append(side)
        return result

    def load(self, instruction: Instruction, state: WalkState) -> list[WalkState]:
        """Execute a load."""
        pointer = state.stack[-1]
        if isinstance(pointer, Comparison):
            return self._decide(instruction, state, 1)
        load = Load(instruction[0], self._pointer(pointer), instruction[1][1])
        if self.note_effect(state):
            self.record(state, load)
        state.stack[-1] = load
        return [state]

    def store(self, instruction: Instruction, state: WalkState) -> list[WalkState]:
        """Execute a store."""
        pointer, value = state.stack[-2:]
        if isinstance(pointer, Comparison) or isinstance(value, Comparison):
            return self._decide(instruction, state, 2)
        del state.stack[-2:]
        if self.note_effect(state):
            self._record_store(
                state, Store(instruction[0], self._pointer(pointer), instruction[1][1], self.value(value))
            )
        return [state]

    def _record_store(self, state: WalkState, store: Store) -> None:
        """Add a store; where the state's guards do not hold, it writes what is there."""
        value = store.value
        if state.guards:
            old = Load(load_of(store.opcode), store.pointer, store.offset)
            self.record(state, old)
            for guard in reversed(state.guards):
                value = self.selected(guard, value, old)
        self.record(state, Store(store.opcode, store.pointer, store.offset, value))

    def _pointer(self, value: LocalValue) -> Affine:
        if isinstance(value, Integer):
            return value.affine
        if self.rough:
            return self.unknown_integer("i32").affine
        raise Declined(DeclineReason.DATA_DEPENDENT, "an address")

    def bulk(self, instruction: Instruction, state: WalkState) -> list[WalkState]:
        """Execute ``memory.fill`` or ``memory.copy``."""
        if any(isinstance(operand, Comparison) for operand in state.stack[-3:]):
            return self._decide(instruction, state, 3)
        destination, source, size = state.stack[-3:]
        del state.stack[-3:]
        if self.note_effect(state):
            if state.guards or self.turning:
                raise Declined(DeclineReason.DATA_DEPENDENT, "whether memory is filled or copied")
            record = record_fill if instruction[0] == "memory.fill" else record_copy
            record(self, state, instruction[-1], destination, source, size)
        return [state]


def _get(_walk: CodeWalk, instruction: Instruction, state: WalkState) -> list[WalkState]:
    value = state.locals[instruction[1]]
    if value is None:
        raise Declined(DeclineReason.MALFORMED, "a local that is not an input")
    state.stack.append(value)
    return [state]


def _set(_walk: CodeWalk, instruction: Instruction, state: WalkState) -> list[WalkState]:
    state.locals[instruction[1]] = state.stack.pop()
    return [state]


def _tee(_walk: CodeWalk, instruction: Instruction, state: WalkState) -> list[WalkState]:
    state.locals[instruction[1]] = state.stack[-1]
    return [state]


def _drop(_walk: CodeWalk, _instruction: Instruction, state: WalkState) -> list[WalkState]:
    state.stack.pop()
    return [state]


def _push(walk: CodeWalk, instruction: Instruction, state: WalkState) -> list[WalkState]:
    name, value = instruction
    if name == "global.get":
        state.stack.append(walk.globals[value])
    elif name in {"i32.const", "i64.const"}:
        state.stack.append(number(name[:3], value))
    else:
        state.stack.append(walk.constant(name[:3], value))
    return [state]


_Step = Callable[[CodeWalk, Instruction, WalkState], list[WalkState]]

_STEPS: Final[Mapping[str, _Step]] = {
    **dict.fromkeys(ROWS, CodeWalk.numeric),
    **dict.fromkeys(LOAD_BYTES, CodeWalk.load),
    **dict.fromkeys(STORE_BYTES, CodeWalk.store),
    **dict.fromkeys(("i32.const", "i64.const", "f32.const", "f64.const", "global.get"), _push),
    **dict.fromkeys(("select", "select_t"), CodeWalk.select),
    **dict.fromkeys(("memory.fill", "memory.copy"), CodeWalk.bulk),
    "local.get": _get,
    "local.set": _set,
    "local.tee": _tee,
    "drop": _drop,
    AS_DATA: lambda walk, _instruction, state: walk.as_data(state),
    "nop": lambda _walk, _instruction, state: [state],
    "br": lambda walk, instruction, state: walk.branch(state, instruction[1]),
    "br_if": lambda walk, instruction, state: walk.branch_if(state, instruction[1], instruction[2]),
    "br_table": CodeWalk.branch_table,
}
"""What each instruction does to a state; those that are not here are declined."""
