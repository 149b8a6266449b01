"""``memory.fill`` and ``memory.copy`` as loops of stores."""

from __future__ import annotations

from collections.abc import Callable

from tensorwasm.offload.affine import add, counter, quotient, shift, subtract
from tensorwasm.offload.analysis.draft import LocalValue, LoopDraft, WalkState
from tensorwasm.offload.analysis.integers import Integer
from tensorwasm.offload.analysis.recording import Recorder
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.declined import Declined, DeclineReason
from tensorwasm.offload.nest import Affine, Constraint, Load, Store


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
