"""The nest that a walk records: its statements, its cells, one node for each value, and which accesses may meet.

``memory.fill`` and ``memory.copy`` are loops of stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tensorwasm.offload.affine import add, counter, quotient, shift, substitute, subtract
from tensorwasm.offload.analysis.draft import (
    Fork,
    Guard,
    LabelFrame,
    LocalValue,
    LoopDraft,
    StatementDraft,
    TimedAccess,
    TurningLoop,
    WalkState,
)
from tensorwasm.offload.analysis.integers import BITS, Comparison, Integer
from tensorwasm.offload.analysis.scope import Scope, symbol
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import (
    Affine,
    Cell,
    Constant,
    Constraint,
    Effect,
    Index,
    Input,
    Load,
    Operation,
    Store,
    TurningScalar,
    Value,
    ValueType,
    While,
)

_MAX_EFFECTS: Final = 2048
_MAX_VALUE_DEPTH: Final = 200
_OTHER_ITERATION: Final = (1 << 20) - 1
"""A counter that stands for another iteration of a loop."""


class Recorder:
    """What is recorded, and what is known of the function.

    Attributes:
        types: of the function's locals.
        counters: the number of each loop, by its place in the body; that of an outer loop is lower.
        globals: values of those that can be read.
        frames: of the blocks that are being walked, outermost first.
        rough: of how many loops the walk is only to find out how locals change; then nothing is recorded.
        body: the nest, or the part of it inside the loop that is being walked.
        time: how many loads and stores there are.
        virtual: loads that the program does not have.
        remembered: of each loop, by its place, which locals grew by a constant, and by which.
        symbols: how many unknown values there are.
        turning: loops of data that are being walked, outermost first.
        scalars: those of loops of data, and the statements that these are in.
    """

    def __init__(
        self, types: Sequence[ValueType], counters: Mapping[int, int], global_values: Mapping[int, Integer]
    ) -> None:
        self.types = types
        self.counters = counters
        self.globals = global_values
        self.frames: list[LabelFrame] = []
        self.rough = 0
        self.body: list[LoopDraft | StatementDraft] = []
        self.time = 0
        self.stores: list[TimedAccess] = []
        self.loads: dict[Load, TimedAccess] = {}
        self.virtual: set[Load] = set()
        self.remembered: dict[int, dict[int, int]] = {}
        self.symbols = 0
        self.turning: list[TurningLoop] = []
        self.scalars: dict[TurningScalar, StatementDraft] = {}
        self._cells = 0
        self._nodes: dict[tuple[object, ...], Value] = {}
        self._depths: dict[Value, int] = {}

    def note_effect(self, state: WalkState) -> bool:
        """Take note that the code has an effect; return whether it is to be recorded."""
        for frame in self.frames:
            frame.has_effects = True
        if not self.rough and (state.left or state.done):
            raise Declined(DeclineReason.CONTROL_FLOW, "effects on both sides of a loop's exit")
        return not self.rough

    def open(self, state: WalkState) -> StatementDraft:
        """Return the state's statement, a new one if none is open."""
        if state.statement is None:
            state.statement = StatementDraft(state.scope, state.loops, self.time)
            self.body.append(state.statement)
        return state.statement

    def record(self, state: WalkState, effect: Effect) -> None:
        """Add an effect to the state's statement."""
        effects: list[Effect] = self.open(state).effects
        if self.turning:
            if not isinstance(effect, Load | While):
                raise Declined(self.turning[-1].reason, "a loop's end")
            self.turning[-1].effects.append(effect)
        else:
            effects.append(effect)
        if isinstance(effect, Load | Store):
            self.time += 1
            if self.time > _MAX_EFFECTS:
                raise Declined(DeclineReason.TOO_LARGE, "loads and stores")
            access = TimedAccess(effect, self.time, self.open(state))
            if isinstance(effect, Load):
                self.loads[effect] = access
            else:
                self.stores.append(access)

    def new_cell(self, kind: ValueType, counters: tuple[int, ...]) -> Cell:
        """Return a new cell, one for each value of the counters."""
        self._cells += 1
        return Cell(self._cells - 1, kind, counters)

    def value(self, value: LocalValue) -> Value:
        """Return a local's value as one of the nest."""
        if isinstance(value, Integer):
            if value.constant is not None:
                return self.constant(value.type, value.constant)
            key = ("index", value.type, value.affine)
            return self._nodes.setdefault(key, Index(value.type, value.affine))
        if isinstance(value, Comparison):
            kind: ValueType = "i64" if value.bits == 64 else "i32"
            sides = (self.value(Integer(kind, value.left)), self.value(Integer(kind, value.right)))
            return self.operation("i32", f"{kind}.{value.relation}", sides)
        return value

    def as_data(self, state: WalkState) -> list[WalkState]:
        """Make what is on a state's stack a value of the nest."""
        state.stack[-1] = self.value(state.stack[-1])
        return [state]

    def selected(self, guard: Guard, value: Value, other: Value) -> Value:
        """Return one value where a guard holds, and another one elsewhere."""
        parting, way = guard
        values = (value, other) if way else (other, value)
        return self.operation(value.type, "select", (*values, parting.condition))

    def constant(self, kind: ValueType, bits: int) -> Value:
        """Return a constant's only node."""
        return self._nodes.setdefault(("constant", kind, bits), Constant(kind, bits))

    def operation(self, kind: ValueType, opcode: str, operands: tuple[Value, ...]) -> Value:
        """Return an operation's only node."""
        key = (opcode, operands)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Operation(kind, opcode, operands)
            depth = self._depths[found] = 1 + max([self._depths.get(operand, 0) for operand in operands])
            if depth > _MAX_VALUE_DEPTH:
                raise Declined(DeclineReason.TOO_LARGE, "operations on operations")
        return found

    def part_ways(self, state: WalkState, condition: Value) -> list[tuple[bool, WalkState]]:
        """Return the state on both ways of a condition."""
        self.open(state)  # for both
        parting, taken = Fork(condition), state.copy()
        taken.guards, state.guards = (*state.guards, (parting, True)), (*state.guards, (parting, False))
        return [(True, taken), (False, state)]

    def guarded(self, state: WalkState) -> Value | None:
        """Return a value that is 0 where a state's guards do not hold; None if there are none."""
        holds: Value | None = None
        for guard in reversed(state.guards):
            rest = self.constant("i32", 1) if holds is None else holds
            holds = self.selected(guard, rest, self.constant("i32", 0))
        return holds

    def unknown(self, kind: ValueType) -> LocalValue:
        """Return a value of which nothing is known."""
        if kind in BITS:
            return self.unknown_integer(kind)
        self.symbols += 1
        return Input(kind, -self.symbols)

    def unknown_integer(self, kind: ValueType) -> Integer:
        """Return an integer of which nothing is known."""
        self.symbols += 1
        return Integer(kind, counter(symbol(self.symbols, BITS[kind])))


