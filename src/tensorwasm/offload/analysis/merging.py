"""Unites the states of paths that meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tensorwasm.offload.analysis.draft import Guard, LocalValue, WalkState
from tensorwasm.offload.analysis.integers import BITS, Comparison, Integer
from tensorwasm.offload.analysis.scope import Scope
from tensorwasm.offload.analysis.tree import locals_of
from tensorwasm.offload.nest import Value, ValueType


class UnknownValues(Protocol):
    """Makes values of which nothing is known."""

    def unknown(self, kind: ValueType) -> LocalValue:
        """Return a new one."""


class ValueMaker(Protocol):
    """Makes values of others."""

    def value(self, value: LocalValue) -> Value:
        """Return what a local holds as a value of the nest."""

    def selected(self, guard: Guard, value: Value, other: Value) -> Value:
        """Return one value where a guard holds, and another one elsewhere."""


def merge(maker: ValueMaker, states: list[WalkState], live: int, height: int) -> list[WalkState]:
    """Unite states that are the ways of a fork, or all parts of one scope that agree in all that is live."""
    for state in states:
        _trim(state, live, height)
    waiting = True
    while waiting and len(states) > 1:
        waiting = False
        states = unite_ways(maker, states, live)
        for split in dict.fromkeys(state.scope.split for state in states):
            parts = [state for state in states if state.scope.split is split]
            united = _join(parts, live) if split is not None and len(parts) == split.parts else None
            if united is not None:
                states = [united, *[state for state in states if state.scope.split is not split]]
                waiting = True
                break
        if not waiting and (divided := _in_parts(states)) is not None:
            states, waiting = divided, True
    return states


def _in_parts(states: list[WalkState]) -> list[WalkState] | None:
    """Divide a state, on one way of a fork, like the states on the other way; None if there is none such."""
    for state in states:
        for other in states:
            if other.scope.parent is state.scope and _are_ways(*_by_way(state, replace(other, scope=state.scope))):
                parts = [each.scope for each in states if each.scope.split is other.scope.split]
                if other.scope.split is not None and len(parts) == other.scope.split.parts:
                    divided = [replace(state.copy(), scope=scope, statement=None) for scope in parts]
                    return [*divided, *[each for each in states if each is not state]]
    return None


def _by_way(*states: WalkState) -> list[WalkState]:
    return sorted(states, key=lambda state: not (state.guards and state.guards[-1][1]))


def unite_ways(maker: ValueMaker, states: list[WalkState], live: int) -> list[WalkState]:
    """Unite states that differ only in the way that they took at a fork; what they do not agree in is selected."""
    states = list(states)
    while len(states) > 1:
        pairs = ((one, other) for one in states for other in states if _are_ways(one, other))
        pair = next(pairs, None)
        if pair is None:
            break
        states = [_select(maker, *pair, live), *[state for state in states if state not in pair]]
    return states


def _are_ways(one: WalkState, other: WalkState) -> bool:
    """Return whether the first state took one way of a fork and the second, which is like it, the other one."""
    if not one.guards or not other.guards or one.guards[:-1] != other.guards[:-1]:
        return False
    (parting, way), (other_parting, other_way) = one.guards[-1], other.guards[-1]
    flags = [(each.left, each.tested, each.done, each.scope) for each in (one, other)]
    return parting is other_parting and way and not other_way and flags[0] == flags[1]


def _select(maker: ValueMaker, one: WalkState, other: WalkState, live: int) -> WalkState:
    united = one.copy()

    def selected(first: LocalValue, second: LocalValue) -> LocalValue:
        same = _same(first, second, [one.scope], other.scope)
        return maker.selected(one.guards[-1], maker.value(first), maker.value(second)) if same is None else same

    for local in locals_of(live):
        first, second = one.locals[local], other.locals[local]
        united.locals[local] = None if first is None or second is None else selected(first, second)
    united.stack = [selected(*pair) for pair in zip(one.stack, other.stack, strict=True)]
    united.guards = one.guards[:-1]
    united.statement = one.statement if one.statement is other.statement else None
    return united


def merge_roughly(unknown: UnknownValues, states: list[WalkState], live: int, height: int) -> list[WalkState]:
    """Unite all states in one, in which nothing is known of what they do not agree in."""
    for state in states:
        _trim(state, live, height)
    if len(states) < 2:
        return states
    first, *others = states
    for other in others:
        for local in locals_of(live):
            one, two = first.locals[local], other.locals[local]
            if one is not None and two is not None:
                first.locals[local] = _rough(unknown, one, two, [first.scope], other.scope)
        first.stack = [
            _rough(unknown, one, two, [first.scope], other.scope)
            for one, two in zip(first.stack, other.stack, strict=False)
        ]
        first.left &= other.left
        around = set(map(id, other.scope.chain()))
        first.scope = next(scope for scope in first.scope.chain() if id(scope) in around)
    return [first]


def _rough(
    unknown: UnknownValues, one: LocalValue, two: LocalValue, before: Sequence[Scope], scope: Scope
) -> LocalValue:
    same = _same(one, two, before, scope)
    return unknown.unknown("i32" if isinstance(one, Comparison) else one.type) if same is None else same


def _trim(state: WalkState, live: int, height: int) -> None:
    del state.stack[height:]
    for local, value in enumerate(state.locals):
        if value is not None and not live >> local & 1:
            state.locals[local] = None


def _join(states: list[WalkState], live: int) -> WalkState | None:
    first = states[0]
    parent = first.scope.parent
    flags = {(each.left, each.tested, each.done, each.guards) for each in states}
    if parent is None or first.left or len(flags) > 1:
        return None
    joined = first.copy()
    for place, other in enumerate(states[1:], 1):
        before = [state.scope for state in states[:place]]
        for local in locals_of(live):
            one, two = joined.locals[local], other.locals[local]
            if one is None or two is None:
                joined.locals[local] = None
                continue
            joined.locals[local] = same = _same(one, two, before, other.scope)
            if same is None:
                return None
        for depth, (one, two) in enumerate(zip(joined.stack, other.stack, strict=True)):
            same = _same(one, two, before, other.scope)
            if same is None:
                return None
            joined.stack[depth] = same
    joined.scope, joined.statement = parent, None
    return joined


def _same(one: LocalValue, two: LocalValue, before: Sequence[Scope], scope: Scope) -> LocalValue | None:
    """Return a value that is equal to one value in some scopes and to another value in one more scope."""
    if one is two or (isinstance(one, Integer | Comparison) and one == two):
        return one
    if isinstance(one, Integer) and isinstance(two, Integer) and one.type == two.type:
        bits = BITS[one.type]
        if scope.equal(one.affine, two.affine, bits):
            return one
        if all(each.equal(one.affine, two.affine, bits) for each in before):
            return two
    return None