def may_overlap(load: TimedAccess, store: TimedAccess) -> bool:
    """Return whether two accesses may meet in one iteration of the loops around the load, which are around both."""
    scope = Scope(load.statement.scope, _constraints(store.statement.scope))
    return _may_meet(_address(load), _address(store), load, store, scope)


def may_overlap_other_iteration(load: TimedAccess, store: TimedAccess, loop: int) -> bool:
    """Return whether two accesses may meet in any two iterations of a loop and one iteration of the loops around it."""
    store_address = _address(store)
    renamed = {loop: counter(_OTHER_ITERATION)}
    constraints = [
        Constraint(substitute(each.value, renamed), each.equality) for each in _constraints(store.statement.scope)
    ]
    scope = Scope(load.statement.scope, tuple(constraints))
    if store_address is not None:
        store_address = substitute(store_address, renamed)
    return _may_meet(_address(load), store_address, load, store, scope)


def _constraints(scope: Scope) -> tuple[Constraint, ...]:
    return tuple([constraint for each in scope.chain() for constraint in each.constraints])


def _address(access: TimedAccess) -> Affine | None:
    exact = access.statement.scope.exact(access.effect.pointer, 0, 32)
    return None if exact is None else shift(exact, access.effect.offset)


def _may_meet(
    load_address: Affine | None, store_address: Affine | None, load: TimedAccess, store: TimedAccess, scope: Scope
) -> bool:
    if load_address is None or store_address is None:
        return True
    distance = subtract(store_address, load_address)
    lower, upper = scope.lower(distance), scope.upper(distance)
    is_behind = lower is not None and lower >= load.effect.size_bytes
    return not is_behind and not (upper is not None and upper <= -store.effect.size_bytes)


def record_fill(
    recorder: Recorder, state: WalkState, place: int, destination: LocalValue, value: LocalValue, size: LocalValue
) -> None:
    """Record stores of a value's lowest byte to so many addresses."""
    pointer, size_bytes = _exact(state.scope, destination), _size(state.scope, size)
    byte = value.constant if isinstance(value, Integer) else None
    unit = _unit(state.scope, size_bytes) if byte is not None else 1
    opcode = {1: "i32.store8", 4: "i32.store", 8: "i64.store"}[unit]
    bits = int.from_bytes(bytes([(byte or 0) % 256]) * unit, "little")
    stored = recorder.value(value) if byte is None else recorder.constant("i64" if unit == 8 else "i32", bits)

    def iteration(inner: WalkState, offset: Affine) -> None:
        recorder.record(inner, Store(opcode, add(pointer, offset), 0, stored))

    _record_loop(recorder, state, place, (size_bytes, unit), iteration)


def record_copy(
    recorder: Recorder, state: WalkState, place: int, destination: LocalValue, source: LocalValue, size: LocalValue
) -> None:
    """Record loads and stores of so many bytes that do not overlap."""
    to, start, size_bytes = _exact(state.scope, destination), _exact(state.scope, source), _size(state.scope, size)
    if not any((state.scope.lower(subtract(distance, size_bytes)) or -1) >= 0 for distance in _distances(to, start)):
        raise Declined(DeclineReason.NOT_AFFINE, "a copy that may overlap")
    unit = _unit(state.scope, size_bytes)
    load, store = {1: ("i32.load8_u", "i32.store8"), 4: ("i32.load", "i32.store"), 8: ("i64.load", "i64.store")}[unit]

    def iteration(inner: WalkState, offset: Affine) -> None:
        value = Load(load, add(start, offset), 0)
        recorder.record(inner, value)
        recorder.record(inner, Store(store, add(to, offset), 0, value))

    _record_loop(recorder, state, place, (size_bytes, unit), iteration)


def _record_loop(
    recorder: Recorder,
    state: WalkState,
    place: int,
    size_and_unit: tuple[Affine, int],
    iteration: Callable[[WalkState, Affine], None],
) -> None:
    size_bytes, unit = size_and_unit
    trip, index = quotient(size_bytes, unit), counter(recorder.counters[place])
    loop = LoopDraft(recorder.counters[place], trip, began=recorder.time)
    limits = (Constraint(index), Constraint(subtract(shift(trip, -1), index)))
    inner = WalkState([], [], Scope(state.scope, limits), (*state.loops, loop))
    around, recorder.body = recorder.body, loop.body
    iteration(inner, add(Affine(), index, unit))
    recorder.body = around
    loop.ended = recorder.time
    recorder.body.append(loop)
    state.statement = None


def _distances(one: Affine, other: Affine) -> tuple[Affine, Affine]:
    return subtract(one, other), subtract(other, one)


def _exact(scope: Scope, value: LocalValue) -> Affine:
    exact = scope.exact(value.affine, 0, 32) if isinstance(value, Integer) else None
    if exact is None:
        reason = DeclineReason.NOT_AFFINE if isinstance(value, Integer) else DeclineReason.DATA_DEPENDENT
        raise Declined(reason, "a range of memory")
    return exact


def _size(scope: Scope, value: LocalValue) -> Affine:
    """Return a size that is at least 1: an empty range is checked too, though nothing is there to access."""
    size_bytes = _exact(scope, value)
    if (scope.lower(size_bytes) or 0) < 1:
        raise Declined(DeclineReason.NOT_AFFINE, "a range of memory that may be empty")
    return size_bytes


def _unit(scope: Scope, size_bytes: Affine) -> int:
    return next(unit for unit in (8, 4, 1) if scope.residue(size_bytes, unit) == 0)
